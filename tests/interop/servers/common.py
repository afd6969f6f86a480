"""What the servers of the Python SDKs share: what they offer, in plain values, the file
of events, and how they are served and ended. Nothing here knows about any SDK but that
it makes an ASGI application."""

import asyncio
import os
import signal
import socket
import sys
import threading

import uvicorn

NOTE = "interop://note"
NOTE_TEXT = "a note"
NAME_SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

# The tools with the names and types of their arguments.
TOOLS = {
    "echo": {"message": "string"},
    "steps": {"count": "integer"},
    "wait": {},
    "log": {"text": "string"},
    "ask_model": {"question": "string"},
    "ask_user": {"question": "string"},
    "touch": {},
}


def input_schema(tool):
    arguments = TOOLS[tool]
    properties = {name: {"type": kind} for name, kind in arguments.items()}
    return {"type": "object", "properties": properties, "required": list(arguments)}


def note(event):
    with open(os.environ["INTEROP_EVENTS"], "a") as file:
        file.write(f"{event}\n")


async def wait(what="wait"):
    """The tool `wait`: both SDKs cancel the task of a call that the client cancels."""
    note(f"{what} began")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        note(f"{what} cancelled")
        raise


class Subscribed:
    """The sessions that have subscribed to the note."""

    def __init__(self):
        self.sessions = set()

    def __contains__(self, context):
        return self.session(context) in self.sessions

    def add(self, context):
        self.sessions.add(self.session(context))

    def remove(self, context):
        self.sessions.discard(self.session(context))

    def session(self, context):
        return context.request.headers["mcp-session-id"]


def noting_deletes(app):
    async def noting(scope, receive, send):
        async def watch(message):
            if message["type"] == "http.response.start" and message["status"] < 300:
                note("deleted")
            await send(message)

        is_delete = scope["type"] == "http" and scope["method"] == "DELETE"
        await app(scope, receive, watch if is_delete else send)

    return noting


def serve(name, app, forget):
    """Serves until stdin ends or SIGTERM comes, and then ends at once."""

    def on_forget(*_):
        forget()
        note("forgotten")

    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGUSR1, on_forget)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(noting_deletes(app), log_level="warning")
    server = uvicorn.Server(config)
    # On any other thread than the first it leaves the signals alone.
    threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True).start()
    print(f"{name} listening on http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    sys.stdin.buffer.read()
    os._exit(0)
