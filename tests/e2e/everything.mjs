// A real server behind Ringway, driven by a real client: the reference server of
// the MCP project and the official TypeScript SDK (v1). The oracle is the same
// client speaking to the same server directly over stdio: what comes through the
// gateway must be what comes without it. Runs on both drivers, on one shard and
// on two, with JSON answers and with SSE answers.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { EmptyResultSchema } from "@modelcontextprotocol/sdk/types.js";

import { everythingCommand, startGateway } from "./gateway.mjs";

const configurations = [
  { driver: "uring", shards: 1, mode: "auto" },
  { driver: "uring", shards: 2, mode: "auto" },
  { driver: "epoll", shards: 1, mode: "auto" },
  { driver: "epoll", shards: 2, mode: "auto" },
  { driver: "uring", shards: 2, mode: "sse" },
  { driver: "epoll", shards: 2, mode: "sse" },
];

// The name that the start-up line gives to the driver really in use.
const driverName = { uring: "io_uring", epoll: "epoll" };

const options = { timeout: 120_000 };

const parallelCalls = 100;

describe("reference server and SDK v1 client", () => {
  let direct;

  before(async () => {
    direct = await connectDirectly();
  });
  after(async () => {
    await direct?.close();
  });

  for (const { driver, shards, mode } of configurations) {
    describe(`driver=${driver} shards=${shards} response-mode=${mode}`, () => {
      let gateway;

      before(async () => {
        const flags = ["--driver", driver, "--shards", String(shards), "--response-mode", mode];
        gateway = await startGateway(flags);
      });
      after(async () => {
        await gateway?.stop();
      });

      test("start_up_line_tells_what_really_runs", options, () => {
        assert.equal(gateway.facts.driver, driverName[driver], gateway.line);
        assert.equal(gateway.facts.shards, String(shards), gateway.line);
        assert.equal(gateway.facts.upstream, direct.getServerVersion().name, gateway.line);
        assert.equal(gateway.facts["upstream-version"], direct.getServerVersion().version, gateway.line);
        assert.equal(gateway.facts.protocol, "2025-11-25", gateway.line);
      });

      test("handshake_is_the_servers_own", options, async () => {
        await withClient(gateway, async ({ client, transport }) => {
          assert.deepEqual(client.getServerVersion(), direct.getServerVersion());
          assert.equal(client.getInstructions(), direct.getInstructions());
          assert.equal(transport.protocolVersion, "2025-11-25");
          assert.match(transport.sessionId, /^[\x21-\x7e]{32,}$/);
          assert.deepEqual(client.getServerCapabilities(), direct.getServerCapabilities());
        });
      });

      test("lists_and_documents_are_the_servers_own", options, async () => {
        await withClient(gateway, async ({ client }) => {
          const { tools } = await client.listTools();
          assert.ok(tools.some((tool) => tool.name === "echo"));
          assert.deepEqual(tools, (await direct.listTools()).tools);
          assert.deepEqual(await client.listPrompts(), await direct.listPrompts());
          assert.deepEqual(await client.listResourceTemplates(), await direct.listResourceTemplates());
          const { resources } = await client.listResources();
          assert.deepEqual(resources, (await direct.listResources()).resources);
          for (const { uri } of resources) {
            assert.deepEqual(await client.readResource({ uri }), await direct.readResource({ uri }));
          }
          const prompt = { name: "args-prompt", arguments: { city: "Zürich", state: "ZH" } };
          assert.deepEqual(await client.getPrompt(prompt), await direct.getPrompt(prompt));
        });
      });

      test("calls_give_the_servers_own_results", options, async () => {
        await withClient(gateway, async ({ client, seen }) => {
          const calls = [
            { name: "echo", arguments: { message: "plain" } },
            // Joined emoji, a no-break space, a line separator, escapes, astral signs.
            { name: "echo", arguments: { message: '👩‍👩‍👧 \u00a0\u2028\u2029 "\\\n\r\t\u0001 𝔘 \u007f' } },
            { name: "get-sum", arguments: { a: 9007199254740991, b: 0 } },
            { name: "get-sum", arguments: { a: 1e21, b: 0.5 } },
            { name: "get-structured-content", arguments: { location: "Chicago" } },
            { name: "get-tiny-image", arguments: {} },
            { name: "get-annotated-message", arguments: { messageType: "error", includeImage: true } },
          ];
          for (const call of calls) {
            assert.deepEqual(await client.callTool(call), await direct.callTool(call));
          }
          const type = mode === "sse" ? "text/event-stream" : "application/json";
          const answers = seen.filter((exchange) => exchange.rpcMethod === "tools/call");
          assert.equal(answers.length, calls.length);
          for (const answer of answers) assert.equal(answer.contentType, type);
        });
      });

      test("each_of_100_parallel_calls_gets_its_own_answer", options, async () => {
        await withClient(gateway, async ({ client }) => {
          await Promise.all(
            Array.from({ length: parallelCalls }, async (_, n) => {
              // Different lengths, so that an answer cut or joined elsewhere shows.
              const message = `call ${n} ${"x".repeat(n * 17)}`;
              assert.equal(await echo(client, message), message);
            }),
          );
        });
      });

      test("two_clients_with_the_same_ids_never_meet", options, async () => {
        await withClient(gateway, async (one) => {
          await withClient(gateway, async (two) => {
            assert.notEqual(one.transport.sessionId, two.transport.sessionId);
            const speak = async ({ client, transport }) => {
              for (let round = 0; round < 5; round += 1) {
                await Promise.all(
                  Array.from({ length: parallelCalls / 5 }, async (_, n) => {
                    const message = `${transport.sessionId} ${round} ${n}`;
                    assert.equal(await echo(client, message), message);
                  }),
                );
              }
            };
            await Promise.all([speak(one), speak(two)]);
            const ids = ({ seen }) => seen.filter((e) => e.rpcId !== undefined).map((e) => e.rpcId);
            // Otherwise this test would show nothing: the SDK counts from 0 in each client.
            assert.deepEqual(ids(one), ids(two));
            assert.ok(ids(one).length > parallelCalls);
          });
        });
      });

      test("two_large_calls_at_once_do_not_block_each_other", options, async () => {
        await withClient(gateway, async ({ client }) => {
          await Promise.all(
            ["a", "b", "é"].map(async (letter) => {
              const message = letter.repeat(300_000);
              // assert.equal would print both texts whole.
              assert.ok((await echo(client, message)) === message, letter);
            }),
          );
        });
      });

      test("errors_of_tool_and_method_are_the_servers_own", options, async () => {
        await withClient(gateway, async ({ client }) => {
          const unknownTool = { name: "no-such-tool", arguments: {} };
          const result = await client.callTool(unknownTool);
          assert.equal(result.isError, true);
          assert.deepEqual(result, await direct.callTool(unknownTool));

          const badArguments = { name: "get-sum", arguments: { a: "one" } };
          assert.deepEqual(await client.callTool(badArguments), await direct.callTool(badArguments));

          for (const request of [
            { method: "ringway/no-such-method", params: {} },
            { method: "resources/read", params: { uri: "demo://no-such-resource" } },
          ]) {
            const through = await failure(client.request(request, EmptyResultSchema));
            assert.deepEqual(through, await failure(direct.request(request, EmptyResultSchema)));
            assert.equal(typeof through.code, "number");
          }
          // The session is none the worse for it.
          assert.equal(await echo(client, "still here"), "still here");
        });
      });

      test("ping_is_answered", options, async () => {
        await withClient(gateway, async ({ client }) => {
          assert.deepEqual(await client.ping(), {});
        });
      });

      test("a_call_that_asks_for_progress_gets_its_result", options, async () => {
        await withClient(gateway, async ({ client }) => {
          const call = { name: "trigger-long-running-operation", arguments: { duration: 0.2, steps: 4 } };
          const told = [];
          const result = await client.callTool(call, undefined, {
            onprogress: ({ progress }) => told.push(progress),
          });
          assert.deepEqual(result, await direct.callTool(call));
          assert.deepEqual(told, [1, 2, 3, 4], "all of it, in order, before the result");
        });
      });

      test("a_cancelled_call_leaves_its_session_working", options, async () => {
        await withClient(gateway, async ({ client, seen }) => {
          const cancel = new AbortController();
          const call = { name: "trigger-long-running-operation", arguments: { duration: 1, steps: 1 } };
          const cancelled = failure(client.callTool(call, undefined, { signal: cancel.signal }));
          assert.equal(await echo(client, "meanwhile"), "meanwhile");
          cancel.abort("not wanted any more");
          assert.match((await cancelled).message, /not wanted any more/);
          await until(() => seen.some((e) => e.rpcMethod === "notifications/cancelled" && e.status === 202));
          assert.equal(await echo(client, "afterwards"), "afterwards");
        });
      });

      test("a_session_that_was_closed_is_gone_and_others_are_not", options, async () => {
        await withClient(gateway, async ({ client: other }) => {
          const { client, transport, seen } = await connect(gateway);
          const sessionId = transport.sessionId;
          await transport.terminateSession();
          assert.equal(transport.sessionId, undefined);
          assert.equal(seen.find((exchange) => exchange.httpMethod === "DELETE").status, 204);
          await client.close();

          const response = await fetch(gateway.url, {
            method: "POST",
            headers: {
              "content-type": "application/json",
              accept: "application/json, text/event-stream",
              "mcp-session-id": sessionId,
            },
            body: JSON.stringify({ jsonrpc: "2.0", id: 7, method: "tools/list" }),
          });
          assert.equal(response.status, 404);
          const body = await response.json();
          assert.equal(body.error.code, -32001);
          assert.equal(body.id, 7);

          assert.equal(await echo(other, "unharmed"), "unharmed");
        });
      });

      // Last, for it ends the gateway that the tests above share.
      test("sigterm_ends_gateway_and_server", options, async () => {
        assert.ok(gateway.descendants().length > 0, "the server is not among the gateway's processes");
        const { code, signal, late, survivors } = await gateway.stop();
        assert.ok(!late, `no end after SIGTERM\n${gateway.stderr}`);
        assert.deepEqual({ code, signal }, { code: 0, signal: null }, gateway.stderr);
        assert.deepEqual(survivors, [], "processes outlived the gateway");
        assert.equal(gateway.stdout, `${gateway.line}\n`, "stdout is the start-up line alone");
      });
    });
  }
});

