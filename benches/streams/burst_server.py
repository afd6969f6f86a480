"""A stdio MCP server for measurements: it accepts every subscription, and its one tool writes lines of
notifications in one go. Python's standard library only."""

import json
import os
import sys


def write(data):
    view = memoryview(data)
    while view:
        view = view[os.write(1, view):]


def answer(identity, result):
    return json.dumps({"jsonrpc": "2.0", "id": identity, "result": result}).encode() + b"\n"


def burst(kind, count, token):
    """COUNT lines of one kind; updates are of COUNT different URIs."""
    if kind == "updated":
        lines = (
            b'{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"bench:///resource/%d"}}\n' % n
            for n in range(count)
        )
    elif kind == "list_changed":
        lines = [b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n'] * count
    else:
        lines = (
            b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"total":%d,'
            b'"message":"a step of the work"}}\n' % (json.dumps(token).encode(), n, count)
            for n in range(count)
        )
    return b"".join(lines)


def handle(message):
    method, identity = message.get("method"), message.get("id")
    if identity is None or method is None:
        return b""
    if method == "initialize":
        return answer(identity, {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": True}, "resources": {"subscribe": True}},
            "serverInfo": {"name": "burst", "version": "1"},
        })
    if method == "tools/call":
        params = message["params"]
        arguments = params["arguments"]
        token = params.get("_meta", {}).get("progressToken")
        return burst(arguments["kind"], arguments["count"], token) + answer(identity, {"content": []})
    return answer(identity, {})


def main():
    rest = b""
    while chunk := os.read(0, 1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        write(b"".join(handle(json.loads(line)) for line in lines))


if __name__ == "__main__":
    sys.exit(main())
