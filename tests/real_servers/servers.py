"""The servers: how each is started, the state that it starts from, and what it is asked. What is asked must give the
same bytes each time it is asked of a new process in the same state.
"""

import datetime
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

HERE = Path(__file__).resolve().parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or HERE.parent.parent / "target").resolve()
PYTHON = str(TARGET / "real-servers/python/bin/python")
RMCP = str(TARGET / "real-servers/rmcp/debug/ringway-rmcp-server")

# So many different calls for the load, more than there are callers.
LOAD = 32

UNICODE = "Grüße, Ωμέγα, 你好, 🚪🪟 \"quoted\" back\\slash \u2028 tab\t"


@dataclass(frozen=True)
class Ask:
    """A request, and a text that stands in its answer, so that it is seen to mean what it should."""

    method: str
    params: dict
    says: str


@dataclass(frozen=True)
class State:
    """What a server has for itself: a folder, made anew for each process; and pages on the web, always the same."""

    folder: Path
    pages: str


@dataclass(frozen=True)
class Mask:
    """What in an answer is different each time, as a pattern, and why. What its first group matches stays."""

    pattern: str
    reason: str

    def found(self, said):
        return [match.group() for match in re.finditer(self.pattern, said)]


@dataclass(frozen=True)
class ServerUnderTest:
    command: Callable
    calls: Callable
    errors: Callable
    # LOAD requests that only read; their answers all differ.
    load: Callable
    prepare: Callable = lambda state: None
    variables: Callable = lambda state: {}
    # For answers under load only: everything else is compared as it is.
    masks: tuple = ()


def tool(name, arguments, says):
    return Ask("tools/call", {"name": name, "arguments": arguments}, says)


def read(uri, says):
    return Ask("resources/read", {"uri": uri}, says)


def prompt(name, arguments, says):
    return Ask("prompts/get", {"name": name, "arguments": arguments}, says)


def complete(ref, argument, value, says, context=None):
    params = {"ref": ref, "argument": {"name": argument, "value": value}}
    return Ask("completion/complete", params | ({"context": {"arguments": context}} if context else {}), says)


NO_METHOD = Ask("no/such/method", {"a": [1, 2.50, None]}, "-32601")


def node(package, *arguments):
    script = HERE / f"node_modules/@modelcontextprotocol/{package}/dist/index.js"
    return lambda state: ["node", str(script), *(argument(state) for argument in arguments)]


# server-everything. Its tool `get-env` shows the environment, which belongs in no log, and its dynamic resources the
# time of day.

GZIP = {"name": "söme file.gz", "data": "data:text/plain;base64,UmluZ3dheSA=", "outputType": "resourceLink"}
GZIP_URI = "demo://resource/session/söme file.gz"

everything = ServerUnderTest(
    command=node("server-everything", lambda state: "stdio"),
    calls=lambda state: [
        tool("echo", {"message": UNICODE}, f"Echo: {UNICODE}"),
        tool("get-sum", {"a": 2.5, "b": -40}, "-37.5"),
        tool("get-structured-content", {"location": "Chicago"}, "Light rain / drizzle"),
        tool("get-tiny-image", {}, "image/png"),
        tool("get-annotated-message", {"messageType": "error", "includeImage": True}, "Error: Operation failed"),
        tool("get-resource-links", {"count": 4}, "resource_link"),
        tool("gzip-file-as-resource", GZIP, "application/gzip"),
        read("demo://resource/static/document/architecture.md", "# Everything Server"),
        prompt("simple-prompt", {}, "simple prompt"),
        prompt("args-prompt", {"city": "Zürich", "state": "ZH"}, "Zürich, ZH"),
        complete({"type": "ref/prompt", "name": "completable-prompt"}, "department", "S", "Support"),
        complete(
            {"type": "ref/prompt", "name": "completable-prompt"}, "name", "D", "David", context={"department": "Sales"}
        ),
        complete({"type": "ref/resource", "uri": "demo://resource/dynamic/text/{resourceId}"}, "resourceId", "7", "7"),
    ],
    errors=lambda state: [
        tool("no-such-tool", {"message": "hello"}, "no-such-tool"),
        tool("get-sum", {"a": "two"}, "get-sum"),
        read("demo://resource/no-such", "no-such"),
        prompt("no-such-prompt", {}, "no-such-prompt"),
        NO_METHOD,
    ],
    load=lambda state: [tool("echo", {"message": f"{n} {UNICODE}"}, f"Echo: {n} ") for n in range(LOAD)],
)


