"""The tools of a handler as native methods: found by name, with arguments that fit their schemas.

They are what `tools/list` shows to a caller, so that rules hide natively what they hide elsewhere.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from sluicegate.errors import INVALID_PARAMS, METHOD_NOT_FOUND, ErrorObject, RpcError, SluicegateError
from sluicegate.exchange import NOBODY, Caller, Exchange, Handler
from sluicegate.protocol.message import Params, Result, as_array, as_object, opened
from sluicegate.protocol.modern_era import SERVER_INFO_KEY
from sluicegate.protocol.native import Methods, arguments_of
from sluicegate.protocol.types import HEALTH, INNER_KEY, NAMESPACES_KEY, ONLY_KEY
from sluicegate.schemas.validate import Checker

MAX_PAGES: Final = 1000
MAX_CALLERS: Final = 100
"""Callers whose methods are kept."""
_OF_HEALTH: Final = tuple(f"{HEALTH.partition('.')[0]}.{member}" for member in ("schema", "hash"))
_MAX_PROBLEM: Final = 300


class ToolCall(msgspec.Struct, frozen=True):
    """A native request that is a call of a tool."""

    params: Params
    """Those of `tools/call`."""


class Value(msgspec.Struct, frozen=True):
    """A native request that is answered at once."""

    value: object


class Table(Methods):
    """The native methods of one caller."""

    def __init__(self, definitions: Iterable[Params]) -> None:
        super().__init__(definitions)
        self._checkers: dict[str, Checker] = {}

    def plan(self, method: str, params: object, about: Mapping[str, Params] | None = None) -> ToolCall | Value:
        """What a native request asks for. `about` has the version and description of namespaces.

        Raises:
            RpcError: −32601 for an unknown method, −32602 for params that do not fit its schema.
        """
        tool = self.find(method)
        if tool is not None:
            return ToolCall({"name": tool["name"], "arguments": self._checked(tool, arguments_of(params, tool))})
        namespace, _, member = method.rpartition(".")
        schema = self.schema(namespace, about) if member in ("schema", "hash") else None
        if schema is None:
            raise RpcError(self.unknown(method))
        if member == "hash":
            return Value(schema["hash"])
        wanted = (as_array(params) or [None])[0] if as_array(params) else (as_object(params) or {}).get("method")
        if wanted is None:
            return Value(schema)
        methods = [
            each for each in map(as_object, as_array(schema["methods"]) or []) if each and each["name"] == wanted
        ]
        if not methods:
            raise RpcError(self.unknown(f"{namespace}.{wanted}"))
        return Value({**schema, "methods": methods})

    def _checked(self, tool: Params, arguments: Params) -> Params:
        name, schema = str(tool["name"]), as_object(tool.get("inputSchema")) or {}
        if name not in self._checkers:
            self._checkers[name] = Checker(schema)
        if problems := self._checkers[name].problems(arguments):
            raise RpcError(
                ErrorObject(INVALID_PARAMS, f"Invalid params: {problems[:_MAX_PROBLEM]}", {"schema": schema})
            )
        return arguments


class _Page(msgspec.Struct, frozen=True):
    value: object
    tools: list[Params]
    cursor: object


_NO_PAGES: Final[list[_Page]] = []


class NativeTools:
    """The native methods of a handler, for each caller. Kept until `tools/list` shows something else."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._known: dict[Caller, tuple[list[_Page], Table]] = {}

    async def plan(self, caller: Caller, method: str, params: object) -> ToolCall | Value:
        """What a native request of a caller asks for.

        Raises:
            RpcError: −32601 for an unknown method, −32602 for params that do not fit its schema.
            SluicegateError: the handler refused to list its tools.
        """
        table = await self.table(caller)
        if table.find(method) is not None:
            return table.plan(method, params)
        meta = await self._meta(caller)
        servers = as_object(meta.get(NAMESPACES_KEY))
        if method == HEALTH and servers is not None:
            return ToolCall({"name": HEALTH, "arguments": arguments_of(params, {})})
        if servers is not None and method in _OF_HEALTH and HEALTH not in table.tools:
            page = await self._page(caller, {"_meta": {ONLY_KEY: HEALTH}}, None)
            return Table(tool for tool in page.tools if tool["name"] == HEALTH).plan(method, params)
        info = as_object(meta.get(SERVER_INFO_KEY)) or {}
        inner = {name: {"description": text} for name, text in (as_object(meta.get(INNER_KEY)) or {}).items()}
        about = {**inner, str(info.get("name")): info} if servers is None else servers
        return table.plan(method, params, {name: as_object(each) or {} for name, each in about.items()})

    async def _meta(self, caller: Caller) -> Params:
        """What the handler says about itself, and about its servers if it is a hub."""
        params: Params = {"_meta": {NAMESPACES_KEY: True}}
        reply = await self._handler(Exchange("server/discover", params, NOBODY, caller=caller))
        return {} if isinstance(reply, ErrorObject) else as_object(opened(reply).get("_meta")) or {}

    async def table(self, caller: Caller) -> Table:
        """What a caller may call.

        Raises:
            SluicegateError: the handler refused to list its tools.
        """
        kept = self._known.get(caller)
        known, table = (_NO_PAGES, None) if kept is None else kept
        pages: list[_Page] = []
        cursor: object = None
        while len(pages) < MAX_PAGES:
            before = known[len(pages)] if len(pages) < len(known) else None
            page = await self._page(caller, {} if cursor is None else {"cursor": cursor}, before)
            pages.append(page)
            cursor = page.cursor
            if cursor is None:
                break
        if table is None or len(pages) != len(known) or any(a is not b for a, b in zip(pages, known, strict=True)):
            table = Table(tool for page in pages for tool in page.tools)
            self._known.pop(caller, None)
            self._known[caller] = pages, table
            if len(self._known) > MAX_CALLERS:
                del self._known[next(iter(self._known))]
        return table

    async def _page(self, caller: Caller, params: Params, before: _Page | None) -> _Page:
        try:
            reply = await self._handler(Exchange("tools/list", params, NOBODY, caller=caller))
            if isinstance(reply, ErrorObject):
                raise RpcError(reply)
        except SluicegateError as problem:
            if problem.code != METHOD_NOT_FOUND:
                raise
            reply = Result({"tools": []})  # It has no tools.
        if before is not None and _is_same(reply.value, before.value):
            return before
        value = opened(reply)
        # Definitions may hold encoded parts; here they are read.
        tools: list[Params] = msgspec.json.decode(msgspec.json.encode(value.get("tools") or []))
        return _Page(reply.value, tools, value.get("nextCursor"))


def _is_same(value: object, before: object) -> bool:
    if value is before:
        return True
    if isinstance(value, msgspec.Raw) and isinstance(before, msgspec.Raw):
        return bytes(value) == bytes(before)
    return isinstance(value, Mapping) and value == before