// npx runs the server as a grandchild, through a shell: a parent's death alone
// does not reach it.
test("a killed gateway leaves nothing of an npx server behind", { timeout: 120_000 }, async () => {
  for (const driver of ["uring", "epoll"]) {
    const npx = ["npx", "--offline", "--no-install", "mcp-server-everything", "stdio"];
    const gateway = await startGateway(["--driver", driver], npx);
    const { count, survivors } = await gateway.killAlone();
    assert.ok(count >= 3, `npx and the server were to be among its ${count} processes`);
    assert.deepEqual(survivors, [], "processes outlived the gateway");
  }
});

async function connectDirectly() {
  const [command, ...args] = everythingCommand;
  const client = newClient();
  await client.connect(new StdioClientTransport({ command, args, stderr: "ignore" }));
  return client;
}

function newClient() {
  return new Client({ name: "ringway-e2e", version: "0.0.0" });
}

/**
 * A client connected through the gateway, with a record of its HTTP exchanges.
 * Resolves when the SDK's GET stream is open too, so
 * that no test races with it.
 */
async function connect(gateway) {
  const seen = [];
  const faults = [];
  const client = newClient();
  const transport = new StreamableHTTPClientTransport(gateway.url, { fetch: recordingFetch(seen) });
  client.onerror = (error) => faults.push(error);
  await client.connect(transport);
  await until(() => seen.some((e) => e.httpMethod === "GET" && e.status !== undefined));
  const { status, contentType } = seen.find((exchange) => exchange.httpMethod === "GET");
  assert.equal(status, 200, "the SDK's GET opens a stream");
  assert.match(contentType, /^text\/event-stream/);
  return { client, transport, seen, faults };
}

