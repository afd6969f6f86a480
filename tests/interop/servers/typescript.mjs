// The server of README.md with the official TypeScript SDKs: `node typescript.mjs v1|v2`.
// One program for both, for they differ in a handful of names; `sdk` below holds these.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { appendFileSync } from "node:fs";
import { createServer } from "node:http";

import * as z from "zod";

const [generation] = process.argv.slice(2);
const sdk = await load(generation);
const uri = "interop://note";

/** What a tool may do while it runs, in the terms of this program. */
async function load(generation) {
  if (generation === "v1") {
    const { McpServer } = await import("@modelcontextprotocol/sdk/server/mcp.js");
    const { StreamableHTTPServerTransport } = await import("@modelcontextprotocol/sdk/server/streamableHttp.js");
    const types = await import("@modelcontextprotocol/sdk/types.js");
    return {
      McpServer,
      Transport: StreamableHTTPServerTransport,
      input: (shape) => shape,
      requests: {
        "resources/subscribe": types.SubscribeRequestSchema,
        "resources/unsubscribe": types.UnsubscribeRequestSchema,
      },
      during: ({ server }, extra) => ({
        token: extra._meta?.progressToken,
        signal: extra.signal,
        notify: extra.sendNotification,
        // One question goes out on the stream of the session, the other on that of the call.
        sample: (params) => server.createMessage(params),
        elicit: (params) => server.elicitInput(params, { relatedRequestId: extra.requestId }),
      }),
    };
  }
  assert.equal(generation, "v2");
  const { McpServer } = await import("@modelcontextprotocol/server");
  const { NodeStreamableHTTPServerTransport } = await import("@modelcontextprotocol/node");
  return {
    McpServer,
    Transport: NodeStreamableHTTPServerTransport,
    input: (shape) => z.object(shape),
    requests: { "resources/subscribe": "resources/subscribe", "resources/unsubscribe": "resources/unsubscribe" },
    during: (_, { mcpReq }) => ({
      token: mcpReq._meta?.progressToken,
      signal: mcpReq.signal,
      notify: (notification) => mcpReq.notify(notification),
      sample: (params) => mcpReq.requestSampling(params),
      elicit: (params) => mcpReq.elicitInput(params),
    }),
  };
}

function note(event) {
  appendFileSync(process.env.INTEROP_EVENTS, `${event}\n`);
}

/** The server of one session, not connected yet. */
function newServer() {
  const server = new sdk.McpServer(
    { name: `interop-typescript-${generation}`, version: "0.0.0" },
    { capabilities: { logging: {}, resources: { subscribe: true } } },
  );
  server.server.oninitialized = () => note("initialized");

  const tool = (name, shape, run) => {
    const offer = { description: "See README.md", inputSchema: sdk.input(shape) };
    server.registerTool(name, offer, async (given, context) => ({
      content: [{ type: "text", text: await run(given, sdk.during(server, context)) }],
    }));
  };
  tool("echo", { message: z.string() }, ({ message }) => message);
  tool("steps", { count: z.int() }, async ({ count }, { token, notify }) => {
    for (let step = 1; token !== undefined && step <= count; step += 1) {
      const params = { progressToken: token, progress: step, total: count, message: `step ${step} of ${count}` };
      await notify({ method: "notifications/progress", params });
    }
    return `done after ${count} steps`;
  });
  tool("wait", {}, async (_, { signal }) => {
    note("wait began");
    if (!signal.aborted) await once(signal, "abort");
    note("wait cancelled");
    return "cancelled";
  });
  tool("log", { text: z.string() }, async ({ text }, { notify }) => {
    await notify({ method: "notifications/message", params: { level: "info", data: text } });
    return "logged";
  });
  tool("ask_model", { question: z.string() }, async ({ question }, { sample }) => {
    const messages = [{ role: "user", content: { type: "text", text: question } }];
    const { content } = await sample({ messages, maxTokens: 100 });
    return `The model said: ${content.text}`;
  });
  tool("ask_user", { question: z.string() }, async ({ question }, { elicit }) => {
    const requestedSchema = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };
    const { action, content } = await elicit({ message: question, requestedSchema });
    return `The user said: ${action} ${content?.name}`;
  });

  let isSubscribed = false;
  server.server.setRequestHandler(sdk.requests["resources/subscribe"], () => {
    isSubscribed = true;
    return {};
  });
  server.server.setRequestHandler(sdk.requests["resources/unsubscribe"], () => {
    isSubscribed = false;
    return {};
  });
  tool("touch", {}, async () => {
    if (!isSubscribed) return "nobody has subscribed";
    await server.server.sendResourceUpdated({ uri });
    return "touched";
  });

  server.registerResource("note", uri, { mimeType: "text/plain" }, () => ({
    contents: [{ uri, mimeType: "text/plain", text: "a note" }],
  }));
  server.registerPrompt("greet", { argsSchema: sdk.input({ name: z.string() }) }, ({ name }) => ({
    messages: [{ role: "user", content: { type: "text", text: `Hello, ${name}!` } }],
  }));
  return server;
}

const transports = new Map();

async function answer(request, response) {
  const id = request.headers["mcp-session-id"];
  let transport = transports.get(id);
  if (id !== undefined && transport === undefined) {
    response.writeHead(404, { "content-type": "application/json" });
    response.end('{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}');
    return;
  }
  if (transport === undefined) {
    transport = new sdk.Transport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (session) => void transports.set(session, transport),
      onsessionclosed: (session) => {
        transports.delete(session);
        note("deleted");
      },
    });
    await newServer().connect(transport);
  }
  await transport.handleRequest(request, response);
}

process.on("SIGUSR1", () => {
  transports.clear();
  note("forgotten");
});

const http = createServer((request, response) => {
  answer(request, response).catch((error) => {
    console.error(error);
    response.destroy();
  });
});
http.listen(0, "127.0.0.1");
await once(http, "listening");
console.log(`typescript-${generation} listening on http://127.0.0.1:${http.address().port}/mcp`);
process.stdin.on("end", () => process.exit(0)).resume();
process.on("SIGTERM", () => process.exit(0));
