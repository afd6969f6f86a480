// The TypeScript clients: `node typescript.mjs v1|v2 legacy|auto`. One program for
// both, for they differ in a handful of names; `sdk` below holds these differences.
// The environment says where the gateway is (see steps.mjs).

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

import {
  describe,
  endSessionElsewhere,
  failure,
  fragile,
  killServer,
  recordingFetch,
  statusInside,
  step,
  until,
  url,
} from "./steps.mjs";

const [generation, mode] = process.argv.slice(2);
const sdk = await load(generation);
assert.ok(mode === "legacy" || (mode === "auto" && generation === "v2"), `no mode ${mode} in ${generation}`);
const name = `typescript-${generation} ${mode}`;

async function load(generation) {
  if (generation === "v1") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const { EmptyResultSchema } = await import("@modelcontextprotocol/sdk/types.js");
    return {
      StreamableHTTPClientTransport,
      newClient: () => new Client({ name: "ringway-interop", version: "0.0.0" }),
      call: (client, params, options) => client.callTool(params, undefined, options),
      request: (client, request) => client.request(request, EmptyResultSchema),
      statusOf: (error) => error.code,
    };
  }
  assert.equal(generation, "v2");
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  // The shape of a result schema that takes whatever comes (Standard Schema v1).
  const anything = { "~standard": { version: 1, vendor: "ringway", validate: (value) => ({ value }) } };
  return {
    StreamableHTTPClientTransport,
    newClient: () => new Client({ name: "ringway-interop", version: "0.0.0" }, { versionNegotiation: { mode } }),
    call: (client, params, options) => client.callTool(params, options),
    request: (client, request) => client.request(request, anything),
    statusOf: (error) => error.status,
  };
}

async function connect() {
  const seen = [];
  const client = sdk.newClient();
  const transport = new sdk.StreamableHTTPClientTransport(url, { fetch: recordingFetch(seen) });
  await client.connect(transport);
  return { client, transport, seen };
}

async function echo(client, message) {
  const { content } = await sdk.call(client, { name: "echo", arguments: { message } });
  return content[0].text;
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
const { client, transport, seen } = main;

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

await step(name, "unknown-session", async () => {
  const other = await connect();
  await endSessionElsewhere(other.transport.sessionId);
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
  await until(() => seen.some((exchange) => exchange.rpc === "notifications/cancelled" && exchange.status === 202));
  assert.equal(await echo(client, "afterwards"), "afterwards");
  return { detail: `the call ends: ${describe(error)}` };
});

const session = transport.sessionId;

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
  assert.equal(transport.sessionId, session, "the session is the same");
  assert.equal(seen.filter((exchange) => exchange.rpc === "initialize").length, 1, "no new handshake");
  return { detail: `same session, after ${failed} calls that failed` };
});

await step(name, "close", async () => {
  await transport.terminateSession();
  assert.equal(transport.sessionId, undefined);
  assert.equal(seen.find((exchange) => exchange.http === "DELETE").status, 204);
  await client.close();
  assert.equal(await statusInside(session), 404);
  return { detail: "DELETE 204, then 404" };
});

// Whatever a client keeps open must not keep this program.
process.exit(0);
