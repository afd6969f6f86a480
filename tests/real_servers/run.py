#!/usr/bin/env python3
"""Real MCP servers behind Ringway. Each server is asked the same things three times, each time a new process in the
same state: directly over stdio, through Ringway with answers in JSON, and through Ringway with answers as SSE. All
answers must be the same bytes. Then two sessions use the same ids at once, and the server is killed under load.
Prints one table in the end. Exits 1 when a step is not ok, unless it is listed under DEVIATIONS with the reason.

Only this file starts and ends gateways. `install` beside it installs the servers, which servers.py describes; the
gateway is RINGWAY_BIN or the dev build of this repository.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import load
from clients import NEWEST, Direct, Session, answer, members, request
from servers import LOAD, SERVERS, TARGET, State, missing, serve_pages

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from processes import Server, kill_tree  # noqa: E402

GATEWAY = Path(os.environ.get("RINGWAY_BIN") or TARGET / "debug/ringway").resolve()

STEPS = ("handshake", "lists", "calls", "errors", "sse", "sessions", "killed", "stop")

# What a server is known to do otherwise, by (server, step): the reason. A deviation that is no more fails the run too,
# so that this list stays true.
DEVIATIONS = {}

# A list, the capability that promises it, the member with its items.
LISTS = (
    ("tools/list", "tools", "tools"),
    ("resources/list", "resources", "resources"),
    ("resources/templates/list", "resources", "resourceTemplates"),
    ("prompts/list", "prompts", "prompts"),
)
PAGES_MAX = 100

# The versions that Ringway speaks, oldest first.
VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
UNKNOWN_VERSION = "1999-12-31"

# So many requests of each session are in flight at once, so many times.
AT_ONCE = 4
ROUNDS = 4


class Wrong(Exception):
    pass


class Gateway(Server):
    """One `ringway serve` in front of a server."""

    def __init__(self, command, variables, flags, log):
        fixed = ["--listen", "127.0.0.1:0", "--admin", "off", "--shards", "2"]
        super().__init__([str(GATEWAY), "serve", *fixed, *flags, "--", *command], log, variables)


class Recording:
    """What a server says to all that it is asked, in order: {part: [(what was asked, the line that answers it)]}."""

    def __init__(self, ask, asks, capabilities):
        self.parts = {"lists": [], "calls": [], "errors": []}
        self.counts = {}
        # The ids take turns too: integers and strings.
        ids = (number if number % 2 else f"id {number}" for number in itertools.count(1))
        for method, capability, member in LISTS:
            if capability in capabilities:
                self.counts[method] = self._record_list(ask, ids, method, member)
        for part in ("calls", "errors"):
            for place, asked in enumerate(asks[part]):
                line = ask(next(ids), asked.method, asked.params)
                name = f"{place}, {asked.method} {asked.params.get('name') or asked.params.get('uri') or ''}".strip()
                self.parts[part].append((name, line))

    def _record_list(self, ask, ids, method, member):
        count, cursor = 0, None
        for page in range(PAGES_MAX):
            line = ask(next(ids), method, {"cursor": cursor} if cursor else {})
            self.parts["lists"].append((f"{method}, page {page}", line))
            result = json.loads(line).get("result", {})
            count += len(result.get(member, ()))
            cursor = result.get("nextCursor")
            if not cursor:
                return count
        raise Wrong(f"{method}: over {PAGES_MAX} pages")


class Subject:
    """One server in this run: where its state is, and what it has said directly."""

    def __init__(self, name, folder, pages):
        self.name, self.server = name, SERVERS[name]
        self.state = State(folder, pages)
        self.command = self.server.command(self.state)
        self.variables = self.server.variables(self.state)
        self.asks = {part: getattr(self.server, part)(self.state) for part in ("calls", "errors", "load")}
        self.masks_used = set()

    def renew(self):
        """Every process starts from the same state, under the same path."""
        shutil.rmtree(self.state.folder, ignore_errors=True)
        self.state.folder.mkdir()
        self.server.prepare(self.state)

    def record(self, log):
        self.renew()
        direct = Direct(self.command, self.variables, log)
        try:
            self.opened = answer(direct.open(), 0)
            self.said = members(self.opened.removeprefix("result "))
            self.capabilities = members(self.said["capabilities"])
            self.recording = Recording(direct.ask, self.asks, self.capabilities)
            self.load = [
                (ask, answer(direct.ask(place, ask.method, ask.params), place))
                for place, ask in enumerate(self.asks["load"])
            ]
            direct.end()
        finally:
            kill_tree(direct.process)
        self.check_meaning()

    def check_meaning(self):
        """Lists and calls must succeed and errors must fail, and say what they are about, or equal bytes would mean
        little."""
        for name, line in self.recording.parts["lists"]:
            if "result" not in json.loads(line):
                raise Wrong(f"directly: {name}: fails: {line[:300]!r}")
        for part in ("calls", "errors"):
            for (name, line), ask in zip(self.recording.parts[part], self.asks[part]):
                check_meaning(f"directly: {part}, {name}", json.loads(line), ask, part == "calls")
        for ask, said in self.load:
            kind, _, text = said.partition(" ")
            check_meaning("directly: load", {kind: json.loads(text)}, ask, True)
        if len(self.load) != LOAD or len({self.masked(said) for _, said in self.load}) != LOAD:
            raise Wrong(f"the load is not {LOAD} calls with different answers")

    def masked(self, said):
        for mask in self.server.masks:
            said = re.sub(mask.pattern, r"\1*", said)
        return said

    def same(self, said, expected):
        """Whether an answer under load is the expected one: to the byte, or but for what is masked."""
        if said == expected:
            return True
        if self.masked(said) != self.masked(expected):
            return False
        self.masks_used |= {mask for mask in self.server.masks if mask.found(said) != mask.found(expected)}
        return True


def check_meaning(what, message, ask, succeeds):
    result = message.get("result", {})
    if ("error" not in message and not result.get("isError")) != succeeds:
        raise Wrong(f"{what}: {'fails' if succeeds else 'succeeds'}: {str(message)[:300]}")
    if not any(ask.says in text for text in texts(result if "result" in message else message["error"])):
        raise Wrong(f"{what}: does not say {ask.says!r}: {str(message)[:600]}")


def texts(value):
    """All texts and numbers in a value, as texts."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for inner in value for text in texts(inner)]
    return [str(value)]


