// The bridge `mcp-remote` as a transport of the official client: the client speaks to
// it on stdin and stdout, and it speaks to the gateway.

import assert from "node:assert/strict";
import { mkdtempSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

import { exchangesIn, lastSession, url } from "./steps.mjs";

const program = fileURLToPath(new URL("node_modules/mcp-remote/dist/proxy.js", import.meta.url));
const record = new URL("record.mjs", import.meta.url).href;

export class BridgeTransport extends StdioClientTransport {
  constructor(mode, at = url) {
    // It looks for tokens and leaves files in its directory: each bridge has its own.
    const directory = mkdtempSync(join(homedir(), "mcp-remote-"));
    const exchanges = join(directory, "exchanges");
    super({
      command: process.execPath,
      args: [
        ...["--import", record, program, at.href],
        ...["--transport", "http-only", "--allow-http", "--silent", "--protocol", mode],
      ],
      // With nothing that would let it open a browser.
      env: { HOME: directory, MCP_REMOTE_CONFIG_DIR: directory, INTEROP_EXCHANGES: exchanges, DISPLAY: "" },
      // Inherited, it would keep the driver's own open for as long as the bridge lives.
      stderr: "pipe",
    });
    this.stderr.pipe(process.stderr);
    this.exchanges = exchanges;
  }

  get seen() {
    const seen = exchangesIn(this.exchanges);
    for (const { origin } of seen) assert.equal(origin, url.origin, "the bridge speaks to nobody else");
    return seen;
  }

  get sessionId() {
    return lastSession(this.seen);
  }

  /** What the bridge says to the gateway, not what the client has said to the bridge. */
  get protocolVersion() {
    return this.seen.findLast(({ http, session }) => http === "POST" && session)?.version;
  }
}
