"""The Python clients: `drive.py mcp1|mcp2|fastmcp legacy|auto`, started by the Python of
the environment that has the client. The steps are the same for all three; the
modules `adapter_*` say how each client does them."""

import asyncio
import importlib

from steps import (
    FRAGILE,
    Steps,
    describe,
    driver_arguments,
    end_session_elsewhere,
    failure,
    kill_server,
    status_inside,
    until,
)


async def drive(adapter, mode, steps):
    async def echo(connection, message):
        result = await connection.call("echo", {"message": message})
        return result.content[0].text

    async def slow(connection):
        return await connection.call("slow", {"steps": 1000, "interval_ms": 1000})

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

    async def on_unknown_session():
        async with adapter.connect(mode) as other:
            await end_session_elsewhere(other.seen.session)
            # This client starts no session anew: its caller learns that it is gone.
            error = await failure(echo(other, "into the void"))
            assert other.seen[-1]["status"] == 404, other.seen[-1]
            assert hasattr(error, "error"), describe(error)
        assert await echo(main, "unharmed") == "unharmed"
        return f"the call fails: {describe(error)}"

    async def on_cancel():
        call = asyncio.create_task(slow(main))
        await until(lambda: any(e["tool"] == "slow" for e in main.seen))
        assert await echo(main, "meanwhile") == "meanwhile"
        ended = await main.cancel(call)
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
