"""What the drivers of the Python clients share: running the steps, one JSON line
for each, and looking at the gateway past the client (raw HTTP, the server's pid).
Standard library only; nothing here knows about any SDK."""

import asyncio
import http.client
import json
import os
import re
import signal
import sys
from urllib.parse import urlsplit

URL = os.environ["INTEROP_URL"]
SERVER_PID = int(os.environ["INTEROP_SERVER_PID"])
WITHOUT_PROGRESS = os.environ["INTEROP_PROGRESS"] == "none"

# A guard against a hang, not an expectation about speed.
STEP_SECONDS_MAX = 30

# Texts that a careless hop would change: astral signs, joiners, line separators, escapes.
FRAGILE = '👩‍👩‍👧 \u00a0\u2028\u2029 "\\\n\r\t\u0001 𝔘 \u007f'

# The resources and the lists of the server.
CLOCK = "demo://clock"
NOTES = "demo://notes"
LISTS = ("tools", "resources", "prompts")


class Steps:
    """Runs steps and prints a line for each. A failed step does not end the run, so
    that the table shows all that fails, not the first of it."""

    def __init__(self, client):
        self.client = client

    async def run(self, name, body):
        """Runs one step: `body` is a coroutine function that returns its detail."""
        try:
            async with asyncio.timeout(STEP_SECONDS_MAX):
                detail = await body()
            self.report(name, True, detail)
        except TimeoutError:
            self.report(name, False, f"no end after {STEP_SECONDS_MAX} s")
        except asyncio.CancelledError:
            # Nobody cancels a step but the client itself, whose task group ends with
            # the first error that it did not expect.
            self.report(name, False, "the client has given up its connection")
        except Exception as error:
            self.report(name, False, describe(error))

    def report(self, name, ok, detail):
        line = {"client": self.client, "step": name, "ok": ok, "detail": detail}
        print(json.dumps(line), flush=True)


def describe(error):
    """One line that says what happened, with the innermost error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    detail = getattr(error, "error", None)
    code = f" ({detail.code})" if hasattr(detail, "code") else ""
    where = ""
    if isinstance(error, AssertionError):
        trace = error.__traceback__
        while trace.tb_next is not None:
            trace = trace.tb_next
        where = f" at {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
    text = f"{type(error).__name__}{code}{where}: {error}"
    return re.sub(r"\s+", " ", text)[:400]


async def failure(awaitable, kind=Exception):
    """The error of that kind that `awaitable` ends with."""
    try:
        result = await awaitable
    except kind as error:
        return error
    raise AssertionError(f"no error but {result!r}")


async def until(condition):
    """Waits for a condition; a step's own guard ends the waiting."""
    while not condition():
        await asyncio.sleep(0.01)


async def until_async(condition):
    """The same for a condition that has to be waited for itself."""
    while not await condition():
        await asyncio.sleep(0.01)


async def stream_open(connection):
    """Waits until the client's stream for messages of the server is open."""
    streams = []
    while not streams:
        await asyncio.sleep(0.01)
        streams = [e for e in connection.seen if e["http"] == "GET" and e["status"] is not None]
    assert streams[0]["status"] == 200, streams[0]


def progress_of(steps):
    """All progress of one call of the tool `slow`, in order."""
    if WITHOUT_PROGRESS:
        return []
    return [(n, steps, f"step {n} of {steps}") for n in range(1, steps + 1)]


def events(line):
    """How often a server of `servers/` has written this line to the file of events."""
    try:
        with open(os.environ["INTEROP_EVENTS"]) as file:
            return file.read().splitlines().count(line)
    except FileNotFoundError:
        return 0


def kill_server():
    os.kill(SERVER_PID, signal.SIGKILL)


async def end_session_elsewhere(session):
    """Ends a session as somebody else would who knows its id."""
    status = await asyncio.to_thread(_exchange, "DELETE", session, None)
    assert status == 204, f"DELETE from elsewhere: {status}"


async def status_inside(session):
    """The status that a request inside `session` gets now."""
    body = '{"jsonrpc":"2.0","id":"elsewhere","method":"ping"}'
    return await asyncio.to_thread(_exchange, "POST", session, body)


def _exchange(method, session, body):
    parts = urlsplit(URL)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=STEP_SECONDS_MAX)
    headers = {"Mcp-Session-Id": session, "Accept": "application/json, text/event-stream"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, parts.path, body=body, headers=headers)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


class Heard(list):
    """A record of the notifications that reach a client's message handler."""

    def add(self, notification):
        self.append(notification.model_dump(mode="json", by_alias=True))

    def of(self, method):
        return [said["params"] for said in self if said["method"] == method]

    def updates(self, uri):
        return sum(params["uri"] == uri for params in self.of("notifications/resources/updated"))

    @property
    def changed(self):
        """The lists that have changed, once for each time that it was told."""
        methods = {f"notifications/{name}/list_changed": name for name in LISTS}
        return [methods[said["method"]] for said in self if said["method"] in methods]


class Exchanges(list):
    """A record of a client's HTTP exchanges, filled by hooks of its HTTP client."""

    def __init__(self):
        super().__init__()
        # The progress tokens of its requests.
        self.tokens = []

    async def on_request(self, request):
        message = json.loads(request.content) if request.content else {}
        exchange = {
            "http": request.method,
            "rpc": message.get("method"),
            "id": message.get("id"),
            "tool": message.get("params", {}).get("name"),
            "session": request.headers.get("mcp-session-id"),
            "status": None,
        }
        request.extensions["interop"] = exchange
        self.append(exchange)
        token = message.get("params", {}).get("_meta", {}).get("progressToken")
        if token is not None:
            self.tokens.append(token)

    async def on_response(self, response):
        response.request.extensions["interop"]["status"] = response.status_code
        if session := response.headers.get("mcp-session-id"):
            response.request.extensions["interop"]["session"] = session

    @property
    def hooks(self):
        return {"request": [self.on_request], "response": [self.on_response]}

    def of(self, rpc):
        return [exchange for exchange in self if exchange["rpc"] == rpc]

    @property
    def session(self):
        """The session that the client uses now."""
        return next(e["session"] for e in reversed(self) if e["rpc"] and e["session"])


def driver_arguments():
    if len(sys.argv) != 3 or sys.argv[2] not in ("legacy", "auto"):
        sys.exit("usage: drive.py mcp1|mcp2|fastmcp legacy|auto (through run.py)")
    return sys.argv[1], sys.argv[2]
