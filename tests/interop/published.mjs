// One story, told as one step: a published client (the official TypeScript SDK), a
// published server (`servers/`), Ringway between. The steps of the table look at each of
// its parts more closely; here the messages count as they pass the client's transport.

import assert from "node:assert/strict";

import { events, failure, progressOf, recordingFetch, required, step, streamOpen, until } from "./steps.mjs";
import { load } from "./typescript_sdk.mjs";

const sdk = await load("v2", "legacy");
const token = "the client's own, \u00e9 \ud834\udd1e";

async function connect() {
  const seen = [];
  const messages = [];
  const client = sdk.newClient();
  const transport = sdk.newTransport(recordingFetch(seen));
  await client.connect(transport);
  const deliver = transport.onmessage;
  transport.onmessage = (message, extra) => {
    messages.push(message);
    deliver(message, extra);
  };
  return {
    client,
    seen,
    get session() {
      return transport.sessionId;
    },
    progress: () => messages.filter(({ method }) => method === "notifications/progress"),
    messages,
    transport,
  };
}

/** A call that lasts until it is cancelled, once the server is at work on it. */
async function waiting({ client }) {
  const before = events("wait began");
  const abort = new AbortController();
  const ended = failure(sdk.call(client, { name: "wait", arguments: {} }, { signal: abort.signal }));
  await until(() => events("wait began") > before);
  return { cancel: () => abort.abort("not wanted any more"), ended };
}

await step("published", "published-client-and-server", async () => {
  const one = await connect();
  assert.equal(one.client.getServerVersion().name, `interop-${required("INTEROP_SERVER")}`);
  assert.deepEqual(
    one.seen.filter(({ http }) => http === "POST").map(({ rpc }) => rpc),
    ["initialize", "notifications/initialized"],
  );
  await until(() => events("initialized") === 1);
  const { tools } = await one.client.listTools();
  assert.ok(tools.some(({ name }) => name === "steps"));

  // The second is there all the time, with its stream open and a call in flight.
  const two = await connect();
  await streamOpen(two);
  const theirs = await waiting(two);

  one.messages.length = 0;
  const call = { name: "steps", arguments: { count: 5 }, _meta: { progressToken: token } };
  const { content } = await sdk.call(one.client, call);
  assert.equal(content[0].text, "done after 5 steps");
  const told = one.messages.map(({ method, params, result }) =>
    method === undefined ? result.content[0].text : [params.progressToken, params.progress],
  );
  assert.deepEqual(told, [...progressOf(5).map(({ progress }) => [token, progress]), "done after 5 steps"]);
  assert.deepEqual(two.progress(), []);

  const mine = await waiting(one);
  mine.cancel();
  await mine.ended;
  await until(() => events("wait cancelled") === 1);
  const echo = await sdk.call(two.client, { name: "echo", arguments: { message: "still" } });
  assert.equal(echo.content[0].text, "still");
  assert.equal(events("wait cancelled"), 1, "only the call that was cancelled");
  theirs.cancel();
  await theirs.ended;
  await until(() => events("wait cancelled") === 2);
  assert.deepEqual(two.progress(), []);

  for (const { client, transport } of [one, two]) {
    await transport.terminateSession();
    await client.close();
  }
  await until(() => events("deleted") === 2);
  return { detail: "five messages with its token and then the result; none for the other; the server has stopped" };
});
process.exit(0);