def difference(what, direct, through):
    """Where two texts differ, if they do."""
    if direct == through:
        return []
    at = next((at for at, (a, b) in enumerate(zip(direct, through)) if a != b), min(len(direct), len(through)))
    around = slice(max(0, at - 60), at + 100)
    return [f"{what}: differs at {at} of {len(direct)} and {len(through)}: {direct[around]!r}, {through[around]!r}"]


def differences(direct, through, part):
    """Compares whole answers, ids included: the client has used the same ones."""
    direct, through = direct.parts[part], through.parts[part]
    if [name for name, _ in direct] != [name for name, _ in through]:
        return [f"{part}: not the same requests: {[name for name, _ in through]}"]
    return [what for (name, a), (_, b) in zip(direct, through) for what in difference(name, a, b)]


def expected_handshake(said, asked, get_streams):
    """What Ringway must answer to `initialize`: the server's own result but for three things. The version is the one
    that was asked for, if Ringway knows it and the server's is not older. The capability `tasks` is for the newest
    version only. Without GET streams nothing is offered that needs one."""
    own = json.loads(said["protocolVersion"])
    version = asked if asked in VERSIONS and asked <= own else own
    capabilities = {}
    for name, text in members(said["capabilities"]).items():
        if name == "tasks" and version != NEWEST:
            continue
        if not get_streams:
            flags = members(text)
            kept = {flag: value for flag, value in flags.items() if flag not in ("listChanged", "subscribe")}
            text = text if kept == flags else rebuilt(kept)
        capabilities[name] = text
    return rebuilt(said | {"protocolVersion": json.dumps(version), "capabilities": rebuilt(capabilities)})


def rebuilt(texts):
    return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{text}" for name, text in texts.items()) + "}"


def handshakes(subject, gateway, form, get_streams):
    wrong = []
    for version in (*reversed(VERSIONS), UNKNOWN_VERSION):
        opened = Session(gateway.url, version, form).opened.decode()
        expected = f'{{"jsonrpc":"2.0","id":0,"result":{expected_handshake(subject.said, version, get_streams)}}}'
        wrong += difference(f"initialize of {version}, {form}", expected, opened)
    return wrong


def play(subject, gateway, form):
    session = Session(gateway.url, form=form)
    return Recording(session.ask, subject.asks, subject.capabilities)


