"""Published clients before routes (`serve --config`), published servers behind them: one route
with a single upstream whose names have a prefix, and one that makes three servers one, over
stdio with either language's SDK and over HTTP with a session of its own for each client's.
servers/README.md ("Servers for routes") says what these offer. run.py calls this and prints
the table behind its own."""

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from processes import Server  # noqa: E402

HERE = Path(__file__).resolve().parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or HERE.parent.parent / "target").resolve()
GATEWAY = Path(os.environ.get("RINGWAY_BIN") or TARGET / "debug/ringway")

# What begins the name of each row; alone it names them all.
STORY = "routes-done-when"

# The steps of every row, in order; `one` is taken at the route with a single upstream, those
# behind it at the other, and `stop` is the runner's own.
STEPS = (
    "one",
    "connect",
    "list",
    "call",
    "progress",
    "read",
    "embedded",
    "subscribe",
    "complete",
    "cancel",
    "question",
    "close",
    "stop",
)

# What a client is known to do otherwise, by (client, step): the reason. A deviation that
# is no more fails the run too, so that this list stays true.
DEVIATIONS = {}

# The steps that a client has no means for, by client, in all its modes. Its driver leaves
# them out: one that it reports all the same fails the run.
NOT_APPLICABLE = {
    "inspector-cli": {
        "progress": "it shows no progress, so one is about the list, the call and its result",
        "subscribe": "it ends with its one request",
        "complete": "it has no request for completions",
        "cancel": "it cancels no request: who interrupts it ends it",
        "question": "nobody is there who could answer",
        "close": "it ends without ending its session",
    },
    "ai-sdk": {
        "progress": "it asks for no progress, so one is about the list, the call and its result",
        "subscribe": "it has no subscriptions",
        "cancel": "who cancels a call only leaves it, and says nothing to the server",
    },
    "chuk-mcp": {
        "subscribe": "it opens no stream for messages of the server",
        "cancel": "its message to cancel a call waits for the call's end",
        "question": "it opens no stream for messages of the server",
        "close": "it ends without ending its session",
    },
}


def python(generation, script, *arguments):
    return [str(TARGET / f"interop/python-{generation}/bin/python"), str(HERE / script), *arguments]


def node(*arguments):
    return ["node", str(HERE / arguments[0]), *arguments[1:]]


def node_22(*arguments):
    """With the Node that the client needs, which `install` has brought."""
    return [str(HERE / "node_modules/.bin/node"), str(HERE / arguments[0]), *arguments[1:]]


def rust(*arguments):
    return [str(TARGET / "interop/rmcp/debug/ringway-interop-rmcp"), "routes", *arguments]


CLIENTS = {
    "typescript-v1 legacy": node("typescript_routes.mjs", "v1", "legacy"),
    "typescript-v2 legacy": node("typescript_routes.mjs", "v2", "legacy"),
    "typescript-v2 auto": node("typescript_routes.mjs", "v2", "auto"),
    "python-1 legacy": python(1, "python/drive_routes.py", "mcp1", "legacy"),
    "python-2 legacy": python(2, "python/drive_routes.py", "mcp2", "legacy"),
    "python-2 auto": python(2, "python/drive_routes.py", "mcp2", "auto"),
    "fastmcp legacy": python(2, "python/drive_routes.py", "fastmcp", "legacy"),
    "fastmcp auto": python(2, "python/drive_routes.py", "fastmcp", "auto"),
    "rmcp legacy": rust("legacy"),
    "rmcp auto": rust("auto"),
    "mcp-remote legacy": node("typescript_routes.mjs", "mcp-remote", "legacy"),
    "mcp-remote auto": node("typescript_routes.mjs", "mcp-remote", "auto"),
    "inspector-cli legacy": node_22("inspector_routes.mjs", "legacy"),
    "inspector-cli auto": node_22("inspector_routes.mjs", "auto"),
    "ai-sdk legacy": node_22("ai_sdk_routes.mjs", "legacy"),
    "ai-sdk auto": node_22("ai_sdk_routes.mjs", "auto"),
    "chuk-mcp legacy": python(1, "python/chuk_routes.py", "legacy"),
}


