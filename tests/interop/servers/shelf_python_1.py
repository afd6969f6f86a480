"""The server for routes of README.md with `mcp` 1.x: `shelf_python_1.py WHO stdio|http`."""

import asyncio
from contextlib import asynccontextmanager

from common import serve
from mcp import types
from mcp.server.fastmcp.server import StreamableHTTPASGIApp
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import AnyUrl
from shelf import Shelf, arguments
from starlette.applications import Starlette
from starlette.routing import Route

who, form = arguments()
shelf = Shelf(who)


class Subscribable(Server):
    def get_capabilities(self, *arguments):
        # This SDK never says of itself that resources can be subscribed to.
        capabilities = super().get_capabilities(*arguments)
        capabilities.resources.subscribe = True
        return capabilities


server = Subscribable(f"shelf-python-1-{who}", "0.0.0")


class ToClient:
    """The way to the client of one request."""

    def __init__(self):
        context = server.request_context
        self.client, self.request = context.session, context.request_id
        self.token = context.meta and context.meta.progressToken
        self.session = context.request and context.request.headers["mcp-session-id"]

    async def progress(self, done, total, message):
        if self.token is not None:
            to = {"related_request_id": str(self.request)}
            await self.client.send_progress_notification(self.token, done, total, message, **to)

    async def updated(self, uri):
        await self.client.send_resource_updated(AnyUrl(uri))

    async def sample(self, question):
        question = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=question))
        # One question goes out on the stream of the call, the others on that of the session.
        answer = await self.client.create_message([question], max_tokens=100, related_request_id=self.request)
        return answer.content.text

    async def elicit(self, question, schema):
        answer = await self.client.elicit(question, schema)
        return f"{answer.action} {(answer.content or {}).get('name')}"

    async def roots(self):
        return [str(root.uri) for root in (await self.client.list_roots()).roots]


def answers(request, result, answer):
    """Has a request answered with plain values."""

    async def handler(asked):
        params = asked.params.model_dump(mode="json", by_alias=True) if asked.params else {}
        return types.ServerResult(result.model_validate(await answer(params)))

    server.request_handlers[request] = handler


def plainly(answer):
    async def answering(params):
        return answer(params)

    return answering


async def call(params):
    return await shelf.call(params["name"], params["arguments"] or {}, ToClient())


async def subscribe(_):
    shelf.subscribed.add(ToClient().session)
    return {}


async def unsubscribe(_):
    shelf.subscribed.discard(ToClient().session)
    return {}


async def on_initialized(_):
    shelf.note("initialized")


answers(types.ListToolsRequest, types.ListToolsResult, plainly(shelf.tools))
answers(types.CallToolRequest, types.CallToolResult, call)
answers(types.ListResourcesRequest, types.ListResourcesResult, plainly(shelf.resources))
answers(types.ListResourceTemplatesRequest, types.ListResourceTemplatesResult, plainly(shelf.templates))
answers(types.ReadResourceRequest, types.ReadResourceResult, plainly(shelf.read))
answers(types.SubscribeRequest, types.EmptyResult, subscribe)
answers(types.UnsubscribeRequest, types.EmptyResult, unsubscribe)
answers(types.ListPromptsRequest, types.ListPromptsResult, plainly(shelf.prompts))
answers(types.GetPromptRequest, types.GetPromptResult, plainly(shelf.prompt))
answers(types.CompleteRequest, types.CompleteResult, plainly(shelf.completion))
server.notification_handlers[types.InitializedNotification] = on_initialized


async def serve_stdio():
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    if form == "stdio":
        asyncio.run(serve_stdio())
    else:
        manager = StreamableHTTPSessionManager(server)

        @asynccontextmanager
        async def lifespan(_):
            async with manager.run():
                yield

        app = Starlette(routes=[Route("/mcp", StreamableHTTPASGIApp(manager))], lifespan=lifespan)
        serve(f"shelf-python-1-{who}", app, manager._server_instances.clear)
