"""The official Python clients before a server that speaks HTTP: `drive_http.py mcp1|mcp2
legacy|auto`, started by the Python of the environment that has the client. The server is one of
`servers/`, whose README says what it offers and what it writes to the file of events."""

import asyncio
import importlib
import os
import signal
import sys

from steps import (
    FRAGILE,
    SERVER_PID,
    Steps,
    describe,
    events,
    failure,
    progress_of,
    status_inside,
    stream_open,
    until,
)

NOTE = "interop://note"
TOOLS = ["echo", "steps", "wait", "log", "ask_model", "ask_user", "touch"]


class Answers:
    """What a client says to the server's questions, and a record of them."""

    def __init__(self):
        self.asked = []
        self.logged = []

    def sample(self, question):
        self.asked.append(question)
        return f"{question}? {FRAGILE}"

    def fill_in(self, question):
        self.asked.append(question)
        return {"name": f"Ada of {question}"}

    def log(self, level, data):
        self.logged.append((level, data))


async def drive(adapter, mode, steps):
    def connection_to():
        """A connection with answers of its own."""
        answers = Answers()
        return adapter.connect(mode, answers), answers

    async def text_of(connection, tool, **given):
        return (await connection.call(tool, given)).content[0].text

    async def progress(connection, count):
        """Calls `steps`. Returns the progress that had come when its result did."""
        told = []

        async def on_progress(done, total, message):
            told.append((done, total, message))

        result = await connection.call("steps", {"count": count}, on_progress)
        before = list(told)
        assert result.content[0].text == f"done after {count} steps", result
        return before

    async def settle(connection):
        """A barrier: what the server said before on the session's stream has come."""
        before = connection.heard.updates(NOTE)
        await connection.subscribe(NOTE)
        assert await text_of(connection, "touch") == "touched"
        await until(lambda: connection.heard.updates(NOTE) > before)
        await connection.unsubscribe(NOTE)

    async def waiting(connection):
        """A call of `wait` that has reached the server."""
        before = events("wait began")
        call = asyncio.create_task(text_of(connection, "wait"))
        await until(lambda: events("wait began") > before)
        return call

    async def on_connect():
        assert main.server_name == f"interop-{os.environ['INTEROP_SERVER']}", main.server_name
        assert main.protocol_version == "2025-11-25", main.protocol_version
        assert bool(main.seen.of("server/discover")) == (mode == "auto"), main.seen
        await until(lambda: events("initialized") == 1)
        return "2025-11-25; the server has seen initialize and initialized"

    async def on_list():
        assert await main.tools() == TOOLS, await main.tools()
        assert await main.resources() == [NOTE], await main.resources()
        assert await main.prompts() == ["greet"], await main.prompts()
        return f"{len(TOOLS)} tools, 1 resource, 1 prompt"

    async def on_call():
        assert await text_of(main, "echo", message=FRAGILE) == FRAGILE
        assert await main.read(NOTE) == "a note"
        assert await main.prompt("greet", {"name": "Ada"}) == "Hello, Ada!"
        return "a tool, a resource, a prompt"

    async def on_parallel():
        async def one(n):
            message = f"{session} {n} {'x' * (n * 17)}"
            assert await text_of(main, "echo", message=message) == message

        await asyncio.gather(*(one(n) for n in range(100)))
        return "100 answers, each its own"

    async def on_progress():
        for count in (5, 100):
            told = await progress(main, count)
            assert told == progress_of(count), told
        # All that came was for a token of the client's own.
        tokens = {said["progressToken"] for said in main.heard.of("notifications/progress")}
        assert tokens <= set(main.seen.tokens), (tokens, main.seen.tokens)
        return "5 and 100 steps with the client's token, in order and before the results"

    async def on_two_clients():
        (opening_one, _), (opening_two, _) = connection_to(), connection_to()
        async with opening_one as one, opening_two as two:
            await stream_open(two)
            told = await progress(one, 5)
            assert told == progress_of(5), told
            await settle(two)
            assert two.heard.of("notifications/progress") == [], "progress for one who has not called"
            assert one.heard.updates(NOTE) == 0, "an update for one who has not subscribed"
            # Once more in step, so that both give the same id and token to this call.
            await settle(one)
            told = await progress(two, 5)
            assert told == progress_of(5), told
            told = await asyncio.gather(progress(one, 30), progress(two, 20))
            assert told == [progress_of(30), progress_of(20)], told
            assert one.seen.tokens[-1] == two.seen.tokens[-1], "the same token in both sessions"
        return "each its own progress and updates"

    async def on_cancel():
        before = events("wait cancelled")
        opening, _ = connection_to()
        async with opening as other:
            mine, theirs = await waiting(main), await waiting(other)
            ended = await main.cancel(mine, "wait")
            await until(lambda: events("wait cancelled") == before + 1)
            assert await text_of(main, "echo", message="afterwards") == "afterwards"
            assert await text_of(other, "echo", message="unharmed") == "unharmed"
            assert events("wait cancelled") == before + 1, "the other client's call runs on"
            await other.cancel(theirs, "wait")
            await until(lambda: events("wait cancelled") == before + 2)
        return f"the server has stopped: {ended}"

    async def on_log():
        await stream_open(main)
        await main.set_level("debug")
        assert await text_of(main, "log", text=FRAGILE) == "logged"
        await until(lambda: answers.logged)
        assert answers.logged == [("info", FRAGILE)], answers.logged
        return "1 message"

    async def on_sampling():
        await stream_open(main)
        answers.asked.clear()
        said = await text_of(main, "ask_model", question="why")
        assert said == f"The model said: why? {FRAGILE}", said
        assert answers.asked == ["why"], answers.asked
        return "asked once, the answer has come"

    async def on_elicitation():
        await stream_open(main)
        answers.asked.clear()
        said = await text_of(main, "ask_user", question="here")
        assert said == "The user said: accept Ada of here", said
        assert answers.asked == ["here"], answers.asked
        return "asked once, the answer has come"

    async def on_questions():
        async def ask(connection, whose, n):
            said = await text_of(connection, "ask_user", question=f"{whose} {n}")
            assert said == f"The user said: accept Ada of {whose} {n}", said

        answers.asked.clear()
        opening, of_other = connection_to()
        async with opening as other:
            await stream_open(other)
            each = ((main, "main"), (other, "other"))
            await asyncio.gather(*(ask(*of, n) for of in each for n in range(10)))
        for whose, said in (("main", answers), ("other", of_other)):
            assert sorted(said.asked) == [f"{whose} {n}" for n in range(10)], said.asked
        return "10 at a time for each of two clients, each its own"

    async def on_subscribe():
        await stream_open(main)
        assert main.capabilities["resources"]["subscribe"] is True, main.capabilities
        before = main.heard.updates(NOTE)
        assert await text_of(main, "touch") == "nobody has subscribed"
        await main.subscribe(NOTE)
        assert await text_of(main, "touch") == "touched"
        await until(lambda: main.heard.updates(NOTE) > before)
        await main.unsubscribe(NOTE)
        assert await text_of(main, "touch") == "nobody has subscribed"
        assert main.heard.updates(NOTE) == before + 1, "one update for one change"
        return "1 update for 1 change, none before and after"

    async def on_forgotten():
        before, updates = events("initialized"), main.heard.updates(NOTE)
        await main.subscribe(NOTE)
        os.kill(SERVER_PID, signal.SIGUSR1)
        await until(lambda: events("forgotten") == 1)
        # All of them find the session gone, and share one new handshake.
        said = await asyncio.gather(*(text_of(main, "echo", message=str(n)) for n in range(10)))
        assert said == [str(n) for n in range(10)], said
        assert main.seen.session == session, "the session is the same for the client"
        assert events("initialized") == before + 1, "one new handshake"
        told = await progress(main, 5)
        assert told == progress_of(5), told
        assert await text_of(main, "touch") == "touched", "the subscription is there again"
        await until(lambda: main.heard.updates(NOTE) > updates)
        await main.unsubscribe(NOTE)
        said = await text_of(main, "ask_user", question="again")
        assert said == "The user said: accept Ada of again", said
        return "10 calls at once answered after one new handshake, the subscription is there again"

    async def on_close():
        before = events("deleted")
        await connection.__aexit__(None, None, None)
        await until(lambda: events("deleted") == before + 1)
        status = await status_inside(session)
        assert status == 404, status
        # For the gateway to end when it stops, as the runner sees.
        begun = events("initialized")
        await left.__aenter__()
        await until(lambda: events("initialized") > begun)
        return "the server has seen the DELETE, then 404"

    connection, answers = connection_to()
    left, _ = connection_to()
    try:
        async with asyncio.timeout(30):
            main = await connection.__aenter__()
    except Exception as error:
        steps.report("connect", False, describe(error))
        return
    await steps.run("connect", on_connect)
    session = main.seen.session
    await steps.run("list", on_list)
    await steps.run("call", on_call)
    await steps.run("parallel", on_parallel)
    await steps.run("progress", on_progress)
    await steps.run("two-clients", on_two_clients)
    await steps.run("cancel", on_cancel)
    await steps.run("log", on_log)
    await steps.run("sampling", on_sampling)
    await steps.run("elicitation", on_elicitation)
    await steps.run("questions", on_questions)
    await steps.run("subscribe", on_subscribe)
    if os.environ["INTEROP_DIRECT"] != "True":
        await steps.run("forgotten", on_forgotten)
    await steps.run("close", on_close)
    # What was left open must not be ended in order.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    adapter = importlib.import_module(f"adapter_{sys.argv[1]}")
    mode = sys.argv[2]
    asyncio.run(drive(adapter, mode, Steps(f"{adapter.NAME} auto" if mode == "auto" else adapter.NAME)))
