// Preloaded into a client that is a program of its own (`node --import`): writes each
// HTTP exchange of the program to the file INTEROP_EXCHANGES, two lines each, and
// changes nothing about it. Node's fetch and the package undici both publish their
// requests on these channels.

import { subscribe } from "node:diagnostics_channel";
import { appendFileSync } from "node:fs";

const file = process.env.INTEROP_EXCHANGES;
const numbers = new WeakMap();
let count = 0;

/** One header of a list of names and values, which are strings or bytes. */
function header(headers, name) {
  for (let at = 0; at + 1 < headers.length; at += 2) {
    if (String(headers[at]).toLowerCase() === name) return String(headers[at + 1]);
  }
  return undefined;
}

function write(line) {
  appendFileSync(file, `${JSON.stringify(line)}\n`);
}

subscribe("undici:request:create", ({ request }) => {
  numbers.set(request, count);
  write({
    number: count,
    http: request.method,
    origin: request.origin,
    // Not all clients name the JSON-RPC method in a header.
    rpc: header(request.headers, "mcp-method"),
    session: header(request.headers, "mcp-session-id"),
    version: header(request.headers, "mcp-protocol-version"),
  });
  count += 1;
});

subscribe("undici:request:headers", ({ request, response }) => {
  const session = header(response.headers, "mcp-session-id");
  write({
    number: numbers.get(request),
    status: response.statusCode,
    type: header(response.headers, "content-type"),
    // The answer to `initialize` tells the session that its request could not name.
    ...(session === undefined ? {} : { session }),
  });
});
