// The command line of the MCP Inspector: `node inspector.mjs legacy|auto`. It is one
// program a request: each run opens a session, sends one request of its user's and
// ends. The environment says where the gateway is (see steps.mjs).

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

import { start as startAt } from "./inspector_cli.mjs";
import { clock, fragile, killServer, step, streamOpen, until, url } from "./steps.mjs";

const mode = process.argv[2];
assert.ok(["legacy", "auto"].includes(mode), `no mode ${mode}`);
const name = `inspector-cli ${mode}`;

// The exit codes of the command line.
const EXIT_ERROR = 1;
const EXIT_TOOL_ERROR = 5;

const start = (method, ...options) => startAt(mode, url, method, ...options);

// Each of a step's runs starts a program, which takes long where others want the processor.
const take = (stepName, body) => step(name, stepName, body, 120_000);

const sessions = new Set();

/** Runs one request that must succeed. Resolves to its result. */
async function run(method, ...options) {
  const started = start(method, ...options);
  const { code, result, stderr } = await started.ended;
  assert.equal(code, 0, stderr);
  const { session } = started;
  assert.match(session, /^[\x21-\x7e]{32,}$/);
  assert.ok(!sessions.has(session), "a session of its own");
  sessions.add(session);
  return result;
}

const tool = (name, args) => ["tools/call", "--tool-name", name, "--tool-args-json", JSON.stringify(args)];

async function call(name, args, ...options) {
  const { content } = await run(...tool(name, args), ...options);
  return content[0].text;
}

const echo = (message) => call("echo", { message });

await take("connect", async () => {
  const started = start("initialize");
  const { code, result, stderr } = await started.ended;
  assert.equal(code, 0, stderr);
  assert.equal(result.serverInfo.name, "ringway-demo");
  assert.equal(result.protocolVersion, "2025-11-25");
  assert.equal(result.capabilities.resources.subscribe, true);
  for (const list of ["tools", "resources", "prompts"]) assert.equal(result.capabilities[list].listChanged, true);
  const { seen } = started;
  assert.equal(seen.findLast(({ http, session }) => http === "POST" && session).version, "2025-11-25");
  // Otherwise this run would show nothing about the automatic mode, or about the other.
  const probe = seen.find(({ rpc }) => rpc === "server/discover");
  assert.equal(probe !== undefined, mode === "auto");
  return { detail: `2025-11-25${probe ? `, after a probe answered with ${probe.status}` : ""}` };
});

await take("list", async () => {
  const tools = (await run("tools/list")).tools.map((tool) => tool.name);
  assert.deepEqual(tools.sort(), ["add", "big", "echo", "grow", "slow", "touch"]);
  const resources = (await run("resources/list")).resources.map((resource) => resource.uri);
  assert.deepEqual(resources.sort(), ["demo://clock", "demo://notes"]);
  const prompts = (await run("prompts/list")).prompts.map((prompt) => prompt.name);
  assert.deepEqual(prompts, ["greet"]);
  return { detail: `${tools.length} tools, ${resources.length} resources, ${prompts.length} prompt` };
});

await take("call", async () => {
  assert.equal(await echo(fragile), fragile);
  assert.equal(await call("add", { a: 9007199254740991, b: 1 }), "9007199254740992");
  assert.equal(await call("touch", { uri: clock }), `touched ${clock}: nobody has subscribed to it`);
  const { contents } = await run("resources/read", "--uri", clock);
  assert.equal(contents[0].text, "tick 1");
  const { messages } = await run("prompts/get", "--prompt-name", "greet", "--prompt-args", "name=Ann");
  assert.equal(messages[0].content.text, "Please greet Ann in one friendly sentence.");
  return { detail: "echo of a fragile text, a sum past 2^53, a resource, a prompt" };
});

await take("parallel", async () => {
  await Promise.all(
    Array.from({ length: 5 }, async (_, n) => {
      // Different lengths, so that an answer cut or joined elsewhere shows.
      const message = `${process.pid} ${n} ${"x".repeat(n * 1700)}`;
      assert.equal(await echo(message), message);
    }),
  );
  const load = ["--load", "--load-requests", "100", "--load-concurrency", "50"];
  const summary = await run(...tool("echo", { message: "load" }), ...load);
  assert.deepEqual([summary.requests, summary.ok, summary.toolErrors, summary.errors], [100, 100, 0, 0]);
  return { detail: "5 runs at once, each its own answer; 100 calls of one run" };
});

await take("tool-error", async () => {
  const { code, result, error } = await start(...tool("add", { a: "one" })).ended;
  assert.equal(code, EXIT_TOOL_ERROR);
  assert.equal(result.isError, true);
  assert.equal(error, "Tool 'add' returned isError:true.");
  const unknown = await start("resources/read", "--uri", "demo://unknown").ended;
  assert.deepEqual([unknown.code, unknown.error], [EXIT_ERROR, "Resource not found"]);
  return { detail: result.content[0].text };
});

await take("two-clients", async () => {
  // Both send the same messages but for the arguments, so with the same ids and token.
  const token = ["--tool-metadata", "progressToken=same"];
  const runs = [30, 20].map((steps) => start(...tool("slow", { steps, interval_ms: 10 }), ...token));
  const ended = await Promise.all(runs.map(({ ended }) => ended));
  assert.deepEqual(
    ended.map(({ code, result }) => [code, result?.content[0].text]),
    [
      [0, "done after 30 steps"],
      [0, "done after 20 steps"],
    ],
  );
  assert.notEqual(runs[0].session, runs[1].session);
  // It shows no progress, but this is how its answers came.
  const type = process.env.INTEROP_PROGRESS === "none" ? "application/json" : "text/event-stream";
  for (const { seen } of runs) assert.match(seen.findLast(({ http }) => http === "POST").type, new RegExp(`^${type}`));

  await call("grow", { list: "tools" });
  assert.ok((await run("tools/list")).tools.some((tool) => tool.name === "extra-1"));
  return { detail: "each its own result, after progress with the same token; a list that has grown" };
});

await take("server-killed", async () => {
  const lost = start(...tool("slow", { steps: 1000, interval_ms: 1000 }));
  // The handshake's two messages, the log level, the tools and the call.
  await until(() => lost.seen.filter(({ http, session }) => http === "POST" && session).length === 5);
  await streamOpen(lost);
  assert.equal(await echo("before"), "before");
  await killServer();
  const { code, error } = await lost.ended;
  assert.equal(code, EXIT_ERROR);
  assert.match(error, /The upstream server is not available/);
  return { detail: `the call in flight ends: ${error}` };
});

await take("reconnect", async () => {
  let failed = 0;
  for (;;) {
    const { code, result, error } = await start(...tool("echo", { message: "again" })).ended;
    if (code === 0) {
      assert.equal(result.content[0].text, "again");
      break;
    }
    assert.match(error, /The upstream server is not available/);
    failed += 1;
    await sleep(50);
  }
  return { detail: `after ${failed} runs that failed` };
});

process.exit(0);