/** Runs `body` with a connected client, ends its session, and fails on any error that the SDK saw. */
async function withClient(gateway, body) {
  const connected = await connect(gateway);
  try {
    await body(connected);
    // The end of the session ends its stream, which the SDK may call a fault.
    assert.deepEqual(connected.faults, []);
    await connected.transport.terminateSession();
  } finally {
    await connected.client.close();
  }
}

function recordingFetch(seen) {
  return async (url, init) => {
    const message = init.body ? JSON.parse(init.body) : {};
    const exchange = { httpMethod: init.method, rpcMethod: message.method, rpcId: message.id };
    seen.push(exchange);
    const response = await fetch(url, init);
    exchange.status = response.status;
    exchange.contentType = response.headers.get("content-type");
    return response;
  };
}

async function echo(client, message) {
  const result = await client.callTool({ name: "echo", arguments: { message } });
  assert.equal(result.content.length, 1);
  const { text } = result.content[0];
  assert.ok(text.startsWith("Echo: "), text.slice(0, 80));
  return text.slice("Echo: ".length);
}

/** What a promise failed with, in a form that can be compared. */
async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return { code: error.code, message: error.message, data: error.data };
  }
  assert.fail("should have failed");
}

async function until(condition) {
  const deadline = Date.now() + 30_000;
  while (!condition()) {
    assert.ok(Date.now() < deadline, `never true: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
