// The official TypeScript clients, and the first of them behind the bridge `mcp-remote`:
// `node typescript.mjs v1|v2|mcp-remote legacy|auto`. One program for all, for they differ
// in a handful of names, which typescript_sdk.mjs holds. The environment says where
// the gateway is (see steps.mjs).

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

import {
  clock,
  describe,
  endSessionElsewhere,
  failure,
  fragile,
  killServer,
  lists,
  notes,
  progressOf,
  recordingFetch,
  statusInside,
  step,
  streamOpen,
  until,
} from "./steps.mjs";
import { load } from "./typescript_sdk.mjs";

const [generation, mode] = process.argv.slice(2);
assert.ok(mode === "legacy" || (mode === "auto" && generation !== "v1"), `no mode ${mode} in ${generation}`);
const bridged = generation === "mcp-remote";
const sdk = await load(generation, mode);
const name = bridged ? `mcp-remote ${mode}` : `typescript-${generation} ${mode}`;

async function connect() {
  const fetched = [];
  const heard = { changed: [], updated: [], progress: [], progressBefore: new Map() };
  const client = sdk.newClient();
  for (const list of lists) {
    sdk.listen(client, `notifications/${list}/list_changed`, () => heard.changed.push(list));
  }
  sdk.listen(client, "notifications/resources/updated", ({ params }) => heard.updated.push(params.uri));
  const transport = sdk.newTransport(recordingFetch(fetched));
  await client.connect(transport);
  // The bridge ends the handshake when the client is already through with it.
  if (bridged) await until(() => transport.protocolVersion !== undefined);
  // Progress that is none of a client's own reaches no handler, so it is noted before.
  const deliver = transport.onmessage;
  transport.onmessage = (message, extra) => {
    if (message.method === "notifications/progress") heard.progress.push(message.params);
    if (message.id !== undefined && !message.method) heard.progressBefore.set(message.id, [...heard.progress]);
    deliver(message, extra);
  };
  return {
    client,
    transport,
    heard,
    get seen() {
      return bridged ? transport.seen : fetched;
    },
    get session() {
      return transport.sessionId;
    },
  };
}

/** Ends a connection and its session, which `mcp-remote` leaves to others. */
async function end({ client, transport, session }) {
  if (!bridged) await transport.terminateSession();
  await client.close();
  if (bridged) await endSessionElsewhere(session);
}

async function echo(client, message) {
  const { content } = await sdk.call(client, { name: "echo", arguments: { message } });
  return content[0].text;
}

/** Calls `slow` and resolves to the progress that had come when its result did. */
async function progress({ client, heard }, steps, interval_ms) {
  const told = [];
  const call = { name: "slow", arguments: { steps, interval_ms } };
  const { content } = await sdk.call(client, call, { onprogress: (progress) => told.push(progress) });
  const before = [...told];
  assert.equal(content[0].text, `done after ${steps} steps`);
  if (!bridged) return before;
  // What reaches this client on a pipe together with the result comes too late for its
  // handlers, which are called later than the result's. So what has reached it counts.
  const [id, noted] = [...heard.progressBefore].at(-1);
  return noted.filter(({ progressToken }) => progressToken === id).map(({ progressToken, ...rest }) => rest);
}

/** Changes a resource. Resolves to true when the server had somebody to tell. */
async function touch(client, uri) {
  const { content } = await sdk.call(client, { name: "touch", arguments: { uri } });
  if (content[0].text === `touched ${uri}: nobody has subscribed to it`) return false;
  assert.equal(content[0].text, `touched ${uri}: its subscribers were told`);
  return true;
}

const grow = (client, list) => sdk.call(client, { name: "grow", arguments: { list } });

const updates = ({ heard }, uri) => heard.updated.filter((updated) => updated === uri).length;

/**
 * A barrier: what was to come to this client before has come when this resolves. Two
 * updates, for what waits at one time may come in any order.
 */
async function settle(connection) {
  const { client } = connection;
  const before = updates(connection, notes);
  await client.subscribeResource({ uri: notes });
  for (const count of [1, 2]) {
    assert.equal(await touch(client, notes), true);
    await until(() => updates(connection, notes) >= before + count);
  }
  await client.unsubscribeResource({ uri: notes });
  assert.equal(updates(connection, notes), before + 2, "one update for each change");
}

