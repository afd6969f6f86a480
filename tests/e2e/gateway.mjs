// One Ringway process for a test: start it, read its start-up line, stop it.
// Only this file starts gateways, and it ends each one that it started, together
// with whatever the gateway itself left behind, even when a test fails or the
// run is interrupted. Nothing here knows about MCP.

import { spawn } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));

/** The gateway under test: RINGWAY_BIN, or the dev build of this repository. */
export const binary = resolve(process.env.RINGWAY_BIN ?? join(here, "../../target/debug/ringway"));

/** The command line of the reference server, speaking stdio. */
export const everythingCommand = [
  process.execPath,
  join(here, "node_modules/@modelcontextprotocol/server-everything/dist/index.js"),
  "stdio",
];

// Guards against a hang, not expectations about speed.
const startMsMax = 60_000;
const stopMsMax = 60_000;
// Server and gateway log little; past this the oldest part is let go.
const stderrCharsMax = 256 * 1024;

const running = new Set();

process.on("exit", () => {
  for (const gateway of running) gateway.killAll();
});
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  process.on(signal, () => process.exit(1));
}

/**
 * Starts `ringway serve` in front of the reference server and waits for its
 * start-up line. Throws with the gateway's stderr when there is none.
 */
export async function startGateway(flags, serverCommand = everythingCommand) {
  if (!existsSync(binary)) throw new Error(`no gateway at ${binary}: build it or set RINGWAY_BIN`);
  const gateway = new Gateway(flags, serverCommand);
  running.add(gateway);
  try {
    await gateway.started();
  } catch (error) {
    gateway.killAll();
    running.delete(gateway);
    throw error;
  }
  return gateway;
}

class Gateway {
  #child;
  #stdout = "";
  #stderr = "";
  #ended;
  #stopped;

  constructor(flags, serverCommand) {
    // A developer's own RINGWAY_ settings would change what is tested.
    const env = Object.fromEntries(
      Object.entries(process.env).filter(([name]) => !name.startsWith("RINGWAY_")),
    );
    const args = ["serve", "--listen", "127.0.0.1:0", "--admin", "off", ...flags, "--", ...serverCommand];
    this.#child = spawn(binary, args, { cwd: here, env, stdio: ["ignore", "pipe", "pipe"] });
    this.#child.stdout.setEncoding("utf8").on("data", (text) => {
      this.#stdout += text;
    });
    this.#child.stderr.setEncoding("utf8").on("data", (text) => {
      this.#stderr = (this.#stderr + text).slice(-stderrCharsMax);
    });
    this.#ended = new Promise((resolve) => {
      this.#child.once("error", (error) => resolve({ error }));
      // "exit", not "close": a leaked grandchild may hold the pipes open.
      this.#child.once("exit", (code, signal) => resolve({ code, signal }));
    });
  }

  /** Everything that gateway and server wrote to stderr, the last part of it. */
  get stderr() {
    return this.#stderr;
  }

  /** Everything that the gateway wrote to stdout. */
  get stdout() {
    return this.#stdout;
  }

  /** Waits for the start-up line and reads `line`, `url` and `facts` out of it. */
  async started() {
    const deadline = Date.now() + startMsMax;
    let ended;
    this.#ended.then((how) => {
      ended = how;
    });
    while (!this.#stdout.includes("\n")) {
      if (ended) throw new Error(`gateway ended at start: ${describe(ended)}\n${this.#stderr}`);
      if (Date.now() > deadline) throw new Error(`no start-up line\n${this.#stderr}`);
      await sleep(10);
    }
    this.line = this.#stdout.slice(0, this.#stdout.indexOf("\n"));
    const address = /^ringway \S+ listening on (http:\/\/127\.0\.0\.1:\d+\/mcp)(?= )/.exec(this.line);
    if (!address) throw new Error(`not a start-up line: ${this.line}`);
    this.url = new URL(address[1]);
    this.facts = Object.fromEntries(
      [...this.line.matchAll(/ ([a-z-]+)=(?:"([^"]*)"|(\S+))/g)].map((m) => [m[1], m[2] ?? m[3]]),
    );
  }

  /** The processes below the gateway that live now. */
  descendants() {
    return descendantsOf(this.#child.pid);
  }

  /**
   * Asks the gateway to stop and waits. Resolves to how it ended, and to those of
   * its processes that outlived it; those are killed, so that a failing test
   * leaves nothing behind either. A second call gives the first one's answer.
   */
  stop() {
    this.#stopped ??= this.#stop();
    return this.#stopped;
  }

  async #stop() {
    const below = this.descendants();
    this.#child.kill("SIGTERM");
    const late = sleep(stopMsMax, "late", { ref: false });
    let how = await Promise.race([this.#ended, late]);
    if (how === "late") {
      this.#child.kill("SIGKILL");
      how = { ...(await this.#ended), late: true };
    }
    const deadline = Date.now() + 5_000;
    while (below.some(isAlive) && Date.now() < deadline) await sleep(20);
    const survivors = below.filter(isAlive);
    for (const process of survivors) killProcess(process);
    running.delete(this);
    return { ...how, survivors };
  }

  /**
   * Kills the gateway alone, as nothing can be prepared for. Resolves to how many
   * processes it had, and to those that outlived it; those are killed.
   */
  async killAlone() {
    const below = this.descendants();
    this.#child.kill("SIGKILL");
    await this.#ended;
    const deadline = Date.now() + 10_000;
    while (below.some(isAlive) && Date.now() < deadline) await sleep(20);
    const survivors = below.filter(isAlive);
    for (const process of survivors) killProcess(process);
    running.delete(this);
    return { count: below.length, survivors };
  }

  /** Ends the gateway and all below it at once. Synchronous: runs at exit too. */
  killAll() {
    const below = this.#child.exitCode === null ? this.descendants() : [];
    this.#child.kill("SIGKILL");
    for (const process of below) if (isAlive(process)) killProcess(process);
  }
}

function describe({ error, code, signal }) {
  return error ? error.message : signal ? `signal ${signal}` : `exit ${code}`;
}

// A pid may be used again, so a process is known by its pid and start time.
function statOf(pid) {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    // The name in parentheses may hold spaces; the fields are counted after it.
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    const name = stat.slice(stat.indexOf("(") + 1, stat.lastIndexOf(")"));
    return { pid, name, state: fields[0], startTime: fields[19] };
  } catch {
    return undefined;
  }
}

function isAlive({ pid, startTime }) {
  const now = statOf(pid);
  return now !== undefined && now.startTime === startTime && now.state !== "Z";
}

function killProcess({ pid }) {
  try {
    process.kill(pid, "SIGKILL");
  } catch {
    // It ended by itself between the look and the signal.
  }
}

function descendantsOf(pid) {
  const found = [];
  const waiting = [pid];
  while (waiting.length > 0) {
    for (const child of childrenOf(waiting.pop())) {
      const stat = statOf(child);
      if (stat) found.push(stat);
      waiting.push(child);
    }
  }
  return found;
}

function childrenOf(pid) {
  try {
    // Children belong to the thread that made them, so all threads are asked.
    const tasks = readdirSync(`/proc/${pid}/task`);
    return tasks.flatMap((task) =>
      readFileSync(`/proc/${pid}/task/${task}/children`, "utf8").split(" ").filter(Boolean).map(Number),
    );
  } catch {
    return [];
  }
}
