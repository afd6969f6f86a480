"""The server of README.md with `mcp` 1.x."""

from contextlib import asynccontextmanager

from common import NAME_SCHEMA, NOTE, NOTE_TEXT, TOOLS, Subscribed, input_schema, note, serve, wait
from mcp import types
from mcp.server.fastmcp.server import StreamableHTTPASGIApp
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import AnyUrl
from starlette.applications import Starlette
from starlette.routing import Route

subscribed = Subscribed()


class Interop(Server):
    def get_capabilities(self, *arguments):
        # This SDK never says of itself that resources can be subscribed to.
        capabilities = super().get_capabilities(*arguments)
        capabilities.resources.subscribe = True
        return capabilities


server = Interop("interop-python-1", "0.0.0")


async def on_initialized(_):
    note("initialized")


server.notification_handlers[types.InitializedNotification] = on_initialized


@server.list_tools()
async def list_tools():
    return [types.Tool(name=name, description="See README.md", inputSchema=input_schema(name)) for name in TOOLS]


@server.call_tool()
async def call_tool(name, arguments):
    return [types.TextContent(type="text", text=await run(server.request_context, name, arguments))]


async def run(context, name, given):
    session, request = context.session, context.request_id
    if name == "echo":
        return given["message"]
    if name == "steps":
        count, token = given["count"], context.meta and context.meta.progressToken
        for step in range(1, count + 1 if token is not None else 0):
            told = f"step {step} of {count}"
            await session.send_progress_notification(token, step, count, told, related_request_id=str(request))
        return f"done after {count} steps"
    if name == "wait":
        await wait()
    if name == "log":
        await session.send_log_message("info", given["text"], related_request_id=request)
        return "logged"
    if name == "ask_model":
        question = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=given["question"]))
        # One question goes out on the stream of the call, the other on that of the session.
        answer = await session.create_message([question], max_tokens=100, related_request_id=request)
        return f"The model said: {answer.content.text}"
    if name == "ask_user":
        answer = await session.elicit(given["question"], NAME_SCHEMA)
        return f"The user said: {answer.action} {(answer.content or {}).get('name')}"
    if context not in subscribed:
        return "nobody has subscribed"
    await session.send_resource_updated(AnyUrl(NOTE))
    return "touched"


@server.set_logging_level()
async def set_logging_level(_):
    pass


@server.list_resources()
async def list_resources():
    return [types.Resource(uri=AnyUrl(NOTE), name="note", mimeType="text/plain")]


@server.read_resource()
async def read_resource(_):
    return [ReadResourceContents(NOTE_TEXT, "text/plain")]


@server.subscribe_resource()
async def subscribe_resource(_):
    subscribed.add(server.request_context)


@server.unsubscribe_resource()
async def unsubscribe_resource(_):
    subscribed.remove(server.request_context)


@server.list_prompts()
async def list_prompts():
    return [types.Prompt(name="greet", arguments=[types.PromptArgument(name="name", required=True)])]


@server.get_prompt()
async def get_prompt(_, arguments):
    text = types.TextContent(type="text", text=f"Hello, {arguments['name']}!")
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=text)])


if __name__ == "__main__":
    manager = StreamableHTTPSessionManager(server)

    @asynccontextmanager
    async def lifespan(_):
        async with manager.run():
            yield

    app = Starlette(routes=[Route("/mcp", StreamableHTTPASGIApp(manager))], lifespan=lifespan)
    serve("python-1", app, manager._server_instances.clear)
