// The client of the AI SDK, which shares no code with the official ones:
// `node ai_sdk.mjs legacy|auto`. The environment says where the gateway is (see
// steps.mjs).

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

import { createMCPClient } from "@ai-sdk/mcp";

import {
  clock,
  describe,
  endSessionElsewhere,
  failure,
  fragile,
  killServer,
  lastSession,
  lists,
  recordingFetch,
  statusInside,
  step,
  streamOpen,
  until,
  url,
} from "./steps.mjs";

const mode = process.argv[2];
assert.ok(["legacy", "auto"].includes(mode), `no mode ${mode}`);
const name = `ai-sdk ${mode}`;

// It takes no notifications: of one that reaches it, it says this, and nothing else.
const notified = "Unsupported message type";

async function connect() {
  const seen = [];
  const errors = [];
  const client = await createMCPClient({
    clientName: "ringway-interop",
    version: "0.0.0",
    protocolVersionDiscovery: mode === "auto",
    onUncaughtError: (error) => errors.push(error.message),
    transport: { type: "http", url: url.href, fetch: recordingFetch(seen) },
  });
  return {
    client,
    seen,
    get session() {
      return lastSession(seen);
    },
    get notifications() {
      return errors.filter((message) => message === notified).length;
    },
  };
}

async function call(client, name, args, options) {
  const { content } = await client.callTool({ name, arguments: args, options });
  return content[0].text;
}

const echo = (client, message) => call(client, "echo", { message });
const slow = (client, steps, interval_ms, options) => call(client, "slow", { steps, interval_ms }, options);

async function listed(client, list) {
  const answers = {
    tools: () => client.listTools(),
    resources: () => client.listResources(),
    prompts: () => client.listPrompts(),
  };
  return (await answers[list]())[list].map((entry) => entry.name);
}

const main = await step(name, "connect", async () => {
  const connection = await connect();
  const { client, seen, session } = connection;
  assert.equal(client.serverInfo.name, "ringway-demo");
  assert.equal(client.initializeResult.protocolVersion, "2025-11-25");
  for (const list of lists) assert.equal(client.initializeResult.capabilities[list].listChanged, true, list);
  assert.match(session, /^[\x21-\x7e]{32,}$/);
  // Otherwise this run would show nothing about the automatic mode, or about the other.
  const probe = seen.find((exchange) => exchange.rpc === "server/discover");
  assert.equal(probe !== undefined, mode === "auto");
  return { value: connection, detail: `2025-11-25${probe ? `, after a probe answered with ${probe.status}` : ""}` };
});
if (!main) process.exit(1);
const { client, seen, session } = main;

await step(name, "list", async () => {
  const tools = await listed(client, "tools");
  assert.deepEqual(tools.sort(), ["add", "big", "echo", "grow", "slow", "touch"]);
  const resources = (await client.listResources()).resources.map((resource) => resource.uri);
  assert.deepEqual(resources.sort(), ["demo://clock", "demo://notes"]);
  const prompts = await listed(client, "prompts");
  assert.deepEqual(prompts, ["greet"]);
  return { detail: `${tools.length} tools, ${resources.length} resources, ${prompts.length} prompt` };
});

await step(name, "call", async () => {
  assert.equal(await echo(client, fragile), fragile);
  // As a model would call it: through the tools that the client makes of the list.
  const { add } = await client.tools();
  const { content } = await add.execute({ a: 9007199254740991, b: 1 });
  assert.equal(content[0].text, "9007199254740992");
  assert.equal(await call(client, "touch", { uri: clock }), `touched ${clock}: nobody has subscribed to it`);
  const { contents } = await client.readResource({ uri: clock });
  assert.equal(contents[0].text, "tick 1");
  const { messages } = await client.getPrompt({ name: "greet", arguments: { name: "Ann" } });
  assert.equal(messages[0].content.text, "Please greet Ann in one friendly sentence.");
  return { detail: "echo of a fragile text, a sum past 2^53, a resource, a prompt" };
});

