"""The client of `chuk-mcp`, which shares no code with the official ones: `chuk.py
legacy`, started by the Python of the environment that has it. It has no automatic
mode. It opens a connection for each message, its ids are texts, it names no protocol
version after the handshake, and a connection waits for each answer in turn."""

import asyncio
import sys
from contextlib import asynccontextmanager

from chuk_mcp.protocol.messages import send_message
from chuk_mcp.protocol.messages.initialize.send_messages import send_initialize
from chuk_mcp.protocol.messages.prompts.send_messages import send_prompts_get, send_prompts_list
from chuk_mcp.protocol.messages.resources.send_messages import send_resources_list, send_resources_read
from chuk_mcp.protocol.messages.tools.send_messages import send_tools_call, send_tools_list
from chuk_mcp.transports.http.parameters import StreamableHTTPParameters
from chuk_mcp.transports.http.transport import StreamableHTTPTransport

from steps import (
    CLOCK,
    FRAGILE,
    LISTS,
    URL,
    Steps,
    describe,
    end_session_elsewhere,
    failure,
    kill_server,
    progress_of,
    status_inside,
)

CLIENTS_AT_ONCE = 10
CALLS_EACH = 3


class Connection:
    def __init__(self, transport, streams):
        self.transport = transport
        self.streams = streams
        self.initialized = None

    @property
    def session(self):
        return self.transport.get_session_id()

    async def call(self, name, arguments):
        result = await send_tools_call(*self.streams, name, arguments)
        return result.content[0]["text"]

    async def echo(self, message):
        return await self.call("echo", {"message": message})

    async def progress(self, steps, interval_ms):
        """Calls `slow`. Returns the progress that had come when its result did."""
        told = []

        async def on_progress(done, total, message):
            told.append((done, total, message))

        params = {"name": "slow", "arguments": {"steps": steps, "interval_ms": interval_ms}}
        result = await send_message(*self.streams, "tools/call", params, progress_callback=on_progress)
        before = list(told)
        assert result["content"][0]["text"] == f"done after {steps} steps", result
        return before

    async def tools(self):
        return sorted(tool.name for tool in (await send_tools_list(*self.streams)).tools)


@asynccontextmanager
async def connect():
    async with StreamableHTTPTransport(StreamableHTTPParameters(url=URL, timeout=300)) as transport:
        connection = Connection(transport, await transport.get_streams())
        connection.initialized = await send_initialize(*connection.streams)
        yield connection


def is_upstream_down(error):
    return getattr(error, "code", None) == -32603 and "The upstream server is not available" in str(error)