# server-filesystem. `get_file_info` shows times; the order of a folder is the file system's own, so those that are
# listed have one entry, or are listed by name.


def prepare_files(state):
    (state.folder / "load").mkdir()
    for n in range(LOAD):
        (state.folder / f"load/{n}.txt").write_text(f"file {n}: {UNICODE}\n")
    (state.folder / "pixel.gif").write_bytes(bytes(range(256)))


filesystem = ServerUnderTest(
    command=node("server-filesystem", lambda state: str(state.folder)),
    prepare=prepare_files,
    calls=lambda state: [
        tool("list_allowed_directories", {}, str(state.folder)),
        tool("create_directory", {"path": f"{state.folder}/notes"}, "Successfully created"),
        tool("write_file", {"path": f"{state.folder}/notes/eins.txt", "content": f"eins\n{UNICODE}\n"}, "Success"),
        tool("read_text_file", {"path": f"{state.folder}/notes/eins.txt"}, UNICODE),
        tool("read_text_file", {"path": f"{state.folder}/notes/eins.txt", "head": 1}, "eins"),
        tool(
            "edit_file",
            {"path": f"{state.folder}/notes/eins.txt", "edits": [{"oldText": "eins", "newText": "zwei"}]},
            "+zwei",
        ),
        tool("list_directory", {"path": f"{state.folder}/notes"}, "[FILE] eins.txt"),
        tool("list_directory_with_sizes", {"path": f"{state.folder}/load"}, "[FILE] 31.txt"),
        tool("directory_tree", {"path": f"{state.folder}/notes"}, "eins.txt"),
        tool("search_files", {"path": str(state.folder), "pattern": "**/eins*"}, "notes/eins.txt"),
        tool("read_multiple_files", {"paths": [f"{state.folder}/load/{n}.txt" for n in (3, 4)]}, "file 4"),
        tool("read_media_file", {"path": f"{state.folder}/pixel.gif"}, "image/gif"),
        tool(
            "move_file",
            {"source": f"{state.folder}/notes/eins.txt", "destination": f"{state.folder}/zwei.txt"},
            "Successfully moved",
        ),
        tool("read_text_file", {"path": f"{state.folder}/zwei.txt"}, "zwei"),
    ],
    errors=lambda state: [
        tool("no_such_tool", {}, "no_such_tool"),
        tool("read_text_file", {"path": f"{state.folder}/no-such.txt"}, "no-such.txt"),
        tool("read_text_file", {"path": "/"}, "Access denied"),
        tool("write_file", {"path": 1}, "write_file"),
        NO_METHOD,
    ],
    load=lambda state: [
        tool("read_text_file", {"path": f"{state.folder}/load/{n}.txt"}, f"file {n}: ") for n in range(LOAD)
    ],
)


# server-memory. It keeps its graph in a file, so a new process has it again.


def prepare_memory(state):
    entities = (
        {"type": "entity", "name": f"node {n}", "entityType": "load", "observations": [f"{n} {UNICODE}"]}
        for n in range(LOAD)
    )
    (state.folder / "memory.jsonl").write_text("\n".join(json.dumps(entity) for entity in entities))


ADA = {"name": "Ada", "entityType": "person", "observations": ["wrote the first program"]}
ENGINE = {"name": "Analytical Engine", "entityType": "machine", "observations": [UNICODE]}

memory = ServerUnderTest(
    command=node("server-memory"),
    prepare=prepare_memory,
    variables=lambda state: {"MEMORY_FILE_PATH": str(state.folder / "memory.jsonl")},
    calls=lambda state: [
        tool("create_entities", {"entities": [ADA, ENGINE]}, "Analytical Engine"),
        tool(
            "create_relations",
            {"relations": [{"from": "Ada", "to": "Analytical Engine", "relationType": "programs"}]},
            "programs",
        ),
        tool("add_observations", {"observations": [{"entityName": "Ada", "contents": ["1815–1852"]}]}, "1815–1852"),
        tool("read_graph", {}, "wrote the first program"),
        tool("search_nodes", {"query": "first program"}, "Ada"),
        tool("open_nodes", {"names": ["Analytical Engine"]}, UNICODE),
        read("memory://knowledge-graph", "1815–1852"),
        tool("delete_entities", {"entityNames": ["Ada"]}, "deleted"),
        tool("read_graph", {}, "Analytical Engine"),
    ],
    errors=lambda state: [
        tool("no_such_tool", {}, "no_such_tool"),
        tool("create_entities", {"entities": [{"name": 1}]}, "create_entities"),
        tool("add_observations", {"observations": [{"entityName": "Nobody", "contents": ["x"]}]}, "Nobody"),
        read("memory://no-such", "memory://no-such"),
        NO_METHOD,
    ],
    load=lambda state: [tool("open_nodes", {"names": [f"node {n}"]}, f"node {n}") for n in range(LOAD)],
)