def two_sessions(subject, gateway):
    """Two sessions use the same ids at once for different calls. All is sent before anything is read."""
    sessions = [Session(gateway.url) for _ in range(2)]
    lanes = [(session, session.connect()) for _ in range(AT_ONCE) for session in sessions]
    expected = iter(itertools.cycle(subject.load))
    wrong = []
    for turn in range(ROUNDS):
        sent = []
        for place, (session, connection) in enumerate(lanes):
            # Two lanes that follow one another are of different sessions and have the same id.
            number, (ask, said) = turn * AT_ONCE + place // 2, next(expected)
            connection.send(request(number, ask.method, ask.params), session.id)
            sent.append((connection, number, said))
        for connection, number, said in sent:
            got = answer(connection.receive()[1], number)
            if not subject.same(got, said):
                wrong += difference(f"id {number} in two sessions", said, got)
    for _, connection in lanes:
        connection.close()
    return wrong, f"{ROUNDS * len(lanes)} calls"


class Results:
    """{step: (ok, detail)}; a step may come in several parts, and all must be ok."""

    def __init__(self):
        self.steps = {}

    @contextmanager
    def step(self, step):
        wrong, details = [], []
        try:
            yield wrong, details
        except Exception as error:  # whatever it is, the step has not been seen to work
            wrong.append(f"{type(error).__name__}: {error}")
        ok, before = self.steps.get(step, (True, ""))
        if wrong:
            self.steps[step] = (False, "; ".join([*([] if ok else [before]), *wrong[:3]]))
        elif ok:
            self.steps[step] = (True, "; ".join(filter(None, [before, *details])))

    def ok(self):
        return all(ok for ok, _ in self.steps.values())

    def all(self):
        return {step: self.steps.get(step, (False, "the step did not run")) for step in STEPS}


