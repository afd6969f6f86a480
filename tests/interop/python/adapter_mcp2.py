"""How the steps are done with `mcp` 2.x."""

import asyncio
from contextlib import asynccontextmanager

import mcp_types as types
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from steps import URL, Exchanges, Heard, describe, failure

NAME = "python-2"


def is_error(result):
    return result.is_error


@asynccontextmanager
async def connect(mode, answers=None, url=URL):
    """With `answers` the client takes the server's questions and log messages, and with its
    `roots` the server may ask for these."""
    seen, heard = Exchanges(), Heard()

    async def on_sampling(_, params):
        text = types.TextContent(type="text", text=answers.sample(params.messages[0].content.text))
        return types.CreateMessageResult(role="assistant", content=text, model="none")

    async def on_elicitation(_, params):
        return types.ElicitResult(action="accept", content=answers.fill_in(params.message))

    async def on_log(params):
        answers.log(params.level, params.data)

    async def on_roots(_):
        return types.ListRootsResult(roots=[types.Root(uri=uri) for uri in answers.list_roots()])

    taken = {"sampling": on_sampling, "elicitation": on_elicitation, "logging": on_log} if answers else {}
    if getattr(answers, "roots", None):
        taken["list_roots"] = on_roots
    callbacks = {f"{kind}_callback": callback for kind, callback in taken.items()}

    async def on_message(message):
        if not isinstance(message, Exception):
            heard.add(message)

    async with create_mcp_http_client() as http:
        for kind, hooks in seen.hooks.items():
            http.event_hooks[kind] = http.event_hooks[kind] + hooks
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=mode, message_handler=on_message, **callbacks) as client:
            yield Connection(client, seen, heard)


class Connection:
    def __init__(self, client, seen, heard):
        self.client = client
        self.seen = seen
        self.heard = heard
        self.capabilities = client.server_capabilities.model_dump(by_alias=True)
        self.server_name = client.server_info.name
        self.protocol_version = client.protocol_version

    async def tools(self):
        return [tool.name for tool in (await self.client.list_tools()).tools]

    async def resources(self):
        return [str(resource.uri) for resource in (await self.client.list_resources()).resources]

    async def read(self, uri):
        return (await self.client.read_resource(uri)).contents[0].text

    async def subscribe(self, uri):
        await self.client.subscribe_resource(uri)

    async def unsubscribe(self, uri):
        await self.client.unsubscribe_resource(uri)

    async def prompts(self):
        return [prompt.name for prompt in (await self.client.list_prompts()).prompts]

    async def call(self, name, arguments, on_progress=None):
        return await self.client.call_tool(name, arguments, progress_callback=on_progress)

    async def request(self, method):
        return await self.client.session.send_request(types.Request(method=method, params=None), types.EmptyResult)

    async def prompt(self, name, arguments):
        return (await self.client.get_prompt(name, arguments)).messages[0].content.text

    async def page(self, list_name, cursor):
        """One page of a list, as plain values."""
        page = await getattr(self.client, f"list_{list_name}")(cursor=cursor)
        return page.model_dump(mode="json", by_alias=True)

    async def contents(self, uri):
        return (await self.client.read_resource(uri)).model_dump(mode="json", by_alias=True)["contents"]

    async def messages(self, prompt):
        return (await self.client.get_prompt(prompt)).model_dump(mode="json", by_alias=True)["messages"]

    async def complete(self, ref, argument):
        kinds = {"ref/prompt": types.PromptReference, "ref/resource": types.ResourceTemplateReference}
        return (await self.client.complete(kinds[ref["type"]](**ref), argument)).completion.values

    async def set_level(self, level):
        await self.client.set_logging_level(level)

    async def cancel(self, call, tool):
        # The client tells the server by itself when the waiting task is cancelled.
        call.cancel()
        return describe(await failure(call, asyncio.CancelledError))
