#!/usr/bin/env python3
"""Clients that others have made against Ringway: the official ones, the Inspector's
command line, a bridge for stdio clients and two that share no code with these.
For each client and mode: starts a gateway with the built-in server, runs the client's
driver, which prints one JSON line a step, stops the gateway, and in the end prints one
table. Then the official clients before servers of the official SDKs that speak HTTP, each
with a gateway in between (http_servers.py), and a second table. Then published clients before
routes that a configuration file describes (routes.py), and a third. Exits 1 when a step is not
ok, unless it is listed under DEVIATIONS with the reason, or is missing, unless it is
listed under NOT_APPLICABLE.

Only this file starts and ends gateways. `install` beside it installs the clients;
the gateway is RINGWAY_BIN or the dev build of this repository.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from processes import Server, command_line, descendants, kill_tree  # noqa: E402

import http_servers  # noqa: E402
import routes  # noqa: E402

HERE = Path(__file__).resolve().parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or HERE.parent.parent / "target").resolve()
GATEWAY = Path(os.environ.get("RINGWAY_BIN") or TARGET / "debug/ringway")

# A guard against a hang, not an expectation about speed.
CLIENT_SECONDS_MAX = 400

# The steps of every client, in order; `stop` is the runner's own.
STEPS = (
    "connect",
    "list",
    "call",
    "parallel",
    "tool-error",
    "unknown-method",
    "progress",
    "subscribe",
    "list-changed",
    "two-clients",
    "unknown-session",
    "cancel",
    "server-killed",
    "reconnect",
    "close",
    "stop",
)

# What a client is known to do otherwise, by (client, step): the reason. A deviation
# that is no more fails the run too, so that this list stays true.
DEVIATIONS = {}

# The steps that a client has no means for, by client, in all its modes. Its driver
# leaves them out: one that it reports all the same fails the run.
NOT_APPLICABLE = {
    "inspector-cli": {
        "unknown-method": "it refuses methods that it does not know",
        "progress": "it shows no progress; answers that come after progress are part of two-clients",
        "subscribe": "it ends with its one request",
        "list-changed": "it ends with its one request; a list that has grown is part of two-clients",
        "unknown-session": "each run opens a session of its own and says nothing in another",
        "cancel": "it cancels no request: who interrupts it ends it",
        "close": "it ends without ending its session",
    },
    "mcp-remote": {
        "close": "it ends without ending its session",
    },
    "ai-sdk": {
        "unknown-method": "it refuses methods that it does not know",
        "progress": "it asks for no progress",
        "subscribe": "it has no subscriptions",
    },
    "chuk-mcp": {
        "subscribe": "it opens no stream for messages of the server",
        "list-changed": "it opens no stream for messages of the server",
        "cancel": "its message to cancel a call waits for the call's end",
        "close": "it ends without ending its session",
    },
}


def python(generation, *arguments, driver="drive.py"):
    return [str(TARGET / f"interop/python-{generation}/bin/python"), str(HERE / "python" / driver), *arguments]


def node(driver, *arguments):
    return ["node", str(HERE / driver), *arguments]


def node_22(driver, *arguments):
    """With the Node that the client needs, which `install` has brought."""
    return [str(HERE / "node_modules/.bin/node"), str(HERE / driver), *arguments]


def rust(mode):
    return [str(TARGET / "interop/rmcp/debug/ringway-interop-rmcp"), mode]


# `auto` probes the modern era first and falls back. The first generations of the
# TypeScript and Python clients have no such mode, nor has chuk-mcp.
CLIENTS = {
    "typescript-v1 legacy": node("typescript.mjs", "v1", "legacy"),
    "typescript-v2 legacy": node("typescript.mjs", "v2", "legacy"),
    "typescript-v2 auto": node("typescript.mjs", "v2", "auto"),
    "python-1 legacy": python(1, "mcp1", "legacy"),
    "python-2 legacy": python(2, "mcp2", "legacy"),
    "python-2 auto": python(2, "mcp2", "auto"),
    "fastmcp legacy": python(2, "fastmcp", "legacy"),
    "fastmcp auto": python(2, "fastmcp", "auto"),
    "rmcp legacy": rust("legacy"),
    "rmcp auto": rust("auto"),
    "inspector-cli legacy": node_22("inspector.mjs", "legacy"),
    "inspector-cli auto": node_22("inspector.mjs", "auto"),
    "mcp-remote legacy": node("typescript.mjs", "mcp-remote", "legacy"),
    "mcp-remote auto": node("typescript.mjs", "mcp-remote", "auto"),
    "ai-sdk legacy": node_22("ai_sdk.mjs", "legacy"),
    "ai-sdk auto": node_22("ai_sdk.mjs", "auto"),
    "chuk-mcp legacy": python(1, "legacy", driver="chuk.py"),
}


def not_applicable(client, step):
    """The reason, or None for a step that the client has to take."""
    return NOT_APPLICABLE.get(client.split()[0], {}).get(step)


class Gateway(Server):
    """One `ringway demo`."""

    def __init__(self, flags, log):
        super().__init__([str(GATEWAY), "demo", "--listen", "127.0.0.1:0", "--admin", "off", *flags], log)

    def server_pid(self):
        """The pid of the MCP server, or None while there is none."""
        for pid in descendants(self.process.pid):
            line = command_line(pid)
            if "demo-server" in line and "upstream-guard" not in line:
                return pid
        return None

    def stop_after(self, first_server):
        """Stops it, and says too if the server that a client has killed still lives."""
        alive = self.server_pid() == first_server
        wrong = self.stop()
        return "; ".join(filter(None, ["the server that was killed lives" if alive else "", wrong]))


def run_client(name, command, driver, response_mode):
    """Runs one client against a gateway of its own. Returns {step: (ok, detail)}, and
    None for a step that does not apply and that did not run."""
    flags = ["--driver", driver, "--shards", "2", "--response-mode", response_mode]
    # Some clients leave files in the home directory, or look there for settings.
    home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with tempfile.TemporaryFile() as log, home:
        gateway = Gateway(flags, log)
        try:
            server = gateway.server_pid()
            variables = {
                "HOME": home.name,
                "INTEROP_URL": gateway.url,
                "INTEROP_SERVER_PID": str(server),
                # Answers that are JSON come without the progress of their calls.
                "INTEROP_PROGRESS": "none" if response_mode == "json" else "all",
            }
            results, code = drive(name, command, STEPS, variables)
            wrong = "; ".join(filter(None, [f"the driver's exit {code}" if code else "", gateway.stop_after(server)]))
            results["stop"] = (not wrong, wrong or "exit 0, no process left")
        finally:
            gateway.kill()
        if not all(ok for ok, _ in results.values()):
            print(f"-- stderr of the gateway of {name}\n{gateway.stderr()}", flush=True)
    for step in STEPS:
        results.setdefault(step, None if not_applicable(name, step) else (False, "the step did not run"))
    return results


def drive(name, command, steps, variables):
    """Runs a driver. Returns {step: (ok, detail)} for what it says, and its exit code."""
    client = subprocess.Popen(
        command,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        stdout, stderr = client.communicate(timeout=CLIENT_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        # A driver has processes of its own where the client is a program.
        kill_tree(client)
        stdout, stderr = client.communicate()
        print(f"-- {name}: no end after {CLIENT_SECONDS_MAX} s", flush=True)
    except BaseException:
        kill_tree(client)
        raise
    results = {}
    # Not splitlines(): a text in a line may hold other separators as they are.
    for line in filter(None, stdout.decode(errors="replace").split("\n")):
        print(line, flush=True)
        said = json.loads(line)
        if said["client"] != name or said["step"] not in steps or said["step"] in results:
            raise RuntimeError(f"{name} said what it should not: {line}")
        results[said["step"]] = (said["ok"], said["detail"])
    if client.returncode != 0 or not all(ok for ok, _ in results.values()):
        print(f"-- stderr of {name}, exit {client.returncode}\n{stderr.decode(errors='replace')[-4000:]}", flush=True)
    return results, client.returncode


def verdict(client, step, result):
    """The table's word, and whether it is as it should be."""
    if not_applicable(client, step):
        return ("n/a", True) if result is None else ("N/A?", False)
    ok, _ = result
    if (client, step) in DEVIATIONS:
        return ("known", True) if not ok else ("KNOWN?", False)
    return ("ok", True) if ok else ("FAIL", False)


