#!/usr/bin/env python3
"""Every official client against Ringway. For each client and mode: starts a
gateway with the built-in server, runs the client's driver, which prints one JSON
line a step, stops the gateway, and in the end prints one table. Exits 1 when a
step is not ok, unless it is listed under DEVIATIONS with the reason.

Only this file starts and ends gateways. `install` beside it installs the clients;
the gateway is RINGWAY_BIN or the dev build of this repository.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from processes import below, command_line, descendants, kill_tree, outlived  # noqa: E402

HERE = Path(__file__).resolve().parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or HERE.parent.parent / "target").resolve()
GATEWAY = Path(os.environ.get("RINGWAY_BIN") or TARGET / "debug/ringway")

# Guards against a hang, not expectations about speed.
START_SECONDS_MAX = 60
CLIENT_SECONDS_MAX = 240
STOP_SECONDS_MAX = 60

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


def python(generation, adapter, mode):
    return [str(TARGET / f"interop/python-{generation}/bin/python"), str(HERE / "python/drive.py"), adapter, mode]


def node(generation, mode):
    return ["node", str(HERE / "typescript.mjs"), generation, mode]


def rust(mode):
    return [str(TARGET / "interop/rmcp/debug/ringway-interop-rmcp"), mode]


# `auto` probes the modern era first and falls back. The first generations of the
# TypeScript and Python clients have no such mode.
CLIENTS = {
    "typescript-v1 legacy": node("v1", "legacy"),
    "typescript-v2 legacy": node("v2", "legacy"),
    "typescript-v2 auto": node("v2", "auto"),
    "python-1 legacy": python(1, "mcp1", "legacy"),
    "python-2 legacy": python(2, "mcp2", "legacy"),
    "python-2 auto": python(2, "mcp2", "auto"),
    "fastmcp legacy": python(2, "fastmcp", "legacy"),
    "fastmcp auto": python(2, "fastmcp", "auto"),
    "rmcp legacy": rust("legacy"),
    "rmcp auto": rust("auto"),
}


class Gateway:
    """One `ringway demo`, its stderr in a file."""

    def __init__(self, flags, log):
        # A developer's own RINGWAY_ settings would change what is tested.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RINGWAY_")}
        command = [str(GATEWAY), "demo", "--listen", "127.0.0.1:0", "--admin", "off", *flags]
        self.log = log
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
        )
        try:
            self.line = self._start_up_line()
        except BaseException:
            self.kill()
            raise
        self.url = re.match(r"ringway \S+ listening on (http://\S+) ", self.line).group(1)

    def _start_up_line(self):
        deadline = time.monotonic() + START_SECONDS_MAX
        os.set_blocking(self.process.stdout.fileno(), False)
        text = b""
        while not text.endswith(b"\n"):
            text += self.process.stdout.read() or b""
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no start-up line: {self.stderr()}")
            time.sleep(0.01)
        return text.decode().rstrip("\n")

    def stderr(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-4000:]

    def server_pid(self):
        """The pid of the MCP server, or None while there is none."""
        for pid in descendants(self.process.pid):
            line = command_line(pid)
            if "demo-server" in line and "upstream-guard" not in line:
                return pid
        return None

    def stop(self, first_server):
        """Ends the gateway as an operator would. Returns what was wrong, if anything."""
        if self.process.poll() is not None:
            return f"the gateway had ended: {self.process.returncode}"
        wrong = []
        if self.server_pid() == first_server:
            wrong.append("the server that was killed lives")
        processes = below(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_SECONDS_MAX)
            if code != 0:
                wrong.append(f"exit {code} after SIGTERM")
        except subprocess.TimeoutExpired:
            wrong.append("no end after SIGTERM")
        if left := outlived(processes):
            wrong.append(f"processes outlived the gateway: {left}")
        if self.process.poll() is not None and self.process.stdout.read():
            wrong.append("stdout has more than the start-up line")
        return "; ".join(wrong)

    def kill(self):
        """Ends the gateway and all below it at once; harmless when it has ended."""
        kill_tree(self.process)


def run_client(name, command, driver, response_mode):
    """Runs one client against a gateway of its own. Returns {step: (ok, detail)}."""
    results = {}
    flags = ["--driver", driver, "--shards", "2", "--response-mode", response_mode]
    with tempfile.TemporaryFile() as log:
        gateway = Gateway(flags, log)
        try:
            server = gateway.server_pid()
            results |= drive(name, command, gateway, server, response_mode)
            wrong = gateway.stop(server)
            results["stop"] = (not wrong, wrong or "exit 0, no process left")
        finally:
            gateway.kill()
        if not all(ok for ok, _ in results.values()):
            print(f"-- stderr of the gateway of {name}\n{gateway.stderr()}", flush=True)
    for step in STEPS:
        results.setdefault(step, (False, "the step did not run"))
    return results


def drive(name, command, gateway, server, response_mode):
    environment = os.environ | {
        "INTEROP_URL": gateway.url,
        "INTEROP_SERVER_PID": str(server),
        # Answers that are JSON come without the progress of their calls.
        "INTEROP_PROGRESS": "none" if response_mode == "json" else "all",
    }
    client = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        stdout, stderr = client.communicate(timeout=CLIENT_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        client.kill()
        stdout, stderr = client.communicate()
        print(f"-- {name}: no end after {CLIENT_SECONDS_MAX} s", flush=True)
    except BaseException:
        client.kill()
        client.wait()
        raise
    results = {}
    for line in stdout.decode(errors="replace").splitlines():
        print(line, flush=True)
        said = json.loads(line)
        if said["client"] != name or said["step"] not in STEPS or said["step"] in results:
            raise RuntimeError(f"{name} said what it should not: {line}")
        results[said["step"]] = (said["ok"], said["detail"])
    if client.returncode != 0 or not all(ok for ok, _ in results.values()):
        print(f"-- stderr of {name}, exit {client.returncode}\n{stderr.decode(errors='replace')[-4000:]}", flush=True)
    return results


def verdict(client, step, ok):
    """The table's word, and whether it is as it should be."""
    if (client, step) in DEVIATIONS:
        return ("known", True) if not ok else ("KNOWN?", False)
    return ("ok", True) if ok else ("FAIL", False)


