#!/usr/bin/env python3
"""The official MCP conformance suite, at two protocol versions, against the fixture
server: directly, through Ringway with the fixture as its shared server over stdio,
through Ringway with the fixture behind it over HTTP, and both again with the fixture on
a route of a configuration file, alone and with another server beside it, which has a
prefix where the fixture has none. Prints one table in the end. Exits 1 when a scenario
is not as it must be: directly all pass, and through Ringway those
fail, and only those, that are listed with the reason: in expected-failures.yml what a
shared server cannot have, and below (NOTHING_TO_CHECK) what the suite passes unseen.

Only this file starts and ends processes. `install` beside it installs suite, fixture
and their Node; the gateway is RINGWAY_BIN or the dev build of this repository.
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
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from processes import Server  # noqa: E402

HERE = Path(__file__).resolve().parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or HERE.parent.parent / "target").resolve()
GATEWAY = Path(os.environ.get("RINGWAY_BIN") or TARGET / "debug/ringway").resolve()
NODE = HERE / "node_modules/.bin/node"
SUITE = [str(NODE), str(HERE / "node_modules/@modelcontextprotocol/conformance/dist/index.js")]
FIXTURE = [str(NODE), str(HERE / "fixture/main.mjs")]
BESIDE = [str(NODE), str(HERE / "fixture/beside.mjs")]

COLUMNS = ("direct", "ringway", "http", "route", "route-http", "joined", "joined-http")
# What may fail there, for a route takes nothing from a client: that of the same server
# without a route.
SAME_AS = {"route": "ringway", "route-http": "http", "joined": "ringway", "joined-http": "http"}

# In the other columns no check may fail.
SHARED_FAILURES = HERE / "expected-failures.yml"
EXPECTED_FAILURES = {column: SHARED_FAILURES for column in COLUMNS if SAME_AS.get(column, column) == "ringway"}

# Guards against a hang, not expectations about speed. The suite has its own for a
# single scenario, which is lower.
LIST_SECONDS_MAX = 60
SUITE_SECONDS_MAX = 240

# How many server scenarios the suite has for a version, so that another version of the
# suite, or a scenario that it leaves out, is noticed.
VERSIONS = {"2025-06-18": 27, "2025-11-25": 33}

# The driver of the gateway, unless told. Each version has another, so both are seen.
DRIVERS = {
    ("ringway", "2025-06-18"): "epoll",
    ("ringway", "2025-11-25"): "uring",
    ("http", "2025-06-18"): "uring",
    ("http", "2025-11-25"): "epoll",
    ("route", "2025-06-18"): "uring",
    ("route", "2025-11-25"): "epoll",
    ("route-http", "2025-06-18"): "epoll",
    ("route-http", "2025-11-25"): "uring",
    ("joined", "2025-06-18"): "epoll",
    ("joined", "2025-11-25"): "uring",
    ("joined-http", "2025-06-18"): "uring",
    ("joined-http", "2025-11-25"): "epoll",
}

# A scenario passes when no check fails, even if it had nothing to check. Through
# Ringway that is so for one, with the table's word for it and the reason. Anywhere else
# it would hide a scenario that saw nothing.
NOTHING_TO_CHECK = {
    ("ringway", "server-sse-polling"): (
        "passed",
        "it looks at streams that end before their answer, and this answer is JSON",
    ),
    ("http", "server-sse-polling"): (
        "expected",
        "the server ends the stream before the answer, for the client to come back to it with Last-Event-ID; "
        "Ringway does not resume, and answers the call with an error, as JSON, at which the suite looks no further",
    ),
}

# The statuses of a check that hold nothing against the server. WARNING counts as a
# failure, as it does for the suite where failures are expected, and so does SKIPPED.
GOOD = ("SUCCESS", "INFO")

# How a check's message begins when the scenario broke off: its request failed, which is
# not the failure that anybody expects, though the check has the same name.
BROKE_OFF = "Failed: "


COMBINATIONS = [(server, version) for server in COLUMNS for version in VERSIONS]


def fixture(form, version):
    return [*FIXTURE, form, "--newest", version]


def gateway(driver, *server):
    flags = ["--listen", "127.0.0.1:0", "--admin", "off", "--shards", "2", "--driver", driver]
    return [str(GATEWAY), "serve", *flags, *server]


def configured_gateway(driver, folder, fixture, beside):
    """A gateway with a route of a configuration file: the fixture, and the other server if
    it is wanted. Texts are literals, for none of ours has a quote."""

    def command(words):
        texts = ", ".join(f"'{word}'" for word in words)
        return f"command = [{texts}]"

    lines = ['listen = "127.0.0.1:0"', 'admin = "off"', "shards = 2", f'driver = "{driver}"']
    lines += ["[[routes]]", 'path = "/mcp"', "[[routes.upstreams]]", 'name = "fixture"', 'prefix = "never"']
    lines += [command(fixture) if isinstance(fixture, list) else f'url = "{fixture}"']
    if beside:
        lines += ["[[routes.upstreams]]", 'name = "beside"', command(BESIDE)]
    file = Path(folder) / "ringway.toml"
    file.write_text("\n".join(lines) + "\n")
    return [str(GATEWAY), "serve", "--config", str(file)]


@contextmanager
def served(server, version, driver):
    """What a column is run against: its processes, the one first that the suite speaks
    to. All have a log of their own, and whatever still runs in the end is killed."""
    with ExitStack() as stack:

        def start(command):
            process = Server(command, stack.enter_context(tempfile.TemporaryFile()))
            stack.callback(process.kill)
            return process

        over_stdio = SAME_AS.get(server, server) == "ringway"
        behind = [] if over_stdio else [start(fixture("--http", version))]
        if server == "direct":
            yield behind
        elif server == "ringway":
            yield [start(gateway(driver, "--", *fixture("--stdio", version)))]
        elif server == "http":
            yield [start(gateway(driver, "--upstream", behind[0].url)), *behind]
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            of = fixture("--stdio", version) if over_stdio else behind[0].url
            beside = server.startswith("joined")
            yield [start(configured_gateway(driver, folder, of, beside)), *behind]


def read_expected_failures(file):
    """Returns {(scenario, check): reason}. The suite reads the file as YAML; here the
    comment above each entry counts too, so the few forms of its lines are all there are."""
    reasons, comment = {}, []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        line = line.strip()
        if line.startswith("#"):
            comment.append(line.lstrip("# "))
        elif entry := re.fullmatch(r"- ([a-z0-9-]+):([a-z0-9-]+)", line):
            if not comment:
                sys.exit(f"{file.name}:{number}: no reason above it")
            reasons[entry.groups()] = " ".join(comment)
            comment = []
        elif line == "server:":
            comment = []
        else:
            sys.exit(f"{file.name}:{number}: neither a comment nor SCENARIO:CHECK")
    return reasons


def list_scenarios(version):
    """The names of the suite's server scenarios for a version, in its order."""
    command = [*SUITE, "list", "--server", "--spec-version", version]
    said = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIST_SECONDS_MAX)
    names = re.findall(r"^  - (\S+)", said.stdout, re.MULTILINE)
    if said.returncode != 0 or len(names) != VERSIONS[version]:
        sys.exit(f"the suite lists {len(names)} scenarios for {version}, not {VERSIONS[version]}\n{said.stderr}")
    return names