const main = await step(name, "connect", async () => {
  const connected = await connect();
  const { client, transport, seen } = connected;
  assert.equal(client.getServerVersion().name, "ringway-demo");
  assert.equal(transport.protocolVersion, "2025-11-25");
  assert.match(transport.sessionId, /^[\x21-\x7e]{32,}$/);
  // Otherwise this run would show nothing about the automatic mode, or about the other.
  const probe = seen.find((exchange) => exchange.rpc === "server/discover");
  assert.equal(probe !== undefined, mode === "auto");
  return { value: connected, detail: `2025-11-25${probe ? `, after a probe answered with ${probe.status}` : ""}` };
});
if (!main) process.exit(1);
const { client, transport } = main;

await step(name, "list", async () => {
  const tools = (await client.listTools()).tools.map((tool) => tool.name);
  for (const tool of ["echo", "add", "slow", "big", "touch", "grow"]) assert.ok(tools.includes(tool), tool);
  const resources = (await client.listResources()).resources.map((resource) => resource.uri);
  assert.deepEqual(resources.sort(), ["demo://clock", "demo://notes"]);
  const { prompts } = await client.listPrompts();
  assert.equal(prompts[0].name, "greet");
  return { detail: `${tools.length} tools, ${resources.length} resources, ${prompts.length} prompt` };
});

await step(name, "call", async () => {
  assert.equal(await echo(client, fragile), fragile);
  const sum = await sdk.call(client, { name: "add", arguments: { a: 9007199254740991, b: 1 } });
  assert.equal(sum.content[0].text, "9007199254740992");
  return { detail: "echo of a fragile text, a sum past 2^53" };
});

await step(name, "parallel", async () => {
  await Promise.all(
    Array.from({ length: 100 }, async (_, n) => {
      // Different lengths, so that an answer cut or joined elsewhere shows.
      const message = `${transport.sessionId} ${n} ${"x".repeat(n * 17)}`;
      assert.equal(await echo(client, message), message);
    }),
  );
  return { detail: "100 answers, each its own" };
});

await step(name, "tool-error", async () => {
  const result = await sdk.call(client, { name: "add", arguments: { a: "one" } });
  assert.equal(result.isError, true);
  return { detail: result.content[0].text };
});

await step(name, "unknown-method", async () => {
  const error = await failure(sdk.request(client, { method: "ringway/no-such-method", params: {} }));
  assert.equal(error.code, -32601);
  assert.equal(await echo(client, "still here"), "still here");
  return { detail: describe(error) };
});

await step(name, "progress", async () => {
  // Step by step, then all at once.
  assert.deepEqual(await progress(main, 20, 5), progressOf(20));
  assert.deepEqual(await progress(main, 200, 0), progressOf(200));
  return { detail: `${progressOf(220).length} steps, in order and before the results` };
});

await step(name, "subscribe", async () => {
  await streamOpen(main);
  assert.equal(client.getServerCapabilities().resources.subscribe, true);
  await client.subscribeResource({ uri: clock });
  assert.equal(await touch(client, clock), true);
  await until(() => updates(main, clock) > 0);
  const { contents } = await client.readResource({ uri: clock });
  assert.equal(contents[0].text, "tick 1");
  await settle(main);
  assert.equal(updates(main, clock), 1, "one update for one change");
  await client.unsubscribeResource({ uri: clock });
  await touch(client, clock);
  await settle(main);
  assert.equal(updates(main, clock), 1, "none after the end of the subscription");
  await until(async () => !(await touch(client, clock)));
  return { detail: "1 update for 1 change, none after the end; the server was told of both" };
});

await step(name, "list-changed", async () => {
  await streamOpen(main);
  const listed = {
    tools: async () => (await client.listTools()).tools.map((tool) => tool.name),
    resources: async () => (await client.listResources()).resources.map((resource) => resource.name),
    prompts: async () => (await client.listPrompts()).prompts.map((prompt) => prompt.name),
  };
  for (const list of lists) {
    assert.equal(client.getServerCapabilities()[list].listChanged, true, list);
    assert.ok(!(await listed[list]()).includes("extra-1"), list);
    await grow(client, list);
    await until(() => main.heard.changed.includes(list));
    assert.ok((await listed[list]()).includes("extra-1"), list);
  }
  await settle(main);
  assert.deepEqual(main.heard.changed, lists, "each list once");
  return { detail: `${lists.join(", ")}: once each, and listed anew` };
});

