"""What the servers for routes offer (README.md, "Servers for routes"), as plain JSON values:
the Python SDKs differ only in how these reach their client. `serve` in common.py serves one
over HTTP; nothing here knows about any SDK."""

import sys

from common import NAME_SCHEMA, note, wait

PAGE_SIZE = 2
NOTE = "memo://shelf/note"

TOOLS = {
    "echo": {"message": "string"},
    "stream_processor": {"count": "integer"},
    "wait": {},
    "cite": {},
    "touch": {},
    "ask_model": {"question": "string"},
    "ask_user": {"question": "string"},
    "ask_roots": {},
}
RESOURCES = ("note", "list", "poem")
TEMPLATES = {"drawer": "name", "box": "number"}
PROMPTS = {"greet": "name", "brief": None, "cheer": None}
# What begins the values that an argument of a prompt, and a variable of a template, may have.
VALUES = {"ref/prompt": ("ada", "alan", "grace"), "ref/resource": ("apples", "arrows", "bread")}


def text(said):
    return {"type": "text", "text": said}


def user(content):
    return {"role": "user", "content": content}


def page(member, items, params):
    """One page of a list; the cursor is where it begins."""
    start = int((params or {}).get("cursor") or 0)
    end = start + PAGE_SIZE
    more = {"nextCursor": str(end)} if end < len(items) else {}
    return {member: items[start:end], **more}


class Shelf:
    """The offers of the server `who`."""

    def __init__(self, who):
        self.who = who
        # The sessions that have subscribed to the note.
        self.subscribed = set()

    def note(self, event):
        note(f"{self.who} {event}")

    def tools(self, params):
        def tool(name, arguments):
            properties = {argument: {"type": kind} for argument, kind in arguments.items()}
            schema = {"type": "object", "properties": properties, "required": list(arguments)}
            return {"name": name, "description": f"{name} of {self.who}", "inputSchema": schema}

        return page("tools", [tool(*of) for of in TOOLS.items()], params)

    def resources(self, params):
        resources = [{"uri": f"memo://shelf/{name}", "name": name, "mimeType": "text/plain"} for name in RESOURCES]
        return page("resources", resources, params)

    def templates(self, params):
        templates = [{"uriTemplate": f"memo://{of}/{{{by}}}", "name": of} for of, by in TEMPLATES.items()]
        return page("resourceTemplates", templates, params)

    def prompts(self, params):
        def prompt(name, argument):
            arguments = [{"name": argument, "required": True}] if argument else []
            return {"name": name, "description": f"{name} of {self.who}", "arguments": arguments}

        return page("prompts", [prompt(*of) for of in PROMPTS.items()], params)

    def contents(self, uri):
        place, _, name = uri.removeprefix("memo://").partition("/")
        if not name or not (place == "shelf" and name in RESOURCES or place in TEMPLATES):
            raise ValueError(f"{self.who} has no {uri}")
        return {"uri": uri, "mimeType": "text/plain", "text": f"{name} on the {place} of {self.who}"}

    def read(self, params):
        return {"contents": [self.contents(params["uri"])]}

    def prompt(self, params):
        name = params["name"]
        if name == "greet":
            return {"messages": [user(text(f"Hello, {params['arguments']['name']}, from {self.who}!"))]}
        if name == "brief":
            return {"messages": [user({"type": "resource", "resource": self.contents(NOTE)}), user(text("Sum it up."))]}
        if name == "cheer":
            return {"messages": [user(text(f"Three cheers for {self.who}!"))]}
        raise ValueError(f"{self.who} has no prompt {name}")

    def completion(self, params):
        ref, argument = params["ref"], params["argument"]
        known = (("greet", "name"), ("memo://drawer/{name}", "name"))
        if (ref.get("name") or ref.get("uri"), argument["name"]) not in known:
            raise ValueError(f"{self.who} completes nothing of {ref}")
        values = [f"{value} of {self.who}" for value in VALUES[ref["type"]]]
        return {"completion": {"values": [value for value in values if value.startswith(argument["value"])]}}

    async def call(self, name, given, to):
        """Runs a tool. `to` is the way to the client, in the SDK's terms: `progress`,
        `updated`, `sample`, `elicit`, `roots` and `session`."""
        return {"content": await self.run(name, given, to)}

    async def run(self, name, given, to):
        if name == "echo":
            return [text(f"{self.who}: {given['message']}")]
        if name == "stream_processor":
            count = given["count"]
            for step in range(1, count + 1):
                await to.progress(step, count, f"step {step} of {count}")
            return [text(f"done after {count} steps")]
        if name == "wait":
            await wait(f"{self.who} wait")
        if name == "cite":
            link = {"type": "resource_link", "uri": NOTE, "name": "note"}
            return [link, {"type": "resource", "resource": self.contents(NOTE)}]
        if name == "touch":
            if to.session not in self.subscribed:
                return [text("nobody has subscribed")]
            await to.updated(NOTE)
            return [text("touched")]
        if name == "ask_model":
            return [text(f"The model said: {await to.sample(given['question'])}")]
        if name == "ask_user":
            return [text(f"The user said: {await to.elicit(given['question'], NAME_SCHEMA)}")]
        if name == "ask_roots":
            return [text(f"The roots are: {' '.join(await to.roots())}")]
        raise ValueError(f"{self.who} has no tool {name}")


def arguments():
    """The name of the server and how it is served."""
    if len(sys.argv) != 3 or sys.argv[2] not in ("stdio", "http"):
        sys.exit(f"usage: {sys.argv[0]} WHO stdio|http")
    return sys.argv[1], sys.argv[2]
