"""How the steps are done with `mcp` 1.x. It has no automatic mode."""

import asyncio
from contextlib import asynccontextmanager

import httpx
from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client
from pydantic import AnyUrl

from steps import URL, Exchanges, Heard, describe, failure, until

NAME = "python-1"


def is_error(result):
    return result.isError


@asynccontextmanager
async def connect(mode, answers=None, url=URL):
    """With `answers` the client takes the server's questions and log messages, and with its
    `roots` the server may ask for these."""
    assert mode == "legacy"
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
        if isinstance(message, types.ServerNotification):
            heard.add(message.root)

    async with (
        httpx.AsyncClient(event_hooks=seen.hooks, timeout=300) as client,
        streamable_http_client(url, http_client=client) as (read, write, _),
        ClientSession(read, write, message_handler=on_message, **callbacks) as session,
    ):
        yield Connection(session, await session.initialize(), seen, heard)


class Connection:
    def __init__(self, session, initialized, seen, heard):
        self.session = session
        self.seen = seen
        self.heard = heard
        self.capabilities = initialized.capabilities.model_dump(by_alias=True)
        self.server_name = initialized.serverInfo.name
        self.protocol_version = initialized.protocolVersion

    async def tools(self):
        return [tool.name for tool in (await self.session.list_tools()).tools]

    async def resources(self):
        return [str(resource.uri) for resource in (await self.session.list_resources()).resources]

    async def read(self, uri):
        return (await self.session.read_resource(AnyUrl(uri))).contents[0].text

    async def subscribe(self, uri):
        await self.session.subscribe_resource(AnyUrl(uri))

    async def unsubscribe(self, uri):
        await self.session.unsubscribe_resource(AnyUrl(uri))

    async def prompts(self):
        return [prompt.name for prompt in (await self.session.list_prompts()).prompts]

    async def call(self, name, arguments, on_progress=None):
        return await self.session.call_tool(name, arguments, progress_callback=on_progress)

    async def request(self, method):
        # The types know no such method, so the request is one that they know, renamed.
        request = types.PingRequest().model_copy(update={"method": method})
        return await self.session.send_request(types.ClientRequest(request), types.EmptyResult)

    async def prompt(self, name, arguments):
        return (await self.session.get_prompt(name, arguments)).messages[0].content.text

    async def page(self, list_name, cursor):
        """One page of a list, as plain values."""
        ask = getattr(self.session, f"list_{list_name}")
        page = await ask(params=types.PaginatedRequestParams(cursor=cursor)) if cursor else await ask()
        return page.model_dump(mode="json", by_alias=True)

    async def contents(self, uri):
        return (await self.session.read_resource(AnyUrl(uri))).model_dump(mode="json", by_alias=True)["contents"]

    async def messages(self, prompt):
        return (await self.session.get_prompt(prompt)).model_dump(mode="json", by_alias=True)["messages"]

    async def complete(self, ref, argument):
        kinds = {"ref/prompt": types.PromptReference, "ref/resource": types.ResourceTemplateReference}
        return (await self.session.complete(kinds[ref["type"]](**ref), argument)).completion.values

    async def set_level(self, level):
        await self.session.set_logging_level(level)

    async def cancel(self, call, tool):
        # The client tells the server nothing when a task is cancelled: its user does,
        # by the id of the request.
        request = next(e for e in reversed(self.seen) if e["tool"] == tool)
        notification = types.CancelledNotification(
            params=types.CancelledNotificationParams(requestId=request["id"], reason="not wanted any more")
        )
        await self.session.send_notification(types.ClientNotification(notification))
        # The gateway ends the call's response without a message, as the protocol asks.
        # The client's caller would wait on, so it has to cancel its own task too.
        await until(lambda: request["status"] == 200)
        call.cancel()
        return describe(await failure(call, asyncio.CancelledError))