def server(sdk, who, form):
    language, generation = sdk.rsplit("-", 1)
    if language == "typescript":
        return node("servers/shelf.mjs", generation, who, form)
    return python(generation, f"servers/shelf_python_{generation}.py", who, form)


# The SDKs of the servers, by turns: behind the route with one upstream, and behind the other
# over stdio (each language) and over HTTP.
TURNS = (
    ("python-2", "python-1", "typescript-v2", "python-2"),
    ("typescript-v2", "python-2", "typescript-v1", "typescript-v2"),
    ("python-1", "python-1", "typescript-v1", "typescript-v1"),
    ("typescript-v1", "python-2", "typescript-v2", "python-1"),
)
ROWS = {f"{STORY} {client}": (client, TURNS[index % len(TURNS)]) for index, client in enumerate(CLIENTS)}

# Without Ringway the clients that probe the modern era find servers that know it, and nothing
# says how a server answers who ends the session that `mcp-remote` leaves.
NOT_DIRECT = [row for row in ROWS if row.endswith(" auto") or "mcp-remote" in row]

# The upstreams of the route that joins several, in the order of the configuration.
UPSTREAMS = ("py", "ts", "far")


def not_applicable(client, step):
    """The reason, or None for a step that the client has to take."""
    return NOT_APPLICABLE.get(client.split()[0], {}).get(step)


def configuration(driver, response_mode, turn, url, events):
    """The configuration file of the two routes."""
    one, py, ts, _ = turn
    environment = {"INTEROP_EVENTS": str(events), "PYTHONDONTWRITEBYTECODE": "1"}
    # Nothing is to begin before the servers are up, however long that takes here.
    stdio = [f"environment = {table(environment)}", "required = true", 'start-timeout = "50s"']

    def upstream(name, *lines):
        return ["", "[[routes.upstreams]]", f"name = {text(name)}", *lines]

    lines = [
        'listen = "127.0.0.1:0"',
        'admin = "off"',
        "shards = 2",
        f"driver = {text(driver)}",
        f"response-mode = {text(response_mode)}",
        "",
        "[[routes]]",
        'path = "/one"',
        *upstream("gateway-one", f"command = {texts(server(one, 'gateway-one', 'stdio'))}", *stdio),
        'prefix = "always"',
        "",
        "[[routes]]",
        'path = "/all"',
        *upstream("py", f"command = {texts(server(py, 'py', 'stdio'))}", *stdio),
        *upstream("ts", f"command = {texts(server(ts, 'ts', 'stdio'))}", *stdio),
        *upstream("far", f"url = {text(url)}"),
    ]
    return "\n".join(lines) + "\n"


def text(value):
    """A literal text: none of ours has a quote."""
    return f"'{value}'"


def texts(values):
    return f"[{', '.join(map(text, values))}]"


def table(values):
    return "{ " + ", ".join(f"{key} = {text(value)}" for key, value in values.items()) + " }"


def run_row(row, driver, response_mode, drive):
    """Runs a client's driver against a gateway and servers of its own, or against the one
    over HTTP without a gateway. Returns {step: (ok, detail)}, and None for a step that does
    not apply and that did not run."""
    client, turn = ROWS[row]
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        events = home / "events"

        def start(command, variables, lines):
            process = Server(command, stack.enter_context(tempfile.TemporaryFile()), variables, lines)
            stack.callback(process.kill)
            return process

        far = turn[-1]
        own = {"INTEROP_EVENTS": str(events), "PYTHONDONTWRITEBYTECODE": "1"}
        behind = start(server(far, "far", "http"), own, 1)
        processes, urls, upstreams = [behind], [behind.url] * 2, UPSTREAMS[-1:]
        if driver != "direct":
            file = home / "ringway.toml"
            file.write_text(configuration(driver, response_mode, turn, behind.url, events))
            gateway = start([str(GATEWAY), "serve", "--config", str(file)], {}, 2)
            processes, urls, upstreams = [gateway, behind], gateway.urls, UPSTREAMS
        variables = {
            "HOME": str(home),
            "INTEROP_URL_ONE": urls[0],
            "INTEROP_URL": urls[1],
            "INTEROP_SERVERS": " ".join(upstreams),
            "INTEROP_ASKING": far,
            "INTEROP_SERVER_PID": str(behind.process.pid),
            "INTEROP_EVENTS": str(events),
            "INTEROP_DIRECT": str(driver == "direct"),
            "INTEROP_PROGRESS": "none" if response_mode == "json" else "all",
        }
        results, code = drive(client, CLIENTS[client], STEPS, variables)
        results["stop"] = stop(processes, code, events)
        if not all(ok for ok, _ in results.values()):
            for process in processes:
                print(f"-- stderr of {process.process.args[0]}\n{process.stderr()}", flush=True)
    for step in STEPS:
        results.setdefault(step, None if not_applicable(client, step) else (False, "the step did not run"))
    return results


