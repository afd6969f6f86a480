// The command line of the MCP Inspector before routes: `node inspector_routes.mjs legacy|auto`.
// Each run opens a session, sends one request and ends. The environment says where the
// routes are and which servers are behind them (see routes.mjs).

import assert from "node:assert/strict";

import { run } from "./inspector_cli.mjs";
import * as routes from "./routes.mjs";
import { events, step, until, url } from "./steps.mjs";

const { servers } = routes;
const mode = process.argv[2];
assert.ok(["legacy", "auto"].includes(mode), `no mode ${mode}`);
const name = `inspector-cli ${mode}`;

// Each of a step's runs starts a program, which takes long where others want the processor.
const take = (stepName, body) => step(name, stepName, body, 180_000);

/** It asks for all pages of a list by itself. */
async function all(list, at = url) {
  const method = { resourceTemplates: "resources/templates/list" }[list] ?? `${list}/list`;
  return (await run(mode, at, method)).result[list];
}

const tool = (name, given) => ["tools/call", "--tool-name", name, "--tool-args-json", JSON.stringify(given)];
const call = async (name, given = {}) => (await run(mode, url, ...tool(name, given))).result;
const read = async (uri) => (await run(mode, url, "resources/read", "--uri", uri)).result;
const prompt = async (name) => (await run(mode, url, "prompts/get", "--prompt-name", name)).result;

await take("one", async () => {
  const name = routes.checkOne(await all("tools", routes.oneUrl));
  const { content } = (await run(mode, routes.oneUrl, ...tool(name, { count: 5 }))).result;
  assert.equal(content[0].text, "done after 5 steps");
  return { detail: `${name}: listed; the result` };
});

await take("connect", async () => {
  const { result, seen } = await run(mode, url, "initialize");
  assert.equal(result.serverInfo.name, routes.serverName);
  assert.equal(result.protocolVersion, "2025-11-25");
  assert.equal(
    seen.some(({ rpc }) => rpc === "server/discover"),
    mode === "auto",
  );
  await until(() => servers.every((server) => events(`${server} initialized`) > 0));
  return { detail: `2025-11-25; ${servers.join(", ")}: initialized` };
});

await take("list", () => routes.checkLists(all));

await take("call", () => routes.callEach(call, 5));

await take("read", () => routes.readListed(all, read));

await take("embedded", () => routes.readEmbedded(prompt, call, read));

process.exit(0);
