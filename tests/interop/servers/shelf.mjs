// The server for routes of README.md with the official TypeScript SDKs:
// `node shelf.mjs v1|v2 WHO stdio|http`. What it offers is what shelf.py does.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { appendFileSync } from "node:fs";
import { createServer } from "node:http";

const [generation, who, form] = process.argv.slice(2);
assert.ok(form === "stdio" || form === "http", "usage: node shelf.mjs v1|v2 WHO stdio|http");
const sdk = await load(generation);
const pageSize = 2;
const note = "memo://shelf/note";

/** What differs between the SDK's generations. */
async function load(generation) {
  if (generation === "v1") {
    const { Server } = await import("@modelcontextprotocol/sdk/server/index.js");
    const { StdioServerTransport } = await import("@modelcontextprotocol/sdk/server/stdio.js");
    const { StreamableHTTPServerTransport } = await import("@modelcontextprotocol/sdk/server/streamableHttp.js");
    const types = await import("@modelcontextprotocol/sdk/types.js");
    const schemas = {
      "tools/list": types.ListToolsRequestSchema,
      "tools/call": types.CallToolRequestSchema,
      "resources/list": types.ListResourcesRequestSchema,
      "resources/templates/list": types.ListResourceTemplatesRequestSchema,
      "resources/read": types.ReadResourceRequestSchema,
      "resources/subscribe": types.SubscribeRequestSchema,
      "resources/unsubscribe": types.UnsubscribeRequestSchema,
      "prompts/list": types.ListPromptsRequestSchema,
      "prompts/get": types.GetPromptRequestSchema,
      "completion/complete": types.CompleteRequestSchema,
    };
    return {
      Server,
      StdioServerTransport,
      HttpServerTransport: StreamableHTTPServerTransport,
      answer: (server, method, handler) => server.setRequestHandler(schemas[method], handler),
      toClient: (server, extra) => ({
        token: extra._meta?.progressToken,
        signal: extra.signal,
        notify: extra.sendNotification,
        // One question goes out on the stream of the session, the other on that of the call.
        sample: (params) => server.createMessage(params),
        elicit: (params) => server.elicitInput(params, { relatedRequestId: extra.requestId }),
        roots: () => server.listRoots(),
      }),
    };
  }
  assert.equal(generation, "v2");
  const { Server } = await import("@modelcontextprotocol/server");
  const { StdioServerTransport } = await import("@modelcontextprotocol/server/stdio");
  const { NodeStreamableHTTPServerTransport } = await import("@modelcontextprotocol/node");
  return {
    Server,
    StdioServerTransport,
    HttpServerTransport: NodeStreamableHTTPServerTransport,
    answer: (server, method, handler) => server.setRequestHandler(method, handler),
    toClient: (server, { mcpReq }) => ({
      token: mcpReq._meta?.progressToken,
      signal: mcpReq.signal,
      notify: (notification) => mcpReq.notify(notification),
      sample: (params) => mcpReq.requestSampling(params),
      elicit: (params) => mcpReq.elicitInput(params),
      roots: () => server.listRoots(),
    }),
  };
}

function event(line) {
  appendFileSync(process.env.INTEROP_EVENTS, `${line}\n`);
}

const string = { type: "string" };
const tools = {
  echo: { message: string },
  stream_processor: { count: { type: "integer" } },
  wait: {},
  cite: {},
  touch: {},
  ask_model: { question: string },
  ask_user: { question: string },
  ask_roots: {},
};
const resources = ["note", "list", "poem"];
const templates = { drawer: "name", box: "number" };
const prompts = { greet: "name", brief: undefined, cheer: undefined };
// What begins the values that an argument of a prompt, and a variable of a template, may have.
const values = { "ref/prompt": ["ada", "alan", "grace"], "ref/resource": ["apples", "arrows", "bread"] };

const text = (text) => ({ type: "text", text });
const user = (content) => ({ role: "user", content });
const embedded = () => ({ type: "resource", resource: contents(note) });

/** One page of a list; the cursor is where it begins. */
function page(member, items, params) {
  const start = Number(params?.cursor ?? 0);
  const end = start + pageSize;
  return { [member]: items.slice(start, end), ...(end < items.length ? { nextCursor: String(end) } : {}) };
}

function contents(uri) {
  const [, place, name] = /^memo:\/\/(\w+)\/(.+)$/.exec(uri) ?? [];
  const isThere = place === "shelf" ? resources.includes(name) : Object.hasOwn(templates, place);
  if (!isThere) throw new Error(`${who} has no ${uri}`);
  return { uri, mimeType: "text/plain", text: `${name} on the ${place} of ${who}` };
}

function prompt({ name, arguments: given }) {
  if (name === "greet") return { messages: [user(text(`Hello, ${given.name}, from ${who}!`))] };
  if (name === "brief") return { messages: [user(embedded()), user(text("Sum it up."))] };
  if (name === "cheer") return { messages: [user(text(`Three cheers for ${who}!`))] };
  throw new Error(`${who} has no prompt ${name}`);
}

