"""The server of README.md with `mcp` 2.x."""

import warnings

import mcp_types as types
from common import NAME_SCHEMA, NOTE, NOTE_TEXT, TOOLS, Subscribed, input_schema, note, serve, wait
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPDeprecationWarning

# Of the versions that have sessions, which the table is about.
warnings.filterwarnings("ignore", category=MCPDeprecationWarning)

subscribed = Subscribed()


def text(said):
    return types.TextContent(type="text", text=said)


async def on_initialized(_context, _params):
    note("initialized")


async def list_tools(_context, _params):
    tools = [types.Tool(name=name, description="See README.md", input_schema=input_schema(name)) for name in TOOLS]
    return types.ListToolsResult(tools=tools)


async def call_tool(context, params):
    said = await run(context, params.name, params.arguments)
    return types.CallToolResult(content=[text(said)])


async def run(context, name, given):
    session, request = context.session, context.request_id
    if name == "echo":
        return given["message"]
    if name == "steps":
        count = given["count"]
        for step in range(1, count + 1):
            # Without a token in the request it says nothing.
            await session.report_progress(step, count, f"step {step} of {count}")
        return f"done after {count} steps"
    if name == "wait":
        await wait()
    if name == "log":
        await session.send_log_message("info", given["text"])
        return "logged"
    if name == "ask_model":
        question = types.SamplingMessage(role="user", content=text(given["question"]))
        # One question goes out on the stream of the session, the other on that of the call.
        answer = await session.create_message([question], max_tokens=100)
        return f"The model said: {answer.content.text}"
    if name == "ask_user":
        answer = await session.elicit(given["question"], NAME_SCHEMA, related_request_id=request)
        return f"The user said: {answer.action} {(answer.content or {}).get('name')}"
    if context not in subscribed:
        return "nobody has subscribed"
    await session.send_resource_updated(NOTE)
    return "touched"


async def set_logging_level(_context, _params):
    return types.EmptyResult()


async def list_resources(_context, _params):
    note_resource = types.Resource(uri=NOTE, name="note", mime_type="text/plain")
    return types.ListResourcesResult(resources=[note_resource])


async def read_resource(_context, params):
    contents = types.TextResourceContents(uri=params.uri, mime_type="text/plain", text=NOTE_TEXT)
    return types.ReadResourceResult(contents=[contents])


async def subscribe_resource(context, _params):
    subscribed.add(context)
    return types.EmptyResult()


async def unsubscribe_resource(context, _params):
    subscribed.remove(context)
    return types.EmptyResult()


async def list_prompts(_context, _params):
    greet = types.Prompt(name="greet", arguments=[types.PromptArgument(name="name", required=True)])
    return types.ListPromptsResult(prompts=[greet])


async def get_prompt(_context, params):
    greeting = types.PromptMessage(role="user", content=text(f"Hello, {params.arguments['name']}!"))
    return types.GetPromptResult(messages=[greeting])


server = Server(
    "interop-python-2",
    version="0.0.0",
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_resources=list_resources,
    on_read_resource=read_resource,
    on_subscribe_resource=subscribe_resource,
    on_unsubscribe_resource=unsubscribe_resource,
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
    on_set_logging_level=set_logging_level,
)
server.add_notification_handler("notifications/initialized", types.NotificationParams, on_initialized)

if __name__ == "__main__":
    app = server.streamable_http_app()
    serve("python-2", app, server.session_manager._server_instances.clear)
