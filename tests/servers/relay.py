"""Stands in for a stdio MCP server that lives in the test's own process.

It connects to the test's socket, says who it is in one line of JSON, and then carries bytes both ways. When its
stdin ends it says so by ending its side of the socket; when the test ends the other side, it exits: with 0 if its
stdin had ended, else with 1, as a server that dies. Without a socket to connect to it exits with 1 at once.
"""

import _thread
import json
import os
import socket
import sys

CHUNK_BYTES = 1 << 16

stdin_ended = False


def write_all(data):
    view = memoryview(data)
    while view:
        view = view[os.write(1, view):]


def carry_stdin(link):
    global stdin_ended
    try:
        while chunk := os.read(0, CHUNK_BYTES):
            link.sendall(chunk)
    except OSError:
        pass
    stdin_ended = True
    try:
        link.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def main():
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect(sys.argv[1])
    hello = {
        "pid": os.getpid(),
        "arguments": sys.argv[2:],
        "directory": os.getcwd(),
        "environment": dict(os.environ),
    }
    link.sendall(json.dumps(hello).encode() + b"\n")
    _thread.start_new_thread(carry_stdin, (link,))
    try:
        while chunk := link.recv(CHUNK_BYTES):
            write_all(chunk)
    except OSError:
        pass
    os._exit(0 if stdin_ended else 1)


try:
    main()
except OSError:
    os._exit(1)