# server-sequential-thinking


def thought(number, says, **more):
    arguments = {"thought": f"{number} {UNICODE}", "thoughtNumber": number, "totalThoughts": 2}
    return tool("sequentialthinking", arguments | {"nextThoughtNeeded": True} | more, says)


sequential_thinking = ServerUnderTest(
    command=node("server-sequential-thinking"),
    calls=lambda state: [
        thought(1, '"thoughtHistoryLength": 1'),
        thought(2, '"thoughtHistoryLength": 2', nextThoughtNeeded=False),
        thought(3, '"totalThoughts": 3', branchFromThought=1, branchId="Zweig"),
        thought(2, "Zweig", isRevision=True, revisesThought=1),
    ],
    errors=lambda state: [
        tool("no_such_tool", {}, "no_such_tool"),
        tool("sequentialthinking", {"thought": "without a number"}, "sequentialthinking"),
        NO_METHOD,
    ],
    load=lambda state: [thought(1000 + n, f"{1000 + n}") for n in range(LOAD)],
    masks=(
        Mask(
            r'(?<=thoughtHistoryLength)(\\?": ?)\d+',
            "the length of the history counts what all clients have thought since the server's start",
        ),
        Mask(
            r'(?<=branches)(\\?": ?)\[.*?\]',
            "the branches are those of the server's whole life, and a new process has none",
        ),
    ),
)


# mcp-server-time. `get_current_time` shows the time, and `convert_time` the date of the source zone. Of two zones half
# a day apart one is far from midnight, and neither ever changes its clocks.


def quiet_zone():
    hour = datetime.datetime.now(datetime.timezone.utc).hour
    tokyo = (hour + 9) % 24
    return "Asia/Tokyo" if 4 <= tokyo < 20 else "America/Phoenix"


def convert(time, target, says):
    return tool("convert_time", {"source_timezone": quiet_zone(), "time": time, "target_timezone": target}, says)


time_server = ServerUnderTest(
    command=lambda state: [PYTHON, "-m", "mcp_server_time", "--local-timezone", "Europe/Warsaw"],
    calls=lambda state: [
        convert("14:30", "Asia/Kathmandu", "Asia/Kathmandu"),
        convert("00:05", "Pacific/Auckland", "Pacific/Auckland"),
        convert("23:59", "UTC", "T23:59:00"),
    ],
    errors=lambda state: [
        tool("no_such_tool", {}, "no_such_tool"),
        tool("get_current_time", {"timezone": "Mars/Olympus"}, "Mars/Olympus"),
        convert("25:61", "UTC", "Invalid time"),
        tool("convert_time", {"time": 5}, "convert_time"),
        read("time://no-such", "time://no-such"),
        prompt("no-such-prompt", {}, "no-such-prompt"),
        NO_METHOD,
    ],
    load=lambda state: [
        convert(f"{n % 24:02}:{n:02}", "Asia/Kathmandu", f"T{n % 24:02}:{n:02}:00") for n in range(LOAD)
    ],
)


# mcp-server-git, in a repository whose commits have fixed authors and dates.

GIT_VARIABLES = {
    "GIT_AUTHOR_NAME": "Ärzte & Töchter",
    "GIT_AUTHOR_EMAIL": "author@example.com",
    "GIT_AUTHOR_DATE": "981173106 +0000",
    "GIT_COMMITTER_NAME": "Committer",
    "GIT_COMMITTER_EMAIL": "committer@example.com",
    "GIT_COMMITTER_DATE": "981173106 +0000",
    # The settings of whoever runs this would change what git says.
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "LC_ALL": "C",
}


