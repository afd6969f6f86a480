// The client of the AI SDK before routes: `node ai_sdk_routes.mjs legacy|auto`. The environment
// says where the routes are and which servers are behind them (see routes.mjs).

import assert from "node:assert/strict";

import { createMCPClient, ElicitationRequestSchema } from "@ai-sdk/mcp";

import * as routes from "./routes.mjs";
import { events, lastSession, recordingFetch, statusInside, step, streamOpen, until, url } from "./steps.mjs";

const { asking, known, servers } = routes;
const mode = process.argv[2];
assert.ok(["legacy", "auto"].includes(mode), `no mode ${mode}`);
const name = `ai-sdk ${mode}`;

async function connect(at) {
  const seen = [];
  const asked = [];
  const client = await createMCPClient({
    clientName: "ringway-interop",
    version: "0.0.0",
    protocolVersionDiscovery: mode === "auto",
    capabilities: { elicitation: {} },
    onUncaughtError: () => {},
    transport: { type: "http", url: at.href, fetch: recordingFetch(seen) },
  });
  client.onElicitationRequest(ElicitationRequestSchema, ({ params }) => {
    asked.push(params.message);
    return { action: "accept", content: { name: `Ada of ${params.message}` } };
  });
  return {
    client,
    seen,
    asked,
    get session() {
      return lastSession(seen);
    },
  };
}

function all({ client }, list) {
  const ask = {
    tools: (options) => client.listTools(options),
    resources: (options) => client.listResources(options),
    // It knows no pages of these, and there is one.
    resourceTemplates: () => client.listResourceTemplates(),
    prompts: (options) => client.listPrompts(options),
  }[list];
  return routes.allPages(list, (cursor) => ask(cursor === undefined ? undefined : { params: { cursor } }));
}

await step(name, "one", async () => {
  const connection = await connect(routes.oneUrl);
  const tool = routes.checkOne(await all(connection, "tools"));
  const { content } = await connection.client.callTool({ name: tool, arguments: { count: 5 } });
  assert.equal(content[0].text, "done after 5 steps");
  await connection.client.close();
  return { detail: `${tool}: listed; the result` };
});

const main = await step(name, "connect", async () => {
  const connection = await connect(url);
  const { client, seen } = connection;
  assert.equal(client.serverInfo.name, routes.serverName);
  assert.equal(client.initializeResult.protocolVersion, "2025-11-25");
  assert.equal(
    seen.some(({ rpc }) => rpc === "server/discover"),
    mode === "auto",
  );
  await until(() => servers.every((server) => events(`${server} initialized`) > 0));
  return { value: connection, detail: `2025-11-25; ${servers.join(", ")}: initialized` };
});
if (!main) process.exit(1);
const { client } = main;
const call = (tool, given = {}) => client.callTool({ name: tool, arguments: given });
const read = (uri) => client.readResource({ uri });

await step(name, "list", () =>
  routes.checkLists(
    (list) => all(main, list),
    () => main.seen.filter(({ rpc }) => rpc === "tools/list").length,
  ),
);

await step(name, "call", () => routes.callEach(call, 60));

await step(name, "read", () => routes.readListed((list) => all(main, list), read));

await step(name, "embedded", () => routes.readEmbedded((prompt) => client.getPrompt({ name: prompt }), call, read));

await step(name, "complete", () => routes.completeEach((params) => client.complete(params)));

await step(name, "question", async () => {
  await streamOpen(main);
  const [, [tool, given, text]] = routes.questions;
  const { content } = await call(known(asking, tool), given);
  assert.equal(content[0].text, text);
  assert.deepEqual(main.asked, [given.question]);
  return { detail: "elicitation, of the three the one that it knows: asked once, the answer has come" };
});

await step(name, "close", async () => {
  const { session } = main;
  const before = events("deleted");
  await client.close();
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
