"""Two small MCP clients that keep every byte: one speaks stdio to a server, the other one HTTP to Ringway. Both send
the same text for the same request. Python's standard library only.
"""

import http.client
import json
import os
import queue
import re
import subprocess
import threading
from urllib.parse import urlsplit

# Guards against a hang, not expectations about speed.
ANSWER_SECONDS_MAX = 60
END_SECONDS_MAX = 10

NEWEST = "2025-11-25"
BLANKS = re.compile(r"[ \t\r\n]*")


def request(number, method, params=None):
    """The text of a request, or of a notification where the number is None."""
    message = {"jsonrpc": "2.0"}
    if number is not None:
        message["id"] = number
    message["method"] = method
    if params is not None:
        message["params"] = params
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def initialize(version):
    # No capabilities, as Ringway says it too: what a server offers may depend on them.
    info = {"name": "ringway-real-servers", "version": "0"}
    return request(0, "initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": info})


INITIALIZED = request(None, "notifications/initialized")


def members(text):
    """The members of a JSON object, in order, as {name: text of the value}. The texts are cut out, not written anew."""
    if not isinstance(json.loads(text), dict):
        raise ValueError(f"not an object: {text[:80]}")
    # It is valid, so only the places of names and values are left to find.
    decode = json.JSONDecoder().raw_decode
    found, at = {}, BLANKS.match(text, text.index("{") + 1).end()
    while text[at] != "}":
        if text[at] == ",":
            at = BLANKS.match(text, at + 1).end()
        name, at = decode(text, at)
        if name in found:
            raise ValueError(f"{name!r} twice: {text[:80]}")
        start = BLANKS.match(text, text.index(":", at) + 1).end()
        _, end = decode(text, start)
        found[name] = text[start:end]
        at = BLANKS.match(text, end).end()
    return found


def answer(line, number):
    """The raw text of the answer to a request, with `result` or `error` before it. It must have no other member."""
    found = members(line.decode())
    kind = "error" if "error" in found else "result"
    if found.keys() != {"jsonrpc", "id", kind} or json.loads(found["id"]) != number:
        raise ValueError(f"no answer to {number!r}: {line[:200]!r}")
    return f"{kind} {found[kind]}"


class Direct:
    """A server over stdio, with nothing in between."""

    def __init__(self, command, variables, log):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RINGWAY_")} | variables
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(b"")

    def open(self):
        """Makes the handshake. Returns the server's answer."""
        line = self.exchange(0, initialize(NEWEST))
        self._send(INITIALIZED)
        return line

    def ask(self, number, method, params=None):
        return self.exchange(number, request(number, method, params))

    def exchange(self, number, text):
        """Sends a request. Returns the line that answers it; what else comes before is dealt with as Ringway does."""
        self._send(text)
        while True:
            line = self.lines.get(timeout=ANSWER_SECONDS_MAX)
            if not line:
                raise RuntimeError(f"the server ended instead of answering {text[:200]!r}")
            said = json.loads(line)
            if "method" not in said:
                if said["id"] != number:
                    raise RuntimeError(f"an answer that nobody waits for: {line[:200]!r}")
                return line.rstrip(b"\r\n")
            if "id" in said:
                refusal = {"code": -32601, "message": "Method not found"}
                reply = {"result": {}} if said["method"] == "ping" else {"error": refusal}
                self._send(json.dumps({"jsonrpc": "2.0", "id": said["id"]} | reply).encode())

    def _send(self, text):
        self.process.stdin.write(text + b"\n")
        self.process.stdin.flush()

    def end(self):
        """Ends its input, and the server if that is not enough for it."""
        self.process.stdin.close()
        try:
            self.process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Connection:
    """One HTTP connection. `send` and `receive` may lie apart, so that several can have a request in flight."""

    def __init__(self, url, form):
        self.url = urlsplit(url)
        self.form = form
        self.http = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=ANSWER_SECONDS_MAX)

    def send(self, text, session=None):
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if session:
            headers["Mcp-Session-Id"] = session
        self.http.request("POST", self.url.path, text, headers)

    def receive(self):
        """Returns the session that the answer names, and the one message in it."""
        response = self.http.getresponse()
        body = response.read()
        kind = {"json": "application/json", "sse": "text/event-stream"}[self.form]
        if (response.status, response.headers["Content-Type"]) != (200, kind):
            raise RuntimeError(f"{response.status} {response.headers['Content-Type']}: {body[:300]!r}")
        return response.headers["Mcp-Session-Id"], body if self.form == "json" else only_event(body)

    def accepted(self):
        response = self.http.getresponse()
        body = response.read()
        if response.status != 202 or body:
            raise RuntimeError(f"{response.status} for a notification: {body[:300]!r}")

    def close(self):
        self.http.close()


def only_event(body):
    # A comment keeps a slow answer alive; it stands before the event.
    event = re.fullmatch(rb"(?:: \n)*event: message\ndata: ([^\r\n]*)\n\n", body)
    if not event:
        raise RuntimeError(f"not one event with one message: {body[:300]!r}")
    return event.group(1)


class Session:
    """A session with Ringway, and a connection for it. `form` is how its requests must be answered."""

    def __init__(self, url, version=NEWEST, form="json"):
        self.url, self.form = url, form
        self.connection = self.connect()
        self.connection.send(initialize(version))
        self.id, self.opened = self.connection.receive()
        if not self.id:
            raise RuntimeError(f"initialize without a session: {self.opened[:200]!r}")
        self.connection.send(INITIALIZED, self.id)
        self.connection.accepted()

    def connect(self):
        return Connection(self.url, self.form)

    def ask(self, number, method, params=None):
        self.connection.send(request(number, method, params), self.id)
        return self.connection.receive()[1]
