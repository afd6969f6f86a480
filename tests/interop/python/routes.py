"""What the drivers of the Python clients know of a route and the servers behind it
(../servers/README.md, "Servers for routes"): their names, and what these make of a server's
own names and URIs. Standard library only; nothing here knows about any SDK."""

import os

from steps import FRAGILE

DIRECT = os.environ["INTEROP_DIRECT"] == "True"

# The upstreams of the route that joins several, in the order of the configuration.
SERVERS = os.environ["INTEROP_SERVERS"].split(" ")

# The one of them that speaks HTTP, so that it may ask the client.
ASKING = SERVERS[-1]

# The route with one upstream, and that upstream's name.
ONE_URL = os.environ["INTEROP_URL_ONE"]
ONE = ASKING if DIRECT else "gateway-one"

SERVER_NAME = f"shelf-{os.environ['INTEROP_ASKING']}-{ASKING}" if DIRECT else "all"

OFFERS = {
    "tools": ["echo", "stream_processor", "wait", "cite", "touch", "ask_model", "ask_user", "ask_roots"],
    # What has a URI has a name too.
    "resources": [f"memo://shelf/{name} {name}" for name in ("note", "list", "poem")],
    "resourceTemplates": ["memo://drawer/{name} drawer", "memo://box/{number} box"],
    "prompts": ["greet", "brief", "cheer"],
}
URIS = ("uri", "uriTemplate")
ROOT = "file:///home/ada/notes"

# The tools by which a server asks its client, what they are given, and their texts.
QUESTIONS = (
    ("ask_model", {"question": "why"}, f"The model said: why? {FRAGILE}"),
    ("ask_user", {"question": "here"}, "The user said: accept Ada of here"),
    ("ask_roots", {}, f"The roots are: {ROOT}"),
)


def known(server, own):
    """The public form of a server's own name or URI."""
    return own if DIRECT else f"{server}-{own}"


def note(server):
    return known(server, "memo://shelf/note")


def note_text(server):
    return f"note on the shelf of {server}"


async def all_pages(listed, ask):
    """Asks for a list page by page, to its end. `ask` takes a cursor or None."""
    entries, cursor = [], None
    while True:
        page = await ask(cursor)
        entries += page[listed]
        cursor = page.get("nextCursor")
        if cursor is None:
            return entries


def check_list(listed, entries):
    """All that the servers offer is listed, of each server in its own order, and no more."""
    names = [" ".join(entry[by] for by in (*URIS, "name") if entry.get(by)) for entry in entries]
    for server in SERVERS:
        expected = [" ".join(known(server, part) for part in own.split()) for own in OFFERS[listed]]
        assert [name for name in names if name in expected] == expected, (server, names)
    assert len(names) == len(SERVERS) * len(OFFERS[listed]), names


def owner_of(name):
    """The server whose name begins this one."""
    return next(server for server in SERVERS if name.startswith(known(server, "")))


def completions(server):
    """The values that begin with `a`, of the prompt's argument and of the template's variable."""
    prompt = {"type": "ref/prompt", "name": known(server, "greet")}
    template = {"type": "ref/resource", "uri": known(server, "memo://drawer/{name}")}
    return (
        (prompt, [f"ada of {server}", f"alan of {server}"]),
        (template, [f"apples of {server}", f"arrows of {server}"]),
    )


class Answers:
    """What a client says to the server's questions, and a record of them."""

    roots = [ROOT]

    def __init__(self):
        self.asked = []

    def sample(self, question):
        self.asked.append("sampling")
        return f"{question}? {FRAGILE}"

    def fill_in(self, question):
        self.asked.append("elicitation")
        return {"name": f"Ada of {question}"}

    def list_roots(self):
        self.asked.append("roots")
        return self.roots

    def log(self, level, data):
        pass
