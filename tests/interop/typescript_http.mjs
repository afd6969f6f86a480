// The official TypeScript clients before a server that speaks HTTP:
// `node typescript_http.mjs v1|v2 legacy|auto`. The server is one of `servers/`, whose README says what
// it offers and what it writes to the file of events. The environment says where Ringway is.

import assert from "node:assert/strict";

import {
  describe,
  events,
  failure,
  fragile,
  progressOf,
  recordingFetch,
  required,
  serverPid,
  statusInside,
  step,
  streamOpen,
  until,
} from "./steps.mjs";
import { load } from "./typescript_sdk.mjs";

const [generation, mode] = process.argv.slice(2);
const sdk = await load(generation, mode);
const name = mode === "auto" ? `typescript-${generation} auto` : `typescript-${generation}`;
const note = "interop://note";

async function connect() {
  const seen = [];
  const heard = { updated: 0, logged: [], asked: [], progress: [], tokens: [] };
  const client = sdk.newClient({ sampling: {}, elicitation: {} });
  sdk.listen(client, "notifications/resources/updated", () => void (heard.updated += 1));
  sdk.listen(client, "notifications/message", ({ params }) => void heard.logged.push(params));
  sdk.answer(client, "sampling/createMessage", ({ params }) => {
    const question = params.messages[0].content;
    heard.asked.push(question.text);
    return { role: "assistant", model: "none", content: { type: "text", text: `${question.text}? ${fragile}` } };
  });
  sdk.answer(client, "elicitation/create", ({ params }) => {
    heard.asked.push(params.message);
    return { action: "accept", content: { name: `Ada of ${params.message}` } };
  });
  const transport = sdk.newTransport(recordingFetch(seen));
  // The client hands over only progress of its own calls, so all of it is noted before.
  const send = transport.send.bind(transport);
  transport.send = (message, options) => {
    const token = message.params?._meta?.progressToken;
    if (token !== undefined) heard.tokens.push(token);
    return send(message, options);
  };
  await client.connect(transport);
  const deliver = transport.onmessage;
  transport.onmessage = (message, extra) => {
    if (message.method === "notifications/progress") heard.progress.push(message.params.progressToken);
    deliver(message, extra);
  };
  return {
    client,
    transport,
    heard,
    seen,
    get session() {
      return transport.sessionId;
    },
  };
}

async function end({ client, transport }) {
  await transport.terminateSession();
  await client.close();
}

async function call({ client }, tool, given = {}, options = undefined) {
  const { content } = await sdk.call(client, { name: tool, arguments: given }, options);
  return content[0].text;
}

/** Calls `steps`. Resolves to the progress that had come when its result did. */
async function progress(connection, count) {
  const told = [];
  const text = await call(connection, "steps", { count }, { onprogress: (progress) => told.push(progress) });
  const before = [...told];
  assert.equal(text, `done after ${count} steps`);
  return before;
}

/** A barrier: what the server said before on the session's stream has come. */
async function settle(connection) {
  const { client, heard } = connection;
  const before = heard.updated;
  await client.subscribeResource({ uri: note });
  assert.equal(await call(connection, "touch"), "touched");
  await until(() => heard.updated > before);
  await client.unsubscribeResource({ uri: note });
}

/** A call of `wait` that has reached the server, and the means to cancel it. */
async function waiting(connection) {
  const before = events("wait began");
  const abort = new AbortController();
  const cancelled = failure(call(connection, "wait", {}, { signal: abort.signal }));
  await until(() => events("wait began") > before);
  return { cancel: () => abort.abort("not wanted any more"), cancelled };
}

const main = await step(name, "connect", async () => {
  const connected = await connect();
  assert.equal(connected.client.getServerVersion().name, `interop-${required("INTEROP_SERVER")}`);
  assert.equal(connected.transport.protocolVersion, "2025-11-25");
  assert.equal(
    connected.seen.some(({ rpc }) => rpc === "server/discover"),
    mode === "auto",
  );
  await until(() => events("initialized") === 1);
  return { value: connected, detail: "2025-11-25; the server has seen initialize and initialized" };
});
if (!main) process.exit(1);
const { client } = main;

