"""What a server's clients see when it is killed while they call it: each call ends, with its own answer or with
`upstream_down`, and the same sessions go on with the server that is started next.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from clients import Session, answer, request

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from processes import command_line, descendants, start_time  # noqa: E402

CALLERS = 8
SESSIONS = 4
# Each caller must have been answered rightly so often before a kill and after it.
RIGHT_MIN = 3
# A bound, far above what is needed; a caller that gets there fails the run.
CALLS_MAX = 20_000
# While the server is down the answers come at once; a pause leaves it the processor.
PAUSE_SECONDS = 0.02

# A frozen server answers nothing, but what it has said may still be on its way.
SETTLED_SECONDS = 0.3

# A guard against a hang, not an expectation about speed.
WAIT_SECONDS_MAX = 120

RIGHT, DOWN = "right", "upstream_down"


class Wrong(Exception):
    pass


class Caller(threading.Thread):
    """Calls one after another, with arguments that no other caller has, on a connection of its own."""

    def __init__(self, place, session, calls, same):
        super().__init__(daemon=True)
        self.place, self.session, self.same = place, session, same
        self.calls = calls[place::CALLERS]
        self.done = threading.Event()
        self.begun = 0
        # Of each call that has ended: RIGHT, DOWN, or what was wrong.
        self.outcomes = []

    def in_flight(self):
        return self.begun > len(self.outcomes)

    def right(self):
        return self.outcomes.count(RIGHT)

    def run(self):
        connection = self.session.connect()
        while not self.done.is_set() and self.begun < CALLS_MAX:
            number = self.begun * CALLERS + self.place
            ask, expected = self.calls[self.begun % len(self.calls)]
            self.begun += 1
            try:
                # Half of the callers have strings as ids.
                name = f"load {number}" if self.place % 2 else number
                connection.send(request(name, ask.method, ask.params), self.session.id)
                self.outcomes.append(self.judge(answer(connection.receive()[1], name), expected))
            except Exception as error:  # whatever it is, the call has not ended as it must
                self.outcomes.append(f"{type(error).__name__}: {error}")
                break
            if self.outcomes[-1] == DOWN:
                time.sleep(PAUSE_SECONDS)
        connection.close()

    def judge(self, said, expected):
        if self.same(said, expected):
            return RIGHT
        kind, _, text = said.partition(" ")
        error = json.loads(text)
        if kind == "error" and (error["code"], error.get("data")) == (-32603, {"reason": "upstream_down"}):
            return DOWN
        return f"a foreign answer: {said[:300]} instead of {expected[:300]}"


def server_pid(gateway, command):
    """The server's own process, not the guard above it; None while there is none. What the server starts stands below
    it, so it comes first."""
    line = " ".join(command)
    return next((pid for pid in descendants(gateway.process.pid) if command_line(pid) == line), None)


def kill_twice(gateway, command, calls, same):
    """`calls` are (ask, answer) with answers that all differ; `same` says whether an answer is one of these. Returns
    what was seen."""
    sessions = [Session(gateway.url) for _ in range(SESSIONS)]
    callers = [Caller(place, sessions[place % SESSIONS], calls, same) for place in range(CALLERS)]
    try:
        for caller in callers:
            caller.start()
        wait_for_right_answers(callers, "right answers of the first server")
        kills, pids = [], [server_pid(gateway, command)]
        # Once in full run; once frozen, so that a call of every caller is sure to be in flight.
        for freeze in (False, True):
            kills.append(kill(callers, pids[-1], freeze, lambda: server_pid(gateway, command)))
            pids.append(server_pid(gateway, command))
            wait_for_right_answers(callers, "right answers of the next server, in the same sessions")
    finally:
        for caller in callers:
            caller.done.set()
        for caller in callers:
            if caller.ident:
                caller.join(WAIT_SECONDS_MAX)
    check(callers)
    if any(caller.is_alive() or caller.in_flight() for caller in callers):
        raise Wrong("a call has not ended")
    if len(set(pids)) != len(pids):
        raise Wrong(f"a server is there again that was killed: {pids}")
    right = sum(caller.right() for caller in callers)
    down = sum(caller.outcomes.count(DOWN) for caller in callers)
    return f"{right} right, {down} {DOWN}; {', '.join(kills)}"


def kill(callers, pid, freeze, next_server):
    """Kills the server while calls are in flight, and waits for the next one. Returns what was seen."""
    if freeze:
        os.kill(pid, signal.SIGSTOP)
        wait(callers, lambda: settled(callers), "all callers to wait for the frozen server")
    started = start_time(pid)
    already_down = sum(caller.outcomes.count(DOWN) for caller in callers)
    in_flight = [(caller, caller.begun - 1) for caller in callers if caller.in_flight()]
    os.kill(pid, signal.SIGKILL)
    wait(callers, lambda: start_time(pid) != started, f"the end of process {pid}")
    wait(callers, lambda: all(len(caller.outcomes) > call for caller, call in in_flight), "the calls in flight to end")
    wait(callers, next_server, "the next server")
    ended_down = sum(caller.outcomes[call] == DOWN for caller, call in in_flight)
    down = sum(caller.outcomes.count(DOWN) for caller in callers) - already_down
    # In full run an answer may have come already that the caller has yet to read.
    least = CALLERS if freeze else 1
    if len(in_flight) < least or down < least or (freeze and ended_down < least):
        raise Wrong(f"{len(in_flight)} in flight at the kill, of these {DOWN} {ended_down}; {DOWN} in all {down}")
    return f"{len(in_flight)} in flight at kill {'frozen' if freeze else 'in full run'}, of these {DOWN} {ended_down}"


def check(callers):
    for caller in callers:
        if wrong := [outcome for outcome in list(caller.outcomes) if outcome not in (RIGHT, DOWN)]:
            raise Wrong(wrong[0])


def wait(callers, condition, what):
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        check(callers)
        if not all(caller.is_alive() for caller in callers):
            raise Wrong(f"a caller came to its bound of {CALLS_MAX} calls, before {what}")
        if time.monotonic() > deadline:
            raise Wrong(f"no end of the wait for {what}; right answers: {[caller.right() for caller in callers]}")
        time.sleep(0.01)


def wait_for_right_answers(callers, what):
    before = [caller.right() for caller in callers]
    wait(callers, lambda: all(c.right() >= least + RIGHT_MIN for c, least in zip(callers, before)), what)


def settled(callers):
    before = [(caller.begun, len(caller.outcomes)) for caller in callers]
    time.sleep(SETTLED_SECONDS)
    now = [(caller.begun, len(caller.outcomes)) for caller in callers]
    return before == now and all(begun > ended for begun, ended in now)
