"""Processes below a process, and their end: for scripts that start servers and must leave none behind. Linux's
/proc, Python's standard library only.
"""

import os
import signal
import time
from pathlib import Path

# For what a server started: it ends by itself, a moment after the server.
BELOW_SECONDS_MAX = 5


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