def run_server(name, pages, driver):
    """Returns {step: (ok, detail)} and what is known of the server, for the table."""
    results = Results()
    with tempfile.TemporaryDirectory(prefix="real-server-") as folder, tempfile.TemporaryFile() as log:
        subject = Subject(name, Path(folder).resolve() / "state", pages)
        try:
            subject.record(log)
        except Exception as error:  # there is nothing to compare with
            log.seek(0)
            print(f"-- stderr of {name}\n{log.read().decode(errors='replace')[-4000:]}", flush=True)
            with results.step(STEPS[0]) as (wrong, _):
                wrong.append(f"directly: {type(error).__name__}: {error}")
            return results.all(), {}
        # Each server sees both drivers and both kinds of hub, and over the servers each pair of them comes first.
        place = list(SERVERS).index(name)
        drivers = (driver, driver) if driver else (("uring", "epoll"), ("epoll", "uring"))[place % 2]
        hubs = (("own", "shard"), ("shard", "own"))[place // 2 % 2]
        json_flags = ["--driver", drivers[0], "--hub", hubs[0]]
        sse_flags = ["--driver", drivers[1], "--hub", hubs[1], "--response-mode", "sse", "--get-streams", "off"]
        for flags, steps in ((json_flags, json_steps), (sse_flags, sse_steps)):
            run_gateway(subject, flags, steps, results)
    about = json.loads(subject.said["serverInfo"]) | {"protocol": json.loads(subject.said["protocolVersion"])}
    return results.all(), about | {"driver": drivers[0], "hub": hubs[0]}


def run_gateway(subject, flags, steps, results):
    """Runs steps with a gateway and its server in the first state. The gateway's start and end are part of `stop`."""
    subject.renew()
    with tempfile.TemporaryFile() as log:
        gateway = None
        try:
            with results.step("stop") as (wrong, details):
                gateway = Gateway(subject.command, subject.variables, flags, log)
            if gateway:
                steps(subject, gateway, results)
                with results.step("stop") as (wrong, details):
                    if what := gateway.stop():
                        wrong.append(what)
                    details.append("exit 0, no process left")
        finally:
            if gateway:
                gateway.kill()
        if not results.ok() and gateway:
            print(f"-- stderr of the gateway of {subject.name}\n{gateway.stderr()}", flush=True)


def json_steps(subject, gateway, results):
    with results.step("handshake") as (wrong, details):
        wrong += handshakes(subject, gateway, "json", get_streams=True)
        details.append("JSON")
    through = None
    with results.step("lists") as (wrong, details):
        through = play(subject, gateway, "json")
        wrong += differences(subject.recording, through, "lists")
        details.append("/".join(str(subject.recording.counts.get(method, "-")) for method, _, _ in LISTS))
    if through:
        for part in ("calls", "errors"):
            with results.step(part) as (wrong, details):
                wrong += differences(subject.recording, through, part)
                details.append(str(len(subject.recording.parts[part])))
    with results.step("sessions") as (wrong, details):
        strange, detail = two_sessions(subject, gateway)
        wrong += strange
        details.append(detail)
    with results.step("killed") as (wrong, details):
        details.append(load.kill_twice(gateway, subject.command, subject.load, subject.same))
        if unused := set(subject.server.masks) - subject.masks_used:
            wrong.append(f"masked for nothing: {unused}")


def sse_steps(subject, gateway, results):
    with results.step("handshake") as (wrong, details):
        wrong += handshakes(subject, gateway, "sse", get_streams=False)
        details.append("SSE without GET streams")
    with results.step("sse") as (wrong, details):
        through = play(subject, gateway, "sse")
        for part in subject.recording.parts:
            wrong += differences(subject.recording, through, part)
        details.append(f"{sum(map(len, through.parts.values()))} answers")


def verdict(server, step, ok):
    """The table's word, and whether it is as it should be."""
    if (server, step) in DEVIATIONS:
        return ("known", True) if not ok else ("KNOWN?", False)
    return ("ok", True) if ok else ("FAIL", False)


def print_table(table, abouts):
    heads = ("server", "name", "version", "protocol", "driver", "hub", *STEPS)
    rows = [heads]
    for server, results in table.items():
        about = abouts[server]
        words = [verdict(server, step, results[step][0])[0] for step in STEPS]
        counted = [
            f"{word} {results[step][1]}" if word == "ok" and step in ("lists", "calls", "errors") else word
            for step, word in zip(STEPS, words)
        ]
        rows.append((server, *(about.get(key, "?") for key in heads[1:6]), *counted))
    widths = [max(map(len, column)) + 2 for column in zip(*rows)]
    print()
    for row in rows:
        print("".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print("lists: tools/resources/templates/prompts; sse: on the other driver and with the other kind of hub")
    for (server, step), reason in DEVIATIONS.items():
        if server in table:
            print(f"known: {server}, {step}: {reason}")
    for server in table:
        for mask in SERVERS[server].masks:
            print(f"masked under load: {server}: {mask.reason}")


def main():
    parser = argparse.ArgumentParser(description="Real MCP servers behind Ringway.")
    parser.add_argument("--driver", choices=("uring", "epoll"), help="the gateway's I/O driver; else they alternate")
    parser.add_argument("servers", nargs="*", metavar="SERVER", help=f"of: {', '.join(SERVERS)}; else all")
    options = parser.parse_args()
    if strange := [key for key in DEVIATIONS if key[0] not in SERVERS or key[1] not in STEPS]:
        sys.exit(f"deviations of no server or step: {strange}")
    if unknown := [server for server in options.servers if server not in SERVERS]:
        parser.error(f"no such server: {', '.join(unknown)}")
    if absent := missing():
        sys.exit(f"missing: {', '.join(absent)}")
    if not GATEWAY.exists():
        sys.exit(f"no gateway at {GATEWAY}: build it or set RINGWAY_BIN")
    # A stopped runner ends what it started.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    # Where this runs below git (in a hook) these would name another repository than the one meant.
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        del os.environ[name]

    pages = serve_pages()
    table, abouts = {}, {}
    for server in SERVERS:
        if options.servers and server not in options.servers:
            continue
        started = time.monotonic()
        table[server], abouts[server] = run_server(server, pages, options.driver)
        for step, (ok, detail) in table[server].items():
            print(f"{server}, {step}: {'ok' if ok else 'not ok'}: {detail}", flush=True)
        print(f"-- {server}: {time.monotonic() - started:.1f} s", flush=True)

    print_table(table, abouts)
    wrong = [(n, s) for n, results in table.items() for s in STEPS if not verdict(n, s, results[s][0])[1]]
    for server, step in wrong:
        ok, detail = table[server][step]
        print(f"{'no deviation any more' if ok else 'not ok'}: {server}, {step}: {detail}")
    known = sum((server, step) in DEVIATIONS for server in table for step in STEPS)
    if known:
        print(f"known deviations: {known}")
    passed = sum(ok for results in table.values() for ok, _ in results.values())
    print(f"{passed} passed, {len(wrong)} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
