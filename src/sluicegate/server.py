"""`Server`: an MCP server in this process, made of functions.

It is a `Handler`, and also the `Upstream` and the `Connection` to it, since there is nothing to open.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any, Final, Self, TypeVar, Unpack, cast, overload

from sluicegate.activations.catalog import ActivationCatalog
from sluicegate.activations.content import members
from sluicegate.activations.definitions import (
    Completer,
    PromptDefinition,
    PromptOptions,
    ResourceDefinition,
    ResourceOptions,
    ToolDefinition,
    ToolOptions,
)
from sluicegate.activations.namespaces import Extending, check_name, description_of, methods_of
from sluicegate.errors import ConfigError, InputRefused
from sluicegate.exchange import Caller, Connection, Exchange, Handler, Host, Step, chain
from sluicegate.protocol.message import Params, Reply, Result
from sluicegate.protocol.modern_era import SERVER_INFO_KEY, Discovery
from sluicegate.protocol.types import INNER_KEY
from sluicegate.protocol.versions import LATEST_VERSION, SUPPORTED_VERSIONS
from sluicegate.runtime.input_rounds import refused_reply
from sluicegate.runtime.task_scope import forever
from sluicegate.store.kept import KeptFiles

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# Cache lifetime and scope of results. Lists are the same for every caller, but may change, and clients without a
# subscription are not notified. The contents of a resource may depend on anything.
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

    Tools, resources and prompts may be added and removed at any time and from any thread; subscribed clients are
    notified. Only kinds that exist when a client connects are announced to it: a server that adds prompts later should
    have one from the start.

    Args:
        name: its name in the protocol; users see the title, if there is one.
        instructions: how to use its tools, for the model.
        page_size: the number of definitions in one page of a list.
        icons: such as `{"src": "https://…", "mimeType": "image/png"}`.
        lifespan: a function that gets the server and returns an async context manager, such as one made with
            `asynccontextmanager`. It is open while the server runs; functions get its value as `call.state`.
        steps: middleware for all requests, the first one outermost: `async def step(exchange, proceed)` returns
            `await proceed(exchange)`, or a reply of its own.
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
        lifespan: "Callable[[Server], AbstractAsyncContextManager[object]] | None" = None,
        steps: Sequence[Step] = (),
    ) -> None:
        self.name = name
        self._instructions = instructions
        self._info = members(
            name=name, version=version, title=title, description=description, website_url=website_url, icons=icons
        )
        # Most results contain only name and version; `server/discover` has the rest.
        self._speaker = members(name=name, version=version)
        self.inner: dict[str, str] = {}
        """The descriptions of namespaces of its tools, by name, as native clients know them."""
        self._catalog = ActivationCatalog(page_size, KeptFiles(server=name))
        self._lifespan = lifespan
        self._users = 0
        self._open = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._state: object = None
        self._handler: Handler = chain(steps, self._answer) if steps else self._answer

    # ----------------------------------------------------------------------------------------------------- registration

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
    def tool(self, function: F | None = None, /, **options: Unpack[ToolOptions]) -> F | Callable[[F], F]:
        """Add a function as a tool: `@server.tool`, or with the options of `ToolOptions`. Returns the function."""

        def offer(function: F) -> F:
            self.add_tool(function, **options)
            return function

        return offer if function is None else offer(_function("tool", function))

    def resource(self, uri: str, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Add a function as a resource, or as a template if the URI has `{variables}`."""
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
        """Add a function that returns messages as a prompt: `@server.prompt`, or with options."""

        def offer(function: F) -> F:
            self.add_prompt(function, **options)
            return function

        return offer if function is None else offer(_function("prompt", function))

    def complete(self, reference: str, argument: str) -> Callable[[F], F]:
        """Add a completer for an argument of a prompt (by its name) or a variable of a URI template (by the template).

        The function gets the text typed so far and, if it takes two, the other arguments; it returns a list of strings.
        """

        def offer(function: F) -> F:
            self._catalog.add_completer(reference, argument, Completer(function))
            return function

        return offer

    def add_tool(self, function: Callable[..., object], **options: Unpack[ToolOptions]) -> None:
        """Add a function as a tool, also while serving.

        Raises:
            TypeError: its signature or a schema cannot be described.
            ValueError: the name is taken or not valid.
        """
        self._catalog.add(ToolDefinition(function, options))

    def remove_tool(self, name: str) -> None:
        """Remove the tool; running calls continue. Raises KeyError if there is none."""
        self._catalog.remove("tools", name)

    def add_resource(self, uri: str, function: Callable[..., object], **options: Unpack[ResourceOptions]) -> None:
        """Add a function as a resource, also while serving.

        Raises:
            TypeError: its parameters are not the variables of the URI.
            ValueError: the URI is taken, or the template is invalid.
        """
        self._catalog.add(ResourceDefinition(uri, function, options))

    def remove_resource(self, uri: str) -> None:
        """Remove the resource or template. Raises KeyError if there is none."""
        self._catalog.remove("resources", uri)

    def resource_updated(self, uri: str) -> None:
        """Notify subscribers of this resource, or of one whose path it extends, that it changed."""
        self._catalog.resource_updated(uri)

    def add_prompt(self, function: Callable[..., object], **options: Unpack[PromptOptions]) -> None:
        """Add a function that returns messages as a prompt, also while serving.

        Raises:
            TypeError: its signature cannot be described.
            ValueError: the name is taken.
        """
        self._catalog.add(PromptDefinition(function, options))

    def remove_prompt(self, name: str) -> None:
        """Remove the prompt. Raises KeyError if there is none."""
        self._catalog.remove("prompts", name)

    def close(self) -> None:
        """End all subscriptions; each gets its result."""
        self._catalog.close()

    # ------------------------------------------------------------------------------------------------------- connection

    def connect(self, host: Host) -> AbstractAsyncContextManager[Connection]:
        """The server itself, while it runs: it needs no connection, since every request describes its client."""
        return nullcontext(self) if self._lifespan is None else self.running()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self]:
        """Keep the lifespan open. `run`, `connect` and hubs do this; it is opened once and closed after the last."""
        if self._lifespan is None:
            yield self
            return
        async with self._opening:
            if not self._users:
                self._state = await self._open.enter_async_context(self._lifespan(self))
            self._users += 1
        try:
            yield self
        finally:
            async with self._opening:
                self._users -= 1
                if not self._users:
                    self._state = None
                    await self._open.aclose()

    @property
    def discovery(self) -> Discovery:
        """The current capabilities, name, version and instructions."""
        return Discovery(LATEST_VERSION, self._catalog.capabilities, dict(self._info), self._instructions, self.inner)

    async def __call__(self, exchange: Exchange) -> Reply:
        """The reply to an exchange.

        Raises:
            ConfigError: the server has a lifespan and does not run.
            SluicegateError: the request failed; has the code of the JSON-RPC error.
        """
        if self._lifespan is not None:
            if not self._users:
                raise ConfigError("This Server has a lifespan that is not open; write `async with server.running():`.")
            exchange.state = self._state
        return await self._handler(exchange)

    def describe_tool(self, caller: Caller, name: str) -> Params | None:
        """The definition of the tool of this name."""
        return self._catalog.describe_tool(name)

    async def _answer(self, exchange: Exchange) -> Reply:
        try:
            value = self._discover() if exchange.method == "server/discover" else await self._catalog.answer(exchange)
        except InputRefused as refusal:
            return refused_reply(exchange.method, refusal)
        # The same as `complete`, without another copy.
        meta = {SERVER_INFO_KEY: self._speaker}
        if "_meta" in value:
            meta |= cast(Params, value["_meta"])
        value = {"resultType": "complete", **value, "_meta": meta}
        if exchange.method in _CACHE:
            value["ttlMs"], value["cacheScope"] = _CACHE[exchange.method]
        return Result(value, value["resultType"] == "complete")

    async def wait_closed(self) -> None:
        """Never returns: a server in this process has no connection to lose."""
        await forever()

    def _discover(self) -> Params:
        value: Params = {
            "supportedVersions": list(SUPPORTED_VERSIONS),
            "capabilities": self._catalog.capabilities,
            "_meta": {SERVER_INFO_KEY: dict(self._info), **({INNER_KEY: self.inner} if self.inner else {})},
        }
        return value if self._instructions is None else value | {"instructions": self._instructions}


