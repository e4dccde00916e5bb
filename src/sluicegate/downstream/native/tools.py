"""The tools of a handler as native methods: found by name, with arguments that fit their schemas.

Only what a caller may see is found, so that rules hide natively what they hide elsewhere.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from sluicegate.errors import INVALID_PARAMS, METHOD_NOT_FOUND, ErrorObject, RpcError, SluicegateError
from sluicegate.exchange import NOBODY, Caller, Exchange, Handler, accepting_retries
from sluicegate.protocol.message import Params, Result, as_array, as_object, opened
from sluicegate.protocol.modern_era import SERVER_INFO_KEY
from sluicegate.protocol.native import Methods, arguments_of
from sluicegate.protocol.types import HEALTH, INNER_KEY, NAMESPACES_KEY, ONLY_KEY
from sluicegate.schemas.validate import Checker

MAX_PAGES: Final = 1000
MAX_CALLERS: Final = 100
"""Callers whose methods are kept."""
MAX_TOOLS: Final = 2000
"""Tools whose compiled schemas are kept."""
_OF_HEALTH: Final = tuple(f"{HEALTH.partition('.')[0]}.{member}" for member in ("schema", "hash"))
_MAX_PROBLEM: Final = 300


class ToolCall(msgspec.Struct, frozen=True):
    """A native request that is a call of a tool."""

    params: Params
    """Those of `tools/call`."""


class Value(msgspec.Struct, frozen=True):
    """A native request that is answered at once."""

    value: object

    @property
    def result(self) -> Result:
        """The value as a reply. Native results may be any JSON value."""
        return Result(msgspec.Raw(msgspec.json.encode(self.value)))


class _Tool:
    """A tool that can be called natively, with its compiled schema."""

    __slots__ = ("_checker", "definition", "name", "source")

    def __init__(self, source: msgspec.Raw | Params) -> None:
        self.source = source
        """As the handler has it: the same object as long as the definition is the same."""
        # Definitions may hold encoded parts; here they are read.
        self.definition: Params = msgspec.json.decode(msgspec.json.encode(source))
        self.name = str(self.definition["name"])
        self._checker = Checker(self._schema)

    @property
    def _schema(self) -> Params:
        return as_object(self.definition.get("inputSchema")) or {}

    def call(self, params: object) -> ToolCall:
        """The call with these params. Raises RpcError, −32602, for params that do not fit the schema."""
        arguments = arguments_of(params, self.definition)
        if problems := self._checker.problems(arguments):
            problem = f"Invalid params: {problems[:_MAX_PROBLEM]}"
            raise RpcError(ErrorObject(INVALID_PARAMS, problem, {"schema": self._schema}))
        return ToolCall({"name": self.name, "arguments": arguments})


def _value_in(methods: Methods, method: str, params: object, about: Mapping[str, Params] | None = None) -> Value:
    """The schema or the hash of a namespace. `about` has the version and description of namespaces.

    Raises:
        RpcError: −32601, the method asks for neither.
    """
    namespace, _, member = method.rpartition(".")
    schema = methods.schema(namespace, about) if member in ("schema", "hash") else None
    if schema is None:
        raise RpcError(methods.unknown(method))
    if member == "hash":
        return Value(schema["hash"])
    wanted = (as_array(params) or [None])[0] if as_array(params) else (as_object(params) or {}).get("method")
    if wanted is None:
        return Value(schema)
    found = [row for row in map(as_object, as_array(schema["methods"]) or []) if row and row["name"] == wanted]
    if not found:
        raise RpcError(methods.unknown(f"{namespace}.{wanted}"))
    return Value({**schema, "methods": found})


class _Page(msgspec.Struct, frozen=True):
    value: object
    tools: list[Params]
    cursor: object


_NO_PAGES: Final[list[_Page]] = []


class NativeTools:
    """The native methods of a handler, for each caller.

    A tool that the handler can describe is called without a list. All else needs one: other spellings, schemas, errors
    that name the known methods, and handlers that describe nothing. Lists are asked for each time, because a handler
    need not announce its changes, and are parsed when they differ.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._describe_tool = accepting_retries(handler).describe_tool
        self._known: dict[Caller, tuple[list[_Page], Methods]] = {}
        self._tools: dict[str, _Tool] = {}

    async def plan(self, caller: Caller, method: str, params: object) -> ToolCall | Value:
        """What a native request of a caller asks for.

        Raises:
            RpcError: −32601 for an unknown method, −32602 for params that do not fit its schema.
            SluicegateError: the handler refused to list its tools.
        """
        tool = self._described(caller, method)
        if tool is not None:
            return tool.call(params)
        methods = await self._methods(caller)
        definition = methods.find(method)
        if definition is not None:
            return self._tool(str(definition["name"]), definition).call(params)
        meta = await self._meta(caller)
        servers = as_object(meta.get(NAMESPACES_KEY))
        if method == HEALTH and servers is not None:
            return ToolCall({"name": HEALTH, "arguments": arguments_of(params, {})})
        if servers is not None and method in _OF_HEALTH and methods.find(HEALTH) is None:
            page = await self._page(caller, {"_meta": {ONLY_KEY: HEALTH}}, None)
            return _value_in(Methods(tool for tool in page.tools if tool["name"] == HEALTH), method, params)
        info = as_object(meta.get(SERVER_INFO_KEY)) or {}
        inner = {name: {"description": text} for name, text in (as_object(meta.get(INNER_KEY)) or {}).items()}
        about = {**inner, str(info.get("name")): info} if servers is None else servers
        return _value_in(methods, method, params, {name: as_object(each) or {} for name, each in about.items()})

    async def knows(self, caller: Caller, method: str) -> bool:
        """Whether a method means a tool. Raises SluicegateError if the handler refused to list its tools."""
        return self._described(caller, method) is not None or (await self._methods(caller)).find(method) is not None

    def _described(self, caller: Caller, method: str) -> _Tool | None:
        """The tool of a listed or native name: `files.read_file` is `files__read_file` or `mcp__files__read_file`."""
        listed = method.replace(".", "__", 1)
        for name in (listed, method, f"mcp__{listed}"):  # The usual one first. Few servers list names with dots.
            definition = self._describe_tool(caller, name)
            if definition is not None:
                return self._tool(name, definition)
        return None

    def _tool(self, name: str, definition: msgspec.Raw | Params) -> _Tool:
        tool = self._tools.get(name)
        if tool is None or tool.source is not definition:
            self._tools.pop(name, None)
            tool = self._tools[name] = _Tool(definition)
            if len(self._tools) > MAX_TOOLS:
                del self._tools[next(iter(self._tools))]
        return tool

    async def _meta(self, caller: Caller) -> Params:
        """What the handler says about itself, and about its servers if it is a hub."""
        params: Params = {"_meta": {NAMESPACES_KEY: True}}
        reply = await self._handler(Exchange("server/discover", params, NOBODY, caller=caller))
        return {} if isinstance(reply, ErrorObject) else as_object(opened(reply).get("_meta")) or {}

    async def _methods(self, caller: Caller) -> Methods:
        """What a caller may call.

        Raises:
            SluicegateError: the handler refused to list its tools.
        """
        kept = self._known.get(caller)
        known, methods = (_NO_PAGES, None) if kept is None else kept
        pages: list[_Page] = []
        cursor: object = None
        while len(pages) < MAX_PAGES:
            before = known[len(pages)] if len(pages) < len(known) else None
            page = await self._page(caller, {} if cursor is None else {"cursor": cursor}, before)
            pages.append(page)
            cursor = page.cursor
            if cursor is None:
                break
        if methods is None or len(pages) != len(known) or any(a is not b for a, b in zip(pages, known, strict=True)):
            methods = Methods(tool for page in pages for tool in page.tools)
            self._known.pop(caller, None)
            self._known[caller] = pages, methods
            if len(self._known) > MAX_CALLERS:
                del self._known[next(iter(self._known))]
        return methods

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
