"""The Python clients: `drive.py mcp1|mcp2|fastmcp legacy|auto`, started by the Python of
the environment that has the client. The steps are the same for all three; the
modules `adapter_*` say how each client does them."""

import asyncio
import importlib

from steps import (
    CLOCK,
    FRAGILE,
    LISTS,
    NOTES,
    Steps,
    describe,
    driver_arguments,
    end_session_elsewhere,
    failure,
    kill_server,
    progress_of,
    status_inside,
    stream_open,
    until,
    until_async,
)


async def drive(adapter, mode, steps):
    async def echo(connection, message):
        result = await connection.call("echo", {"message": message})
        return result.content[0].text

    async def slow(connection):
        return await connection.call("slow", {"steps": 1000, "interval_ms": 1000})

    async def progress(connection, steps, interval_ms):
        """Calls `slow`. Returns the progress that had come when its result did."""
        told = []

        async def on_progress(done, total, message):
            told.append((done, total, message))

        arguments = {"steps": steps, "interval_ms": interval_ms}
        result = await connection.call("slow", arguments, on_progress)
        before = list(told)
        assert result.content[0].text == f"done after {steps} steps", result
        return before

    async def touch(connection, uri):
        """Changes a resource. True: the server had somebody to tell."""
        said = (await connection.call("touch", {"uri": uri})).content[0].text
        if said == f"touched {uri}: nobody has subscribed to it":
            return False
        assert said == f"touched {uri}: its subscribers were told", said
        return True

    async def untold(connection, uri):
        return not await touch(connection, uri)

    async def settle(connection):
        """A barrier: what was to come to this client before has come when this returns.
        Two updates, for what waits at one time may come in any order."""
        heard = connection.heard
        before = heard.updates(NOTES)
        await connection.subscribe(NOTES)
        for count in (1, 2):
            assert await touch(connection, NOTES)
            await until(lambda: heard.updates(NOTES) >= before + count)
        await connection.unsubscribe(NOTES)
        assert heard.updates(NOTES) == before + 2, "one update for each change"

    async def on_connect():
        assert main.server_name == "ringway-demo", main.server_name
        assert main.protocol_version == "2025-11-25", main.protocol_version
        # Otherwise this run would show nothing about the automatic mode, or about the other.
        probes = main.seen.of("server/discover")
        assert bool(probes) == (mode == "auto"), main.seen
        assert main.seen.session, "a session"
        probed = f", after a probe answered with {probes[0]['status']}" if probes else ""
        return f"{main.protocol_version}{probed}"

    async def on_list():
        tools = await main.tools()
        for name in ("echo", "add", "slow", "big", "touch", "grow"):
            assert name in tools, name
        resources = await main.resources()
        assert sorted(resources) == ["demo://clock", "demo://notes"], resources
        prompts = await main.prompts()
        assert prompts == ["greet"], prompts
        return f"{len(tools)} tools, {len(resources)} resources, {len(prompts)} prompt"

    async def on_call():
        assert await echo(main, FRAGILE) == FRAGILE
        result = await main.call("add", {"a": 9007199254740993, "b": 1})
        assert result.content[0].text == "9007199254740994", result
        return "echo of a fragile text, a sum past 2^53"

    async def on_parallel():
        async def one(n):
            # Different lengths, so that an answer cut or joined elsewhere shows.
            message = f"{main.seen.session} {n} {'x' * (n * 17)}"
            assert await echo(main, message) == message

        await asyncio.gather(*(one(n) for n in range(100)))
        return "100 answers, each its own"

    async def on_tool_error():
        result = await main.call("add", {"a": "one"})
        assert adapter.is_error(result), result
        return result.content[0].text

    async def on_unknown_method():
        error = await failure(main.request("ringway/no-such-method"))
        assert error.error.code == -32601, describe(error)
        assert await echo(main, "still here") == "still here"
        return describe(error)

    async def on_progress():
        # Step by step, then all at once.
        told = await progress(main, 20, 5)
        assert told == progress_of(20), told
        told = await progress(main, 200, 0)
        assert told == progress_of(200), told
        return f"{len(progress_of(220))} steps, in order and before the results"

    async def on_subscribe():
        await stream_open(main)
        assert main.capabilities["resources"]["subscribe"] is True, main.capabilities
        await main.subscribe(CLOCK)
        assert await touch(main, CLOCK)
        await until(lambda: main.heard.updates(CLOCK) > 0)
        text = await main.read(CLOCK)
        assert text == "tick 1", text
        await settle(main)
        assert main.heard.updates(CLOCK) == 1, "one update for one change"
        await main.unsubscribe(CLOCK)
        await touch(main, CLOCK)
        await settle(main)
        assert main.heard.updates(CLOCK) == 1, "none after the end of the subscription"
        await until_async(lambda: untold(main, CLOCK))
        return "1 update for 1 change, none after the end; the server was told of both"

    async def on_list_changed():
        await stream_open(main)
        listed = {"tools": main.tools, "resources": main.resources, "prompts": main.prompts}
        added = {"tools": "extra-1", "resources": "demo://extra-1", "prompts": "extra-1"}
        for name in LISTS:
            assert main.capabilities[name]["listChanged"] is True, main.capabilities
            assert added[name] not in await listed[name](), name
            await main.call("grow", {"list": name})
            await until(lambda: name in main.heard.changed)
            assert added[name] in await listed[name](), name
        await settle(main)
        assert main.heard.changed == list(LISTS), main.heard.changed
        return f"{', '.join(LISTS)}: once each, and listed anew"

    async def on_two_clients():
        async with adapter.connect(mode) as one:
            async with adapter.connect(mode) as two:
                await both(one, two)
            # The end of a session is the end of its subscriptions.
            await until_async(lambda: untold(one, CLOCK))
        return "each its own progress and updates, both the change of a list"

    async def both(one, two):
        await stream_open(one)
        await stream_open(two)

        # Both have sent the same so far, so both give the same id and token to this call.
        told = await asyncio.gather(progress(one, 30, 2), progress(two, 20, 3))
        assert told == [progress_of(30), progress_of(20)], told

        two.heard.clear()
        await one.subscribe(CLOCK)
        assert await touch(one, CLOCK)
        await until(lambda: one.heard.updates(CLOCK) > 0)
        told = await progress(one, 10, 1)
        assert told == progress_of(10), told
        await settle(one)
        await settle(two)
        assert one.heard.updates(CLOCK) == 1, one.heard
        assert two.heard.updates(CLOCK) == 0, "an update for one who has not subscribed"
        assert two.heard.of("notifications/progress") == [], "progress for one who has not called"

        await two.subscribe(CLOCK)
        assert await touch(one, CLOCK)
        await until(lambda: one.heard.updates(CLOCK) > 1 and two.heard.updates(CLOCK) > 0)
        await one.unsubscribe(CLOCK)
        assert await touch(one, CLOCK)
        await until(lambda: two.heard.updates(CLOCK) > 1)

        await one.call("grow", {"list": "tools"})
        await until(lambda: one.heard.changed and two.heard.changed)
        await settle(one)
        await settle(two)
        updates = [one.heard.updates(CLOCK), two.heard.updates(CLOCK)]
        assert updates == [2, 2], updates
        changed = [one.heard.changed, two.heard.changed]
        assert changed == [["tools"], ["tools"]], changed

    async def on_unknown_session():
        async with adapter.connect(mode) as other:
            await end_session_elsewhere(other.seen.session)
            # This client starts no session anew: its caller learns that it is gone.
            error = await failure(echo(other, "into the void"))
            call = next(e for e in other.seen if e["tool"] == "echo")
            assert call["status"] == 404, call
            assert hasattr(error, "error"), describe(error)
        assert await echo(main, "unharmed") == "unharmed"
        return f"the call fails: {describe(error)}"

    async def on_cancel():
        call = asyncio.create_task(slow(main))
        await until(lambda: any(e["tool"] == "slow" for e in main.seen))
        assert await echo(main, "meanwhile") == "meanwhile"
        ended = await main.cancel(call, "slow")
        await until(lambda: any(e["status"] == 202 for e in main.seen.of("notifications/cancelled")))
        assert await echo(main, "afterwards") == "afterwards"
        return f"the call ends: {ended}"

    async def on_server_killed():
        before = len(main.seen)
        lost = asyncio.create_task(failure(slow(main)))
        await until(lambda: any(e["tool"] == "slow" for e in main.seen[before:]))
        assert await echo(main, "before") == "before"
        kill_server()
        error = await lost
        assert is_upstream_down(error), describe(error)
        return f"the call in flight ends: {describe(error)}"

    async def on_reconnect():
        failed = 0
        while True:
            try:
                assert await echo(main, "again") == "again"
                break
            except Exception as error:
                # Anything else, a lost session say, is not what a dead server may lead to.
                if not is_upstream_down(error):
                    raise
                failed += 1
                await asyncio.sleep(0.05)
        assert main.seen.session == session, "the session is the same"
        assert len(main.seen.of("initialize")) == 1, "no new handshake"
        return f"same session, after {failed} calls that failed"

    async def on_close():
        await connection.__aexit__(None, None, None)
        deletes = [e for e in main.seen if e["http"] == "DELETE"]
        assert [e["status"] for e in deletes] == [204], deletes
        status = await status_inside(session)
        assert status == 404, status
        return "DELETE 204, then 404"

    connection = adapter.connect(mode)
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
    await steps.run("tool-error", on_tool_error)
    await steps.run("unknown-method", on_unknown_method)
    await steps.run("progress", on_progress)
    await steps.run("subscribe", on_subscribe)
    await steps.run("list-changed", on_list_changed)
    await steps.run("two-clients", on_two_clients)
    await steps.run("unknown-session", on_unknown_session)
    await steps.run("cancel", on_cancel)
    await steps.run("server-killed", on_server_killed)
    await steps.run("reconnect", on_reconnect)
    await steps.run("close", on_close)


def is_upstream_down(error):
    detail = getattr(error, "error", None)
    data = getattr(detail, "data", None)
    return isinstance(data, dict) and detail.code == -32603 and data.get("reason") == "upstream_down"


if __name__ == "__main__":
    client, mode = driver_arguments()
    adapter = importlib.import_module(f"adapter_{client}")
    asyncio.run(drive(adapter, mode, Steps(f"{adapter.NAME} {mode}")))
