"""The contract all rooms share: `Exchange`, one request; `Handler`, which answers it; `Step`, which stands in front.

The return value is the final reply; notifications before it go out with `exchange.emit`; a question to the client is
`exchange.request_input`. The sink knows how they are sent, so upstreams and activations are independent of the client's
era and transport.
"""

import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import count
from typing import Final, Literal, Protocol, runtime_checkable

import msgspec

from sluicegate.errors import ErrorObject, InputRefused, Refused, SluicegateError, UpstreamError, error_object
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, Reply
from sluicegate.protocol.methods import METHODS
from sluicegate.protocol.modern_era import ClientProfile, Discovery
from sluicegate.runtime.clients import Clients
from sluicegate.store.base import ApprovalAnswer, Coverage

log: Final = logging.getLogger("sluicegate")


class Caller(msgspec.Struct, frozen=True):
    """The identity behind a request. On a pipe that is the one local user."""

    id: str = "local"
    groups: tuple[str, ...] = ()
    """The groups it belongs to; rules name them as `group:NAME`."""


NETWORK: Final = Caller("network")
"""All clients on other machines, as long as nothing authenticates them. It is not asked and gets no grants (T38)."""


class Target(msgspec.Struct, frozen=True):
    """The target of a request, by its server's own names. Rules judge it, and the audit log records it."""

    server: str
    """The key of the server."""
    kind: Literal["tool", "prompt", "resource", "instructions", "method"]
    """"method" for requests of extensions that name none of the others."""
    name: str
    """The server's own name of it, its URI, or the method; empty for the server's instructions."""
    definition: str = ""
    """The digest of its definition; empty for a resource that no list has."""
    salient: str = ""
    """The argument that says most about a call of this tool, such as `path` or `command`; empty if there is none."""
    origin: str = ""
    """A digest of the server's command or URL: an answer about one server does not cover another of its name."""

    def __str__(self) -> str:
        """As a rule writes it."""
        return f"mcp__{self.server}__{self.name.removeprefix(f'{self.server}.')}"


Action = Literal["allow", "deny", "ask"]


class Verdict(msgspec.Struct, frozen=True):
    """The decision of the rules about one request."""

    action: Action
    rule: str = ""
    """The place of the rule, as FILE:LINE; empty if no rule matched."""
    why: str = ""
    """The rule's reason, for the model."""
    records_values: bool = False
    """Whether the audit log keeps the values of the arguments."""
    needs_client: bool = False
    """Whether a call for which a person is asked is refused if its own client cannot be asked."""


# Awaitable rather than `async def`: an implementation that only forwards needs no coroutine of its own.


class Sink(Protocol):
    """The way back to the client while a request is being answered."""

    def emit(self, notification: Notification) -> Awaitable[None]:
        """Send a notification before the reply; waits while the client is slow."""
        ...

    def ask(self, questions: Questions) -> Awaitable[Answers]:
        """The client's answers, under the keys of the questions.

        Raises:
            InputRefused: the client cannot or will not answer one of them, or did not answer in time.
        """
        ...


class Nobody:
    """The sink of an exchange without a client: an exchange of our own, or one that has been answered."""

    async def emit(self, notification: Notification) -> None:
        """Drop it."""

    async def ask(self, questions: Questions) -> Answers:
        """Refuse."""
        raise InputRefused("There is no client to ask.")


NOBODY: Final[Sink] = Nobody()
_tokens: Final = count(1)