await step(name, "parallel", async () => {
  await Promise.all(
    Array.from({ length: 100 }, async (_, n) => {
      // Different lengths, so that an answer cut or joined elsewhere shows.
      const message = `${session} ${n} ${"x".repeat(n * 17)}`;
      assert.equal(await echo(client, message), message);
    }),
  );
  return { detail: "100 answers, each its own" };
});

await step(name, "tool-error", async () => {
  const result = await client.callTool({ name: "add", arguments: { a: "one" } });
  assert.equal(result.isError, true);
  const error = await failure(client.getPrompt({ name: "unknown" }));
  assert.equal(error.code, -32602, describe(error));
  return { detail: `${result.content[0].text} ${describe(error)}` };
});

await step(name, "list-changed", async () => {
  await streamOpen(main);
  assert.equal(main.notifications, 0);
  for (const [index, list] of lists.entries()) {
    assert.ok(!(await listed(client, list)).includes("extra-1"), list);
    await call(client, "grow", { list });
    await until(() => main.notifications > index);
    assert.ok((await listed(client, list)).includes("extra-1"), list);
  }
  assert.equal(main.notifications, lists.length, "each list once");
  return { detail: `${lists.join(", ")}: told once each, and listed anew` };
});

await step(name, "two-clients", async () => {
  const told = main.notifications;
  const one = await connect();
  const two = await connect();
  assert.notEqual(one.session, two.session);
  await streamOpen(one);
  await streamOpen(two);
  // Both have sent the same so far, so both give the same id to this call.
  const results = await Promise.all([slow(one.client, 30, 2), slow(two.client, 20, 3)]);
  assert.deepEqual(results, ["done after 30 steps", "done after 20 steps"]);

  await call(one.client, "grow", { list: "tools" });
  await until(() => one.notifications > 0 && two.notifications > 0 && main.notifications > told);

  const ended = two.session;
  await two.client.close();
  assert.equal(await statusInside(ended), 404);
  assert.equal(await echo(one.client, "unharmed"), "unharmed");
  // With those of the step before, of which none may have come twice either.
  assert.deepEqual([one.notifications, two.notifications, main.notifications], [1, 1, lists.length + 1]);
  await one.client.close();
  return { detail: "each its own result, both the change of a list" };
});

await step(name, "unknown-session", async () => {
  const other = await connect();
  await endSessionElsewhere(other.session);
  // This client starts no session anew: its caller learns that the session is gone.
  const error = await failure(echo(other.client, "into the void"));
  assert.equal(error.code, -32001, describe(error));
  assert.equal(other.seen.filter(({ http }) => http === "POST").at(-1).status, 404);
  await other.client.close();
  assert.equal(await echo(client, "unharmed"), "unharmed");
  return { detail: `the call fails: ${describe(error)}` };
});

await step(name, "cancel", async () => {
  const cancel = new AbortController();
  const cancelled = failure(slow(client, 1000, 1000, { signal: cancel.signal }));
  assert.equal(await echo(client, "meanwhile"), "meanwhile");
  cancel.abort();
  const error = await cancelled;
  assert.equal(error.message, "Request was aborted");
  // It says nothing to the server, but leaves.
  assert.equal(seen.filter(({ rpc }) => rpc === "notifications/cancelled").length, 0);
  assert.equal(await echo(client, "afterwards"), "afterwards");
  return { detail: `the call ends: ${describe(error)}` };
});

await step(name, "server-killed", async () => {
  const lost = failure(slow(client, 1000, 1000));
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
  assert.equal(seen.filter((exchange) => exchange.rpc === "initialize").length, 1, "no new handshake");
  return { detail: `same session, after ${failed} calls that failed` };
});

await step(name, "close", async () => {
  await client.close();
  assert.equal(seen.find((exchange) => exchange.http === "DELETE").status, 204);
  assert.equal(await statusInside(session), 404);
  return { detail: "DELETE 204, then 404" };
});

// Whatever a client keeps open must not keep this program.
process.exit(0);
