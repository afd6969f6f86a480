"""The client of `chuk-mcp` before routes: `chuk_routes.py legacy`, started by the Python of the
environment that has it. The environment says where the routes are and which servers are
behind them (see routes.py)."""

import asyncio
import re
from contextlib import asynccontextmanager

from chuk_mcp.protocol.messages import send_message
from chuk_mcp.protocol.messages.completions.send_messages import send_completion_complete
from chuk_mcp.protocol.messages.initialize.send_messages import send_initialize
from chuk_mcp.protocol.messages.prompts.send_messages import send_prompts_get, send_prompts_list
from chuk_mcp.protocol.messages.resources.send_messages import (
    send_resources_list,
    send_resources_read,
    send_resources_templates_list,
)
from chuk_mcp.protocol.messages.tools.send_messages import send_tools_call, send_tools_list
from chuk_mcp.transports.http.parameters import StreamableHTTPParameters
from chuk_mcp.transports.http.transport import StreamableHTTPTransport

from routes import (
    ONE,
    ONE_URL,
    SERVER_NAME,
    SERVERS,
    all_pages,
    check_list,
    completions,
    known,
    note,
    note_text,
    owner_of,
)
from steps import FRAGILE, URL, Steps, events, progress_of, until

LISTS = {
    "tools": send_tools_list,
    "resources": send_resources_list,
    "resourceTemplates": send_resources_templates_list,
    "prompts": send_prompts_list,
}


class Connection:
    def __init__(self, streams, initialized):
        self.streams = streams
        self.initialized = initialized
        # The pages of tools that it has asked for.
        self.pages = 0

    async def call(self, name, arguments):
        return (await send_tools_call(*self.streams, name, arguments)).content

    async def everything(self, listed):
        async def page(cursor):
            # It knows no pages of templates, and there is one.
            given = {"cursor": cursor} if cursor else {}
            self.pages += listed == "tools"
            return (await LISTS[listed](*self.streams, **given)).model_dump(mode="json", by_alias=True)

        return await all_pages(listed, page)

    async def progress(self, tool, count):
        """Calls a tool that tells its progress: each message comes once, in order, before the result."""
        told = []

        async def on_progress(done, total, message):
            told.append((done, total, message))

        params = {"name": tool, "arguments": {"count": count}}
        result = await send_message(*self.streams, "tools/call", params, progress_callback=on_progress)
        before = list(told)
        assert result["content"][0]["text"] == f"done after {count} steps", result
        assert before == progress_of(count), before

    async def read(self, uri, text):
        contents = (await send_resources_read(*self.streams, uri)).model_dump(mode="json", by_alias=True)["contents"]
        assert [(content["uri"], content["text"]) for content in contents] == [(uri, text)], contents


@asynccontextmanager
async def connect(url):
    async with StreamableHTTPTransport(StreamableHTTPParameters(url=url, timeout=300)) as transport:
        streams = await transport.get_streams()
        yield Connection(streams, await send_initialize(*streams))


async def drive(main, steps):
    async def on_one():
        tool = known(ONE, "stream_processor")
        async with connect(ONE_URL) as connection:
            names = [entry["name"] for entry in await connection.everything("tools")]
            assert tool in names, names
            await connection.progress(tool, 5)
            await connection.progress(tool, 100)
        return f"{tool}: listed; 5 and 100 messages in order, then the result"

    async def on_connect():
        said = main.initialized
        assert said.serverInfo.name == SERVER_NAME, said
        # The newest that it knows, and what it proposes.
        assert said.protocolVersion == "2025-06-18", said
        assert said.capabilities.resources.subscribe is True, said
        await until(lambda: all(events(f"{server} initialized") for server in SERVERS))
        return f"2025-06-18; {', '.join(SERVERS)}: initialized"

    async def on_list():
        counts = []
        for listed in LISTS:
            entries = await main.everything(listed)
            check_list(listed, entries)
            counts.append(f"{len(entries)} {listed}")
        assert main.pages > 1, main.pages
        return f"{', '.join(counts)}; the tools in {main.pages} pages"

    async def on_call():
        async def echo(server, message):
            content = await main.call(known(server, "echo"), {"message": message})
            assert content[0]["text"] == f"{server}: {message}", content

        # One connection does one thing at a time.
        for server in SERVERS:
            await echo(server, FRAGILE)
            await echo(server, "x" * 1000)
        return "two of each: each answer of its own server"

    async def on_progress():
        for server in SERVERS:
            await main.progress(known(server, "stream_processor"), 20)
        return "20 messages of each, in order and before the result"

    async def on_read():
        for resource in await main.everything("resources"):
            uri = resource["uri"]
            await main.read(uri, f"{uri.split('/')[-1]} on the shelf of {owner_of(resource['name'])}")
        for template in await main.everything("resourceTemplates"):
            uri = template["uriTemplate"]
            place = re.search(r"//(\w+)/", uri).group(1)
            await main.read(re.sub(r"\{\w+\}", "7", uri), f"7 on the {place} of {owner_of(uri)}")
        return "each by its URI from the list, and one of each template"

    async def on_embedded():
        for server in SERVERS:
            prompt = await send_prompts_get(*main.streams, known(server, "brief"))
            resource = prompt.messages[0].content["resource"]
            assert (resource["uri"], resource["text"]) == (note(server), note_text(server)), resource
            await main.read(resource["uri"], resource["text"])
            link, held = await main.call(known(server, "cite"), {})
            assert (link["type"], link["uri"]) == ("resource_link", note(server)), link
            assert held["resource"]["uri"] == note(server), held
            await main.read(link["uri"], note_text(server))
        return "read by the URI in a prompt, and by that of a link in a result"

    async def on_complete():
        for server in SERVERS:
            for ref, expected in completions(server):
                completion = await send_completion_complete(*main.streams, ref, {"name": "name", "value": "a"})
                assert completion.values == expected, completion
        return "an argument of a prompt and a variable of a template of each"

    await steps.run("one", on_one)
    await steps.run("connect", on_connect)
    await steps.run("list", on_list)
    await steps.run("call", on_call)
    await steps.run("progress", on_progress)
    await steps.run("read", on_read)
    await steps.run("embedded", on_embedded)
    await steps.run("complete", on_complete)


async def run():
    async with connect(URL) as main:
        await drive(main, Steps("chuk-mcp legacy"))


if __name__ == "__main__":
    asyncio.run(run())