# A Struct, though it is never encoded: creating one takes half the time of a dataclass, and defining a dataclass takes
# half a millisecond at import.
class Exchange(msgspec.Struct):
    """One request in the shape of 2026-07-28, with its caller and the way back to the client."""

    method: str
    params: Params
    sink: Sink
    profile: ClientProfile = ClientProfile()
    caller: Caller = Caller()
    headers: Callable[[str], Sequence[str]] | None = None
    """Returns all values of a header of the HTTP request; None without one. Not passed on by a hub."""
    end_response_early: Callable[[], None] | None = None
    """Ends the HTTP response before the reply, if the client can resume it later."""
    resume: "Callable[[Exchange], Awaitable[Reply]] | None" = None
    """Set on a retry with answers for a call in progress: attaches the retry to that call.

    A retry passes the steps like any other exchange; `Chain` then calls this in place of the handler.
    """
    is_continued: bool = False
    """Whether this is a later round of a request that has already run. It must not be refused as if it were new."""
    is_extension: bool = False
    """Whether its method belongs to an extension that a server declares, and is unknown to us."""
    repetition: "Repetition | None" = None
    """Set on each request of a poll, by this process only. Rules that deny still hold."""
    router: object = None
    """The router that it passed last, which has the view of its caller. Tools that act for their caller use it."""
    target: Target | None = None
    """The target of the request; set by the router before the steps in front of the server."""
    verdict: Verdict | None = None
    """The decision of the rules; set by the policy step."""
    send: "Handler | None" = None
    """Sends it to its server; set by the router before the steps in front of the server."""
    original: Params | None = None
    """Its params as the client sent them, if a person has changed the arguments. Those in `params` are sent."""
    answer: ApprovalAnswer | Refused | Coverage | None = None
    """What the program around this gateway says about a call for which a person is asked, or why it is not asked."""
    request_id: str = ""
    """The id of the request in the audit log; set by the audit step."""
    max_result: int | None = None
    """Bytes that its server may send, with all that comes before the reply; set by the step for sizes."""
    state: object = None
    """The value that the lifespan of the answering `Server` yielded."""
    accepts_events: bool = False
    """Whether the client accepts an event stream as the answer, and may get progress that it did not ask for."""

    @property
    def name(self) -> str | None:
        """The tool, prompt or URI that the request is about, if its method names one."""
        row = METHODS.get(self.method)
        if row is None or row.target is None:
            return None
        target = self.params.get(row.target)
        return target if isinstance(target, str) else None

    def offer_progress(self) -> None:
        """Give the request of a tool that streams a progress token of ours, if its client gave none and accepts events.

        Clients that do not know the token ignore the progress. It is a string, since clients count theirs.
        """
        if self.accepts_events and self.profile.progress_token is None:
            token = f"sluicegate-{next(_tokens)}"
            self.profile = msgspec.structs.replace(self.profile, progress_token=token)

    # Both return the awaitable of the sink: a coroutine of their own would only cost time.

    def emit(self, notification: Notification) -> Awaitable[None]:
        """Send a notification before the reply."""
        return self.sink.emit(notification)

    def request_input(self, questions: Questions) -> Awaitable[Answers]:
        """Ask the client during the request, and wait for its answers."""
        return self.sink.ask(questions)

    def again(self, params: Params) -> "Exchange":
        """A new exchange for the next round of a request that was asked for input: the same, with other params."""
        early = self.end_response_early
        return Exchange(
            self.method,
            params,
            self.sink,
            self.profile,
            self.caller,
            self.headers,
            early,
            is_continued=True,
            router=self.router,
        )


class Repetition(msgspec.Struct, eq=False):
    """What is said about a request that is made again and again, and whether a person has said yes to that."""

    name: str
    """By which the audit log names it, such as `poll k3f9qa`."""
    about: str
    """The interval, the number and the end, as the person sees them."""
    ends: float
    """When a yes ends, on the monotonic clock."""
    approved: str = ""
    """What the yes covers: the digest of a request that is equal in all that the person saw."""


Handler = Callable[[Exchange], Awaitable[Reply]]


DescribeTool = Callable[[Caller, str], msgspec.Raw | Params | None]
"""The definition of a tool by its listed name: the same object until it changes. None if the caller cannot use it.

A handler that knows its tools has this as `describe_tool`, so that calling one by another name needs no `tools/list`.
Steps are not asked: they see the call itself.
"""


def _describe_nothing(caller: Caller, name: str) -> None:
    return None


async def answer(handler: Handler, exchange: Exchange) -> Reply:
    """The handler's reply, or the error that its exception stands for. Every request of a client is answered here."""
    try:
        return await handler(exchange)
    except Exception as problem:  # Handlers run code of others, which may raise anything (R34).
        return failed(exchange, problem)


def failed(exchange: Exchange, problem: Exception) -> ErrorObject:
    """The reply to an exchange that raised; an exception that is not one of ours is logged."""
    if not isinstance(problem, SluicegateError):
        log.error("%s failed", exchange.method, exc_info=problem)
    return error_object(problem)


class Step(Protocol):
    """A callable in front of a handler: calls `proceed`, or answers itself."""

    def __call__(self, exchange: Exchange, proceed: Handler) -> Awaitable[Reply]:
        """The reply of `proceed`, or another one."""
        ...


BEING_REVIEWED: Final = "Its definition is being reviewed; try again in a moment."
"""Why a definition may not be used before the governor has decided on it."""


class Governor(Protocol):
    """Stands in front of every server of a hub, and decides what each caller sees.

    A decision holds for one `version` and one definition of the target. If either has changed when the request is
    about to be sent, the hub asks for another decision.
    """

    @property
    def version(self) -> object:
        """Changes whenever the rules do."""
        ...

    @property
    def decide(self) -> Handler:
        """Returns the reply of `exchange.send`, or a refusal. The exchange has its target."""
        ...

    @property
    def can_hide(self) -> bool:
        """Whether some callers may not see everything."""
        ...

    @property
    def allows_unlisted(self) -> bool:
        """Whether tools may be called that no list has, and that could not be judged by their names."""
        ...

    def class_of(self, caller: Caller) -> Hashable:
        """Equal for callers that see the same; None if they see everything."""
        ...

    def hides(self, caller: Caller, target: Target) -> bool:
        """Whether a caller may never use the target: then it is not listed, and unknown when called."""
        ...

    def review(self, definitions: Mapping[Target, Params]) -> Awaitable[Mapping[Target, str]]:
        """The definitions that may not be used until a person has approved them, each with the reason."""
        ...

    def reviewed(self, definitions: Mapping[Target, Params]) -> Mapping[Target, str]:
        """What `review` decided; those that it has not decided on are `BEING_REVIEWED`. Never waits."""
        ...


