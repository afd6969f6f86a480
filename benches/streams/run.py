#!/usr/bin/env python3
"""What streams cost: CPU time of the gateway per event on GET streams and per progress message, and memory
per idle stream. Loopback only; ends by itself.

Usage: benches/streams/run.py updated|list_changed|progress|idle [STREAMS] [EVENTS] [ROUNDS] [flags of ringway]

updated:       each of STREAMS sessions is subscribed to EVENTS URIs; the server says in one write that all
               were updated, ROUNDS times
list_changed:  the server says EVENTS times in one write that a list has changed (one event a stream is enough)
progress:      STREAMS connections call at once, EVENTS progress messages and the reply to each call, again and
               again until about 100,000 events, ROUNDS times
idle:          STREAMS sessions with an open GET stream; resident memory of the gateway each, CPU for 10 s
"""

import os
import re
import resource
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BINARY = os.environ.get("RINGWAY_BIN") or HERE / "../../target/release/ringway"
OPEN = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
    b'"capabilities":{},"clientInfo":{"name":"streams","version":"0"}}}'
)


def post(body, session=None):
    named = b"Mcp-Session-Id: %s\r\n" % session if session else b""
    return (
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Accept: application/json, text/event-stream\r\n%sContent-Length: %d\r\n\r\n%s"
        % (named, len(body), body)
    )


def read_json(connection):
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(65536)
    head, _, rest = answer.partition(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head)[1])
    while len(rest) < length:
        rest += connection.recv(65536)
    return head


def ask(connection, body, session=None):
    connection.sendall(post(body, session))
    return read_json(connection)


def open_session(connection):
    return re.search(rb"mcp-session-id: (\S+)", ask(connection, OPEN))[1]


def subscribe(connection, session, count):
    """In portions, so that neither side's socket buffer fills while the other only writes."""
    for first in range(0, count, 50):
        numbers = range(first, min(first + 50, count))
        for n in numbers:
            connection.sendall(post(
                b'{"jsonrpc":"2.0","id":%d,"method":"resources/subscribe","params":{"uri":"bench:///resource/%d"}}' % (n, n),
                session,
            ))
        got = b""
        while got.count(b'"result":{}') < len(numbers):
            got += connection.recv(65536)


def open_stream(port, session):
    stream = socket.create_connection(("127.0.0.1", port))
    stream.sendall(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nMcp-Session-Id: %s\r\n\r\n" % session)
    got = b""
    while b"\r\n\r\n" not in got:
        got += stream.recv(4096)
    assert got.startswith(b"HTTP/1.1 200"), got
    return stream


def resident(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024


def cpu_seconds(pid):
    """Of all threads, in nanoseconds of the scheduler; /proc/PID/stat counts in hundredths of a second."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


class Counter:
    """Counts a word on many sockets, also where it is cut in two."""

    def __init__(self, sockets, word):
        self.word, self.tails, self.total = word, {}, 0
        self.poll = select.epoll()
        self.sockets = {s.fileno(): s for s in sockets}
        for number in self.sockets:
            self.poll.register(number, select.EPOLLIN)

    def until(self, total, seconds=60):
        limit = time.monotonic() + seconds
        while self.total < total:
            if time.monotonic() > limit:
                raise SystemExit(f"only {self.total} of {total} events came in {seconds} s")
            for number, _ in self.poll.poll(1):
                data = self.tails.get(number, b"") + self.sockets[number].recv(1 << 20)
                self.total += data.count(self.word)
                keep = len(self.word) - 1
                tail = data[-keep:]
                self.tails[number] = tail


def on_streams(port, pid, kind, streams, events, rounds):
    control = socket.create_connection(("127.0.0.1", port))
    session = open_session(control)
    sockets = []
    for _ in range(streams):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            own = open_session(connection)
            if kind == "updated":
                subscribe(connection, own, events)
            sockets.append(open_stream(port, own))
    word = b"resources/updated" if kind == "updated" else b"tools/list_changed"
    each = events if kind == "updated" else 1
    counter = Counter(sockets, word)
    body = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"burst","arguments":{"kind":"%s","count":%d}}}' % (
        kind.encode(), events)
    for number in range(rounds):
        before, started = cpu_seconds(pid), time.monotonic()
        ask(control, body, session)
        counter.until((number + 1) * each * streams)
        cpu, wall = cpu_seconds(pid) - before, time.monotonic() - started
        total = each * streams
        print(f"{kind}: {total} events to {streams} streams: {cpu / total * 1e6:.3f} us CPU each, "
              f"{total / cpu / 1e6:.2f} M events per CPU-second, {wall:.2f} s in all", flush=True)
    extra = counter.total - rounds * each * streams
    print(f"events beyond what was expected: {extra}")


def progress(port, pid, streams, events, rounds):
    sockets = []
    sessions = []
    for _ in range(streams):
        connection = socket.create_connection(("127.0.0.1", port))
        sessions.append(open_session(connection))
        sockets.append(connection)
    counter = Counter(sockets, b"data: ")
    calls = max(1, 100_000 // (streams * events))
    expected = 0
    for _ in range(rounds):
        before, started = cpu_seconds(pid), time.monotonic()
        for _ in range(calls):
            for connection, session in zip(sockets, sessions):
                connection.sendall(post(
                    b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"burst","arguments":{"kind":"progress","count":%d},'
                    b'"_meta":{"progressToken":"t"}}}' % events, session))
            expected += (events + 1) * streams
            counter.until(expected)
        cpu, wall = cpu_seconds(pid) - before, time.monotonic() - started
        total = events * streams * calls
        print(f"progress: {events} before each of {streams} replies: {cpu / total * 1e6:.3f} us CPU an event "
              f"(calls included), {wall:.2f} s in all", flush=True)


def idle(port, pid, streams):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        own = open_session(connection)
        warm = open_stream(port, own)
        base = resident(pid)
        sockets = []
        for _ in range(streams):
            sockets.append(open_stream(port, open_session(connection)))
        print(f"idle stream with its session: {(resident(pid) - base) / streams:.0f} bytes each of {streams}")
        before = cpu_seconds(pid)
        time.sleep(10)
        print(f"CPU while idle, keep-alives included: {(cpu_seconds(pid) - before) * 10:.2f} % of a core")
        warm.close()


def main():
    kind = sys.argv[1]
    numbers = [int(text) for text in sys.argv[2:5] if text.isdigit()]
    flags = sys.argv[2 + len(numbers):]
    streams, events, rounds = (numbers + [2000, 100, 5][len(numbers):])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    command = [str(BINARY), "serve", "--listen", "127.0.0.1:0", "--admin", "off", "--log-level", "warn",
               "--shards", "1", "--idle-timeout", "10m", "--session-unused-ttl", "10m", *flags,
               "--", sys.executable, "-S", str(HERE / "burst_server.py")]
    gateway = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = gateway.stdout.readline()
        print(line.strip())
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", line)[1])
        if kind == "idle":
            idle(port, gateway.pid, streams)
        elif kind == "progress":
            progress(port, gateway.pid, streams, events, rounds)
        else:
            on_streams(port, gateway.pid, kind, streams, events, rounds)
    finally:
        gateway.terminate()
        gateway.wait(timeout=20)


if __name__ == "__main__":
    main()
