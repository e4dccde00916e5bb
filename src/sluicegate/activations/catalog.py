"""The tools, resources and prompts of one server, and the responses to requests about them.

Lists are in the order of registration. A method that was announced once always answers, if need be with an empty list:
a client that has read a capability cannot be told that it is gone.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeVar

from sluicegate.activations.content import echo
from sluicegate.activations.definitions import (
    Completer,
    PromptDefinition,
    ResourceDefinition,
    ToolDefinition,
    not_found,
)
from sluicegate.activations.tool_call import KEPT_SCHEME, run_tool
from sluicegate.errors import InvalidParams, MethodNotFound, UnknownTarget
from sluicegate.exchange import Exchange
from sluicegate.protocol.headers import check_marks
from sluicegate.protocol.message import Notification, Params
from sluicegate.protocol.methods import METHODS
from sluicegate.protocol.modern_era import ACKNOWLEDGED
from sluicegate.protocol.pagination import page
from sluicegate.protocol.sealed_tokens import Sealer
from sluicegate.protocol.versions import MODERN_VERSIONS
from sluicegate.runtime.change_feed import RESOURCE_UPDATED, Changes, Filter, read_filter
from sluicegate.runtime.process_key import process_key
from sluicegate.store.base import Keeper

_T = TypeVar("_T")
_Method = Callable[[Exchange], Awaitable[Params]]

_CAPABILITIES: Final[Mapping[str, Params]] = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
}

_NOTICES: Final = {kind: f"notifications/{kind}/list_changed" for kind in ("tools", "resources", "prompts")}


class ActivationCatalog:
    """Tools, resources, prompts and completions; all may be added and removed at any time.

    Args:
        page_size: the number of definitions in one page of a list.
        keeper: stores the part of a stream that is too long for the result of a tool.
    """

    def __init__(self, page_size: int = 50, keeper: Keeper | None = None) -> None:
        if page_size < 1:
            raise ValueError("page_size must be at least 1")
        self._tools: dict[str, ToolDefinition] = {}
        self._resources: dict[str, ResourceDefinition] = {}
        self._templates: dict[str, ResourceDefinition] = {}
        self._prompts: dict[str, PromptDefinition] = {}
        self._completers: dict[tuple[str, str], Completer] = {}
        self._announced = {"logging"}
        self._changes = Changes()
        self._page_size = page_size
        self._keeper = keeper
        # Cursors of an earlier process are not valid: its list may have been different.
        self._sealer = Sealer(process_key(), "list cursor of a server")
        # A method is added to `_methods` when its capability is announced.
        self._all_methods: Mapping[str, _Method] = {
            "tools/list": partial(self._page, "tools", self._tools),
            "tools/call": self._call_tool,
            "resources/list": partial(self._page, "resources", self._resources),
            "resources/templates/list": partial(self._page, "resourceTemplates", self._templates),
            "resources/read": self._read_resource,
            "prompts/list": partial(self._page, "prompts", self._prompts),
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
            "subscriptions/listen": self._listen,
        }
        self._methods: dict[str, _Method] = {
            name: method for name, method in self._all_methods.items() if not METHODS[name].capability
        }

    @property
    def capabilities(self) -> Params:
        """The announced capabilities: logging, and every kind that has or had an item."""
        return {name: dict(flags) for name, flags in _CAPABILITIES.items() if name in self._announced}

    def answer(self, exchange: Exchange) -> Awaitable[Params]:
        """An awaitable for the value of the result.

        Raises:
            MethodNotFound: the method does not exist, or its capability is not announced.
            InvalidParams: the params are invalid, or name something that does not exist (UnknownTarget).
            SluicegateError: the request failed for another reason.
        """
        method = self._methods.get(exchange.method)
        if method is None and _reads_kept(exchange):
            return self._read_resource(exchange)  # The rest of a long result, whatever is announced.
        if method is None:
            raise MethodNotFound(f"Method not found: {echo(exchange.method)}")
        if "requestState" in exchange.params:
            # A call that asks a question is parked by the downstream side, which handles its state.
            raise InvalidParams("Invalid params: requestState was not issued by this server.")
        return method(exchange)

    # ----------------------------------------------------------------------------------------------------- registration

    def add(self, item: ToolDefinition | ResourceDefinition | PromptDefinition) -> None:
        """Add an item; raises ValueError if its name or URI is taken."""
        match item:
            case ToolDefinition():
                _put(self._tools, item.name, item, "tool")
                self._announce("tools")
            case ResourceDefinition():
                _put(self._resources if item.template is None else self._templates, item.uri, item, "resource")
                self._announce("resources")
            case PromptDefinition():
                _put(self._prompts, item.name, item, "prompt")
                self._announce("prompts")

    def remove(self, kind: Literal["tools", "resources", "prompts"], key: str) -> None:
        """Remove an item by its name or URI; running calls continue. Raises KeyError if there is none."""
        resources = self._resources if key in self._resources else self._templates
        items: Mapping[str, dict[str, Any]] = {"tools": self._tools, "resources": resources, "prompts": self._prompts}
        del items[kind][key]
        self._changes.note(_NOTICES[kind])

    def add_completer(self, reference: str, argument: str, completer: Completer) -> None:
        """Add a completer for an argument of a prompt or a variable of a URI template, which may be added later."""
        self._completers[reference, argument] = completer
        self._announce("completions")

    def resource_updated(self, uri: str) -> None:
        """Notify subscribers of the resource, and of resources that contain it."""
        self._changes.note(RESOURCE_UPDATED, uri)

    def close(self) -> None:
        self._changes.close()

    def _announce(self, kind: str) -> None:
        self._announced.add(kind)
        self._methods.update(
            {name: self._all_methods[name] for name in self._all_methods if METHODS[name].capability == kind}
        )
        if kind in _NOTICES:
            self._changes.note(_NOTICES[kind])

    # ---------------------------------------------------------------------------------------------------------- methods

    async def _page(self, kind: str, items: Mapping[str, "_Defined"], exchange: Exchange) -> Params:
        cursor = exchange.params.get("cursor")
        chosen, following = page(list(items.values()), cursor, kind, self._page_size, self._sealer)
        value: Params = {kind: [item.definition for item in chosen]}
        return value if following is None else value | {"nextCursor": following}

    def describe_tool(self, name: str) -> Params | None:
        """The definition of the tool of this name."""
        tool = self._tools.get(name)
        return None if tool is None else tool.definition

    def _call_tool(self, exchange: Exchange) -> Awaitable[Params]:
        name = exchange.params.get("name")
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            raise UnknownTarget(f"Unknown tool: {echo(_text(exchange.params, 'name'))}")
        if tool.marks and exchange.headers is not None and exchange.profile.version in MODERN_VERSIONS:
            check_marks(exchange.headers, None, exchange.params, tool.marks)
        return run_tool(tool, exchange, _object(exchange.params, "arguments", {}), self._keeper)

    async def _read_resource(self, exchange: Exchange) -> Params:
        uri = _text(exchange.params, "uri")
        if uri.startswith(KEPT_SCHEME):
            return self._read_kept(uri, exchange.caller.id)
        resource, variables = self._resource(uri)
        return await resource.read(uri, variables, exchange)

    def _read_kept(self, uri: str, caller: str) -> Params:
        """A page of a long result; raises UnknownTarget if it is gone or belongs to another caller."""
        # Each page has one URI, by which rules and logs name it: 01 and other digits are not read.
        page = _KEPT_PAGE.fullmatch(uri)
        found = self._keeper.read(caller, page[1], int(page[2])) if page and self._keeper is not None else None
        if found is None:
            raise not_found(uri)
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": found}]}

    def _resource(self, uri: str) -> tuple[ResourceDefinition, Mapping[str, str]]:
        """The resource of a URI and its variables: an exact match, else the first template. Raises UnknownTarget."""
        exact = self._resources.get(uri)
        if exact is not None:
            return exact, {}
        for resource in list(self._templates.values()):
            variables = resource.template.match(uri) if resource.template is not None else None
            if variables is not None:
                return resource, variables
        raise not_found(uri)

    async def _get_prompt(self, exchange: Exchange) -> Params:
        name = _text(exchange.params, "name")
        prompt = self._prompts.get(name)
        if prompt is None:
            raise UnknownTarget(f"Unknown prompt: {echo(name)}")
        return await prompt.get(_object(exchange.params, "arguments", {}), exchange)

    async def _complete(self, exchange: Exchange) -> Params:
        reference = self._reference(_object(exchange.params, "ref"))
        argument = _object(exchange.params, "argument")
        name, value = _text(argument, "name"), _text(argument, "value")
        context = _object(exchange.params, "context", {})
        others = {k: v for k, v in _object(context, "arguments", {}).items() if isinstance(v, str)}
        completer = self._completers.get((reference, name))
        completion: Params = {"values": []} if completer is None else await completer.complete(value, others)
        return {"completion": completion}

    def _reference(self, reference: Mapping[str, object]) -> str:
        """The name or URI that a completion refers to; raises UnknownTarget."""
        match reference.get("type"):
            case "ref/prompt":
                name = _text(reference, "name")
                if name in self._prompts:
                    return name
                raise UnknownTarget(f"Unknown prompt: {echo(name)}")
            case "ref/resource":
                uri = _text(reference, "uri")
                if uri in self._templates or uri in self._resources:
                    return uri
                raise not_found(uri)
            case _:
                raise InvalidParams("Invalid params: the type of ref must be ref/prompt or ref/resource.")

    async def _listen(self, exchange: Exchange) -> Params:
        wanted = read_filter(exchange.params)
        # Kinds that are added later were not announced, so the client may not request their lists.
        lists = [notice for kind, notice in _NOTICES.items() if kind in self._announced and notice in wanted.lists]
        honoured = Filter(lists, [uri for uri in wanted.uris if self._exists(uri)])
        with self._changes.listener(honoured) as listener:
            # The listener is active, so changes during the acknowledgement are sent after it.
            await exchange.emit(Notification(ACKNOWLEDGED, {"notifications": honoured.wire()}))
            while (notice := await listener.wait()) is not None:
                await exchange.emit(notice)
        return {}

    def _exists(self, uri: str) -> bool:
        try:
            self._resource(uri)
        except UnknownTarget:
            return False
        return True


_KEPT_PAGE: Final = re.compile(rf"{KEPT_SCHEME}//([0-9a-f]{{32}})/([1-9][0-9]{{0,8}})")


class _Defined(Protocol):
    @property
    def definition(self) -> Params: ...


def _reads_kept(exchange: Exchange) -> bool:
    return exchange.method == "resources/read" and str(exchange.params.get("uri")).startswith(KEPT_SCHEME)


def _put(items: dict[str, _T], key: str, item: _T, kind: str) -> None:
    # A second item of the same name could not be called. To replace an item, remove it first.
    if key in items:
        raise ValueError(f"there is already a {kind} {key!r}")
    items[key] = item


def _text(params: Mapping[str, object], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise InvalidParams(f"Invalid params: {name} is missing or not a string.")
    return value


def _object(params: Mapping[str, object], name: str, default: Params | None = None) -> Params:
    value = params.get(name, default)
    if not isinstance(value, dict):
        raise InvalidParams(f"Invalid params: {name} is missing or not an object.")
    return value  # pyright: ignore[reportUnknownVariableType] - `cast` is a call