def run_combination(server, version, driver):
    """Returns ({scenario: its checks}, what else was wrong)."""
    with served(server, version, driver) as processes, tempfile.TemporaryDirectory() as results:
        wrong, output = run_suite(processes[0].url, server, version, results)
        for process in processes:
            if stop := process.stop():
                wrong.append(f"{process.process.args[0]}: {stop}")
        if wrong:
            print(f"-- the suite, {server} {version}\n{output}", flush=True)
            for process in processes:
                print(f"-- stderr of {process.process.args[0]}\n{process.stderr()}", flush=True)
        return read_results(results), wrong


def run_suite(url, server, version, results):
    """Runs all scenarios of a version, one after another. Returns what was wrong beside
    the checks, and the output."""
    # An empty list still makes warnings count.
    expected = EXPECTED_FAILURES.get(server, os.devnull)
    command = [*SUITE, "server", "--url", url, "--spec-version", version, "--suite", "all"]
    command += ["--expected-failures", str(expected), "--output-dir", results]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    try:
        output, _ = process.communicate(timeout=SUITE_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        return [f"the suite: no end after {SUITE_SECONDS_MAX} s"], output
    except BaseException:
        process.kill()
        process.wait()
        raise
    return ([f"the suite: exit {process.returncode}"] if process.returncode != 0 else []), output


def read_results(results):
    """Returns {scenario: its checks} from the folders that the suite writes."""
    read = {}
    for checks in Path(results).glob("*/checks.json"):
        scenario = re.fullmatch(r"server-(.+)-\d{4}-\d\d-\d\dT[0-9-]+Z", checks.parent.name).group(1)
        read[scenario] = json.loads(checks.read_text())
    return read


def nothing_to_check(server, scenario):
    """The table's word and the reason where a scenario has nothing to check."""
    return NOTHING_TO_CHECK.get((SAME_AS.get(server, server), scenario), (None, None))


def judge(server, scenario, checks, reasons):
    """The table's word for a scenario, and what is wrong with it, if anything. `reasons`
    are those of the column."""
    if checks is None:
        return "FAILED", ["it did not run to its end"]
    expected = {check for name, check in reasons if name == scenario}
    bad = [check for check in checks if check["status"] not in GOOD]
    wrong = [
        f"{check['id']}: {check['status']}: {check.get('errorMessage') or check['description']}"
        for check in bad
        if check["id"] not in expected or check.get("errorMessage", "").startswith(BROKE_OFF)
    ]
    # The suite takes a check that is absent for an expected failure, so it is looked for.
    failed = {check["id"] for check in bad}
    wrong += [f"{check}: fails no more; take it out of {EXPECTED_FAILURES[server].name}" for check in expected - failed]
    nothing = not bad and all(check["status"] == "INFO" for check in checks)
    word, _ = nothing_to_check(server, scenario)
    if nothing != (word is not None):
        wrong.append("it had nothing to check" if nothing else "it has something to check by now")
    if wrong:
        return "FAILED", wrong
    return word or ("expected" if bad else "passed"), []


def print_table(scenarios, words, reasons):
    heads = [f"{server} {version}" for server, version in words]
    width = max(map(len, scenarios)) + 2
    print("\n" + "scenario".ljust(width) + "  ".join(heads))
    for scenario in scenarios:
        cells = (column.get(scenario, "-").ljust(len(head)) for column, head in zip(words.values(), heads))
        print((scenario.ljust(width) + "  ".join(cells)).rstrip())
    # Each reason once, with the columns that it is for.
    known = {}
    for server in COLUMNS:
        told = [(scenario, reason) for (scenario, _), reason in reasons.get(server, {}).items()]
        told += [(scenario, nothing_to_check(server, scenario)[1]) for scenario in scenarios]
        for scenario, reason in told:
            if any(column.get(scenario) == "expected" for (of, _), column in words.items() if of == server):
                known.setdefault((scenario, reason), []).append(server)
    for (scenario, reason), servers in known.items():
        if reason:
            print(f"expected: {', '.join(servers)}: {scenario}: {reason}")


def main():
    names = {f"{server}-{version}": (server, version) for server, version in COMBINATIONS}
    parser = argparse.ArgumentParser(description="The official MCP conformance suite, directly and through Ringway.")
    parser.add_argument("--driver", choices=("uring", "epoll"), help="the gateway's I/O driver; else one a version")
    parser.add_argument("combinations", nargs="*", metavar="COMBINATION", help=f"of: {', '.join(names)}; else all")
    options = parser.parse_args()
    if unknown := [name for name in options.combinations if name not in names]:
        parser.error(f"no such combination: {', '.join(unknown)}")
    if not NODE.exists():
        sys.exit(f"no {NODE}: run {HERE / 'install'}")
    if not GATEWAY.exists():
        sys.exit(f"no gateway at {GATEWAY}: build it or set RINGWAY_BIN")
    # A stopped runner ends what it started.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))

    reasons = {server: read_expected_failures(file) for server, file in EXPECTED_FAILURES.items()}
    scenarios = {version: list_scenarios(version) for version in VERSIONS}
    everywhere = list(dict.fromkeys(name for version in reversed(VERSIONS) for name in scenarios[version]))
    for server, file in EXPECTED_FAILURES.items():
        if strange := [name for name, _ in reasons[server] if name not in everywhere]:
            sys.exit(f"{file.name} names no scenario of the suite: {', '.join(strange)}")
    if strange := [key for key in NOTHING_TO_CHECK if key[0] not in COLUMNS or key[1] not in everywhere]:
        sys.exit(f"nothing to check in no column or scenario: {strange}")

    words, wrong = {}, []
    for name, (server, version) in names.items():
        if options.combinations and name not in options.combinations:
            continue
        started = time.monotonic()
        results, besides = run_combination(server, version, options.driver or DRIVERS.get((server, version)))
        wrong += [f"{server} {version}: {what}" for what in besides]
        column = words[server, version] = {}
        for scenario in scenarios[version]:
            column[scenario], what = judge(server, scenario, results.get(scenario), reasons.get(server, {}))
            wrong += [f"{server} {version}: {scenario}: {line}" for line in what]
        print(f"-- {server} {version}: {time.monotonic() - started:.1f} s", flush=True)

    print_table(everywhere, words, reasons)
    for line in wrong:
        print(f"not as it must be: {line}")
    count = [word for column in words.values() for word in column.values()].count
    print(f"expected failures: {count('expected')}")
    # A fault beside the scenarios counts as one more that failed.
    besides = len(wrong) > 0 and count("FAILED") == 0
    print(f"{count('passed')} passed, {count('FAILED') + besides} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