def print_table(table, drivers):
    width = max(map(len, table)) + 2
    columns = [max(len(step), 6) + 2 for step in STEPS]
    print("\n" + "client".ljust(width) + "driver  " + "".join(s.ljust(w) for s, w in zip(STEPS, columns)))
    for client, results in table.items():
        cells = (verdict(client, step, results[step][0])[0].ljust(w) for step, w in zip(STEPS, columns))
        print(client.ljust(width) + drivers[client].ljust(8) + "".join(cells))
    for (client, step), reason in DEVIATIONS.items():
        if client in table:
            print(f"known: {client}, {step}: {reason}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", choices=("uring", "epoll"), help="the gateway's I/O driver; else they alternate")
    parser.add_argument("--response-mode", choices=("auto", "json", "sse"), default="auto", help="the gateway's flag")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of: {', '.join(CLIENTS)}; else all")
    options = parser.parse_args()
    if strange := [key for key in DEVIATIONS if key[0] not in CLIENTS or key[1] not in STEPS]:
        sys.exit(f"deviations of no client or step: {strange}")
    if unknown := [client for client in options.clients if client not in CLIENTS]:
        parser.error(f"no such client: {', '.join(unknown)}")
    # A stopped runner ends what it started.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))

    table, drivers = {}, {}
    for index, client in enumerate(CLIENTS):
        if options.clients and client not in options.clients:
            continue
        driver = options.driver or ("uring", "epoll")[index % 2]
        started = time.monotonic()
        table[client] = run_client(client, CLIENTS[client], driver, options.response_mode)
        drivers[client] = driver
        print(f"-- {client}, {driver}: {time.monotonic() - started:.1f} s", flush=True)

    print_table(table, drivers)
    wrong = [(c, s) for c, results in table.items() for s in STEPS if not verdict(c, s, results[s][0])[1]]
    for client, step in wrong:
        ok, detail = table[client][step]
        print(f"{'no deviation any more' if ok else 'not ok'}: {client}, {step}: {detail}")
    known = sum((client, step) in DEVIATIONS for client in table for step in STEPS)
    if known:
        print(f"known deviations: {known}")
    passed = sum(ok for results in table.values() for ok, _ in results.values())
    print(f"{passed} passed, {len(wrong)} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