def prepare_repository(state):
    def git(*arguments):
        # Neither the repository nor the hooks of whoever runs this are meant.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | GIT_VARIABLES
        subprocess.run(["git", *arguments], cwd=state.folder, env=environment, check=True, capture_output=True)

    git("init", "--quiet", "--initial-branch=main")
    (state.folder / "load").mkdir()
    for n in range(LOAD):
        (state.folder / f"load/{n}.txt").write_text(f"file {n}: {UNICODE}\n")
    (state.folder / "poem.txt").write_text("one\ntwo\nthree\n")
    git("add", ".")
    git("commit", "--quiet", "--message", "First: Grüße 🚪")
    (state.folder / "poem.txt").write_text("one\ntwo and a half\nthree\n")
    git("commit", "--quiet", "--all", "--message", "Second")
    (state.folder / "poem.txt").write_text("one\ntwo and a half\nthree\nvier\n")


def git_tool(name, arguments, says):
    return lambda state: tool(name, {"repo_path": str(state.folder)} | arguments, says)


GIT_CALLS = (
    git_tool("git_status", {}, "modified:   poem.txt"),
    git_tool("git_log", {"max_count": 2}, "First: Grüße 🚪"),
    git_tool("git_diff_unstaged", {}, "+vier"),
    git_tool("git_diff", {"target": "HEAD~1"}, "+two and a half"),
    git_tool("git_show", {"revision": "HEAD"}, "Second"),
    git_tool("git_add", {"files": ["poem.txt"]}, "staged"),
    git_tool("git_diff_staged", {"context_lines": 0}, "+vier"),
    git_tool("git_commit", {"message": "Third"}, "committed"),
    git_tool("git_create_branch", {"branch_name": "zweig"}, "zweig"),
    git_tool("git_branch", {"branch_type": "local"}, "zweig"),
    git_tool("git_log", {"max_count": 1}, "Third"),
)
GIT_ERRORS = (
    git_tool("no_such_tool", {}, "no_such_tool"),
    git_tool("git_show", {"revision": "no-such-revision"}, "no-such-revision"),
    git_tool("git_add", {"files": []}, "files"),
    lambda state: tool("git_status", {"repo_path": str(state.folder.parent)}, "outside"),
    lambda state: NO_METHOD,
)

git = ServerUnderTest(
    command=lambda state: [PYTHON, "-m", "mcp_server_git", "--repository", str(state.folder)],
    prepare=prepare_repository,
    variables=lambda state: GIT_VARIABLES,
    calls=lambda state: [ask(state) for ask in GIT_CALLS],
    errors=lambda state: [ask(state) for ask in GIT_ERRORS],
    load=lambda state: [
        git_tool("git_show", {"revision": f"HEAD:load/{n}.txt"}, f"file {n}: ")(state) for n in range(LOAD)
    ],
)


# mcp-server-fetch, which fetches pages of this process.

PAGE = f"""<!DOCTYPE html><html><head><title>Gardens</title></head><body>
<h1>Gardens</h1><p>Grüße aus dem <b>Garten</b> 🌱: <a href="/plain.txt">more</a>.</p><ul><li>one</li><li>two</li></ul>
<p>{"So it goes on and on. " * 30}</p></body></html>"""

PAGES = {
    "/robots.txt": ("text/plain", "User-agent: *\nDisallow: /private/\n"),
    "/page.html": ("text/html; charset=utf-8", PAGE),
    "/plain.txt": ("text/plain; charset=utf-8", f"plain: {UNICODE}\n"),
}