async def drive(main, steps):
    async def on_connect():
        said = main.initialized
        assert said.serverInfo.name == "ringway-demo", said
        # The newest that it knows, and what it proposes.
        assert said.protocolVersion == "2025-06-18", said
        for name in LISTS:
            assert getattr(said.capabilities, name).listChanged is True, said
        assert len(main.session) >= 32, main.session
        return said.protocolVersion

    async def on_list():
        tools = await main.tools()
        assert tools == ["add", "big", "echo", "grow", "slow", "touch"], tools
        resources = sorted(resource.uri for resource in (await send_resources_list(*main.streams)).resources)
        assert resources == ["demo://clock", "demo://notes"], resources
        prompts = [prompt.name for prompt in (await send_prompts_list(*main.streams)).prompts]
        assert prompts == ["greet"], prompts
        return f"{len(tools)} tools, {len(resources)} resources, {len(prompts)} prompt"

    async def on_call():
        assert await main.echo(FRAGILE) == FRAGILE
        text = await main.call("add", {"a": 9007199254740993, "b": 1})
        assert text == "9007199254740994", text
        text = await main.call("touch", {"uri": CLOCK})
        assert text == f"touched {CLOCK}: nobody has subscribed to it", text
        read = await send_resources_read(*main.streams, CLOCK)
        assert read.contents[0].text == "tick 1", read
        prompt = await send_prompts_get(*main.streams, "greet", {"name": "Ann"})
        assert prompt.messages[0].content["text"] == "Please greet Ann in one friendly sentence.", prompt
        return "echo of a fragile text, a sum past 2^53, a resource, a prompt"

    async def on_parallel():
        # One connection does one thing at a time, so each call has a client of its own.
        async def one(n):
            async with connect() as other:
                for turn in range(CALLS_EACH):
                    # Different lengths, so that an answer cut or joined elsewhere shows.
                    message = f"{other.session} {turn} {'x' * (n * 17)}"
                    assert await other.echo(message) == message
                return other.session

        sessions = await asyncio.gather(*(one(n) for n in range(CLIENTS_AT_ONCE)))
        assert len(set(sessions)) == CLIENTS_AT_ONCE, sessions
        return f"{CALLS_EACH * CLIENTS_AT_ONCE} answers of {CLIENTS_AT_ONCE} clients, each its own"

    async def on_tool_error():
        result = await send_tools_call(*main.streams, "add", {"a": "one"})
        assert result.isError is True, result
        return result.content[0]["text"]

    async def on_unknown_method():
        error = await failure(send_message(*main.streams, "ringway/no-such-method"))
        assert error.code == -32601, describe(error)
        assert await main.echo("still here") == "still here"
        return describe(error)

    async def on_progress():
        # Step by step, then all at once.
        for steps, interval_ms in ((20, 5), (200, 0)):
            told = await main.progress(steps, interval_ms)
            assert told == progress_of(steps), told
        return f"{len(progress_of(220))} steps, in order and before the results"

    async def on_two_clients():
        async with connect() as one, connect() as two:
            assert one.session != two.session
            told = await asyncio.gather(one.progress(30, 2), two.progress(20, 3))
            assert told == [progress_of(30), progress_of(20)], told
            await one.call("grow", {"list": "tools"})
            assert "extra-1" in await two.tools()
        return "each its own progress; what one has changed the other sees"

    async def on_unknown_session():
        async with connect() as other:
            ended = other.session
            await end_session_elsewhere(ended)
            # This client starts no session anew: its caller learns that it is gone.
            error = await failure(other.echo("into the void"))
            assert "HTTP 404" in str(error) and "Session not found" in str(error), describe(error)
            assert other.session == ended
        assert await main.echo("unharmed") == "unharmed"
        return f"the call fails: {describe(error)}"

    async def on_server_killed():
        async with connect() as other:
            lost = asyncio.create_task(failure(other.call("slow", {"steps": 1000, "interval_ms": 1000})))
            assert await main.echo("before") == "before"
            kill_server()
            error = await lost
            assert is_upstream_down(error), describe(error)
        return f"the call in flight ends: {describe(error)}"

    async def on_reconnect():
        session = main.session
        failed = 0
        while True:
            try:
                assert await main.echo("again") == "again"
                break
            except Exception as error:
                # Anything else, a lost session say, is not what a dead server may lead to.
                if not is_upstream_down(error):
                    raise
                failed += 1
                await asyncio.sleep(0.05)
        assert main.session == session, "the session is the same"
        assert await status_inside(session) == 200
        return f"same session, after {failed} calls that failed"

    await steps.run("connect", on_connect)
    await steps.run("list", on_list)
    await steps.run("call", on_call)
    await steps.run("parallel", on_parallel)
    await steps.run("tool-error", on_tool_error)
    await steps.run("unknown-method", on_unknown_method)
    await steps.run("progress", on_progress)
    await steps.run("two-clients", on_two_clients)
    await steps.run("unknown-session", on_unknown_session)
    await steps.run("server-killed", on_server_killed)
    await steps.run("reconnect", on_reconnect)


async def run(steps):
    try:
        async with asyncio.timeout(120):
            connection = connect()
            main = await connection.__aenter__()
    except Exception as error:
        steps.report("connect", False, describe(error))
        return
    await drive(main, steps)
    await connection.__aexit__(None, None, None)


if __name__ == "__main__":
    if sys.argv[1:] != ["legacy"]:
        sys.exit("usage: chuk.py legacy (through run.py)")
    asyncio.run(run(Steps("chuk-mcp legacy")))
