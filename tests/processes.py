"""Servers under test as processes: start one, read its start-up line, stop it, and see that nothing below it is
left. Nothing here knows about MCP. Linux's /proc, Python's standard library only.
"""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

# Guards against a hang, not expectations about speed.
START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 60
# For what a server started: it ends by itself, a moment after the server.
BELOW_SECONDS_MAX = 5

STDERR_CHARS_SHOWN = 4000


def descendants(pid):
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        # Children belong to the thread that made them, so all threads are asked.
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                pids = [int(child) for child in children.read_text().split()]
            except OSError:
                continue
            found += pids
            waiting += pids
    return found


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def start_time(pid):
    """Tells a process from a later one of the same pid; None for a dead one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def survivors(processes):
    return [pid for pid, started in processes.items() if started and start_time(pid) == started]


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def below(pid):
    """What lives below a process now, for `outlived` and `kill_all`."""
    return {pid: start_time(pid) for pid in descendants(pid)}


def outlived(processes):
    """Waits until these have ended; kills the rest, and returns their command lines."""
    deadline = time.monotonic() + BELOW_SECONDS_MAX
    while survivors(processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    lines = [command_line(pid) for pid in survivors(processes)]
    kill_all(processes)
    return lines


def kill_all(processes):
    for pid in survivors(processes):
        kill(pid)


def kill_tree(process):
    """Ends a Popen and all below it at once; harmless when it has ended."""
    if process.poll() is None:
        processes = below(process.pid)
        process.kill()
        process.wait()
        kill_all(processes)


class Server:
    """One process that says where it listens in its first lines, one of them unless told, and
    has no others; its stderr in `log`."""

    def __init__(self, command, log, variables=None, lines=1):
        # A developer's own RINGWAY_ settings would change what is tested.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RINGWAY_")} | (variables or {})
        self.log = log
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
        try:
            self.lines = self._start_up_lines(lines)
        except BaseException:
            self.kill()
            raise
        self.line = self.lines[0]
        # Of whatever a line tells of, the one address.
        self.urls = [re.search(r"listening on (http://\S+)", line).group(1) for line in self.lines]
        self.url = self.urls[0]

    def _start_up_lines(self, count):
        deadline = time.monotonic() + START_SECONDS_MAX
        os.set_blocking(self.process.stdout.fileno(), False)
        text = b""
        while text.count(b"\n") < count:
            text += self.process.stdout.read() or b""
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no start-up line of {self.process.args}: {self.stderr()}")
            time.sleep(0.01)
        *lines, self.more = text.split(b"\n", count)
        return [line.decode() for line in lines]

    def stderr(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-STDERR_CHARS_SHOWN:]

    def stop(self):
        """Ends its stdin, sends SIGTERM and waits. Returns what was wrong, if anything."""
        if self.process.poll() is not None:
            return f"it had ended: {self.process.returncode}"
        processes = below(self.process.pid)
        wrong = []
        self.process.stdin.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_SECONDS_MAX)
            if code != 0:
                wrong.append(f"exit {code}")
        except subprocess.TimeoutExpired:
            wrong.append("no end after SIGTERM")
        if left := outlived(processes):
            wrong.append(f"processes outlived it: {left}")
        if self.process.poll() is not None and (self.more or self.process.stdout.read()):
            wrong.append("stdout has more than the start-up lines")
        return "; ".join(wrong)

    def kill(self):
        """Ends it and all below it at once; harmless when it has ended."""
        kill_tree(self.process)
