"""`View`: what one agent sees and may do in a toolbox, in the shapes of model APIs."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Final, Literal, Protocol, Self

import msgspec

from sluicegate.client.client import Client, StreamEvent
from sluicegate.client.events import OnProgress
from sluicegate.client.in_process import CallerConnection
from sluicegate.errors import InvalidParams, SluicegateError
from sluicegate.exchange import Caller, Handler
from sluicegate.hub.catalog import Catalog
from sluicegate.hub.router import CAPABILITIES, Router
from sluicegate.hub.search import ToolSearch
from sluicegate.hub.search_step import CALL, SEARCH, TOOLS, read_called, read_query
from sluicegate.protocol.message import Params
from sluicegate.protocol.read_types import read_tool
from sluicegate.protocol.types import TextContent, Tool, ToolResult
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.schemas.apis.messages import ModelCall, read_call
from sluicegate.text.globs import name_matches
from sluicegate.text.similar import did_you_mean
from sluicegate.toolbox.definitions import (
    APIS,
    Defined,
    answers,
    api_named,
    define,
    news,
    read_calls,
    tokens,
    tool_list,
)
from sluicegate.toolbox.narrowing import Narrowing
from sluicegate.toolbox.permission import (
    MAX_CHANGES,
    Amended,
    ArgumentsChanged,
    Batch,
    OnPermission,
    amended,
    batch,
    with_changes,
)
from sluicegate.toolbox.results import Answers, Files, LongTexts, Outcome, error, outcome
from sluicegate.toolbox.updates import Update, Watches

SEARCHED_TOOLS: Final = 30
"""Tools from which on models search."""
SEARCHED_TOKENS: Final = 10_000
"""Tokens of definitions from which on models search."""

NO_LIMIT: Final = 7 * 86_400.0
"""Seconds. Servers have their own limits, which do not count the time that a person takes to answer."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

Shape = tuple[str, bool]
"""An API, and whether its calls are strict."""


@contextmanager
def _own_batch() -> Generator[Batch]:
    """The calls inside are those of one reply."""
    current = Batch()
    token = batch.set(current)
    try:
        yield current
    finally:
        batch.reset(token)


class ManagementTools(Protocol):
    """The resource tools of the gateway, which also keep what the calls of an agent leave behind."""

    @property
    def name(self) -> str: ...
    @property
    def texts(self) -> LongTexts: ...
    @property
    def files(self) -> Files: ...
    @property
    def watches(self) -> Watches: ...


class SharedByViews(msgspec.Struct, eq=False):
    """What all views of a toolbox have in common."""

    router: Router
    handler: Handler
    find_management: Callable[[], ManagementTools]
    """A reload may replace them, when a server of the files takes their name."""
    views: "dict[str, View]"
    """By the ids of their callers."""
    search: bool | Literal["auto"] = "auto"
    pinned: Sequence[str] = ()
    """Globs on tools that the model need not search for."""

    @property
    def management(self) -> ManagementTools:
        return self.find_management()


