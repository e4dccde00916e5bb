"""The official SDK before 2.0 as a client: `ClientSession` over each of its transports."""

from contextlib import asynccontextmanager

import anyio
import mcp.types as types
from mcp import ClientSession, McpError, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from scenarios import Peer, Refusal, main


def wire(model):
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


async def answered(request):
    try:
        return wire(await request)
    except McpError as error:
        raise Refusal(error.error.code, error.error.message, error.error.data) from None


class Mcp1(Peer):
    async def open(self, session):
        self.session = session
        hello = await session.initialize()
        self.about = {
            "version": hello.protocolVersion,
            "info": wire(hello.serverInfo),
            "capabilities": wire(hello.capabilities),
            "instructions": hello.instructions,
        }

    async def on_message(self, message):
        if isinstance(message, Exception):
            self.noise.append(repr(message))
        elif isinstance(message, types.ServerNotification):
            self.hear(wire(message))

    async def on_elicit(self, context, params):
        return types.ElicitResult.model_validate(self.elicitation(wire(params)))

    async def on_sample(self, context, params):
        answer = self.sampling(wire(params))
        return types.CreateMessageResult.model_validate(answer) if answer else types.ErrorData(code=-1, message="No.")

    async def on_roots(self, context):
        return types.ListRootsResult.model_validate({"roots": self.roots})

    async def ping(self):
        return await answered(self.session.send_ping())

    async def page(self, kind, cursor):
        ask = {
            "tools": self.session.list_tools,
            "resources": self.session.list_resources,
            "templates": self.session.list_resource_templates,
            "prompts": self.session.list_prompts,
        }[kind]
        return await answered(ask(params=types.PaginatedRequestParams(cursor=cursor)))

    async def call(self, name, arguments, on_progress=None, log_level=None):
        if log_level is not None:
            await self.session.set_logging_level(log_level)
        return await answered(self.session.call_tool(name, arguments, progress_callback=on_progress))

    async def start_call(self, tasks, name, arguments, on_progress, outcome):
        # This SDK has no call for it: one names the id that the next request will have.
        request_id = self.session._request_id
        scope = anyio.CancelScope()

        async def work():
            with scope:
                outcome.append(await self.call(name, arguments, on_progress))

        async def cancel():
            params = types.CancelledNotificationParams(requestId=request_id, reason="enough")
            await self.session.send_notification(types.ClientNotification(types.CancelledNotification(params=params)))
            scope.cancel()  # the server owes no answer

        tasks.start_soon(work)
        return cancel

    async def read(self, uri):
        return await answered(self.session.read_resource(uri))

    async def prompt(self, name, arguments):
        return await answered(self.session.get_prompt(name, arguments))

    async def complete(self, ref, argument, context):
        kind = types.PromptReference if ref["type"] == "ref/prompt" else types.ResourceTemplateReference
        return await answered(self.session.complete(kind.model_validate(ref), argument, context))

    @asynccontextmanager
    async def watch(self, uris=(), tools=False, resources=False, prompts=False):
        for uri in uris:
            await answered(self.session.subscribe_resource(uri))
        yield
        for uri in uris:
            await answered(self.session.unsubscribe_resource(uri))


def transport(place):
    if not isinstance(place, str):
        words, env = place
        return stdio_client(StdioServerParameters(command=words[0], args=words[1:], env=env))
    return sse_client(place) if place.endswith("/sse") else streamable_http_client(place)


@asynccontextmanager
async def connect(place):
    peer = Mcp1()
    async with (
        transport(place) as (read, write, *_),
        ClientSession(
            read,
            write,
            sampling_callback=peer.on_sample,
            elicitation_callback=peer.on_elicit,
            list_roots_callback=peer.on_roots,
            message_handler=peer.on_message,
            client_info=types.Implementation(name="mcp1", version="1"),
        ) as session,
    ):
        await peer.open(session)
        yield peer


if __name__ == "__main__":
    main(connect)
