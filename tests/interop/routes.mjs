// What the drivers for Node know of a route and the servers behind it (servers/README.md,
// "Servers for routes"): their names, and what these make of a server's own names and URIs.
// Nothing here knows about any SDK.

import assert from "node:assert/strict";

import { fragile, required } from "./steps.mjs";

const direct = required("INTEROP_DIRECT") === "True";

/** The upstreams of the route that joins several, in the order of the configuration. */
export const servers = required("INTEROP_SERVERS").split(" ");

/** The one of them that speaks HTTP, so that it may ask the client. */
export const asking = servers.at(-1);

/** The route with one upstream, and that upstream's name. */
export const oneUrl = new URL(required("INTEROP_URL_ONE"));
export const one = direct ? asking : "gateway-one";

export const serverName = direct ? `shelf-${required("INTEROP_ASKING")}-${asking}` : "all";

/** The public form of a server's own name or URI. */
export const known = (server, own) => (direct ? own : `${server}-${own}`);

const offers = {
  tools: ["echo", "stream_processor", "wait", "cite", "touch", "ask_model", "ask_user", "ask_roots"],
  resources: ["note", "list", "poem"].map((name) => `memo://shelf/${name}`),
  resourceTemplates: ["memo://drawer/{name}", "memo://box/{number}"],
  prompts: ["greet", "brief", "cheer"],
};
export const lists = Object.keys(offers);
export const note = (server) => known(server, "memo://shelf/note");
export const noteText = (server) => `note on the shelf of ${server}`;
export const drawer = (server) => known(server, "memo://drawer/{name}");

/** What names an entry of a list. */
const nameOf = (list, entry) => entry[{ resources: "uri", resourceTemplates: "uriTemplate" }[list] ?? "name"];

/** Asks for a list page by page, to its end. `ask` takes a cursor or undefined. */
export async function allPages(list, ask) {
  const entries = [];
  let cursor;
  do {
    const page = await ask(cursor);
    entries.push(...page[list]);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return entries;
}

/** All that the servers offer is listed, of each server in its own order, and no more. */
export function checkList(list, entries, of = servers) {
  const names = entries.map((entry) => nameOf(list, entry));
  for (const server of of) {
    const expected = offers[list].map((own) => known(server, own));
    assert.deepEqual(
      names.filter((name) => expected.includes(name)),
      expected,
      `${list} of ${server}`,
    );
  }
  assert.equal(names.length, of.length * offers[list].length, `${list}: ${names}`);
}

export const echoed = (server) => [known(server, "echo"), { message: fragile }, `${server}: ${fragile}`];

/** The values that begin with `a`, of the prompt's argument and of the template's variable. */
export const completions = (server) => [
  [{ type: "ref/prompt", name: known(server, "greet") }, [`ada of ${server}`, `alan of ${server}`]],
  [{ type: "ref/resource", uri: drawer(server) }, [`apples of ${server}`, `arrows of ${server}`]],
];

export const root = "file:///home/ada/notes";

/** The tools by which a server asks its client, what they are given, and their texts. */
export const questions = [
  ["ask_model", { question: "why" }, `The model said: why? ${fragile}`],
  ["ask_user", { question: "here" }, "The user said: accept Ada of here"],
  ["ask_roots", {}, `The roots are: ${root}`],
];
