"""The calls to one server: within its limits and their time, counted, and made again where that does no harm (R1, R12).

The one rule: what nearly every call needs stands in one coroutine, and all else beside it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from fnmatch import fnmatchcase
from functools import partial
from time import monotonic
from typing import Final, Protocol

import msgspec

from sluicegate.deadlines import Deadline, Deadlines, OutOfTime
from sluicegate.errors import (
    RemoteProtocolError,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from sluicegate.exchange import Caller, Connection, Exchange, Handler, OfBothEras, Sink
from sluicegate.hub.asking_rights import AskingRights
from sluicegate.hub.condition import out_of_reach
from sluicegate.hub.losses import revision_of
from sluicegate.hub.places import Places
from sluicegate.hub.plan import Circuit, is_away, is_undelivered
from sluicegate.hub.relay import Relay
from sluicegate.hub.replies import says_error
from sluicegate.hub.roots import RootsAnswered
from sluicegate.hub.tasks import Tasks, Wanted
from sluicegate.hub.treatment import Figures, MountSettings
from sluicegate.protocol.input_required import may_have_two_types
from sluicegate.protocol.message import Params, Reply, Result, opened
from sluicegate.protocol.modern import Profile
from sluicegate.protocol.tasks import may_have_tasks, without_tasks
from sluicegate.protocol.translate import with_mark
from sluicegate.protocol.translate_content import without

# What we say to servers of the session era, once for all callers: a connection outlives any of them. Whether the
# caller at hand can be asked is looked at when a question comes. Roots are left out: many a server would take them in
# place of the folders that its command line names. (One that asks for them all the same, in a call, may be told.) So is
# the context of a sampling question: the servers of a gateway are not the client's.
ASKABLE: Final[Mapping[str, object]] = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}}

_COMMON: Final = ("complete", "input_required")
"""The types of results that need no extension."""

_ACTING: Final = frozenset({"tools/call", "tasks/update"})
"""What does something each time it is asked for; all else may be asked for twice."""


class Server(Protocol):
    """The mount, as its calls need it."""

    calls: "Calls"

    @property
    def connection(self) -> Connection | None: ...
    @property
    def latest(self) -> "Server": ...
    async def wait_until_ready(self) -> Connection: ...
    def lose(self, connection: Connection) -> None: ...
    def begin_anew(self, connection: Connection) -> None: ...


def askable(settings: MountSettings) -> Mapping[str, object]:
    """What a server of the session era is told that it may ask."""
    return {**ASKABLE, "roots": {}} if settings.roots else ASKABLE


class Calls:
    """All calls of one mount."""

    def __init__(self, name: str, server: Server, settings: MountSettings) -> None:
        self.figures = Figures()
        self.losses: Counter[str] = Counter()
        """What a bridge could not preserve, and how often (protocol §8)."""
        self.places = Places(name, settings.concurrency, settings.queue, settings.queue_wait)
        self.circuit = Circuit()
        self.callers: set[str] = set()
        """Who has asked it anything, in the session era; of more than one, two."""
        self.is_session_era = False
        """Of which era the server is."""
        self.of_both_eras: OfBothEras | None = None
        """The connection, if the server may be of the other era, too."""
        self.settings = settings
        self.tasks = Tasks(name, self.lost)
        self._name = name
        self._server = server
        self._deadlines = Deadlines()

    def adjust(self, settings: MountSettings) -> None:
        """Treat calls in another way from now on; those under way go on as they began."""
        self.settings = settings
        self.places.adjust(settings.concurrency, settings.queue, settings.queue_wait)

    @property
    def may_be_in_session(self) -> bool:
        """Whether any call may be made in a session."""
        return self.is_session_era or self.of_both_eras is not None

    def know_caller(self, caller: Caller) -> None:
        """Learn that the server may speak of what somebody wants of it."""
        if len(self.callers) < 2:
            self.callers.add(caller.id)

    def lost(self, what: str) -> None:
        """Count something that could not be handed to anybody."""
        self.losses[what] += 1

    def count(self, reply: Reply) -> None:
        """Count a call as failed whose tool says so in its result; one that was answered by an error is already."""
        if isinstance(reply, Result) and says_error(reply):
            self.figures.errors += 1

    async def make(self, exchange: Exchange, params: Params, check: Callable[[], None] | None = None) -> Reply:
        """As `ask`, with what `typed` makes of the reply."""
        return self.typed(await self.ask(exchange, params, check))

    def ask(
        self, exchange: Exchange, params: Params, check: Callable[[], None] | None = None
    ) -> Coroutine[object, object, Reply]:
        """The server's reply to an exchange whose params are in its own words, as it came.

        Args:
            check: raises if it may not be sent any more; asked when it is, for it may have waited.

        Raises:
            UpstreamError: it cannot be asked, went away, took too long or answered something else.
            LimitExceeded: too many wait for it already.
        """
        connection = self._server.connection
        if connection is not None and self.circuit.is_calm:
            return self._ask(exchange, params, connection, check)
        return self._ask_when_possible(exchange, params, check)

    def typed(self, reply: Reply) -> Reply:
        """A reply with the `resultType` that some servers leave out and clients of 2026-07-28 may insist on.

        One of a type that not everybody knows is opened, for it does not pass unseen.

        Raises:
            UpstreamProtocolError: it cannot be read.
        """
        if not isinstance(reply, Result) or not isinstance(reply.value, msgspec.Raw):
            return reply
        if reply.words is not None:
            return with_mark(reply, reply.words)
        try:
            return _typed(self._name, reply.value)
        except UpstreamProtocolError:
            self.figures.errors += 1
            raise

    async def _ask_when_possible(
        self, exchange: Exchange, params: Params, check: Callable[[], None] | None, before: Deadline | None = None
    ) -> Reply:
        """The reply of a server that is away, or failed of late: then one call at a time finds out how it is."""
        connection = self._server.connection or await self._server.wait_until_ready()
        if connection is not self._server.connection:  # Another has taken its place, of another era perhaps.
            return await self._server.latest.calls._ask_when_possible(exchange, params, check, before)
        circuit = self.circuit
        if not circuit.is_open:
            return await self._ask(exchange, params, connection, check, before)
        if not circuit.admit(now := monotonic()):
            trouble = out_of_reach(self._name, circuit, self.settings.explain, now)
            assert trouble is not None  # What is refused has failed before.
            raise UpstreamUnavailable(trouble.sentence)
        try:
            return await self._ask(exchange, params, connection, check, before)
        except UpstreamError as problem:
            if is_away(problem):
                if not is_undelivered(problem):
                    self._failed(problem, connection)
                # It may come back as another: its era and its lists are found out anew. Not while others' calls are
                # under way, which would end with the connection and show by themselves how it is.
                if not self.places.taken:
                    self._server.begin_anew(connection)
            raise
        finally:
            circuit.gave_up()  # Whatever came of it: somebody else may try, once it is time.

    async def _ask(
        self,
        exchange: Exchange,
        params: Params,
        connection: Connection,
        check: Callable[[], None] | None,
        before: Deadline | None = None,
    ) -> Reply:
        """One call; where it has come to nothing `before`, it has what is left of its time, and is not made again."""
        places, figures, settings = self.places, self.figures, self.settings
        profile = exchange.profile
        revision = revision_of(profile.version)
        session = connection if self.is_session_era else None
        if not places.take_now():
            await places.take()
        figures.calls += 1
        began = monotonic()
        if (both := self.of_both_eras) is not None:
            if len(self.callers) < 2:
                self.know_caller(exchange.caller)
            if not revision.modern and _may_change_era(exchange, params):
                if not both.is_decided:
                    await self._decide(both)
                session = both.session_for(params.get("name"))
        seconds = settings.timeout_of(exchange.method, params) if settings.tool_timeouts else settings.timeout
        # A server of the session era asks what it was told that can be asked; its relay looks whether this caller can.
        relay = (Relay if session is None else AskingRights)(
            self._deadlines,
            seconds,
            began + seconds,
            began + settings.longest_call,
            sink=exchange.sink,
            capabilities=profile.capabilities,
            revision=revision,
            label=settings.prefix,
            lost=self.lost,
        )
        if before is not None:
            relay.go_on(before)
        try:
            if check is not None:
                check()
            with relay:
                if session is not None:
                    reply = await self._ask_session(exchange, params, session, relay)
                else:
                    if "extensions" in profile.capabilities:
                        profile = _told_of_tasks(profile, connection)
                    reply = await connection(
                        Exchange(exchange.method, params, relay, profile, exchange.caller, None, exchange.let_go)
                    )
            if not self.circuit.is_calm:
                self.circuit.succeeded(monotonic())
            if isinstance(relay, AskingRights) and relay.lacking is not None:
                reply = relay.judged(reply)
            if type(reply) is not Result:
                figures.errors += 1
            return reply
        except UpstreamError as problem:
            figures.errors += 1
            if both is not None and session is not None and _is_without_session(problem):
                both.do_without(session)  # Which says nothing of the server: it is asked in the other era from now on.
            else:
                await self._note(problem, connection)
            if before is not None or not self._may_make_again(exchange, params, problem):
                raise _in_doubt(exchange, problem) from problem.__cause__
        except OutOfTime:
            figures.errors += 1
            raise _in_doubt(exchange, self._missed(relay)) from None
        finally:
            figures.seconds += monotonic() - began
            places.free()
        return await self._ask_when_possible(exchange, params, check, relay)

    async def _decide(self, both: OfBothEras) -> None:
        """Wait until it is known whether a server has a session, in the place of a call that waits for that."""
        try:
            await both.decide()
        except BaseException:  # Handed on, a cancellation mostly: but the call is over.
            self.places.free()
            raise

    def _ask_session(
        self, exchange: Exchange, params: Params, connection: Connection, relay: Relay
    ) -> Awaitable[Reply]:
        """The reply of a server of the session era, which is told the same of every caller."""
        settings = self.settings
        self.know_caller(exchange.caller)
        sink: Sink = relay
        ask: Handler = connection
        profile = exchange.profile
        if settings.roots:
            # Asked in the middle of a call, it is told the same folders as at any other time.
            sink = RootsAnswered(relay, settings.roots)
            profile = msgspec.structs.replace(profile, capabilities={**profile.capabilities, "roots": {}})
        if "task" in params:
            if isinstance(params["task"], Wanted):
                ask = partial(self.tasks.run, connection, relay)
            else:
                # We say of no tool that it can be a task; who is not told so and wants one all the same has a plain
                # call, and not the ticket that a server would give (§3.8).
                params = without(params, ("task",))
        return ask(Exchange(exchange.method, params, sink, profile, exchange.caller, None, exchange.let_go))

    async def _note(self, problem: UpstreamError, connection: Connection) -> None:
        if isinstance(problem, UpstreamClosed) and await is_closed(connection):
            self._server.lose(connection)
        if is_undelivered(problem):
            self._failed(problem, connection)
        elif "status" in problem.data:
            # It refused this request, and may answer any other. That it does not let us in is shown all the same.
            self.circuit.succeeded(now := monotonic())
            if problem.reason == "backend_auth" and connection is self._server.connection:
                self.circuit.unreachable(problem, now)

    def _failed(self, problem: UpstreamError, connection: Connection) -> None:
        if connection is self._server.connection:  # Else it says nothing of the one that is there now.
            self.circuit.failed(problem, monotonic())

    def _missed(self, relay: Relay) -> UpstreamTimeout:
        had = f"{relay.seconds:g} s"
        if relay.reached_its_end:
            had = f"{self.settings.longest_call:g} s, the most that is given to it"
        return UpstreamTimeout(f"{self._name} did not answer within {had}.")

    def _may_make_again(self, exchange: Exchange, params: Params, problem: UpstreamError) -> bool:
        """Whether a call that came to nothing may be made once more."""
        if not isinstance(problem, UpstreamClosed):
            return False
        if problem.delivered == "no" or exchange.method not in _ACTING:
            return True  # What is only read may be read again; of tools nobody but the operator knows.
        if exchange.method != "tools/call":
            return False
        name = str(params.get("name"))
        return any(fnmatchcase(name, tool) for tool in self.settings.resend)


def _may_change_era(exchange: Exchange, params: Params) -> bool:
    """Whether a request may be made in the era of its caller, where the server is of both.

    Not one that goes on with what was begun in 2026-07-28 because there was no session then.
    """
    return exchange.method == "tools/call" and "requestState" not in params and "inputResponses" not in params


def _is_without_session(problem: UpstreamError) -> bool:
    """Whether a call in a session was refused unseen, for there is none any more and no other to be had."""
    return isinstance(problem, UpstreamClosed) and problem.delivered == "no"


def _in_doubt(exchange: Exchange, problem: UpstreamError) -> UpstreamError:
    """The problem; of a call that may have run, in a sentence that says so: most clients show nothing but that."""
    if exchange.method not in _ACTING or problem.delivered != "unknown":
        return problem
    # Another one: whoever else waits for the same connection may have asked for something harmless. Without `__init__`,
    # of which nobody knows what it takes: upstreams may be anybody's.
    doubt = type(problem).__new__(type(problem), *problem.args)
    doubt.__dict__.update(problem.__dict__)
    doubt.message = f"{problem.message.rstrip('.')}; the call may have run."
    return doubt


async def is_closed(connection: Connection) -> bool:
    """Whether a connection is of no more use, as it says without being waited for."""
    try:
        async with asyncio.timeout(0):
            await connection.wait_closed()
    except TimeoutError:
        return False
    return True


class _Typed(msgspec.Struct):
    resultType: object = msgspec.UNSET  # noqa: N815 - the name on the wire


_decoder: Final = msgspec.json.Decoder(_Typed)


def _typed(name: str, raw: msgspec.Raw) -> Result:
    try:
        kind = _decoder.decode(raw).resultType
        if kind is msgspec.UNSET:
            rest = bytes(raw).lstrip()[1:]
            return Result(msgspec.Raw(b'{"resultType":"complete"%b%b' % (b"" if rest.lstrip() == b"}" else b",", rest)))
        return Result(raw) if kind in _COMMON and not may_have_two_types(raw) else Result(opened(Result(raw)))
    except RemoteProtocolError as problem:
        raise UpstreamProtocolError(f"{name}: {problem.message}") from None
    except (msgspec.DecodeError, RecursionError):
        raise UpstreamProtocolError(f"{name}: The answer's result cannot be decoded.") from None


def _told_of_tasks(profile: Profile, connection: Connection) -> Profile:
    """What a server is told of a caller: of tasks only where both know them.

    Else it might answer with a task that nobody could fetch: this caller, or anybody from this server.
    """
    if may_have_tasks(profile, connection.discovery):
        return profile
    return msgspec.structs.replace(profile, capabilities=without_tasks(profile.capabilities))