await step(name, "two-clients", async () => {
  const one = await connect();
  const two = await connect();
  await streamOpen(one);
  await streamOpen(two);

  // Both have sent the same so far, so both give the same id and token to this call.
  const told = await Promise.all([progress(one, 30, 2), progress(two, 20, 3)]);
  assert.deepEqual(told, [progressOf(30), progressOf(20)]);

  two.heard.progress.length = 0;
  await one.client.subscribeResource({ uri: clock });
  assert.equal(await touch(one.client, clock), true);
  await until(() => updates(one, clock) > 0);
  assert.deepEqual(await progress(one, 10, 1), progressOf(10));
  await settle(one);
  await settle(two);
  assert.equal(updates(one, clock), 1);
  assert.equal(updates(two, clock), 0, "an update for one who has not subscribed");
  assert.deepEqual(two.heard.progress, [], "progress for one who has not called");

  await two.client.subscribeResource({ uri: clock });
  assert.equal(await touch(one.client, clock), true);
  await until(() => updates(one, clock) > 1 && updates(two, clock) > 0);
  await one.client.unsubscribeResource({ uri: clock });
  assert.equal(await touch(one.client, clock), true);
  await until(() => updates(two, clock) > 1);

  await grow(one.client, "tools");
  await until(() => one.heard.changed.length > 0 && two.heard.changed.length > 0);
  await settle(one);
  await settle(two);
  assert.deepEqual([updates(one, clock), updates(two, clock)], [2, 2]);
  assert.deepEqual([one.heard.changed, two.heard.changed], [["tools"], ["tools"]]);

  // The end of a session is the end of its subscriptions.
  await end(two);
  await until(async () => !(await touch(one.client, clock)));
  await end(one);
  return { detail: "each its own progress and updates, both the change of a list" };
});

await step(name, "unknown-session", async () => {
  const other = await connect();
  const { session } = other;
  await endSessionElsewhere(session);
  if (bridged) {
    // The bridge starts a session anew and repeats the call.
    assert.equal(await echo(other.client, "into the void"), "into the void");
    assert.notEqual(other.session, session);
    await end(other);
    assert.equal(await echo(client, "unharmed"), "unharmed");
    return { detail: "the call is answered, in a session of its own" };
  }
  // This client starts no session anew: its caller learns that the session is gone.
  const error = await failure(echo(other.client, "into the void"));
  assert.equal(sdk.statusOf(error), 404, describe(error));
  await other.client.close();
  assert.equal(await echo(client, "unharmed"), "unharmed");
  return { detail: `the call fails: ${describe(error)}` };
});

await step(name, "cancel", async () => {
  const cancel = new AbortController();
  const call = { name: "slow", arguments: { steps: 1000, interval_ms: 1000 } };
  const cancelled = failure(sdk.call(client, call, { signal: cancel.signal }));
  assert.equal(await echo(client, "meanwhile"), "meanwhile");
  cancel.abort("not wanted any more");
  const error = await cancelled;
  await until(() => main.seen.some(({ rpc, status }) => rpc === "notifications/cancelled" && status === 202));
  assert.equal(await echo(client, "afterwards"), "afterwards");
  return { detail: `the call ends: ${describe(error)}` };
});

const { session } = main;

await step(name, "server-killed", async () => {
  const call = { name: "slow", arguments: { steps: 1000, interval_ms: 1000 } };
  const lost = failure(sdk.call(client, call));
  assert.equal(await echo(client, "before"), "before");
  await killServer();
  const error = await lost;
  assert.equal(error.code, -32603, describe(error));
  assert.equal(error.data?.reason, "upstream_down");
  return { detail: `the call in flight ends: ${describe(error)}` };
});

await step(name, "reconnect", async () => {
  let failed = 0;
  for (;;) {
    try {
      assert.equal(await echo(client, "again"), "again");
      break;
    } catch (error) {
      // Anything else, a lost session say, is not what a dead server may lead to.
      assert.equal(error.data?.reason, "upstream_down", describe(error));
      failed += 1;
      await sleep(50);
    }
  }
  assert.equal(main.session, session, "the session is the same");
  const handshakes = main.seen.filter((exchange) => exchange.rpc === "initialize").length;
  // The bridge has tried the gateway with one of its own, before the client's.
  assert.equal(handshakes, bridged ? 2 : 1, "no new handshake");
  return { detail: `same session, after ${failed} calls that failed` };
});

if (bridged) {
  // The bridge leaves its session to the gateway, so there is no step to take.
  await client.close();
} else {
  await step(name, "close", async () => {
    await transport.terminateSession();
    assert.equal(main.session, undefined);
    assert.equal(main.seen.find((exchange) => exchange.http === "DELETE").status, 204);
    await client.close();
    assert.equal(await statusInside(session), 404);
    return { detail: "DELETE 204, then 404" };
  });
}

// Whatever a client keeps open must not keep this program.
process.exit(0);
