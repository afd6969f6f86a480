"""The server for routes of README.md with `mcp` 2.x: `shelf_python_2.py WHO stdio|http`."""

import asyncio
import warnings

import mcp_types as types
from common import serve
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPDeprecationWarning
from shelf import Shelf, arguments

# Of the versions that have sessions, which the table is about.
warnings.filterwarnings("ignore", category=MCPDeprecationWarning)

who, form = arguments()
shelf = Shelf(who)


class ToClient:
    """The way to the client of one request."""

    def __init__(self, context):
        self.client, self.request = context.session, context.request_id
        self.session = context.request and context.request.headers["mcp-session-id"]

    async def progress(self, done, total, message):
        # Without a token in the request it says nothing.
        await self.client.report_progress(done, total, message)

    async def updated(self, uri):
        await self.client.send_resource_updated(uri)

    async def sample(self, question):
        question = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=question))
        # One question goes out on the stream of the call, the others on that of the session.
        answer = await self.client.create_message([question], max_tokens=100)
        return answer.content.text

    async def elicit(self, question, schema):
        answer = await self.client.elicit(question, schema, related_request_id=self.request)
        return f"{answer.action} {(answer.content or {}).get('name')}"

    async def roots(self):
        return [str(root.uri) for root in (await self.client.list_roots()).roots]


def plainly(result, answer):
    """Has a request answered with plain values."""

    async def handler(_, params):
        given = params.model_dump(mode="json", by_alias=True) if params else {}
        return result.model_validate(answer(given))

    return handler


async def call(context, params):
    content = await shelf.call(params.name, params.arguments or {}, ToClient(context))
    return types.CallToolResult.model_validate(content)


async def subscribe(context, _):
    shelf.subscribed.add(ToClient(context).session)
    return types.EmptyResult()


async def unsubscribe(context, _):
    shelf.subscribed.discard(ToClient(context).session)
    return types.EmptyResult()


async def on_initialized(*_):
    shelf.note("initialized")


server = Server(
    f"shelf-python-2-{who}",
    version="0.0.0",
    on_list_tools=plainly(types.ListToolsResult, shelf.tools),
    on_call_tool=call,
    on_list_resources=plainly(types.ListResourcesResult, shelf.resources),
    on_list_resource_templates=plainly(types.ListResourceTemplatesResult, shelf.templates),
    on_read_resource=plainly(types.ReadResourceResult, shelf.read),
    on_subscribe_resource=subscribe,
    on_unsubscribe_resource=unsubscribe,
    on_list_prompts=plainly(types.ListPromptsResult, shelf.prompts),
    on_get_prompt=plainly(types.GetPromptResult, shelf.prompt),
    on_completion=plainly(types.CompleteResult, shelf.completion),
)
server.add_notification_handler("notifications/initialized", types.NotificationParams, on_initialized)


async def serve_stdio():
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    if form == "stdio":
        asyncio.run(serve_stdio())
    else:
        app = server.streamable_http_app()
        serve(f"shelf-python-2-{who}", app, server.session_manager._server_instances.clear)
