"""`Server`: tools, resources and prompts in this very process, for those who just write them.

It is a `Handler`, and at the same time the `Upstream` and the `Connection` that lead to it: there is nothing to open.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, TypeVar, Unpack, overload

from sluicegate.activation.content import members
from sluicegate.activation.offer import Offer
from sluicegate.activation.prompts import Completer, Prompt, PromptOptions
from sluicegate.activation.resources import Resource, ResourceOptions
from sluicegate.activation.tools import Tool, ToolOptions
from sluicegate.asking import refused_reply
from sluicegate.concurrency import forever
from sluicegate.errors import InputRefused
from sluicegate.exchange import Connection, Exchange, Host
from sluicegate.protocol.discovery import Discovery
from sluicegate.protocol.message import Params, Reply, Result
from sluicegate.protocol.modern import SERVER_INFO_KEY
from sluicegate.protocol.versions import LATEST_VERSION, SUPPORTED_VERSIONS

F = TypeVar("F", bound=Callable[..., Any])

# How long a result may be kept, and by whom. Lists are the same for every caller, but may change without notice to
# those who do not listen; what a resource holds may depend on anything.
_CACHE: Final[Mapping[str, tuple[int, str]]] = {
    "server/discover": (60_000, "public"),
    "tools/list": (5_000, "public"),
    "prompts/list": (5_000, "public"),
    "resources/list": (5_000, "public"),
    "resources/templates/list": (5_000, "public"),
    "resources/read": (0, "private"),
}


class Server:
    """An MCP server made of functions.

    What is offered may change at any time and from any thread; whoever listens is told. But only those kinds are
    announced of which something is there when a client comes: a server that will have prompts should have one from
    the start.

    Args:
        name: how it calls itself to clients; not shown to people if there is a title.
        instructions: how its tools are best used, for the model.
        page_size: how many definitions one page of a list holds.
        icons: such as `{"src": "https://…", "mimeType": "image/png"}`.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "0",
        title: str | None = None,
        instructions: str | None = None,
        page_size: int = 50,
        description: str | None = None,
        website_url: str | None = None,
        icons: Sequence[Mapping[str, object]] | None = None,
    ) -> None:
        self.name = name
        self._instructions = instructions
        self._info = members(
            name=name, version=version, title=title, description=description, website_url=website_url, icons=icons
        )
        # Most results only say who speaks; who wants to know more discovers it.
        self._speaker = members(name=name, version=version)
        self._offer = Offer(page_size)

    # ------------------------------------------------------------------------------------------------- for its author

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
    def tool(self, function: F | None = None, /, **options: Unpack[ToolOptions]) -> F | Callable[[F], F]:
        """Offer a function as a tool: `@server.tool`, or with options as `ToolOptions` has them. It stays as it is."""

        def offer(function: F) -> F:
            self.add_tool(function, **options)
            return function

        return offer if function is None else offer(_function("tool", function))

    def resource(self, uri: str, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Offer what a function returns as a resource; with `{variables}` in the URI, as many resources."""
        if not isinstance(uri, str):  # pyright: ignore[reportUnnecessaryIsInstance] - the easiest mistake to make
            raise TypeError('a resource needs its URI: @server.resource("scheme://path")')

        def offer(function: F) -> F:
            self.add_resource(uri, function, **options)
            return function

        return offer

    @overload
    def prompt(self, function: F, /) -> F: ...
    @overload
    def prompt(self, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
    def prompt(self, function: F | None = None, /, **options: Unpack[PromptOptions]) -> F | Callable[[F], F]:
        """Offer the messages that a function returns as a prompt: `@server.prompt`, or with options."""

        def offer(function: F) -> F:
            self.add_prompt(function, **options)
            return function

        return offer if function is None else offer(_function("prompt", function))

    def complete(self, reference: str, argument: str) -> Callable[[F], F]:
        """Offer values for an argument of a prompt (by its name) or for a variable of a URI template (by the template).

        The function gets the text typed so far and, if it takes two, the other arguments; it returns a list of strings.
        """

        def offer(function: F) -> F:
            self._offer.add_completer(reference, argument, Completer(function))
            return function

        return offer

    def add_tool(self, function: Callable[..., object], **options: Unpack[ToolOptions]) -> None:
        """Offer a function as a tool, also while serving.

        Raises:
            TypeError: its signature or a schema cannot be described.
            ValueError: there is a tool of that name already, or it is no name for a tool.
        """
        self._offer.add_tool(Tool(function, options))

    def remove_tool(self, name: str) -> None:
        """Offer the tool no more; calls under way go on. Raises KeyError if there is none."""
        self._offer.remove_tool(name)

    def add_resource(self, uri: str, function: Callable[..., object], **options: Unpack[ResourceOptions]) -> None:
        """Offer what a function returns as a resource, also while serving.

        Raises:
            TypeError: its parameters are not the variables of the URI.
            ValueError: there is such a resource already, or the template cannot be read.
        """
        self._offer.add_resource(Resource(uri, function, options))

    def remove_resource(self, uri: str) -> None:
        """Offer the URI or template no more. Raises KeyError if there is none."""
        self._offer.remove_resource(uri)

    def resource_updated(self, uri: str) -> None:
        """Tell those who listen to this resource, or to one whose path it extends, that it changed."""
        self._offer.resource_updated(uri)

    def add_prompt(self, function: Callable[..., object], **options: Unpack[PromptOptions]) -> None:
        """Offer the messages that a function returns as a prompt, also while serving.

        Raises:
            TypeError: its signature cannot be described.
            ValueError: there is a prompt of that name already.
        """
        self._offer.add_prompt(Prompt(function, options))

    def remove_prompt(self, name: str) -> None:
        """Offer the prompt no more. Raises KeyError if there is none."""
        self._offer.remove_prompt(name)

    def close(self) -> None:
        """End all subscriptions, in order: each gets its result."""
        self._offer.close()

    # ------------------------------------------------------------------------------------------------ for who asks it

    def connect(self, host: Host) -> AbstractAsyncContextManager[Connection]:
        """The server itself: it needs no connection, and learns of its client with every request."""
        return nullcontext(self)

    @property
    def discovery(self) -> Discovery:
        """What the server says of itself now."""
        return Discovery(LATEST_VERSION, self._offer.capabilities, dict(self._info), self._instructions)

    async def __call__(self, exchange: Exchange) -> Reply:
        """The reply to an exchange.

        Raises:
            SluicegateError: what kept it from being answered, with the code of the JSON-RPC error to answer with.
        """
        try:
            value = self._discover() if exchange.method == "server/discover" else await self._offer.answer(exchange)
        except InputRefused as refusal:
            return refused_reply(exchange.method, refusal)
        # As `complete` has it, which would copy all of it once more.
        value = {"resultType": "complete", "_meta": {SERVER_INFO_KEY: self._speaker}, **value}
        if exchange.method in _CACHE:
            value["ttlMs"], value["cacheScope"] = _CACHE[exchange.method]
        return Result(value)

    async def wait_closed(self) -> None:
        """Never return: what is in this very process has no connection to lose."""
        await forever()

    def _discover(self) -> Params:
        value: Params = {
            "supportedVersions": list(SUPPORTED_VERSIONS),
            "capabilities": self._offer.capabilities,
            "_meta": {SERVER_INFO_KEY: dict(self._info)},
        }
        return value if self._instructions is None else value | {"instructions": self._instructions}


def _function(kind: str, function: F) -> F:
    if not callable(function):
        raise TypeError(f"@server.{kind} takes a function; a name is given as @server.{kind}(name=...)")
    return function
