// The official TypeScript clients, and the first of them behind the bridge `mcp-remote`,
// before routes: `node typescript_routes.mjs v1|v2|mcp-remote legacy|auto`. The environment
// says where the routes are and which servers are behind them (see routes.mjs).

import assert from "node:assert/strict";

import * as routes from "./routes.mjs";
import {
  describe,
  endSessionElsewhere,
  events,
  failure,
  fragile,
  progressOf,
  recordingFetch,
  statusInside,
  step,
  streamOpen,
  until,
  url,
} from "./steps.mjs";
import { load } from "./typescript_sdk.mjs";

const { asking, known, note, servers } = routes;
const [generation, mode] = process.argv.slice(2);
assert.ok(mode === "legacy" || (mode === "auto" && generation !== "v1"), `no mode ${mode} in ${generation}`);
const bridged = generation === "mcp-remote";
const sdk = await load(generation, mode);
const name = bridged ? `mcp-remote ${mode}` : `typescript-${generation} ${mode}`;

async function connect(at) {
  const fetched = [];
  const messages = [];
  const heard = { updated: [], asked: [] };
  const client = sdk.newClient({ sampling: {}, elicitation: {}, roots: {} });
  sdk.listen(client, "notifications/resources/updated", ({ params }) => heard.updated.push(params.uri));
  sdk.answer(client, "sampling/createMessage", ({ params }) => {
    const question = params.messages[0].content;
    heard.asked.push("sampling");
    return { role: "assistant", model: "none", content: { type: "text", text: `${question.text}? ${fragile}` } };
  });
  sdk.answer(client, "elicitation/create", ({ params }) => {
    heard.asked.push("elicitation");
    return { action: "accept", content: { name: `Ada of ${params.message}` } };
  });
  sdk.answer(client, "roots/list", () => {
    heard.asked.push("roots");
    return { roots: [{ uri: routes.root }] };
  });
  const transport = sdk.newTransport(recordingFetch(fetched), at);
  await client.connect(transport);
  // The bridge ends the handshake when the client is already through with it.
  if (bridged) await until(() => transport.protocolVersion !== undefined);
  // What has come is noted before the client makes something of it.
  const deliver = transport.onmessage;
  transport.onmessage = (message, extra) => {
    messages.push(message);
    deliver(message, extra);
  };
  return {
    client,
    transport,
    heard,
    messages,
    get seen() {
      return bridged ? transport.seen : fetched;
    },
    get session() {
      return transport.sessionId;
    },
  };
}

/** Ends a connection and its session, which `mcp-remote` leaves to others. */
async function end({ client, transport, session }, at = url) {
  if (!bridged) await transport.terminateSession();
  await client.close();
  if (bridged) await endSessionElsewhere(session, at);
}

function all({ client }, list) {
  const ask = {
    tools: (params) => client.listTools(params),
    resources: (params) => client.listResources(params),
    resourceTemplates: (params) => client.listResourceTemplates(params),
    prompts: (params) => client.listPrompts(params),
  }[list];
  return routes.allPages(list, (cursor) => ask(cursor === undefined ? undefined : { cursor }));
}

async function call({ client }, tool, given = {}, options = undefined) {
  const { content } = await sdk.call(client, { name: tool, arguments: given }, options);
  return content[0].text;
}

/** Calls a tool that tells its progress: each message comes once, in order, before the result. */
async function progress(connection, tool, count) {
  const told = [];
  connection.messages.length = 0;
  const text = await call(connection, tool, { count }, { onprogress: (progress) => told.push(progress) });
  const before = [...told];
  assert.equal(text, `done after ${count} steps`);
  const came = connection.messages.filter(({ method, result }) => result || method === "notifications/progress");
  assert.deepEqual(
    came.map(({ params, result }) => result?.content[0].text ?? params.progress),
    [...progressOf(count).map(({ progress }) => progress), text],
  );
  const tokens = new Set(came.flatMap(({ params }) => params?.progressToken ?? []));
  assert.ok(tokens.size <= 1, "one token, the call's own");
  // What reaches the client on the bridge's pipe together with the result comes too late
  // for its handlers, which are called later than the result's.
  if (!bridged) assert.deepEqual(before, progressOf(count));
}

