"""What one activation offers, and the answer to every request about it.

The one rule: lists are in the order of registration, and what was announced once stays a method that answers, with an
empty list if need be: capabilities cannot be taken back from a client that has read them.
"""

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol, TypeVar

from sluicegate.activation.content import echo
from sluicegate.activation.prompts import Completer, Prompt
from sluicegate.activation.resources import Resource, not_found
from sluicegate.activation.run import run_tool
from sluicegate.activation.tools import Tool
from sluicegate.changes import RESOURCE_UPDATED, Changes, Filter, read_filter
from sluicegate.errors import InvalidParams, MethodNotFound, UnknownTarget
from sluicegate.exchange import Exchange
from sluicegate.protocol.cursors import page
from sluicegate.protocol.headers import check_marks
from sluicegate.protocol.message import Notification, Params
from sluicegate.protocol.methods import METHODS
from sluicegate.protocol.modern import ACKNOWLEDGED
from sluicegate.protocol.seal import Sealer

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


class Offer:
    """Tools, resources, prompts and completions under one roof; everything may come and go while it is in use.

    Args:
        page_size: how many definitions one page of a list holds.
    """

    def __init__(self, page_size: int = 50) -> None:
        if page_size < 1:
            raise ValueError("page_size is at least 1")
        self._tools: dict[str, Tool] = {}
        self._resources: dict[str, Resource] = {}
        self._templates: dict[str, Resource] = {}
        self._prompts: dict[str, Prompt] = {}
        self._completers: dict[tuple[str, str], Completer] = {}
        self._announced = {"logging"}
        self._changes = Changes()
        self._page_size = page_size
        # Cursors of an earlier process mean nothing here: its list may have been another.
        self._sealer = Sealer(os.urandom(32))
        # None of these is called before its capability is announced: until then `_methods` does not have it.
        self._all_methods: Mapping[str, _Method] = {
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "prompts/list": self._list_prompts,
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
            "subscriptions/listen": self._listen,
        }
        self._methods: dict[str, _Method] = {
            name: method for name, method in self._all_methods.items() if not METHODS[name].capability
        }

    @property
    def capabilities(self) -> Params:
        """What is announced: every kind of which there is or was something, and logging."""
        return {name: dict(flags) for name, flags in _CAPABILITIES.items() if name in self._announced}

    def answer(self, exchange: Exchange) -> Awaitable[Params]:
        """The value of the result, to be awaited.

        Raises:
            MethodNotFound: there is no such method, or its capability is not announced.
            InvalidParams: the params are wrong, or name something that is not there (UnknownTarget).
            SluicegateError: whatever else kept it from being answered.
        """
        method = self._methods.get(exchange.method)
        if method is None:
            raise MethodNotFound(f"Method not found: {echo(exchange.method)}")
        if "requestState" in exchange.params:
            # A call that asks stays where it is while it waits, and the edges keep the state that leads back to it.
            raise InvalidParams("Invalid params: requestState is not one that this server gave.")
        return method(exchange)

    # ------------------------------------------------------------------------------------------------ what is offered

    def add_tool(self, tool: Tool) -> None:
        """Offer a tool; raises ValueError if there is one of that name."""
        _put(self._tools, tool.name, tool, "tool")
        self._announce("tools")

    def remove_tool(self, name: str) -> None:
        """Offer it no more; calls under way go on. Raises KeyError if there is none."""
        del self._tools[name]
        self._changes.note(_NOTICES["tools"])

    def add_resource(self, resource: Resource) -> None:
        """Offer a resource or template; raises ValueError if there is one of that URI."""
        _put(self._resources if resource.template is None else self._templates, resource.uri, resource, "resource")
        self._announce("resources")

    def remove_resource(self, uri: str) -> None:
        """Offer it no more, be it a URI or a template. Raises KeyError if there is none."""
        del (self._resources if uri in self._resources else self._templates)[uri]
        self._changes.note(_NOTICES["resources"])

    def add_prompt(self, prompt: Prompt) -> None:
        """Offer a prompt; raises ValueError if there is one of that name."""
        _put(self._prompts, prompt.name, prompt, "prompt")
        self._announce("prompts")

    def remove_prompt(self, name: str) -> None:
        """Offer it no more. Raises KeyError if there is none."""
        del self._prompts[name]
        self._changes.note(_NOTICES["prompts"])

    def add_completer(self, reference: str, argument: str, completer: Completer) -> None:
        """Offer values for an argument of a prompt, or for a variable of a URI template, which may be added later."""
        self._completers[reference, argument] = completer
        self._announce("completions")

    def resource_updated(self, uri: str) -> None:
        """Tell those who listen to the resource, or to one that it is a part of."""
        self._changes.note(RESOURCE_UPDATED, uri)

    def close(self) -> None:
        """End all listening."""
        self._changes.close()

    def _announce(self, kind: str) -> None:
        self._announced.add(kind)
        self._methods.update(
            {name: self._all_methods[name] for name in self._all_methods if METHODS[name].capability == kind}
        )
        if kind in _NOTICES:
            self._changes.note(_NOTICES[kind])

    # -------------------------------------------------------------------------------------------------------- methods

    async def _list_tools(self, exchange: Exchange) -> Params:
        return self._page("tools", self._tools.values(), exchange)

    async def _list_resources(self, exchange: Exchange) -> Params:
        return self._page("resources", self._resources.values(), exchange)

    async def _list_templates(self, exchange: Exchange) -> Params:
        return self._page("resourceTemplates", self._templates.values(), exchange)

    async def _list_prompts(self, exchange: Exchange) -> Params:
        return self._page("prompts", self._prompts.values(), exchange)

    def _page(self, kind: str, items: Iterable["_Defined"], exchange: Exchange) -> Params:
        cursor = exchange.params.get("cursor")
        chosen, following = page(list(items), cursor, kind, self._page_size, self._sealer)
        value: Params = {kind: [item.definition for item in chosen]}
        return value if following is None else value | {"nextCursor": following}

    def _call_tool(self, exchange: Exchange) -> Awaitable[Params]:
        name = exchange.params.get("name")
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            raise UnknownTarget(f"Unknown tool: {echo(_text(exchange.params, 'name'))}")
        if tool.marks and exchange.headers is not None:
            check_marks(exchange.headers, None, exchange.params, tool.marks)
        return run_tool(tool, exchange, _object(exchange.params, "arguments", {}))

    async def _read_resource(self, exchange: Exchange) -> Params:
        uri = _text(exchange.params, "uri")
        resource, variables = self._resource(uri)
        return await resource.read(uri, variables, exchange)

    def _resource(self, uri: str) -> tuple[Resource, Mapping[str, str]]:
        """What is behind a URI, and its variables: an exact one, else the first template. Raises UnknownTarget."""
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
        """The name or URI that a completion is about, if it is one of ours."""
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
                raise InvalidParams("Invalid params: the type of ref is ref/prompt or ref/resource.")

    async def _listen(self, exchange: Exchange) -> Params:
        wanted = read_filter(exchange.params)
        # Kinds that come later were not announced: this listener would be told of a list that it may not ask for.
        lists = [notice for kind, notice in _NOTICES.items() if kind in self._announced and notice in wanted.lists]
        honoured = Filter(lists, [uri for uri in wanted.uris if self._exists(uri)])
        with self._changes.listener(honoured) as listener:
            # Listening has begun, so what changes while the acknowledgement leaves will follow it.
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


class _Defined(Protocol):
    @property
    def definition(self) -> Params: ...


def _put(items: dict[str, _T], key: str, item: _T, kind: str) -> None:
    # A second one of the same name would be a tool that nobody can call; who wants to replace it removes it first.
    if key in items:
        raise ValueError(f"there is a {kind} {key!r} already")
    items[key] = item


def _text(params: Mapping[str, object], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise InvalidParams(f"Invalid params: {name} is missing, or no string.")
    return value


def _object(params: Mapping[str, object], name: str, default: Params | None = None) -> Params:
    value = params.get(name, default)
    if not isinstance(value, dict):
        raise InvalidParams(f"Invalid params: {name} is missing, or no object.")
    return value  # pyright: ignore[reportUnknownVariableType] - `cast` is a call
