"""The official SDK from 2.0 on as a client. Its argument is its `mode`, or a session-era revision to insist on."""

import sys
import warnings
from contextlib import asynccontextmanager

import anyio
import mcp.client.session
import mcp_types as types
from mcp import MCPError
from mcp.client import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp.shared.subscriptions import event_to_notification
from mcp_types import LOG_LEVEL_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from scenarios import LOST, Peer, Refusal, main

# Half of what is tried here is deprecated, and all of it is in use.
warnings.simplefilter("ignore", MCPDeprecationWarning)


def wire(model):
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


async def answered(request):
    try:
        return wire(await request)
    except MCPError as error:
        raise Refusal(error.code, error.message, error.data) from None


class Mcp2(Peer):
    is_modern = False

    def open(self, client):
        self.client = client
        self.is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        self.about = {
            "version": client.protocol_version,
            "info": client.server_info and wire(client.server_info),
            "capabilities": wire(client.server_capabilities),
            "instructions": client.instructions,
        }

    async def on_message(self, message):
        if isinstance(message, Exception):
            self.noise.append(repr(message))
        elif not self.is_modern or isinstance(message, types.LoggingMessageNotification):
            # In the modern era changes come by `listen`, and here a second time.
            self.hear(wire(message))

    async def on_elicit(self, context, params):
        return types.ElicitResult.model_validate(self.elicitation(wire(params)))

    async def on_sample(self, context, params):
        answer = self.sampling(wire(params))
        return types.CreateMessageResult.model_validate(answer) if answer else types.ErrorData(code=-1, message="No.")

    async def on_roots(self, context):
        return types.ListRootsResult.model_validate({"roots": self.roots})

    async def ping(self):
        return await answered(self.client.session.send_ping())

    async def page(self, kind, cursor):
        ask = {
            "tools": self.client.list_tools,
            "resources": self.client.list_resources,
            "templates": self.client.list_resource_templates,
            "prompts": self.client.list_prompts,
        }[kind]
        return await answered(ask(cursor=cursor))

    async def call(self, name, arguments, on_progress=None, log_level=None):
        meta = None
        if log_level is not None and self.is_modern:
            meta = {LOG_LEVEL_META_KEY: log_level}
        elif log_level is not None:
            await self.client.session.set_logging_level(log_level)
        return await answered(self.client.call_tool(name, arguments, progress_callback=on_progress, meta=meta))

    async def start_call(self, tasks, name, arguments, on_progress, outcome):
        scope = anyio.CancelScope()

        async def work():
            with scope:
                outcome.append(await self.call(name, arguments, on_progress))

        async def cancel():
            scope.cancel()  # the SDK tells the server

        tasks.start_soon(work)
        return cancel

    async def read(self, uri):
        return await answered(self.client.read_resource(uri))

    async def prompt(self, name, arguments):
        return await answered(self.client.get_prompt(name, arguments))

    async def complete(self, ref, argument, context):
        kind = types.PromptReference if ref["type"] == "ref/prompt" else types.ResourceTemplateReference
        return await answered(self.client.complete(kind.model_validate(ref), argument, context))

    @asynccontextmanager
    async def watch(self, uris=(), tools=False, resources=False, prompts=False):
        if not self.is_modern:
            for uri in uris:
                await answered(self.client.subscribe_resource(uri))
            yield
            for uri in uris:
                await answered(self.client.unsubscribe_resource(uri))
            return
        wanted = {"tools_list_changed": tools, "resources_list_changed": resources, "prompts_list_changed": prompts}
        async with (
            self.client.listen(resource_subscriptions=list(uris), **wanted) as subscription,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(self._follow, subscription)
            yield
            tasks.cancel_scope.cancel()

    async def _follow(self, subscription):
        try:
            async for event in subscription:
                self.hear(wire(event_to_notification(event, {})))
        except SubscriptionLost:
            self.hear({"method": LOST})


def server(place):
    if not isinstance(place, str):
        words, env = place
        return StdioServerParameters(command=words[0], args=words[1:], env=env)
    return sse_client(place) if place.endswith("/sse") else place


@asynccontextmanager
async def connect(place):
    peer = Mcp2()
    mode = sys.argv[1]
    if mode in HANDSHAKE_PROTOCOL_VERSIONS:
        # It always offers the newest. So that it believes itself an older one: it checks all results by that revision.
        mcp.client.session.LATEST_HANDSHAKE_VERSION = mode
        mode = "legacy"
    client = Client(
        server(place),
        mode=mode,
        sampling_callback=peer.on_sample,
        elicitation_callback=peer.on_elicit,
        list_roots_callback=peer.on_roots,
        message_handler=peer.on_message,
        client_info=types.Implementation(name="mcp2", version="2"),
    )
    async with client:
        peer.open(client)
        yield peer


if __name__ == "__main__":
    main(connect)