class View:
    """The tools of one agent. `async with` opens it; its calls end with it."""

    def __init__(self, agent: str, caller: Caller, on_permission: OnPermission | None) -> None:
        self.agent = agent
        self.caller = caller
        self.on_permission: OnPermission | None = on_permission
        self.narrowing: Narrowing | None = None
        self._above: View | None = None
        self._below: list[View] = []
        self._left: int | None = None
        """Calls that are left, if they are limited."""
        self._tasks = TaskScope()
        self._shared_parts: SharedByViews | None = None
        self._client: Client | None = None
        self._calls: set[asyncio.Timeout] = set()
        self._tools: list[Tool] | None = None
        """The tools of all definitions, until `refresh`."""
        self._defined: dict[Shape, dict[str, Defined]] = {}
        self._encoded: dict[Shape, bytes] = {}
        self._told: dict[Shape, dict[str, Defined]] = {}
        """What the model knows: the definitions with all news since."""
        self._searching: set[Shape] = set()
        """Where the model has our search, since the API has none."""
        self._search = ToolSearch()
        self._last: Shape | None = None

    # ------------------------------------------------------------------------------------------------------ lifetime

    def view(
        self,
        name: str,
        *,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] = (),
        max_calls: int | None = None,
        on_permission: OnPermission | None = None,
    ) -> "View":
        """A view for a sub-agent, with the same servers: `async with box.view("reviewer", allow=[…]) as view`.

        It sees less, never more, and has its own definitions, updates and permissions.

        Args:
            name: part of its caller's id in rules and in the audit log.
            allow: globs on what it may use (`mcp__files__read_*`, `mcp__files` for all of a server, or `read_*`); None
                for everything. The management tools are left out by `deny` only.
            deny: globs on what it may not use.
            max_calls: calls that it may make, with those of its own sub-agents.
            on_permission: as of `Toolbox.load`; by default that of the view above.

        Raises:
            ValueError: the name, a glob or the number of calls is not valid.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"the name of a view has 1 to 64 letters, digits, - and _; {name!r} does not")
        if max_calls is not None and max_calls < 0:
            raise ValueError(f"max_calls is at least 0, not {max_calls}")
        made = View(name, Caller(f"{self.caller.id}/{name}", self.caller.groups), on_permission)
        made.narrowing = Narrowing(self.caller, allow, deny, self.narrowing)
        made._above, made._left = self, max_calls
        return made

    async def __aenter__(self) -> Self:
        if self._above is None:
            raise RuntimeError("make views with `view`")
        views = self._above._shared.views
        if self.caller.id in views:
            raise ValueError(f"there is a view {self.agent!r} already")
        views[self.caller.id] = self
        self._above._below.append(self)
        await self._open(self._above._shared)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._close()

    async def _open(self, shared: SharedByViews) -> None:
        self._shared_parts = shared
        self._tasks = await TaskScope().__aenter__()
        connection = CallerConnection(shared.handler, self.caller, CAPABILITIES)
        self._client = Client(connection, self._tasks, timeout=NO_LIMIT, max_timeout=NO_LIMIT)

    async def _close(self) -> None:
        for view in list(self._below):
            await view._close()
        if self._above is not None and self in self._above._below:
            self._above._below.remove(self)
            self._above._shared.views.pop(self.caller.id, None)
        now = asyncio.get_running_loop().time()
        for call in self._calls:
            call.reschedule(now)
        if self._client is not None and self._shared_parts is not None:
            self._client.close()
            self._client = None
            await self._tasks.__aexit__(None, None, None)
            self._shared_parts.management.watches.end_all(self.caller.id)

    @property
    def _shared(self) -> SharedByViews:
        if self._shared_parts is None or self._client is None:
            raise RuntimeError("it is not open; use it inside `async with`")
        return self._shared_parts

    @property
    def client(self) -> Client:
        """A client for all else: prompts, resources, subscriptions. Raises RuntimeError while it is not open."""
        if self._client is None:
            raise RuntimeError("it is not open; use it inside `async with`")
        return self._client

    @property
    def permission(self) -> OnPermission | None:
        """Its own callback, or that of the view above."""
        return self.on_permission if self.on_permission is not None or self._above is None else self._above.permission

    def _take_call(self) -> bool:
        """Count a call; whether there is one left here and above."""
        if self._left == 0 or (self._above is not None and not self._above._take_call()):
            return False
        if self._left is not None:
            self._left -= 1
        return True

    def _catalog(self) -> Catalog:
        return self._shared.router.view(self.caller).catalog

    # --------------------------------------------------------------------------------------------------- definitions

    def definitions(self, api: str, strict: bool = False) -> list[Params]:
        """The tools for a request to an API: the same bytes each time, until `refresh`.

        Raises:
            ValueError: there is no such API.
        """
        shape = (api, strict)
        self._frozen(shape)
        self._last = shape
        # Decoded each time: the program may change its copy.
        return msgspec.json.decode(self._encoded[shape], type=list[Params])

    def _frozen(self, shape: Shape) -> dict[str, Defined]:
        if shape not in self._defined:
            if self._tools is None:
                self._tools = self._current()
            defined = define(self._tools, shape[0], strict=shape[1])
            self._encoded[shape] = msgspec.json.encode(self._listed(shape, defined))
            self._defined[shape] = defined
            self._told[shape] = defined
        return self._defined[shape]

    def _listed(self, shape: Shape, defined: dict[str, Defined]) -> list[Params]:
        """What goes into a request: all tools, or those that need no search and a way to find the others."""
        api, strict = shape
        deferred = {name for name, entry in defined.items() if not self._is_pinned(entry.tool)}
        search = self._shared.search
        if search == "auto":
            is_much = tokens(defined[name].definition for name in deferred) >= SEARCHED_TOKENS
            search = len(deferred) >= SEARCHED_TOOLS or is_much
        if not search or not deferred:
            return tool_list(api, defined)
        if api in APIS and APIS[api].search is not None:
            return tool_list(api, defined, deferred)
        self._searching.add(shape)
        return tool_list(api, define(map(read_tool, TOOLS), api, strict=strict) | defined, deferred)

    def _is_pinned(self, tool: Tool) -> bool:
        entry = self._catalog().tools.get(tool.name)
        if entry is not None and entry.mount == self._shared.management.name:
            return True
        names = {tool.name} if entry is None else {tool.name, entry.own}
        return any(name_matches(name, glob) for glob in self._shared.pinned for name in names)

    def _current(self) -> list[Tool]:
        """All tools as they are now: servers in the order of the files, and the tools of each by name."""
        entries = self._catalog().tools
        places = {mount: place for place, mount in enumerate(dict.fromkeys(entry.mount for entry in entries.values()))}
        found: list[Tool] = []
        for name in sorted(entries, key=lambda name: (places[entries[name].mount], name)):
            try:
                found.append(read_tool(entries[name].definition))
            except msgspec.ValidationError:
                continue  # No client could read it either; the others work.
        return found

    def refresh(self) -> None:
        """Let the next definitions be those of now."""
        self._tools = None
        self._defined.clear()
        self._encoded.clear()
        self._told.clear()
        self._searching.clear()

    def news(self, api: str, strict: bool = False) -> list[Params]:
        """The messages that tell the model what has changed since the definitions, or since the last news.

        Raises:
            ValueError: there is no such API.
        """
        api_named(api)
        shape = (api, strict)
        self._frozen(shape)
        now = define(self._current(), api, strict=strict)
        before, self._told[shape] = self._told[shape], now
        return news(api, before, now)

    def findings(self, api: str, strict: bool = False) -> dict[str, tuple[str, ...]]:
        """What an API cannot express of the tools, by their names there."""
        return {name: entry.findings for name, entry in self._frozen((api, strict)).items() if entry.findings}

    def tokens(self) -> dict[str, int]:
        """About how many tokens the tools of each server take."""
        entries, found = self._catalog().tools, dict[str, int]()
        for tool in self._current():
            [defined] = define([tool], "anthropic").values()
            mount = entries[tool.name].mount
            found[mount] = found.get(mount, 0) + tokens([defined.definition])
        return found

    # --------------------------------------------------------------------------------------------------------- calls

    async def execute(
        self,
        name: str,
        input: Mapping[str, object] | str | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> Outcome:
        """The result of one call. What goes wrong is a result, too, with a sentence for the model."""
        with _own_batch():
            return await self._execute(read_call("", name, input), self._last, on_progress)

    async def answer(self, api: str, reply: object, strict: bool | None = None) -> Answers:
        """Run all calls of a model's reply in parallel; the messages to append after it, none if there were none.

        Args:
            reply: as the API sent it, or the object that its SDK made of it.
            strict: whether the definitions were strict; by default as in the last ones.

        Raises:
            ValueError: there is no such API.
        """
        calls, save = read_calls(api, reply), self._shared.management.files.save
        if strict is None:
            strict = self._last is not None and self._last[0] == api and self._last[1]
        results: list[Outcome | None] = [None] * len(calls)

        async def run(place: int, call: ModelCall) -> None:
            results[place] = await self._execute(call, (api, bool(strict)), None)

        with _own_batch() as current:
            async with TaskScope() as tasks:
                for place, call in enumerate(calls):
                    tasks.start(run(place, call))
        done = [(call, result) for call, result in zip(calls, results, strict=True) if result is not None]
        found = Answers(answers(api, done, save))
        found.stop = current.is_stopped
        return found

    async def stream(self, name: str, input: Mapping[str, object] | str | None = None) -> AsyncGenerator[StreamEvent]:
        """Progress and log messages of a call as they arrive, then its `Outcome`. Leaving the loop cancels the call."""
        call = self._prepared(read_call("", name, input), self._last)
        if isinstance(call, Outcome):
            yield call
            return
        change: Amended | None = None
        before = batch.get()
        for _ in range(MAX_CHANGES):
            amended.set(change)
            batch.set(Batch())
            events = self.client.stream(call.name, call.arguments)
            try:
                async with aclosing(events):
                    async for event in events:
                        yield self._finished(call.name, event) if isinstance(event, ToolResult) else event
                return
            except ArgumentsChanged as changed:
                change = changed.change
                call = msgspec.structs.replace(call, arguments=changed.arguments)
            except SluicegateError as problem:
                yield self._failed(call.name, problem)
                return
            finally:  # Not `reset`: a generator may be closed in another context.
                amended.set(None)
                batch.set(before)
        yield error("The arguments of this call were changed too often; nothing was run.")

    def updates(self) -> AsyncGenerator[Update]:
        """What was subscribed to or polled and has changed: `async for update in box.updates()`.

        Of each subscription the newest update is kept until it is read. Ends when the view is closed.
        """
        return self._shared.management.watches.waiting(self.caller.id).read()

    async def _execute(self, call: ModelCall, shape: Shape | None, on_progress: OnProgress | None) -> Outcome:
        prepared = self._prepared(call, shape)
        if isinstance(prepared, Outcome):
            return prepared
        name, client = prepared.name, self.client
        try:
            async with asyncio.timeout(None) as ends:
                self._calls.add(ends)
                try:
                    result = await with_changes(
                        lambda arguments: client.call(name, arguments, on_progress=on_progress), prepared.arguments
                    )
                finally:
                    self._calls.discard(ends)
        except (TimeoutError, SluicegateError) as problem:
            return self._failed(name, problem)
        return self._finished(name, result)

    def _prepared(self, call: ModelCall, shape: Shape | None) -> ModelCall | Outcome:
        """The call with the names that its server uses, or why it cannot be made."""
        _ = self._shared
        if call.problem:
            return error(call.problem)
        if shape is not None and shape in self._searching and call.name in (SEARCH, CALL):
            try:
                return self._searched(call, shape)
            except InvalidParams as problem:
                return error(problem.message)
        if not self._take_call():
            return error(f"{call.name} was not called: this agent has used all its calls.")
        found = self._find(call.name, shape)
        if found is None:
            return call
        return msgspec.structs.replace(call, name=found.tool.name, arguments=found.undo(call.arguments))

    def _searched(self, call: ModelCall, shape: Shape) -> ModelCall | Outcome:
        """What a search found, or the call of what was found. Raises InvalidParams if the arguments are not valid."""
        given = define(map(read_tool, TOOLS), shape[0], strict=shape[1])[call.name].undo(call.arguments)
        if call.name == CALL:
            name, arguments = read_called(given)
            return self._prepared(ModelCall(call.id, name, arguments), shape)
        query, limit = read_query(given)
        found = self._search.find(self._catalog(), query, limit)
        # As they are now: a tool that is new can be found at once.
        names = {entry.tool.name: entry for entry in define(self._current(), shape[0], strict=shape[1]).values()}
        definitions = [names[name].definition for name in found if name in names]
        return Outcome(content=[TextContent(text=msgspec.json.encode(definitions).decode())])

    def _find(self, name: str, shape: Shape | None) -> Defined | None:
        """The definition that the model has used."""
        if shape is None:
            return None
        frozen = self._frozen(shape)
        told = self._told[shape].get(name) or frozen.get(name)
        if told is None and name not in self._catalog().tools:
            return None
        # A tool that is new may be called before the model was told.
        return told or define(self._current(), shape[0], strict=shape[1]).get(name)

    def _finished(self, name: str, result: ToolResult) -> Outcome:
        entry = self._catalog().tools.get(name)
        management, current = self._shared.management, batch.get()
        # Our own are short, and lead to the rest of long ones.
        if entry is None or entry.mount != management.name:
            result = management.texts.shortened(result, self.caller.id)
        found = outcome(result, management.files.save)
        is_stopped = result.is_error and current is not None and current.is_stopped
        return msgspec.structs.replace(found, stop=True) if is_stopped else found

    def _failed(self, name: str, problem: SluicegateError | TimeoutError) -> Outcome:
        if self._client is None or isinstance(problem, TimeoutError):
            return error(f"{name} was ended, since the toolbox closed; it may have run.")
        sentence = problem.message
        tools = self._catalog().tools
        if name not in tools and sentence.startswith("Unknown tool"):
            sentence = f"There is no tool {name!r}.{did_you_mean(name, tools)}"
        elif problem.delivered == "unknown" and "may have" not in sentence:
            sentence += " The call may have run, and was not repeated: check before you call it again."
        return error(sentence)