def print_table(table, drivers):
    width = max(map(len, table)) + 2
    columns = [max(len(step), 6) + 2 for step in STEPS]
    print("\n" + "client".ljust(width) + "driver  " + "".join(s.ljust(w) for s, w in zip(STEPS, columns)))
    for client, results in table.items():
        cells = (verdict(client, step, results[step])[0].ljust(w) for step, w in zip(STEPS, columns))
        print(client.ljust(width) + drivers[client].ljust(8) + "".join(cells))
    for (client, step), reason in DEVIATIONS.items():
        if client in table:
            print(f"known: {client}, {step}: {reason}")
    for client, reasons in NOT_APPLICABLE.items():
        if any(name.split()[0] == client for name in table):
            for step, reason in reasons.items():
                print(f"n/a: {client}, {step}: {reason}")


def main():
    parser = argparse.ArgumentParser(description="Clients that others have made, against Ringway.")
    parser.add_argument("--driver", choices=("uring", "epoll"), help="the gateway's I/O driver; else they alternate")
    parser.add_argument("--response-mode", choices=("auto", "json", "sse"), default="auto", help="the gateway's flag")
    parser.add_argument("--direct", action="store_true", help="servers over HTTP without a gateway in between")
    rows = [*CLIENTS, *http_servers.PAIRS, routes.STORY, *routes.ROWS]
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of: {', '.join(rows)}; else all")
    options = parser.parse_args()
    if strange := [key for key in DEVIATIONS if key[0] not in CLIENTS or key[1] not in STEPS]:
        sys.exit(f"deviations of no client or step: {strange}")
    if strange := [key for key in http_servers.DEVIATIONS if key[1] not in http_servers.steps_of(key[0], "uring")]:
        sys.exit(f"deviations of no step: {strange}")
    families = {client.split()[0] for client in CLIENTS}
    left_out = [(client, step) for client, reasons in NOT_APPLICABLE.items() for step in reasons]
    if strange := [key for key in left_out if key[0] not in families or key[1] not in STEPS or key[1] == "stop"]:
        sys.exit(f"steps left out of no client, or of none that may be: {strange}")
    if strange := routes.strange_entries():
        sys.exit(f"routes: deviations or steps left out of no client or step: {strange}")
    if unknown := [row for row in options.rows if row not in rows]:
        parser.error(f"no such row: {', '.join(unknown)}")
    if options.direct and set(options.rows) & {*CLIENTS, *http_servers.NOT_DIRECT, *routes.NOT_DIRECT}:
        parser.error("--direct is not for these rows")
    if not GATEWAY.exists():
        sys.exit(f"no gateway at {GATEWAY}: build it or set RINGWAY_BIN")
    # A stopped runner ends what it started.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))

    table, drivers = {}, {}
    for index, client in enumerate(CLIENTS):
        if options.direct or options.rows and client not in options.rows:
            continue
        driver = options.driver or ("uring", "epoll")[index % 2]
        started = time.monotonic()
        table[client] = run_client(client, CLIENTS[client], driver, options.response_mode)
        drivers[client] = driver
        print(f"-- {client}, {driver}: {time.monotonic() - started:.1f} s", flush=True)

    pairs = {}
    for index, pair in enumerate(http_servers.PAIRS):
        if options.rows and pair not in options.rows or options.direct and pair in http_servers.NOT_DIRECT:
            continue
        driver = "direct" if options.direct else options.driver or ("epoll", "uring")[index % 2]
        started = time.monotonic()
        pairs[pair] = (driver, http_servers.run_pair(pair, driver, options.response_mode, drive))
        print(f"-- {pair}, {driver}: {time.monotonic() - started:.1f} s", flush=True)

    before_routes = {}
    for index, row in enumerate(routes.ROWS):
        if options.rows and not {row, routes.STORY} & set(options.rows) or options.direct and row in routes.NOT_DIRECT:
            continue
        driver = "direct" if options.direct else options.driver or ("uring", "epoll")[index % 2]
        started = time.monotonic()
        before_routes[row] = (driver, routes.run_row(row, driver, options.response_mode, drive))
        print(f"-- {row}, {driver}: {time.monotonic() - started:.1f} s", flush=True)

    wrong = False
    if table:
        print_table(table, drivers)
        wrong = not print_outcome(table)
    if pairs:
        wrong = not http_servers.print_outcome(pairs) or wrong
    if before_routes:
        wrong = not routes.print_outcome(before_routes) or wrong
    return 1 if wrong else 0


def print_outcome(table):
    """Prints what was not as it must be, and the counts. True: nothing was."""
    wrong = [(c, s) for c, results in table.items() for s in STEPS if not verdict(c, s, results[s])[1]]
    for client, step in wrong:
        ok, detail = table[client][step]
        if not_applicable(client, step):
            print(f"it applies after all: {client}, {step}: {detail}")
        else:
            print(f"{'no deviation any more' if ok else 'not ok'}: {client}, {step}: {detail}")
    known = sum((client, step) in DEVIATIONS for client in table for step in STEPS)
    if known:
        print(f"known deviations: {known}")
    taken = [result for results in table.values() for result in results.values() if result is not None]
    passed = sum(ok for ok, _ in taken)
    left_out = len(table) * len(STEPS) - len(taken)
    print(f"{passed} passed, {len(wrong)} failed, {left_out} not applicable")
    return not wrong


if __name__ == "__main__":
    sys.exit(main())
