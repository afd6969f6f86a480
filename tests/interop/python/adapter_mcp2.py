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
async def connect(mode):
    seen, heard = Exchanges(), Heard()

    async def on_message(message):
        if not isinstance(message, Exception):
            heard.add(message)

    async with create_mcp_http_client() as http:
        for kind, hooks in seen.hooks.items():
            http.event_hooks[kind] = http.event_hooks[kind] + hooks
        transport = streamable_http_client(URL, http_client=http)
        async with Client(transport, mode=mode, message_handler=on_message) as client:
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

    async def cancel(self, call):
        # The client tells the server by itself when the waiting task is cancelled.
        call.cancel()
        return describe(await failure(call, asyncio.CancelledError))
