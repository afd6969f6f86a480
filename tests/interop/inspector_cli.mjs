// The command line of the MCP Inspector: starting one run of it, and what it says in the end.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";

import { exchangesIn, lastSession } from "./steps.mjs";

const program = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js";
const here = (path) => fileURLToPath(new URL(path, import.meta.url));

const running = new Set();
// What a failed step has left must not outlive this program.
process.on("exit", () => {
  for (const child of running) child.kill("SIGKILL");
});

/** Starts one run at an endpoint. Its `ended` resolves to exit code, result and error. */
export function start(mode, at, method, ...options) {
  const directory = mkdtempSync(join(homedir(), "inspector-"));
  const exchanges = join(directory, "exchanges");
  const child = spawn(
    process.execPath,
    [
      ...["--import", here("record.mjs"), here(program), "--cli"],
      ...["--server-url", at.href, "--transport", "http", "--protocol-era", mode],
      // Nobody is there who could sign in.
      ...["--stored-auth-only", "--format", "json", "--method", method, ...options],
    ],
    {
      env: { HOME: directory, INTEROP_EXCHANGES: exchanges, MCP_INSPECTOR_SECRET_STORE: "memory" },
      stdio: ["ignore", "pipe", "pipe"],
    },
  );
  running.add(child);
  const closed = new Promise((resolve) => child.on("close", resolve)).finally(() => running.delete(child));
  const ended = Promise.all([closed, text(child.stdout), text(child.stderr)]).then(([code, stdout, stderr]) => {
    const lines = stderr.split("\n").filter((line) => line.startsWith('{"error":'));
    return {
      code,
      result: stdout.trim() === "" ? undefined : JSON.parse(stdout).result,
      error: lines.length === 0 ? undefined : JSON.parse(lines.at(-1)).error.message,
      stderr,
    };
  });
  return {
    ended,
    get seen() {
      const seen = exchangesIn(exchanges);
      for (const { origin } of seen) assert.equal(origin, at.origin, "it speaks to nobody else");
      return seen;
    },
    get session() {
      return lastSession(this.seen);
    },
  };
}

/** Runs one request that must succeed. Resolves to its result and its HTTP exchanges. */
export async function run(mode, at, method, ...options) {
  const started = start(mode, at, method, ...options);
  const { code, result, stderr } = await started.ended;
  assert.equal(code, 0, stderr);
  return { result, seen: started.seen };
}