def activation(namespace: str, *, version: str = "0") -> Callable[[type[T]], type[T]]:
    """Make the methods of a class the tools of a namespace: `hub.mount("solar", Solar())` offers `solar.watch`.

    Every public method is a tool; a generator answers with a stream of events. `children()` and `child(name)` add
    namespaces inside.

    Raises:
        ConfigError: the name is not valid, or the class has a method `connect`.
    """
    check_name(namespace)

    def mark(cls: type[T]) -> type[T]:
        if not isinstance(cls, type):  # pyright: ignore[reportUnnecessaryIsInstance] - the easiest mistake to make
            raise TypeError("@activation is for a class; make a function a tool with @server.tool")
        if hasattr(cls, "connect") and not hasattr(cls, NAMESPACE):
            raise ConfigError(f"{cls.__name__} has a method called connect, which @activation adds; rename it.")

        def connect(self: object, host: Host) -> AbstractAsyncContextManager[Connection]:
            return activated(namespace, self).connect(host)

        # An instance is an `Upstream`, so that it can be mounted and connected to like a server.
        setattr(cls, "connect", connect)  # noqa: B010 - not an attribute that type checkers know
        setattr(cls, NAMESPACE, namespace)  # noqa: B010
        setattr(cls, _VERSION, version)  # noqa: B010
        return cls

    return mark


NAMESPACE: Final = "__sluicegate_namespace__"
"""The attribute of classes that are activations."""
_VERSION: Final = "__sluicegate_version__"


def activated(namespace: str, thing: object, steps: Sequence[Step] = ()) -> Server:
    """A server with the methods of an object as its tools; `steps` are those of the server.

    An object that is an async context manager is open while the server runs. `extend(server)` may add resources and
    prompts.

    Raises:
        ConfigError: a name or a method cannot be used.
    """
    check_name(namespace)
    lifespan = cast(AbstractAsyncContextManager[object], thing) if hasattr(type(thing), "__aenter__") else None
    server = Server(
        namespace,
        version=getattr(thing, _VERSION, "0"),
        description=description_of(thing),
        page_size=getattr(thing, "page_size", 1000),
        lifespan=None if lifespan is None else lambda _: lifespan,
        steps=steps,
    )
    try:
        for name, method in methods_of(namespace, thing, server.inner):
            server.add_tool(method, name=name)
        if isinstance(thing, Extending):
            thing.extend(server)
    except (TypeError, ValueError) as problem:
        raise ConfigError(f"{namespace}: {problem}") from None
    return server


def _function(kind: str, function: F) -> F:
    if not callable(function):
        raise TypeError(f"@server.{kind} takes a function; set a name with @server.{kind}(name=...)")
    return function
