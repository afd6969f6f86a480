"""How the steps are done with the client of `fastmcp`."""

import asyncio
from contextlib import asynccontextmanager

import mcp_types as types
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StreamableHttpTransport
from mcp.shared._httpx_utils import create_mcp_http_client

from steps import URL, Exchanges, Heard, describe, failure

NAME = "fastmcp"


def is_error(result):
    return result.is_error


@asynccontextmanager
async def connect(mode, answers=None, url=URL):
    """With `answers` the client takes the server's questions."""
    seen, heard = Exchanges(), Heard()

    async def on_sampling(messages, *_):
        return answers.sample(messages[0].content.text)

    async def on_elicitation(message, *_):
        return ElicitResult(action="accept", content=answers.fill_in(message))

    async def on_roots(_):
        return answers.list_roots()

    taken = {"sampling_handler": on_sampling, "elicitation_handler": on_elicitation, "roots": on_roots}

    async def on_message(message):
        if not isinstance(message, Exception):
            heard.add(message)

    def http_client(headers=None, timeout=None, auth=None, **_):
        http = create_mcp_http_client(headers=headers, timeout=timeout, auth=auth)
        for kind, hooks in seen.hooks.items():
            http.event_hooks[kind] = http.event_hooks[kind] + hooks
        return http

    transport = StreamableHttpTransport(url, httpx_client_factory=http_client)
    async with Client(transport, mode=mode, message_handler=on_message, **(taken if answers else {})) as client:
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
        return [tool.name for tool in await self.client.list_tools()]

    async def resources(self):
        return [str(resource.uri) for resource in await self.client.list_resources()]

    async def read(self, uri):
        return (await self.client.read_resource(uri))[0].text

    # For subscriptions this client has nothing of its own: its users reach through to
    # the session of `mcp` below it.
    async def subscribe(self, uri):
        await self.client.session.subscribe_resource(uri)

    async def unsubscribe(self, uri):
        await self.client.session.unsubscribe_resource(uri)

    async def prompts(self):
        return [prompt.name for prompt in await self.client.list_prompts()]

    async def call(self, name, arguments, on_progress=None):
        return await self.client.call_tool(name, arguments, progress_handler=on_progress, raise_on_error=False)

    async def request(self, method):
        return await self.client.session.send_request(types.Request(method=method, params=None), types.EmptyResult)

    async def page(self, list_name, cursor):
        """One page of a list, as plain values."""
        page = await getattr(self.client, f"list_{list_name}_mcp")(cursor=cursor)
        return page.model_dump(mode="json", by_alias=True)

    async def contents(self, uri):
        return (await self.client.read_resource_mcp(uri)).model_dump(mode="json", by_alias=True)["contents"]

    async def messages(self, prompt):
        return (await self.client.get_prompt(prompt)).model_dump(mode="json", by_alias=True)["messages"]

    async def complete(self, ref, argument):
        kinds = {"ref/prompt": types.PromptReference, "ref/resource": types.ResourceTemplateReference}
        return (await self.client.complete(kinds[ref["type"]](**ref), argument)).values

    async def cancel(self, call, tool):
        # The client tells the server by itself when the waiting task is cancelled.
        call.cancel()
        return describe(await failure(call, asyncio.CancelledError))
