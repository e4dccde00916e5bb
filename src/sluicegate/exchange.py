"""The contract all rooms share: one request and all that answers it, and the two callables that meet it.

Everything that answers is a `Handler`; everything that stands in its way is a `Step`. The return value is the final
reply; what comes before it goes out with `exchange.emit`; a question to the client is `exchange.request_input`. How
either leaves is the sink's business, so that upstreams and activations never know which era or transport the client
speaks.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, Protocol, runtime_checkable

import msgspec

from sluicegate.errors import InputRefused, UpstreamError
from sluicegate.protocol.discovery import Discovery
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, Reply
from sluicegate.protocol.methods import METHODS
from sluicegate.protocol.modern import Profile


class Caller(msgspec.Struct, frozen=True):
    """Who asks. On a pipe that is the one local user."""

    id: str = "local"


# Awaitable rather than `async def`: whoever only hands on to another need not make a coroutine of its own.


class Sink(Protocol):
    """The way back to the client while a request is being answered."""

    def emit(self, notification: Notification) -> Awaitable[None]:
        """Send a notification ahead of the reply; waits while the client is slow."""
        ...

    def ask(self, questions: Questions) -> Awaitable[Answers]:
        """The client's answers, under the keys of the questions.

        Raises:
            InputRefused: the client cannot or will not answer one of them, or nobody came back in time.
        """
        ...


class Nobody:
    """The sink of an exchange of our own making, or of one that has been answered: there is nobody to tell or ask."""

    async def emit(self, notification: Notification) -> None:
        """Drop it."""

    async def ask(self, questions: Questions) -> Answers:
        """Refuse."""
        raise InputRefused("Nobody is there to be asked.")


NOBODY: Final[Sink] = Nobody()


# A Struct, though nothing of it is ever on a wire: one is made for every request, which takes half the time of a
# dataclass, and to define a dataclass takes half a millisecond of everybody's import.
class Exchange(msgspec.Struct):
    """One request on its way, in the shape of 2026-07-28: what is wanted, by whom, and the way back."""

    method: str
    params: Params
    sink: Sink
    profile: Profile = Profile()
    caller: Caller = Caller()
    headers: Callable[[str], Sequence[str]] | None = None
    """All values of a header of the HTTP request that brought it, where one did; for those who must compare them."""
    let_go: Callable[[], None] | None = None
    """Ends the HTTP response that waits for the reply, where the client will come back for the rest of it."""

    @property
    def name(self) -> str | None:
        """The tool, prompt or URI that the request is about, if its method names one."""
        row = METHODS.get(self.method)
        if row is None or row.target is None:
            return None
        target = self.params.get(row.target)
        return target if isinstance(target, str) else None

    # Both hand on what is to be awaited: a coroutine of their own would do nothing but cost.

    def emit(self, notification: Notification) -> Awaitable[None]:
        """Send a notification ahead of the reply."""
        return self.sink.emit(notification)

    def request_input(self, questions: Questions) -> Awaitable[Answers]:
        """Ask the client something in the middle of the request, and wait for its answers."""
        return self.sink.ask(questions)

    def again(self, params: Params) -> "Exchange":
        """The same exchange with other params: the next round of a request that was asked for input."""
        return Exchange(self.method, params, self.sink, self.profile, self.caller, self.headers, self.let_go)


Handler = Callable[[Exchange], Awaitable[Reply]]
Step = Callable[[Exchange, Handler], Awaitable[Reply]]


def _step_into(step: Step, proceed: Handler, exchange: Exchange) -> Awaitable[Reply]:
    return step(exchange, proceed)


def chain(steps: Sequence[Step], handler: Handler) -> Handler:
    """Put the steps around the handler, the first one outermost. Done once, when the gateway is built."""
    for step in reversed(steps):
        handler = partial(_step_into, step, handler)
    return handler


def _ignore(*_: object) -> None:
    pass


class Host(msgspec.Struct):
    """The asking side of a connection: what it can be asked, and where things go that belong to no exchange."""

    capabilities: Mapping[str, object]
    client_info: Mapping[str, object]
    sink: Sink
    noticed: Callable[[UpstreamError | None], None] = _ignore
    """Hears why the server cannot be reached, or None once it can, where that shows without its being asked."""
    renewed: Callable[[], None] = _ignore
    """Hears that the server has lost all it knew of us, and knows it again: what it offers may be something else."""
    lost: Callable[[str], None] = _ignore
    """Counts what could not be handed on as it was meant, by the words for it."""
    sinks_refuse: bool = False
    """Whether the sinks of its exchanges refuse by themselves what their callers did not say they can be asked."""


class Connection(Protocol):
    """A server that is ready to be asked: a `Handler` that knows what it offers."""

    @property
    def discovery(self) -> Discovery:
        """What the server said of itself."""
        ...

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        """The reply to an exchange."""
        ...

    async def wait_closed(self) -> None:
        """Return when the connection is of no more use; one that needs no connection never returns."""
        ...


@runtime_checkable
class Carried(Protocol):
    """A connection that says what carries it, where its upstream has to find out."""

    @property
    def transport(self) -> str:
        """The word for it, as `type` in .mcp.json has it."""
        ...


@runtime_checkable
class OfBothEras(Protocol):
    """A connection in 2026-07-28 to a server that may have a session for callers of the session era as well."""

    is_decided: bool
    """Whether there is no use in waiting for `decide`."""

    @property
    def session_version(self) -> str:
        """The revision that is spoken in the session; empty if there is none."""
        ...

    async def decide(self) -> None:
        """Find out whether there is a session, and which tools it has."""
        ...

    def session_for(self, tool: object) -> Connection | None:
        """The session, if there is one that has this tool."""
        ...

    def do_without(self, session: Connection) -> None:
        """Learn that the session is of no use; after a while another is asked for."""
        ...


class Upstream(Protocol):
    """Something that can be connected to: a child process, a URL, a server in this very process."""

    def connect(self, host: Host) -> AbstractAsyncContextManager[Connection]:
        """A connection for as long as the `async with` lasts."""
        ...