class Pages(BaseHTTPRequestHandler):
    def do_GET(self):
        path, _, query = self.path.partition("?")
        kind, text = PAGES.get(path, (None, None))
        if path == "/load.txt":
            kind, text = "text/plain; charset=utf-8", f"page {query}: {UNICODE}\n"
        body = (text or "no such page\n").encode()
        self.send_response(200 if text else 404)
        self.send_header("Content-Type", kind or "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def serve_pages():
    """Returns the address of the pages; they are there as long as this process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


fetch = ServerUnderTest(
    command=lambda state: [PYTHON, "-m", "mcp_server_fetch", "--allow-private-ips"],
    # Where it finds Node it would fetch packages from the internet to read a page; and no proxy is to be asked.
    variables=lambda state: {"PATH": "/no-such-folder", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
    calls=lambda state: [
        tool("fetch", {"url": f"{state.pages}/plain.txt"}, UNICODE),
        tool("fetch", {"url": f"{state.pages}/page.html"}, "Grüße aus dem"),
        tool("fetch", {"url": f"{state.pages}/page.html", "raw": True}, "<h1>Gardens</h1>"),
        tool("fetch", {"url": f"{state.pages}/page.html", "max_length": 20, "start_index": 10}, "start_index of 30"),
        prompt("fetch", {"url": f"{state.pages}/plain.txt"}, UNICODE),
    ],
    errors=lambda state: [
        tool("no_such_tool", {}, "no_such_tool"),
        tool("fetch", {"url": f"{state.pages}/private/page.html"}, "robots.txt"),
        tool("fetch", {"url": f"{state.pages}/no-such-page"}, "404"),
        tool("fetch", {"url": "no address"}, "url"),
        prompt("no-such-prompt", {"url": state.pages}, "no-such-prompt"),
        NO_METHOD,
    ],
    load=lambda state: [
        tool("fetch", {"url": f"{state.pages}/load.txt?{quote(f'n={n}')}"}, "page n") for n in range(LOAD)
    ],
)


# Our own servers.

fastmcp = ServerUnderTest(
    command=lambda state: [PYTHON, str(HERE / "fastmcp_server.py")],
    calls=lambda state: [
        tool("lend", {"reader": UNICODE}, f"📚 → {UNICODE}"),
        tool("reading_time", {"pages": 388, "pages_per_hour": 40}, "388 × ⅟40 h"),
        tool("titles", {}, "庭の本 🌸"),
        read("shelf://books", "Κήπος (1921)"),
        read("shelf://bookplate", "AAECAwQF"),
        read("shelf://book/3", "1988"),
        prompt("review", {"title": "Κήπος", "language": "Ελληνικά"}, "„Κήπος“ in Ελληνικά"),
    ],
    errors=lambda state: [
        tool("no_such_tool", {}, "no_such_tool"),
        tool("reading_time", {"pages": "many"}, "pages"),
        tool("reading_time", {"pages": 1, "pages_per_hour": 0}, "∞ hours"),
        read("shelf://book/9", "9"),
        read("shelf://no-such", "shelf://no-such"),
        prompt("no_such_prompt", {}, "no_such_prompt"),
        NO_METHOD,
    ],
    load=lambda state: [tool("lend", {"reader": f"{n} {UNICODE}"}, f"📚 → {n} ") for n in range(LOAD)],
)

rmcp = ServerUnderTest(
    command=lambda state: [RMCP],
    calls=lambda state: [
        tool("sow", {"plant": UNICODE}, f"🌱 {UNICODE}"),
        tool("plan", {"length": 250, "width": 90, "distance": 15}, "250 × 90 cm"),
        read("seeds://guide", "春に種をまく。"),
        read("seeds://label", "image/gif"),
        read("seeds://packet/12", "Packet № 12: 144 seeds"),
        prompt("advice", {"plant": "Möhre", "month": "März"}, "„Möhre“ need in März"),
    ],
    errors=lambda state: [
        tool("no_such_tool", {}, "tool not found"),
        tool("plan", {"length": -1}, "-1"),
        tool("plan", {"length": 1, "width": 1, "distance": 0}, "∞ seeds"),
        read("seeds://packet/99", "seeds://packet/99"),
        prompt("no-such-prompt", {}, "no-such-prompt"),
        Ask("resources/list", {"cursor": "no-such-page"}, "no such page"),
        NO_METHOD,
    ],
    load=lambda state: [tool("sow", {"plant": f"{n} {UNICODE}"}, f"🌱 {n} ") for n in range(LOAD)],
)

SERVERS = {
    "everything": everything,
    "filesystem": filesystem,
    "memory": memory,
    "sequential-thinking": sequential_thinking,
    "time": time_server,
    "git": git,
    "fetch": fetch,
    "fastmcp": fastmcp,
    "rmcp": rmcp,
}


def missing():
    """What is not there that the servers need, if anything."""
    needed = [path for path in (PYTHON, RMCP, str(HERE / "node_modules")) if not Path(path).exists()]
    wrong = [f"{', '.join(map(str, needed))}: run {HERE / 'install'}"] if needed else []
    return wrong + [f"the command {name}" for name in ("node", "git") if not shutil.which(name)]
