#!/usr/bin/env python3
"""What idle clients cost: resident memory of the gateway per session and per kept
connection, and its CPU time while nothing happens. Loopback only; ends by itself.

Usage: benches/closed_loop/idle.py [CONNECTIONS] [SECONDS] [flags of ringway]
"""

import os
import re
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BINARY = os.environ.get("RINGWAY_BIN") or HERE / "../../target/release/ringway"
BODY = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
    b'"capabilities":{},"clientInfo":{"name":"idle","version":"0"}}}'
)
PING = b'{"jsonrpc":"2.0","id":2,"method":"ping"}'


def request(body, session=None):
    named = b"Mcp-Session-Id: %s\r\n" % session if session else b""
    return (
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Accept: application/json, text/event-stream\r\n%sContent-Length: %d\r\n\r\n%s"
        % (named, len(body), body)
    )


def ask(connection, data):
    connection.sendall(data)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(65536)
    head, _, rest = answer.partition(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head)[1])
    while len(rest) < length:
        rest += connection.recv(65536)
    return head


def resident(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    command = [str(BINARY), "demo", "--listen", "127.0.0.1:0", "--admin", "off", "--log-level", "warn"]
    command += ["--idle-timeout", "10m", "--session-unused-ttl", "10m", *sys.argv[3:]]
    gateway = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = gateway.stdout.readline()
        print(line.strip())
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", line)[1])
        with socket.create_connection(("127.0.0.1", port)) as warm:
            ask(warm, request(BODY))
            base = resident(gateway.pid)
            for _ in range(count):
                ask(warm, request(BODY))
            sessions = resident(gateway.pid)
            print(f"session: {(sessions - base) / count:.0f} bytes each of {count}")
            kept = []
            for _ in range(count):
                connection = socket.create_connection(("127.0.0.1", port))
                head = ask(connection, request(BODY))
                session = re.search(rb"mcp-session-id: (\S+)", head)[1]
                ask(connection, request(PING, session))
                kept.append(connection)
            both = resident(gateway.pid)
            print(f"connection with its session: {(both - sessions) / count:.0f} bytes each of {count}")
            before = cpu_seconds(gateway.pid)
            time.sleep(seconds)
            spent = cpu_seconds(gateway.pid) - before
            print(f"CPU while idle: {spent:.2f} s in {seconds} s")
    finally:
        gateway.terminate()
        gateway.wait()


main()