def _ignore(*_: object) -> None:
    pass


def _resume(exchange: Exchange) -> Awaitable[Reply]:
    if exchange.resume is None:
        raise RuntimeError("only retries come here")
    return exchange.resume(exchange)


def send(exchange: Exchange) -> Awaitable[Reply]:
    """The reply of the server: the handler behind the steps of a governor."""
    if exchange.send is None:
        raise RuntimeError("the router sets it")
    return exchange.send(exchange)


def behind(steps: Sequence[Step], handler: Handler) -> Handler:
    """The handler with the steps in front of it, for exchanges that are not retries."""
    for step in reversed(steps):
        handler = partial(step, proceed=handler)
    return handler


class Chain:
    """A handler with steps in front of it. Retries pass the same steps and then go to the call that they continue."""

    __slots__ = ("_calls", "_retries", "clients", "describe_tool", "on_refused")

    def __init__(
        self,
        steps: Sequence[Step],
        handler: Handler,
        on_refused: Callable[[str, str], None] | None = None,
        clients: Clients | None = None,
    ) -> None:
        is_chain = isinstance(handler, Chain)
        self.clients = clients or (handler.clients if is_chain else Clients())
        """The clients that come by this handler."""
        self.on_refused = on_refused or (handler.on_refused if is_chain else _ignore)
        """Called by a pipe, with a reason and the caller's id, when it refuses a message that has no exchange yet."""
        self.describe_tool: DescribeTool = getattr(handler, "describe_tool", _describe_nothing)
        self._calls = behind(steps, handler._calls if is_chain else handler)
        self._retries = behind(steps, handler._retries if is_chain else _resume)

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        """The reply of the first step that answers, of the handler, or of the call that a retry continues."""
        return self._calls(exchange) if exchange.resume is None else self._retries(exchange)

    def prepend(self, step: Step) -> None:
        """Put one more step in front of all others, for exchanges from now on. Chains around this one lack it."""
        self._calls, self._retries = behind((step,), self._calls), behind((step,), self._retries)


def chain(
    steps: Sequence[Step],
    handler: Handler,
    on_refused: Callable[[str, str], None] | None = None,
    clients: Clients | None = None,
) -> Chain:
    """Put the steps around the handler, the first one outermost. Done once, when the gateway is built."""
    return Chain(steps, handler, on_refused, clients)


def accepting_retries(handler: Handler) -> Chain:
    """The handler itself if it is a chain, else one without steps: for edges that make retries."""
    return handler if isinstance(handler, Chain) else Chain((), handler)


class Host(msgspec.Struct):
    """The client side of a connection: its capabilities, and callbacks for events that belong to no exchange."""

    capabilities: Mapping[str, object]
    client_info: Mapping[str, object]
    sink: Sink
    on_unreachable: Callable[[UpstreamError | None], None] = _ignore
    """Called with the problem when the connection notices that the server is unreachable, with None once it is back."""
    on_session_lost: Callable[[], None] = _ignore
    """Called when the server lost our session and has a new one: its lists may have changed."""
    on_loss: Callable[[str], None] = _ignore
    """Counts what could not be passed on unchanged, by a description."""
    is_shared: bool = False
    """Whether its exchanges belong to several callers, which must not see each other's data."""
    on_sign_of_life: Callable[[], None] = _ignore
    """Called for all that the server sends except replies, which show by themselves that it does not hang."""


class Connection(Protocol):
    """A connected server: a `Handler` that knows its capabilities."""

    @property
    def discovery(self) -> Discovery:
        """The version, capabilities and instructions of the server."""
        ...

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        """The reply to an exchange."""
        ...

    async def wait_closed(self) -> None:
        """Return when the connection is closed; never without one."""
        ...


@runtime_checkable
class Carried(Protocol):
    """A connection whose upstream had to detect the transport."""

    @property
    def transport(self) -> str:
        """The transport, named as `type` in .mcp.json."""
        ...


@runtime_checkable
class WithSession(Protocol):
    """A connection in 2026-07-28 that may call tools in a session, for session-era callers."""

    @property
    def session_version(self) -> str:
        """The revision of the session; empty while there is none."""
        ...


class Upstream(Protocol):
    """Something that can be connected to: a child process, a URL, a server in this process."""

    def connect(self, host: Host) -> AbstractAsyncContextManager[Connection]:
        """A connection for as long as the `async with` lasts."""
        ...
