// What the drivers for Node share: running the steps, one JSON line for each, and
// looking at the gateway past the client (raw HTTP, the server's pid) and at the
// client's HTTP exchanges. Nothing here knows about any SDK.

import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

export const url = new URL(required("INTEROP_URL"));
export const serverPid = Number(required("INTEROP_SERVER_PID"));
const withoutProgress = required("INTEROP_PROGRESS") === "none";

// A guard against a hang, not an expectation about speed.
const stepMsMax = 30_000;

/** Texts that a careless hop would change: astral signs, joiners, line separators, escapes. */
export const fragile = '👩‍👩‍👧 \u00a0\u2028\u2029 "\\\n\r\t\u0001 𝔘 \u007f';

/** The resources and the lists of the server. */
export const clock = "demo://clock";
export const notes = "demo://notes";
export const lists = ["tools", "resources", "prompts"];

/** All progress of one call of the tool `slow`, in order. */
export function progressOf(steps) {
  if (withoutProgress) return [];
  return Array.from({ length: steps }, (_, n) => ({
    progress: n + 1,
    total: steps,
    message: `step ${n + 1} of ${steps}`,
  }));
}

export function required(name) {
  const value = process.env[name];
  if (value === undefined) throw new Error(`${name} is not set: start this through run.py`);
  return value;
}

/** How often a server of `servers/` has written this line to the file of events. */
export function events(line) {
  const file = required("INTEROP_EVENTS");
  return existsSync(file) ? readFileSync(file, "utf8").split("\n").filter((said) => said === line).length : 0;
}

/**
 * Runs one step and prints its line. Resolves to what the step returns, or to
 * undefined when it failed: later steps run all the same, so that the table shows
 * all that fails, not the first of it.
 */
export async function step(client, name, body, msMax = stepMsMax) {
  const abandoned = new AbortController();
  try {
    const { detail, value } = await Promise.race([
      body(),
      sleep(msMax, undefined, { signal: abandoned.signal }).then(() => {
        throw new Error(`no end after ${msMax / 1000} s`);
      }),
    ]);
    report({ client, step: name, ok: true, detail });
    return value;
  } catch (error) {
    report({ client, step: name, ok: false, detail: describe(error) });
    return undefined;
  } finally {
    abandoned.abort();
  }
}

function report(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

export function describe(error) {
  const code = error?.code === undefined ? "" : ` (${error.code})`;
  return `${error?.name ?? "Error"}${code}: ${error?.message ?? error}`.replaceAll(/\s+/g, " ").slice(0, 400);
}

/** The error that a promise ends with. */
export async function failure(promise) {
  const value = await promise.then(
    (result) => ({ result }),
    (error) => ({ error }),
  );
  assert.ok(value.error, `no error but ${JSON.stringify(value.result)}`);
  return value.error;
}

/** Waits for a condition; a step's own guard ends the waiting. */
export async function until(condition) {
  while (!(await condition())) await sleep(10);
}

/** Waits until the stream for messages of the server is open in the connection's session. */
export async function streamOpen(connection) {
  const answered = () =>
    connection.seen.find(
      ({ http, session, status }) => http === "GET" && session === connection.session && status !== undefined,
    );
  await until(answered);
  assert.equal(answered().status, 200, "GET");
}

export async function killServer() {
  process.kill(serverPid, "SIGKILL");
}

/** Ends a session as somebody else would who knows its id. */
export async function endSessionElsewhere(session, at = url) {
  const response = await fetch(at, { method: "DELETE", headers: { "mcp-session-id": session } });
  await response.arrayBuffer();
  assert.equal(response.status, 204, "DELETE from elsewhere");
}

/** The status that a request inside `session` gets now. */
export async function statusInside(session) {
  const response = await fetch(url, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      accept: "application/json, text/event-stream",
      "mcp-session-id": session,
    },
    body: '{"jsonrpc":"2.0","id":"elsewhere","method":"ping"}',
  });
  await response.arrayBuffer();
  return response.status;
}

/** A `fetch` that records each exchange: HTTP method, JSON-RPC method, session, status. */
export function recordingFetch(seen) {
  return async (input, init = {}) => {
    const headers = new Headers(init.headers);
    const message = typeof init.body === "string" ? JSON.parse(init.body) : {};
    const exchange = {
      http: init.method ?? "GET",
      rpc: message.method,
      session: headers.get("mcp-session-id"),
      status: undefined,
    };
    seen.push(exchange);
    const response = await fetch(input, init);
    exchange.status = response.status;
    exchange.session ??= response.headers.get("mcp-session-id");
    return response;
  };
}

/** The exchanges that record.mjs has written to `file`, in the same form. */
export function exchangesIn(file) {
  if (!existsSync(file)) return [];
  const exchanges = [];
  // What follows the last line's end, if anything, is a line that is being written.
  for (const line of readFileSync(file, "utf8").split("\n").slice(0, -1)) {
    const { number, ...told } = JSON.parse(line);
    exchanges[number] = { ...exchanges[number], ...told };
  }
  return exchanges;
}

/** The session that a client has last sent a message in. */
export function lastSession(seen) {
  return seen.findLast(({ http, session }) => http === "POST" && session)?.session;
}