def stop(processes, code, events):
    """Stops the gateway, which has to end its servers and the session that the client has
    left, and then the server over HTTP. Returns whether all was well, and what was not."""
    wrong = [f"the driver's exit {code}"] if code else []
    *gateway, behind = processes
    for process in gateway:
        if fault := process.stop():
            wrong.append(f"the gateway: {fault}")
        said = events.read_text().splitlines() if events.exists() else []
        begun, ended = said.count("far initialized"), said.count("deleted")
        if begun != ended:
            wrong.append(f"{begun} sessions at the server over HTTP, {ended} were ended")
        shared = {who: said.count(f"{who} initialized") for who in ("gateway-one", "py", "ts")}
        if any(count != 1 for count in shared.values()):
            wrong.append(f"handshakes of the shared servers: {shared}")
    if fault := behind.stop():
        wrong.append(f"the server over HTTP: {fault}")
    return (not wrong, "; ".join(wrong) or "exit 0, no process left, no session left at the server over HTTP")


def verdict(client, step, result):
    """The table's word, and whether it is as it should be."""
    if not_applicable(client, step):
        return ("n/a", True) if result is None else ("N/A?", False)
    ok, _ = result
    if (client, step) in DEVIATIONS:
        return ("known", True) if not ok else ("KNOWN?", False)
    return ("ok", True) if ok else ("FAIL", False)


def strange_entries():
    """The entries above that are of no client or step."""
    families = {client.split()[0] for client in CLIENTS}
    strange = [key for key in DEVIATIONS if key[0] not in CLIENTS or key[1] not in STEPS]
    left_out = [(client, step) for client, reasons in NOT_APPLICABLE.items() for step in reasons]
    return strange + [key for key in left_out if key[0] not in families or key[1] not in STEPS[:-1]]


def print_outcome(rows):
    """Prints the table, what was not as it must be and the counts. True: nothing was."""
    columns = [max(len(step), 6) + 2 for step in STEPS]
    heads = "".join(step.ljust(width) for step, width in zip(STEPS, columns))
    names = [" ".join(ROWS[row][1]) for row in rows]
    width = max(map(len, [*names, "one server, stdio, stdio, HTTP"])) + 2
    print(("\nclient".ljust(23) + "one server, stdio, stdio, HTTP".ljust(width) + "driver  " + heads).rstrip())
    for (row, (driver, results)), name in zip(rows.items(), names):
        client = ROWS[row][0]
        words = (verdict(client, step, results[step])[0].ljust(column) for step, column in zip(STEPS, columns))
        print((client.ljust(22) + name.ljust(width) + driver.ljust(8) + "".join(words)).rstrip())
    clients = [ROWS[row][0] for row in rows]
    for (client, step), reason in DEVIATIONS.items():
        if client in clients:
            print(f"known: {client}, {step}: {reason}")
    for client, reasons in NOT_APPLICABLE.items():
        if any(name.split()[0] == client for name in clients):
            for step, reason in reasons.items():
                print(f"n/a: {client}, {step}: {reason}")
    every = [(ROWS[row][0], step, results[step]) for row, (_, results) in rows.items() for step in STEPS]
    wrong = [(client, step, result) for client, step, result in every if not verdict(client, step, result)[1]]
    for client, step, (ok, detail) in wrong:
        if not_applicable(client, step):
            print(f"it applies after all: {client}, {step}: {detail}")
        else:
            print(f"{'no deviation any more' if ok else 'not ok'}: {client}, {step}: {detail}")
    taken = [result for _, _, result in every if result is not None]
    left_out = len(every) - len(taken)
    print(f"{sum(ok for ok, _ in taken)} passed, {len(wrong)} failed, {left_out} not applicable")
    return not wrong