function completion({ ref, argument }) {
  const known = ref.type === "ref/prompt" ? ref.name === "greet" : ref.uri === "memo://drawer/{name}";
  if (!known || argument.name !== "name") throw new Error(`${who} completes nothing of ${JSON.stringify(ref)}`);
  const all = values[ref.type].map((value) => `${value} of ${who}`);
  return { completion: { values: all.filter((value) => value.startsWith(argument.value)) } };
}

/** The content of a tool's result. */
async function run(tool, given, to, isSubscribed) {
  switch (tool) {
    case "echo":
      return [text(`${who}: ${given.message}`)];
    case "stream_processor": {
      const { count } = given;
      for (let step = 1; to.token !== undefined && step <= count; step += 1) {
        const params = { progressToken: to.token, progress: step, total: count, message: `step ${step} of ${count}` };
        await to.notify({ method: "notifications/progress", params });
      }
      return [text(`done after ${count} steps`)];
    }
    case "wait":
      event(`${who} wait began`);
      if (!to.signal.aborted) await once(to.signal, "abort");
      event(`${who} wait cancelled`);
      return [text("cancelled")];
    case "cite":
      return [{ type: "resource_link", uri: note, name: "note" }, embedded()];
    case "touch":
      if (!isSubscribed) return [text("nobody has subscribed")];
      await to.updated(note);
      return [text("touched")];
    case "ask_model": {
      const { content } = await to.sample({ messages: [user(text(given.question))], maxTokens: 100 });
      return [text(`The model said: ${content.text}`)];
    }
    case "ask_user": {
      const requestedSchema = { type: "object", properties: { name: string }, required: ["name"] };
      const { action, content } = await to.elicit({ message: given.question, requestedSchema });
      return [text(`The user said: ${action} ${content?.name}`)];
    }
    case "ask_roots":
      return [text(`The roots are: ${(await to.roots()).roots.map(({ uri }) => uri).join(" ")}`)];
    default:
      throw new Error(`${who} has no tool ${tool}`);
  }
}

/** The server of one session, or of all where it is served over stdio; not connected yet. */
function newServer() {
  const capabilities = { tools: {}, resources: { subscribe: true }, prompts: {}, completions: {} };
  const server = new sdk.Server({ name: `shelf-typescript-${generation}-${who}`, version: "0.0.0" }, { capabilities });
  server.oninitialized = () => event(`${who} initialized`);
  const answer = (method, result) =>
    sdk.answer(server, method, async ({ params }, context) => result(params, sdk.toClient(server, context)));
  let isSubscribed = false;
  const subscribed = (wanted) => () => {
    isSubscribed = wanted;
    return {};
  };
  const updated = (uri) => server.sendResourceUpdated({ uri });

  answer("tools/list", (params) => {
    const listed = Object.entries(tools).map(([name, properties]) => ({
      name,
      description: `${name} of ${who}`,
      inputSchema: { type: "object", properties, required: Object.keys(properties) },
    }));
    return page("tools", listed, params);
  });
  answer("tools/call", async ({ name, arguments: given }, to) => ({
    content: await run(name, given ?? {}, { ...to, updated }, isSubscribed),
  }));
  answer("resources/list", (params) => {
    const listed = resources.map((name) => ({ uri: `memo://shelf/${name}`, name, mimeType: "text/plain" }));
    return page("resources", listed, params);
  });
  answer("resources/templates/list", (params) => {
    const listed = Object.entries(templates).map(([of, by]) => ({ uriTemplate: `memo://${of}/{${by}}`, name: of }));
    return page("resourceTemplates", listed, params);
  });
  answer("resources/read", ({ uri }) => ({ contents: [contents(uri)] }));
  answer("resources/subscribe", subscribed(true));
  answer("resources/unsubscribe", subscribed(false));
  answer("prompts/list", (params) => {
    const listed = Object.entries(prompts).map(([name, argument]) => ({
      name,
      description: `${name} of ${who}`,
      arguments: argument ? [{ name: argument, required: true }] : [],
    }));
    return page("prompts", listed, params);
  });
  answer("prompts/get", prompt);
  answer("completion/complete", completion);
  return server;
}

const transports = new Map();

async function serve(request, response) {
  const id = request.headers["mcp-session-id"];
  let transport = transports.get(id);
  if (id !== undefined && transport === undefined) {
    response.writeHead(404, { "content-type": "application/json" });
    response.end('{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}');
    return;
  }
  if (transport === undefined) {
    transport = new sdk.HttpServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (session) => void transports.set(session, transport),
      onsessionclosed: (session) => {
        transports.delete(session);
        event("deleted");
      },
    });
    await newServer().connect(transport);
  }
  await transport.handleRequest(request, response);
}

if (form === "stdio") {
  await newServer().connect(new sdk.StdioServerTransport());
} else {
  const http = createServer((request, response) => {
    serve(request, response).catch((error) => {
      console.error(error);
      response.destroy();
    });
  });
  http.listen(0, "127.0.0.1");
  await once(http, "listening");
  console.log(`shelf-typescript-${generation}-${who} listening on http://127.0.0.1:${http.address().port}/mcp`);
  process.stdin.on("end", () => process.exit(0)).resume();
  process.on("SIGTERM", () => process.exit(0));
}
