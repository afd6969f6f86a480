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
const one = direct ? asking : "gateway-one";

export const serverName = direct ? `shelf-${required("INTEROP_ASKING")}-${asking}` : "all";

/** The public form of a server's own name or URI. */
export const known = (server, own) => (direct ? own : `${server}-${own}`);

const offers = {
  tools: ["echo", "stream_processor", "wait", "cite", "touch", "ask_model", "ask_user", "ask_roots"],
  // What has a URI has a name too.
  resources: ["note", "list", "poem"].map((name) => `memo://shelf/${name} ${name}`),
  resourceTemplates: ["memo://drawer/{name} drawer", "memo://box/{number} box"],
  prompts: ["greet", "brief", "cheer"],
};
const lists = Object.keys(offers);
export const note = (server) => known(server, "memo://shelf/note");
const noteText = (server) => `note on the shelf of ${server}`;

/** What names an entry of a list, its URI first if it has one. */
const namesOf = ({ uri, uriTemplate, name }) => [uri ?? uriTemplate ?? [], name].flat().join(" ");

/** The public form of both. */
const allKnown = (server, own) =>
  own
    .split(" ")
    .map((part) => known(server, part))
    .join(" ");

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
function checkList(list, entries) {
  const names = entries.map(namesOf);
  for (const server of servers) {
    const expected = offers[list].map((own) => allKnown(server, own));
    assert.deepEqual(
      names.filter((name) => expected.includes(name)),
      expected,
      `${list} of ${server}`,
    );
  }
  assert.equal(names.length, servers.length * offers[list].length, `${list}: ${names}`);
}

/** The one content of a resource has the URI that it was asked for under, and the text. */
function checkContents({ contents }, uri, text) {
  assert.deepEqual(
    contents.map((content) => [content.uri, content.text]),
    [[uri, text]],
  );
}

/** Reads each resource by its URI from the list, and one of each template. */
export async function readListed(all, read) {
  const ownerOf = (name) => servers.find((server) => name.startsWith(known(server, "")));
  for (const { uri, name } of await all("resources")) {
    checkContents(await read(uri), uri, `${uri.split("/").at(-1)} on the shelf of ${ownerOf(name)}`);
  }
  for (const { uriTemplate } of await all("resourceTemplates")) {
    const [, place] = /\/\/(\w+)\//.exec(uriTemplate);
    const uri = uriTemplate.replace(/\{\w+\}/, "7");
    checkContents(await read(uri), uri, `7 on the ${place} of ${ownerOf(uriTemplate)}`);
  }
  return { detail: "each by its URI from the list, and one of each template" };
}

/** Reads what a prompt holds and what a tool's result links to, by the URIs that stand there. */
export async function readEmbedded(prompt, call, read) {
  for (const server of servers) {
    const { messages } = await prompt(known(server, "brief"));
    const { resource } = messages[0].content;
    assert.deepEqual([resource.uri, resource.text], [note(server), noteText(server)]);
    checkContents(await read(resource.uri), resource.uri, resource.text);
    const [link, held] = (await call(known(server, "cite"))).content;
    assert.deepEqual([link.type, link.uri, held.resource.uri], ["resource_link", note(server), note(server)]);
    checkContents(await read(link.uri), link.uri, noteText(server));
  }
  return { detail: "read by the URI in a prompt, and by that of a link in a result" };
}

/** Lists everything to its end; `pagesOf`, where that can be told, says how often the tools were asked for. */
export async function checkLists(all, pagesOf) {
  const counts = [];
  for (const list of lists) {
    const entries = await all(list);
    checkList(list, entries);
    counts.push(`${entries.length} ${list}`);
  }
  if (pagesOf === undefined) return { detail: counts.join(", ") };
  const pages = pagesOf();
  assert.ok(pages > 1, `${pages} page`);
  return { detail: `${counts.join(", ")}; the tools in ${pages} pages` };
}

/** A call to each, then `count` of them at once. */
export async function callEach(call, count) {
  const echo = async (server, message) =>
    assert.equal((await call(known(server, "echo"), { message })).content[0].text, `${server}: ${message}`);
  for (const server of servers) await echo(server, fragile);
  await Promise.all(
    Array.from({ length: count }, (_, n) => echo(servers[n % servers.length], `${n} ${"x".repeat(n * 17)}`)),
  );
  return { detail: `one of each, then ${count} at once: each answer of its own server` };
}

/** Completes an argument of a prompt and a variable of a template of each. */
export async function completeEach(complete) {
  for (const server of servers) {
    for (const [ref, values] of completions(server)) {
      const { completion } = await complete({ ref, argument: { name: "name", value: "a" } });
      assert.deepEqual(completion.values, values);
    }
  }
  return { detail: "an argument of a prompt and a variable of a template of each" };
}

/** The call of the route with one upstream, by its name from the list, and what it answers. */
export function checkOne(entries) {
  const tool = known(one, "stream_processor");
  const listed = entries.map(({ name }) => name);
  assert.ok(listed.includes(tool), `${tool} among ${listed}`);
  return tool;
}

/** The values that begin with `a`, of the prompt's argument and of the template's variable. */
const completions = (server) => [
  [{ type: "ref/prompt", name: known(server, "greet") }, [`ada of ${server}`, `alan of ${server}`]],
  [
    { type: "ref/resource", uri: known(server, "memo://drawer/{name}") },
    [`apples of ${server}`, `arrows of ${server}`],
  ],
];

export const root = "file:///home/ada/notes";

/** The tools by which a server asks its client, what they are given, and their texts. */
export const questions = [
  ["ask_model", { question: "why" }, `The model said: why? ${fragile}`],
  ["ask_user", { question: "here" }, "The user said: accept Ada of here"],
  ["ask_roots", {}, `The roots are: ${root}`],
];