await step(name, "list", async () => {
  const tools = (await client.listTools()).tools.map((tool) => tool.name);
  assert.deepEqual(tools, ["echo", "steps", "wait", "log", "ask_model", "ask_user", "touch"]);
  const resources = (await client.listResources()).resources.map((resource) => resource.uri);
  assert.deepEqual(resources, [note]);
  const prompts = (await client.listPrompts()).prompts.map((prompt) => prompt.name);
  assert.deepEqual(prompts, ["greet"]);
  return { detail: `${tools.length} tools, 1 resource, 1 prompt` };
});

await step(name, "call", async () => {
  assert.equal(await call(main, "echo", { message: fragile }), fragile);
  const { contents } = await client.readResource({ uri: note });
  assert.equal(contents[0].text, "a note");
  const { messages } = await client.getPrompt({ name: "greet", arguments: { name: "Ada" } });
  assert.equal(messages[0].content.text, "Hello, Ada!");
  return { detail: "a tool, a resource, a prompt" };
});

await step(name, "parallel", async () => {
  await Promise.all(
    Array.from({ length: 100 }, async (_, n) => {
      const message = `${main.session} ${n} ${"x".repeat(n * 17)}`;
      assert.equal(await call(main, "echo", { message }), message);
    }),
  );
  return { detail: "100 answers, each its own" };
});

await step(name, "progress", async () => {
  main.heard.progress.length = 0;
  main.heard.tokens.length = 0;
  assert.deepEqual(await progress(main, 5), progressOf(5));
  const [token] = main.heard.tokens;
  assert.deepEqual(main.heard.progress, progressOf(5).map(() => token), "the client's own token");
  assert.deepEqual(await progress(main, 100), progressOf(100));
  return { detail: "5 and 100 steps with the client's token, in order and before the results" };
});

await step(name, "two-clients", async () => {
  const one = await connect();
  const two = await connect();
  await streamOpen(two);
  assert.deepEqual(await progress(one, 5), progressOf(5));
  await settle(two);
  assert.deepEqual(two.heard.progress, [], "progress for one who has not called");
  assert.equal(one.heard.updated, 0, "an update for one who has not subscribed");
  // Once more in step, so that both give the same id and token to this call.
  await settle(one);
  assert.deepEqual(await progress(two, 5), progressOf(5));
  const told = await Promise.all([progress(one, 30), progress(two, 20)]);
  assert.deepEqual(told, [progressOf(30), progressOf(20)]);
  assert.equal(one.heard.tokens.at(-1), two.heard.tokens.at(-1), "the same token in both sessions");
  await end(one);
  await end(two);
  return { detail: "each its own progress and updates" };
});

await step(name, "cancel", async () => {
  const before = events("wait cancelled");
  const other = await connect();
  const [mine, theirs] = [await waiting(main), await waiting(other)];
  mine.cancel();
  const error = await mine.cancelled;
  await until(() => events("wait cancelled") === before + 1);
  assert.equal(await call(main, "echo", { message: "afterwards" }), "afterwards");
  assert.equal(await call(other, "echo", { message: "unharmed" }), "unharmed");
  assert.equal(events("wait cancelled"), before + 1, "the other client's call runs on");
  theirs.cancel();
  await theirs.cancelled;
  await until(() => events("wait cancelled") === before + 2);
  await end(other);
  return { detail: `the server has stopped: ${describe(error)}` };
});

await step(name, "log", async () => {
  await streamOpen(main);
  await client.setLoggingLevel("debug");
  assert.equal(await call(main, "log", { text: fragile }), "logged");
  await until(() => main.heard.logged.length > 0);
  assert.deepEqual(
    main.heard.logged.map(({ level, data }) => ({ level, data })),
    [{ level: "info", data: fragile }],
  );
  return { detail: "1 message" };
});

