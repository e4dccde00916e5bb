"""Six tools with which a model reads and watches resources, and polls.

They act for their caller: they see what the view of the caller shows, and each of their requests is judged by the rules
for the caller and recorded (T35). They are an activation, so that a gateway offers them, too.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Final, Literal

import msgspec

from sluicegate.activations.call import Call
from sluicegate.client.client import Client
from sluicegate.client.in_process import CallerConnection
from sluicegate.errors import Refused, SluicegateError, ToolError, UnknownTarget
from sluicegate.exchange import Exchange, Repetition
from sluicegate.gate.audit import REFUSAL
from sluicegate.gateway.caller_access import CallerAccess
from sluicegate.gateway.loading import Services
from sluicegate.hub.catalog import Catalog
from sluicegate.hub.naming import exposed_uri, own_uri
from sluicegate.hub.router import CAPABILITIES
from sluicegate.protocol.message import Params, as_object
from sluicegate.protocol.read_types import read_read_result, read_tool_result
from sluicegate.protocol.types import ReadResult
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.server import Server, activation
from sluicegate.toolbox.results import MAX_RESULT, Files, LongTexts
from sluicegate.toolbox.updates import Watched, Watches, new_watch

MIN_INTERVAL: Final = 1000
"""Milliseconds between two polls."""
MAX_DURATION: Final = 86_400_000
"""Milliseconds after which a poll ends at the latest."""


@activation("resource_tools")
class ResourceTools:
    """Tools to read and watch resources, and to poll."""

    def __init__(self, services: Services, max_result: int = MAX_RESULT) -> None:
        """`max_result` are the characters of a text that are shown at once."""
        self.name = services.name
        self.texts = LongTexts(self.name, max_result)
        self.files = Files("")
        self.watches = Watches(self._updated)
        self._access = services.access
        self._server: Server | None = None
        self._open = AsyncExitStack()

    async def __aenter__(self) -> "ResourceTools":
        async with AsyncExitStack() as stack:
            folder = tempfile.TemporaryDirectory(prefix="sluicegate-", ignore_cleanup_errors=True)
            self.files = Files(stack.enter_context(folder))
            await stack.enter_async_context(self.watches)
            self._open = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._open.aclose()

    def extend(self, server: Server) -> None:
        """Add the tools, under the names that models know, and the resources."""
        reads = {"readOnlyHint": True}
        server.add_tool(self._list_resources, name="ListMcpResources", annotations=reads)
        server.add_tool(self._read_resource, name="ReadMcpResource", annotations=reads)
        server.add_tool(self._subscribe, name="SubscribeMcpResource", annotations={})
        server.add_tool(self._unsubscribe, name="UnsubscribeMcpResource", annotations={})
        server.add_tool(self._poll, name="SubscribePolling", annotations={})
        server.add_tool(self._unpoll, name="UnsubscribePolling", annotations={})
        server.add_resource("sluicegate://poll/{id}", self._last_update)
        server.add_resource("sluicegate://result/{id}/{start}", self._rest_of_result)
        self._server = server

    def _updated(self, watched: Watched) -> None:
        if self._server is not None:
            self._server.resource_updated(f"sluicegate://poll/{watched.id}")

    # ----------------------------------------------------------------------------------------------------- resources

    async def _list_resources(self, call: Call, server: str | None = None) -> list[dict[str, str]]:
        """List the resources of the MCP servers: files, records and other data that they offer for reading.

        Args:
            server: only those of this server.
        """
        catalog = self._access(call.exchange).catalog
        if server is not None:
            server = _known_server(catalog, server)
        found: list[dict[str, str]] = []
        for entry in catalog.resources.values():
            if server in (None, entry.mount):
                definition = entry.definition
                about = {"uri": entry.own, "name": str(definition.get("name", entry.own))}
                about |= {key: str(definition[key]) for key in ("mimeType", "description") if definition.get(key)}
                found.append({**about, "server": entry.mount})
        return found

    async def _read_resource(self, call: Call, server: str, uri: str) -> dict[str, list[dict[str, str]]]:
        """Read a resource of an MCP server.

        Args:
            server: the server that has it.
            uri: as ListMcpResources shows it, or as a template of the server describes it.
        """
        access = self._access(call.exchange)
        server = _known_server(access.catalog, server)
        try:
            result = await self._read(access, server, uri)
        except Refused as refusal:
            raise ToolError(refusal.message) from None
        contents: list[dict[str, str]] = []
        for part in result.contents:
            about = {"uri": _own_uri(access.catalog, server, part.uri)} | (
                {"mimeType": part.mime_type} if part.mime_type else {}
            )
            if part.text is not None:
                # Our own are pieces already.
                text = part.text if server == self.name else self.texts.head(part.text, call.caller.id)
                contents.append({**about, "text": text})
            else:
                contents.append({**about, "blobSavedTo": self.files.path_of(part.data, part.mime_type or "")})
        return {"contents": contents}

    async def _subscribe(self, call: Call, server: str, uri: str, reason: str | None = None) -> dict[str, object]:
        """Be told when a resource of an MCP server changes. The updates are also in sluicegate://poll/SUBSCRIPTION_ID.

        Args:
            server: the server that has it.
            uri: the resource.
            reason: why, repeated with each update.
        """
        access = self._access(call.exchange)
        server = _known_server(access.catalog, server)
        exposed = _exposed(access.catalog, server, uri)
        watched = new_watch("subscription", call.caller.id, access.router, server, uri, reason)
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            try:
                async with TaskScope() as tasks:
                    client = Client(CallerConnection(access.handler, access.caller, CAPABILITIES), tasks, timeout=30.0)
                    try:
                        async with client.subscribe(exposed) as changes:
                            begun.set_result(None)
                            async for _ in changes:
                                self.watches.report(watched, "The resource has changed; read it to see how.")
                    finally:
                        client.close()
            except SluicegateError as problem:
                if begun.done():
                    raise
                begun.set_exception(problem)

        self._add(watched, work)
        try:
            await begun
        except SluicegateError as problem:
            why = problem.message.replace(exposed, uri).rstrip(".")
            there = _listed(access.catalog, server)
            raise ToolError(f"{server} cannot be asked to report changes of {uri}: {why}. {there}") from None
        except asyncio.CancelledError:
            self.watches.end(watched)
            raise
        return {"subscribed": True, "subscriptionId": watched.id}

    async def _unsubscribe(
        self, call: Call, server: str | None = None, uri: str | None = None, subscriptionId: str | None = None
    ) -> dict[str, object]:
        """End subscriptions to resources: one by its id, or all of a server or a URI.

        Args:
            server: those of this server.
            uri: those of this resource.
            subscriptionId: the one with this id.
        """
        return self._end("subscription", call, server, uri, subscriptionId)

    # --------------------------------------------------------------------------------------------------------- polls

    async def _poll(
        self,
        call: Call,
        type: Literal["tool", "resource"],
        server: str,
        toolName: str | None = None,
        arguments: dict[str, object] | None = None,
        uri: str | None = None,
        intervalMs: Annotated[int, msgspec.Meta(ge=MIN_INTERVAL)] = 5000,
        durationMs: Annotated[int, msgspec.Meta(ge=MIN_INTERVAL, le=MAX_DURATION)] = 3_600_000,
        reason: str | None = None,
    ) -> dict[str, object]:
        """Call a tool or read a resource again and again, and be told what changes.

        The last update is also in sluicegate://poll/SUBSCRIPTION_ID.

        Args:
            type: what is polled.
            server: the server that has it.
            toolName: the tool, if one is polled.
            arguments: for the tool.
            uri: the resource, if one is polled.
            intervalMs: milliseconds between two polls.
            durationMs: milliseconds after which the poll ends.
            reason: why, repeated with each update.
        """
        target = toolName if type == "tool" else uri
        if not target:
            raise ToolError(f"A poll of a {type} needs {'toolName' if type == 'tool' else 'uri'}.")
        access = self._access(call.exchange)
        server = _known_server(access.catalog, server)
        watched = new_watch("poll", call.caller.id, access.router, server, target, reason)
        times = max(1, durationMs // intervalMs)
        repetition = _repetition(watched.id, intervalMs / 1000, durationMs / 1000, times)
        try:
            if type == "tool":
                ask, first = await self._polled_tool(access, watched, arguments or {}, repetition)
            else:
                ask = partial(self._read_text, access, server, target, repetition)
                first = await ask()
        except SluicegateError as problem:
            raise ToolError(problem.message) from None
        self._add(watched, lambda: self.watches.poll(watched, ask, first, intervalMs / 1000, times, repetition.ends))
        return {"subscribed": True, "subscriptionId": watched.id}

    async def _unpoll(
        self, call: Call, subscriptionId: str | None = None, server: str | None = None, target: str | None = None
    ) -> dict[str, object]:
        """End polls: one by its id, or all of a server, a tool or a URI.

        Args:
            subscriptionId: the one with this id.
            server: those of this server.
            target: those of this tool or URI.
        """
        return self._end("poll", call, server, target, subscriptionId)

    async def _polled_tool(
        self, access: CallerAccess, watched: Watched, arguments: Params, repetition: Repetition
    ) -> tuple[Callable[[], Awaitable[str]], str]:
        """How to call the tool again, and the text of its first result."""
        name = _tool(access.catalog, watched.server, watched.target)
        first = access.exchange("tools/call", {"name": name, "arguments": arguments}, repetition)
        text = await _text(access, first)
        params: Params = {"name": name, "arguments": first.params["arguments"]}  # A person may have changed them.

        async def again() -> str:
            return await _text(access, access.exchange("tools/call", dict(params), repetition))

        return again, text

    # ---------------------------------------------------------------------------------------------- its own resources

    async def _last_update(self, call: Call, id: str) -> str:
        """The last update of a poll or a subscription."""
        found = next((each for each in self._watched(call) if each.id == id), None)
        if found is None:
            raise UnknownTarget(f"There is no poll {id!r}.")
        return found.last

    async def _rest_of_result(self, call: Call, id: str, start: str) -> str:
        """The rest of a long result."""
        try:
            return self.texts.piece(id, int(start), call.caller.id)
        except (KeyError, ValueError):
            raise UnknownTarget("There is no such result; it may have been too long ago.") from None

    # ------------------------------------------------------------------------------------------------------- helpers

    async def _read(
        self, access: CallerAccess, server: str, uri: str, repetition: Repetition | None = None
    ) -> ReadResult:
        """The contents of a resource.

        Raises:
            Refused: a rule or a person did not allow it.
            ToolError: it cannot be read; the sentence says what there is.
        """
        catalog = access.catalog
        exposed = _exposed(catalog, server, uri)
        if exposed in catalog.resources and catalog.resources[exposed].mount != server:
            raise ToolError(f"{uri} is not a resource of {server}.")
        try:
            return read_read_result(await access.value(access.exchange("resources/read", {"uri": exposed}, repetition)))
        except Refused:
            raise
        except (SluicegateError, msgspec.ValidationError) as problem:
            why = problem.message if isinstance(problem, SluicegateError) else str(problem)
            raise ToolError(f"{why.rstrip('.')}. {_listed(catalog, server)}") from None

    async def _read_text(self, access: CallerAccess, server: str, uri: str, repetition: Repetition) -> str:
        return (await self._read(access, server, uri, repetition)).text

    def _watched(self, call: Call) -> list[Watched]:
        """What the caller watches by this view."""
        view = self._access(call.exchange).router
        return [each for each in self.watches.of(call.caller.id) if each.view is view]

    def _add(self, watched: Watched, work: Callable[[], Awaitable[None]]) -> None:
        try:
            self.watches.add(watched, work)
        except ValueError as problem:
            raise ToolError(f"Nothing more can be watched: {problem}.") from None

    def _end(self, kind: str, call: Call, server: str | None, target: str | None, id: str | None) -> dict[str, object]:
        if server is None and target is None and id is None:
            raise ToolError("Say which: an id, a server or what is watched.")
        watched = self._watched(call)
        if server is not None:
            server = self._access(call.exchange).catalog.mount_named(server) or server
        found = [
            each
            for each in watched
            if each.kind == kind and id in (None, each.id) and server in (None, each.server)
            if target in (None, each.target)
        ]
        if not found:
            there = ", ".join(f"{each.id} ({each.target})" for each in watched)
            raise ToolError(f"There is no such {kind}; there are: {there or 'none'}.")
        for each in found:
            self.watches.end(each)
        return {"unsubscribed": True}


def _known_server(catalog: Catalog, server: str) -> str:
    """The name of a server that is called by any of its names. Raises ToolError if there is none."""
    if (known := catalog.mount_named(server)) is None:
        there = ", ".join(catalog.prefixes) or "none"
        raise ToolError(f"There is no server {server!r}; there are: {there}.")
    return known


def _exposed(catalog: Catalog, server: str, uri: str) -> str:
    prefix = catalog.prefixes[_known_server(catalog, server)]
    return uri if prefix and own_uri(prefix, uri) is not None else exposed_uri(prefix, uri)


def _own_uri(catalog: Catalog, server: str, uri: str) -> str:
    return own_uri(catalog.prefixes.get(server, ""), uri) or uri


def _tool(catalog: Catalog, server: str, tool: str) -> str:
    """The exposed name of a tool, given by either of its names."""
    own = {entry.own: name for name, entry in catalog.tools.items() if entry.mount == server}
    if tool in own.values():
        return tool
    if tool not in own:
        raise ToolError(f"{server} has no tool {tool!r}; it has: {', '.join(own) or 'none'}.")
    return own[tool]


def _listed(catalog: Catalog, server: str) -> str:
    there = [entry.own for entry in catalog.resources.values() if entry.mount == server]
    return f"{server} lists: {', '.join(there[:50]) or 'nothing'}."


async def _text(access: CallerAccess, exchange: Exchange) -> str:
    """The text of a tool's result. Raises SluicegateError if the call fails, Refused if it was not allowed."""
    value = await access.value(exchange)
    result = read_tool_result(value)
    if result.is_error:
        is_refusal = REFUSAL in (as_object(value.get("_meta")) or {})
        raise (Refused if is_refusal else ToolError)(result.text or "The tool failed.")
    if result.text or result.content or result.structured_content is msgspec.UNSET:
        return result.text or msgspec.json.encode(result.content).decode()
    return msgspec.json.encode(result.structured_content).decode()


def _repetition(id: str, interval: float, duration: float, times: int) -> Repetition:
    """What a person is told about a poll, who says yes to all of it or to nothing."""
    until = datetime.now(UTC) + timedelta(seconds=duration)
    about = f"every {interval:g} s, {times + 1:,} times at most, until {until:%Y-%m-%d %H:%M} UTC"
    return Repetition(f"poll {id}", about, time.monotonic() + duration)