await step(name, "one", async () => {
  const connection = await connect(routes.oneUrl);
  const tool = routes.checkOne(await all(connection, "tools"));
  await progress(connection, tool, 5);
  await progress(connection, tool, 100);
  await end(connection, routes.oneUrl);
  return { detail: `${tool}: listed; 5 and 100 messages in order, then the result` };
});

const main = await step(name, "connect", async () => {
  const connection = await connect(url);
  const { client, transport, seen } = connection;
  assert.equal(client.getServerVersion().name, routes.serverName);
  assert.equal(transport.protocolVersion, "2025-11-25");
  assert.equal(
    seen.some(({ rpc }) => rpc === "server/discover"),
    mode === "auto",
  );
  const { tools, resources, prompts, completions } = client.getServerCapabilities();
  assert.ok(tools && prompts && completions && resources.subscribe === true, "the capabilities of all");
  await until(() => servers.every((server) => events(`${server} initialized`) > 0));
  return { value: connection, detail: `2025-11-25; ${servers.join(", ")}: initialized` };
});
if (!main) process.exit(1);
const { client } = main;

await step(name, "list", () =>
  routes.checkLists(
    (list) => all(main, list),
    () => main.seen.filter(({ rpc }) => rpc === "tools/list").length,
  ),
);

const called = (tool, given = {}) => sdk.call(client, { name: tool, arguments: given });

await step(name, "call", () => routes.callEach(called, 60));

await step(name, "progress", async () => {
  for (const server of servers) await progress(main, known(server, "stream_processor"), 20);
  return { detail: "20 messages of each, in order and before the result" };
});

const read = (uri) => client.readResource({ uri });

await step(name, "read", () => routes.readListed((list) => all(main, list), read));

await step(name, "embedded", () => routes.readEmbedded((prompt) => client.getPrompt({ name: prompt }), called, read));

await step(name, "subscribe", async () => {
  await streamOpen(main);
  const { updated } = main.heard;
  for (const server of servers) {
    const tool = known(server, "touch");
    updated.length = 0;
    assert.equal(await call(main, tool), "nobody has subscribed");
    await client.subscribeResource({ uri: note(server) });
    assert.equal(await call(main, tool), "touched");
    await until(() => updated.length > 0);
    await client.unsubscribeResource({ uri: note(server) });
    await until(async () => (await call(main, tool)) === "nobody has subscribed");
    assert.ok(
      updated.every((uri) => uri === note(server)),
      `told of ${updated}`,
    );
  }
  return { detail: "told under the public URI of each, nobody told before and after" };
});

await step(name, "complete", () => routes.completeEach((params) => client.complete(params)));

await step(name, "cancel", async () => {
  const ends = [];
  for (const server of servers) {
    const abort = new AbortController();
    const ended = failure(call(main, known(server, "wait"), {}, { signal: abort.signal }));
    await until(() => events(`${server} wait began`) === 1);
    abort.abort("not wanted any more");
    ends.push(describe(await ended));
    await until(() => events(`${server} wait cancelled`) === 1);
  }
  for (const server of servers) assert.equal(events(`${server} wait cancelled`), 1, server);
  return { detail: `each server has stopped: ${ends[0]}` };
});

await step(name, "question", async () => {
  await streamOpen(main);
  for (const [tool, given, text] of routes.questions) assert.equal(await call(main, known(asking, tool), given), text);
  assert.deepEqual(main.heard.asked, ["sampling", "elicitation", "roots"]);
  return { detail: "sampling, elicitation and roots: asked once each, the answers have come" };
});

await step(name, "close", async () => {
  const { session } = main;
  const before = events("deleted");
  await end(main);
  await until(() => events("deleted") === before + 1);
  assert.equal(await statusInside(session), 404);
  // For the gateway to end when it stops, as the runner sees.
  const begun = events(`${asking} initialized`);
  await connect(url);
  await until(() => events(`${asking} initialized`) > begun);
  return { detail: "the server over HTTP has seen the DELETE, then 404" };
});

// Whatever a client keeps open must not keep this program.
process.exit(0);