await step(name, "sampling", async () => {
  await streamOpen(main);
  main.heard.asked.length = 0;
  assert.equal(await call(main, "ask_model", { question: "why" }), `The model said: why? ${fragile}`);
  assert.deepEqual(main.heard.asked, ["why"]);
  return { detail: "asked once, the answer has come" };
});

await step(name, "elicitation", async () => {
  await streamOpen(main);
  main.heard.asked.length = 0;
  assert.equal(await call(main, "ask_user", { question: "here" }), "The user said: accept Ada of here");
  assert.deepEqual(main.heard.asked, ["here"]);
  return { detail: "asked once, the answer has come" };
});

await step(name, "questions", async () => {
  const other = await connect();
  await streamOpen(other);
  main.heard.asked.length = 0;
  const questions = Array.from({ length: 10 }, (_, n) => `${n}`);
  const ask = async (connection, whose) =>
    Promise.all(
      questions.map(async (n) => {
        const said = await call(connection, "ask_user", { question: `${whose} ${n}` });
        assert.equal(said, `The user said: accept Ada of ${whose} ${n}`);
      }),
    );
  await Promise.all([ask(main, "main"), ask(other, "other")]);
  const expected = (whose) => questions.map((n) => `${whose} ${n}`);
  assert.deepEqual(main.heard.asked.sort(), expected("main"));
  assert.deepEqual(other.heard.asked.sort(), expected("other"));
  await end(other);
  return { detail: "10 at a time for each of two clients, each its own" };
});

await step(name, "subscribe", async () => {
  await streamOpen(main);
  assert.equal(client.getServerCapabilities().resources.subscribe, true);
  const before = main.heard.updated;
  assert.equal(await call(main, "touch"), "nobody has subscribed");
  await client.subscribeResource({ uri: note });
  assert.equal(await call(main, "touch"), "touched");
  await until(() => main.heard.updated > before);
  await client.unsubscribeResource({ uri: note });
  assert.equal(await call(main, "touch"), "nobody has subscribed");
  assert.equal(main.heard.updated, before + 1, "one update for one change");
  return { detail: "1 update for 1 change, none before and after" };
});

if (required("INTEROP_DIRECT") !== "True") {
  await step(name, "forgotten", async () => {
    const { session } = main;
    const before = { initialized: events("initialized"), updated: main.heard.updated };
    await client.subscribeResource({ uri: note });
    process.kill(serverPid, "SIGUSR1");
    await until(() => events("forgotten") === 1);
    // All of them find the session gone, and share one new handshake.
    const echoes = Array.from({ length: 10 }, (_, n) => call(main, "echo", { message: `${n}` }));
    assert.deepEqual(await Promise.all(echoes), Array.from(echoes.keys(), String));
    assert.equal(main.session, session, "the session is the same for the client");
    assert.equal(events("initialized"), before.initialized + 1, "one new handshake");
    assert.deepEqual(await progress(main, 5), progressOf(5));
    assert.equal(await call(main, "touch"), "touched", "the subscription is there again");
    await until(() => main.heard.updated > before.updated);
    await client.unsubscribeResource({ uri: note });
    assert.equal(await call(main, "ask_user", { question: "again" }), "The user said: accept Ada of again");
    return { detail: "10 calls at once answered after one new handshake, the subscription is there again" };
  });
}

await step(name, "close", async () => {
  const { session } = main;
  const before = events("deleted");
  await end(main);
  await until(() => events("deleted") === before + 1);
  assert.equal(await statusInside(session), 404);
  // For the gateway to end when it stops, as the runner sees.
  const begun = events("initialized");
  await connect();
  await until(() => events("initialized") > begun);
  return { detail: "the server has seen the DELETE, then 404" };
});

// Whatever a client keeps open must not keep this program.
process.exit(0);
