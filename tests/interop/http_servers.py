"""The official clients before servers of the official SDKs that speak HTTP, with Ringway
in between (`serve --upstream`). `servers/README.md` says what the servers offer. run.py
calls this and prints the table behind its own."""

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

# The steps of every pair, in order; `stop` is the runner's own.
STEPS = (
    "connect",
    "list",
    "call",
    "parallel",
    "progress",
    "two-clients",
    "cancel",
    "log",
    "sampling",
    "elicitation",
    "questions",
    "subscribe",
    "forgotten",
    "close",
    "stop",
)


def python(generation, script, *arguments):
    return [str(TARGET / f"interop/python-{generation}/bin/python"), str(HERE / script), *arguments]


CLIENTS = {
    "typescript-v1": ["node", str(HERE / "typescript_http.mjs"), "v1", "legacy"],
    "typescript-v2": ["node", str(HERE / "typescript_http.mjs"), "v2", "legacy"],
    "python-1": python(1, "python/drive_http.py", "mcp1", "legacy"),
    "python-2": python(2, "python/drive_http.py", "mcp2", "legacy"),
    "rmcp": [str(TARGET / "interop/rmcp/debug/ringway-interop-rmcp"), "http"],
}
SERVERS = {
    "typescript-v1": ["node", str(HERE / "servers/typescript.mjs"), "v1"],
    "typescript-v2": ["node", str(HERE / "servers/typescript.mjs"), "v2"],
    "python-1": python(1, "servers/python_1.py"),
    "python-2": python(2, "servers/python_2.py"),
    "rmcp": [str(TARGET / "interop/rmcp/debug/ringway-interop-rmcp-server")],
}
PAIRS = {f"{client}/{server}": (client, server) for client in CLIENTS for server in SERVERS}

# Clients that probe the modern era first, before the servers that know it: Ringway does
# not, so they have to fall back. Without it they would not.
CLIENTS["typescript-v2 auto"] = ["node", str(HERE / "typescript_http.mjs"), "v2", "auto"]
CLIENTS["python-2 auto"] = python(2, "python/drive_http.py", "mcp2", "auto")
NOT_DIRECT = {
    "typescript-v2-auto/rmcp": ("typescript-v2 auto", "rmcp"),
    "python-2-auto/python-2": ("python-2 auto", "python-2"),
}
PAIRS |= NOT_DIRECT

# The one story that is a row and a step of its own: published.mjs.
STORY = "published-client-and-server"
PAIRS[STORY] = ("published", "python-2")
CLIENTS["published"] = ["node", str(HERE / "published.mjs")]

# What a pair is known to do otherwise, by (pair, step): the reason. A deviation that is
# no more fails the run too, so that this list stays true.
DEVIATIONS = {}


# Without Ringway a client whose session the server has forgotten gets 404.
NOT_DIRECTLY = ("forgotten",)


def steps_of(pair, driver):
    if pair == STORY:
        return (STORY, "stop")
    return tuple(step for step in STEPS if driver != "direct" or step not in NOT_DIRECTLY)


def run_pair(pair, driver, response_mode, drive):
    """Runs a client's driver against a server and a gateway of its own, or without one.
    Returns {step: (ok, detail)}."""
    client, server = PAIRS[pair]
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        events = home / "events"

        def start(command, variables):
            process = Server(command, stack.enter_context(tempfile.TemporaryFile()), variables)
            stack.callback(process.kill)
            return process

        behind = start(SERVERS[server], {"INTEROP_EVENTS": str(events), "PYTHONDONTWRITEBYTECODE": "1"})
        processes = [behind]
        if driver != "direct":
            flags = ["--listen", "127.0.0.1:0", "--admin", "off", "--shards", "2"]
            flags += ["--driver", driver, "--response-mode", response_mode]
            gateway = start([str(GATEWAY), "serve", *flags, "--upstream", behind.url], {})
            processes.insert(0, gateway)
        variables = {
            "HOME": str(home),
            "INTEROP_URL": processes[0].url,
            "INTEROP_SERVER_PID": str(behind.process.pid),
            "INTEROP_SERVER": server,
            "INTEROP_EVENTS": str(events),
            "INTEROP_DIRECT": str(driver == "direct"),
            "INTEROP_PROGRESS": "none" if response_mode == "json" else "all",
        }
        results, code = drive(client, CLIENTS[client], steps_of(pair, driver), variables)
        results["stop"] = stop(processes, code, events)
        if not all(ok for ok, _ in results.values()):
            for process in processes:
                print(f"-- stderr of {process.process.args[0]}\n{process.stderr()}", flush=True)
    for step in steps_of(pair, driver):
        results.setdefault(step, (False, "the step did not run"))
    return results


def stop(processes, code, events):
    """Stops the gateway, which has to end the session that the client has left, and then
    the server. Returns whether all was well, and what was not."""
    wrong = [f"the driver's exit {code}"] if code else []
    *gateway, behind = processes
    for process in gateway:
        if fault := process.stop():
            wrong.append(f"the gateway: {fault}")
        said = events.read_text().splitlines() if events.exists() else []
        begun, ended, lost = (said.count(line) for line in ("initialized", "deleted", "forgotten"))
        # There is one session when the server is made to forget.
        if begun != ended + lost:
            wrong.append(f"{begun} sessions at the server, {ended} were ended, {lost} forgotten")
    if fault := behind.stop():
        wrong.append(f"the server: {fault}")
    return (not wrong, "; ".join(wrong) or "exit 0, no process left, no session left at the server")


def verdict(pair, step, result):
    """The table's word, and whether it is as it should be."""
    ok, _ = result
    if (pair, step) in DEVIATIONS:
        return ("known", True) if not ok else ("KNOWN?", False)
    return ("ok", True) if ok else ("FAIL", False)


def print_outcome(pairs):
    """Prints the table, what was not as it must be and the counts. True: nothing was."""
    columns = [max(len(step), 6) + 2 for step in STEPS]
    heads = "".join(step.ljust(width) for step, width in zip(STEPS, columns))
    print(("\nclient".ljust(21) + "server over HTTP".ljust(18) + "driver  " + heads).rstrip())
    for pair, (driver, results) in pairs.items():
        words = {step: verdict(pair, step, results[step])[0] for step in steps_of(pair, driver)}
        if pair == STORY:
            print(f"{STORY}, {driver}: {' '.join(words.values())}")
            continue
        client, server = PAIRS[pair]
        cells = "".join(words.get(step, "-").ljust(width) for step, width in zip(STEPS, columns))
        print((client.ljust(20) + server.ljust(18) + driver.ljust(8) + cells).rstrip())
    for (pair, step), reason in DEVIATIONS.items():
        if pair in pairs:
            print(f"known: {pair}, {step}: {reason}")
    every = [(pair, step, result) for pair, (_, results) in pairs.items() for step, result in results.items()]
    wrong = [(pair, step, result) for pair, step, result in every if not verdict(pair, step, result)[1]]
    for pair, step, (ok, detail) in wrong:
        print(f"{'no deviation any more' if ok else 'not ok'}: {pair}, {step}: {detail}")
    print(f"{sum(ok for _, _, (ok, _) in every)} passed, {len(wrong)} failed")
    return not wrong
