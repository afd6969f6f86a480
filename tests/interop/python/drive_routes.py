"""The Python clients before routes: `drive_routes.py mcp1|mcp2|fastmcp legacy|auto`, started by
the Python of the environment that has the client. The environment says where the routes are
and which servers are behind them (see routes.py)."""

import asyncio
import importlib
import os
import re
import sys

from routes import (
    ASKING,
    ONE,
    ONE_URL,
    QUESTIONS,
    SERVER_NAME,
    SERVERS,
    Answers,
    all_pages,
    check_list,
    completions,
    known,
    note,
    note_text,
    owner_of,
)
from steps import (
    FRAGILE,
    Steps,
    describe,
    driver_arguments,
    events,
    progress_of,
    status_inside,
    stream_open,
    until,
    until_async,
)

# The lists by their members, and what the clients call them.
LISTS = {
    "tools": "tools",
    "resources": "resources",
    "resourceTemplates": "resource_templates",
    "prompts": "prompts",
}


async def drive(adapter, mode, steps):
    async def text_of(connection, tool, **given):
        return (await connection.call(tool, given)).content[0].text

    async def everything(connection, listed):
        return await all_pages(listed, lambda cursor: connection.page(LISTS[listed], cursor))

    async def progress(connection, tool, count):
        """Calls a tool that tells its progress: each message comes once, in order, before the result."""
        told = []

        async def on_progress(done, total, message):
            told.append((done, total, message))

        result = await connection.call(tool, {"count": count}, on_progress)
        before = list(told)
        assert result.content[0].text == f"done after {count} steps", result
        assert before == progress_of(count), before

    async def read(uri, text):
        contents = await main.contents(uri)
        assert [(content["uri"], content["text"]) for content in contents] == [(uri, text)], contents

    async def on_one():
        tool = known(ONE, "stream_processor")
        async with adapter.connect(mode, Answers(), ONE_URL) as connection:
            names = [entry["name"] for entry in await everything(connection, "tools")]
            assert tool in names, names
            await progress(connection, tool, 5)
            await progress(connection, tool, 100)
            # All that came was for a token of the client's own.
            tokens = {said["progressToken"] for said in connection.heard.of("notifications/progress")}
            assert tokens <= set(connection.seen.tokens), (tokens, connection.seen.tokens)
        return f"{tool}: listed; 5 and 100 messages in order, then the result"

    async def on_connect():
        assert main.server_name == SERVER_NAME, main.server_name
        assert main.protocol_version == "2025-11-25", main.protocol_version
        assert bool(main.seen.of("server/discover")) == (mode == "auto"), main.seen
        all_of_them = main.capabilities
        assert all(all_of_them[of] is not None for of in ("tools", "prompts", "completions")), all_of_them
        assert all_of_them["resources"]["subscribe"] is True, all_of_them
        await until(lambda: all(events(f"{server} initialized") for server in SERVERS))
        return f"2025-11-25; {', '.join(SERVERS)}: initialized"

    async def on_list():
        counts = []
        for listed in LISTS:
            entries = await everything(main, listed)
            check_list(listed, entries)
            counts.append(f"{len(entries)} {listed}")
        pages = len(main.seen.of("tools/list"))
        assert pages > 1, pages
        return f"{', '.join(counts)}; the tools in {pages} pages"

    async def on_call():
        async def one(n):
            server = SERVERS[n % len(SERVERS)]
            message = f"{n} {'x' * (n * 17)}"
            said = await text_of(main, known(server, "echo"), message=message)
            assert said == f"{server}: {message}", said

        for server in SERVERS:
            said = await text_of(main, known(server, "echo"), message=FRAGILE)
            assert said == f"{server}: {FRAGILE}", said
        await asyncio.gather(*(one(n) for n in range(60)))
        return "one of each, then 60 at once: each answer of its own server"

    async def on_progress():
        for server in SERVERS:
            await progress(main, known(server, "stream_processor"), 20)
        return "20 messages of each, in order and before the result"

    async def on_read():
        for resource in await everything(main, "resources"):
            uri = resource["uri"]
            await read(uri, f"{uri.split('/')[-1]} on the shelf of {owner_of(resource['name'])}")
        for template in await everything(main, "resourceTemplates"):
            uri = template["uriTemplate"]
            place = re.search(r"//(\w+)/", uri).group(1)
            await read(re.sub(r"\{\w+\}", "7", uri), f"7 on the {place} of {owner_of(uri)}")
        return "each by its URI from the list, and one of each template"

    async def on_embedded():
        for server in SERVERS:
            messages = await main.messages(known(server, "brief"))
            resource = messages[0]["content"]["resource"]
            assert (resource["uri"], resource["text"]) == (note(server), note_text(server)), resource
            await read(resource["uri"], resource["text"])
            link, held = (await main.call(known(server, "cite"), {})).content
            assert (link.type, str(link.uri)) == ("resource_link", note(server)), link
            assert str(held.resource.uri) == note(server), held
            await read(str(link.uri), note_text(server))
        return "read by the URI in a prompt, and by that of a link in a result"

    async def on_subscribe():
        await stream_open(main)
        for server in SERVERS:
            tool = known(server, "touch")
            main.heard.clear()
            assert await text_of(main, tool) == "nobody has subscribed"
            await main.subscribe(note(server))
            assert await text_of(main, tool) == "touched"
            await until(lambda: main.heard.of("notifications/resources/updated"))
            await main.unsubscribe(note(server))

            async def untold(tool=tool):
                return await text_of(main, tool) == "nobody has subscribed"

            await until_async(untold)
            told = {params["uri"] for params in main.heard.of("notifications/resources/updated")}
            assert told == {note(server)}, told
        return "told under the public URI of each, nobody told before and after"

    async def on_complete():
        for server in SERVERS:
            for ref, expected in completions(server):
                values = await main.complete(ref, {"name": "name", "value": "a"})
                assert values == expected, values
        return "an argument of a prompt and a variable of a template of each"

    async def on_cancel():
        ends = []
        for server in SERVERS:
            tool = known(server, "wait")
            call = asyncio.create_task(text_of(main, tool))
            await until(lambda: events(f"{server} wait began") == 1)
            ends.append(await main.cancel(call, tool))
            await until(lambda: events(f"{server} wait cancelled") == 1)
        cancelled = {server: events(f"{server} wait cancelled") for server in SERVERS}
        assert set(cancelled.values()) == {1}, cancelled
        return f"each server has stopped: {ends[0]}"

    async def on_question():
        await stream_open(main)
        for tool, given, expected in QUESTIONS:
            said = await text_of(main, known(ASKING, tool), **given)
            assert said == expected, said
        assert answers.asked == ["sampling", "elicitation", "roots"], answers.asked
        return "sampling, elicitation and roots: asked once each, the answers have come"

    async def on_close():
        before = events("deleted")
        await connection.__aexit__(None, None, None)
        await until(lambda: events("deleted") == before + 1)
        status = await status_inside(session)
        assert status == 404, status
        # For the gateway to end when it stops, as the runner sees.
        begun = events(f"{ASKING} initialized")
        await left.__aenter__()
        await until(lambda: events(f"{ASKING} initialized") > begun)
        return "the server over HTTP has seen the DELETE, then 404"

    await steps.run("one", on_one)
    answers = Answers()
    connection, left = adapter.connect(mode, answers), adapter.connect(mode, Answers())
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
    await steps.run("progress", on_progress)
    await steps.run("read", on_read)
    await steps.run("embedded", on_embedded)
    await steps.run("subscribe", on_subscribe)
    await steps.run("complete", on_complete)
    await steps.run("cancel", on_cancel)
    await steps.run("question", on_question)
    await steps.run("close", on_close)
    # What was left open must not be ended in order.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    adapter, mode = driver_arguments()
    adapter = importlib.import_module(f"adapter_{adapter}")
    asyncio.run(drive(adapter, mode, Steps(f"{adapter.NAME} {mode}")))
