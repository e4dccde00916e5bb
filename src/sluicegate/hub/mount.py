"""A named server, kept alive: connected, watched, asked within limits, connected again (threats R1, R2, R6–R9, R12)."""

import asyncio
import enum
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from sluicegate.concurrency import TaskScope
from sluicegate.errors import (
    METHOD_NOT_FOUND,
    ErrorObject,
    InputRefused,
    RemoteProtocolError,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from sluicegate.exchange import Connection, Exchange, Host, Upstream
from sluicegate.hub.asking_rights import AskingRights
from sluicegate.hub.catalog import Patterns
from sluicegate.hub.deadlines import Deadlines
from sluicegate.hub.offers import Nobody, Offer, OfferLimits, changed_lists, fetch_offer
from sluicegate.hub.places import CONCURRENCY, QUEUE, QUEUE_WAIT, Places
from sluicegate.hub.plan import MOST_RESTARTS, Circuit, Restarts
from sluicegate.hub.relay import Relay
from sluicegate.hub.roots import RootsAnswered, roots_answer
from sluicegate.protocol.message import Notification, Params, Reply, Result, as_array, as_object, opened
from sluicegate.protocol.methods import LIST_CHANGES
from sluicegate.protocol.modern import ACKNOWLEDGED, Answers, Discovery, Profile, Questions, complete
from sluicegate.protocol.versions import SESSION_VERSIONS

log = logging.getLogger("sluicegate")

LISTEN: Final = "subscriptions/listen"
DEBOUNCE: Final = 0.25
"""Seconds between a server's word that a list changed and our asking for it: changes come in swarms."""
INSTALLS_AFTER: Final = 3.0
"""Seconds after which a package runner that says nothing is taken to be downloading its package."""
LONGEST_LISTEN_PAUSE: Final = 30.0
_HEAD: Final = 200  # Bytes of a result in which its type is looked for first.

# What we say to servers of the session era, once for all callers: a connection outlives any of them. Whether the
# caller at hand can be asked is looked at when a question comes. Roots are left out: many a server would take them in
# place of the folders that its command line names.
ASKABLE: Final[Mapping[str, object]] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}}


class State(enum.StrEnum):
    """How a mount is."""

    STARTING = "starting"
    INSTALLING = "installing"
    READY = "ready"
    DEGRADED = "degraded"
    FAILED = "failed"
    DISABLED = "disabled"


class MountSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one server is treated."""

    prefix: str
    tools: Patterns = Patterns()
    concurrency: int = CONCURRENCY
    queue: int = QUEUE
    queue_wait: float = QUEUE_WAIT
    timeout: float = 120.0
    longest_call: float = 3600.0
    tool_timeouts: Sequence[tuple[str, float]] = ()
    installs: bool = False
    """Whether its command fetches a package before it runs it."""
    offers: OfferLimits = OfferLimits()
    offer_timeout: float = 30.0
    """Seconds that it has to tell all that it offers."""
    debounce: float = DEBOUNCE
    resend: Sequence[str] = ()
    """Tools that may be called again when it is not known whether the first call ran: globs, the operator's word."""
    roots: Sequence[str] = ()
    """Folders that it is told of when it asks; without any, it is not told that it may ask."""
    instructions: bool = True
    explain: Callable[[UpstreamError], str] = lambda problem: problem.message
    """A sentence that names the cause and the way out; it must be safe to show to a client."""

    def timeout_of(self, tool: str | None) -> float:
        """Seconds that a call of this tool has."""
        if tool is not None:
            for pattern, seconds in self.tool_timeouts:
                if fnmatchcase(tool, pattern):
                    return seconds
        return self.timeout


class Figures(msgspec.Struct):
    """What is counted of a mount's calls."""

    calls: int = 0
    errors: int = 0
    seconds: float = 0.0
    restarts: int = 0


class _Watch:
    """One resource of the server, listened to once for all who want to hear of it."""

    def __init__(self) -> None:
        self.listeners = 0
        self.accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


class Mount:
    """One server behind the hub."""

    def __init__(
        self,
        name: str,
        upstream: Upstream,
        settings: MountSettings,
        *,
        client_info: Mapping[str, object],
        on_change: Callable[["Mount"], None],
        on_update: Callable[["Mount", str, str], None],
        on_told: Callable[["Mount", Collection[str]], None],
    ) -> None:
        """`on_change` hears that its offer or state is another, `on_update` of a resource (and what was subscribed),
        and `on_told` by their notices of lists that the server says changed, when we find them as they were.
        """
        self.name = name
        self.settings = settings
        self.state = State.STARTING
        self.sentence = f"{name} is starting."
        self.problem: UpstreamError | None = None
        self.offer: Offer | None = None
        self.discovery: Discovery | None = None
        self.figures = Figures()
        self.losses: Counter[str] = Counter()
        """What a bridge could not preserve, and how often (protocol §8)."""
        self.since = time.monotonic()
        self._last_seen = time.monotonic()
        self._upstream = upstream
        self._on_change = on_change
        self._on_update = on_update
        self._on_told = on_told
        askable = {**ASKABLE, "roots": {}} if settings.roots else ASKABLE
        self._host = Host(askable, client_info, _Unasked(self))
        self._connection: Connection | None = None
        self._decided = asyncio.Event()  # It is ready, or will not be for a while: no use in waiting.
        self._settled = asyncio.Event()
        self._again = asyncio.Event()
        self._stale = asyncio.Event()
        self._told: set[str] = set()
        self._places = Places(name, settings.concurrency, settings.queue, settings.queue_wait)
        self._deadlines = Deadlines(name)
        self._circuit = Circuit()
        self._restarts = Restarts()
        self._watches: dict[str, _Watch] = {}
        self._completed = asyncio.Condition()
        self._completed_ids: set[str] = set()
        self._attending: TaskScope | None = None

    @property
    def prefix(self) -> str:
        """What its names begin with."""
        return self.settings.prefix

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked now."""
        return self._connection is not None

    @property
    def is_failing(self) -> bool:
        """Whether so many calls failed that no more are let through for now."""
        return self._circuit.is_open

    @property
    def in_flight(self) -> int:
        """Calls under way."""
        return self._places.taken

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        return self._places.waiting

    def shown_offer(self, grace: float) -> Offer | None:
        """What it offers, or last offered if it is not away for longer than the grace."""
        if self.state is State.DISABLED:
            return None
        if self.offer is None:
            return Offer()
        return self.offer if self.is_ready or time.monotonic() - self._last_seen < grace else Offer()

    async def settled(self) -> None:
        """Return once it has connected, or failed to, for the first time."""
        await self._settled.wait()

    def adjust(self, settings: MountSettings) -> None:
        """Treat it in another way from now on; calls under way go on as they began."""
        self.settings = settings
        self._places.adjust(settings.concurrency, settings.queue, settings.queue_wait)

    def restart(self) -> None:
        """End the connection and begin anew at once, however often that was tried before."""
        self._restarts.forget()
        self._again.set()

    async def wait_idle(self) -> None:
        """Return when no call is under way."""
        await self._places.wait_empty()

    def dismissed(self) -> None:
        """Learn that it is taken away: nobody waits for it any longer."""
        self._enter(State.DISABLED, f"{self.name} was taken away.")

    # ---------------------------------------------------------------------------------------------- its life

    async def run(self) -> None:
        """Keep it connected, until cancelled."""
        while True:
            self._again.clear()
            self._enter(State.STARTING, f"{self.name} is starting.")
            problem = await self._live()
            if self._again.is_set():
                continue  # A person asked for it: no pause, and nothing went wrong.
            self.figures.restarts += 1
            pause = self._restarts.ended(asyncio.get_running_loop().time(), random.random())
            self.problem = problem
            cause = self.settings.explain(problem)
            if self.name not in cause:
                cause = f"{self.name}: {cause}"
            log.warning("%s: %s", self.name, problem)
            if pause.is_failed:
                self._enter(
                    State.FAILED,
                    f"{cause} It failed {MOST_RESTARTS} times within a minute and is tried once a minute now.",
                )
            else:
                self._enter(State.DEGRADED, f"{cause} It is started again in {pause.seconds:.1f} s.")
            try:
                async with asyncio.timeout(pause.seconds):
                    await self._again.wait()
            except TimeoutError:
                pass

    async def _live(self) -> UpstreamError:
        """One connection from its beginning to its end; why it ended."""
        installing = asyncio.get_running_loop().call_later(INSTALLS_AFTER, self._seems_to_install)
        try:
            async with self._upstream.connect(self._host) as connection:
                offer = await self._fetch_offer(connection)
                installing.cancel()
                self._connected(connection, offer)
                await self._attend(connection)
                return await self._end_of(connection)
        except UpstreamError as problem:
            return problem
        except Exception as problem:  # The edge: whatever a server does, it is supervised.
            log.exception("%s: the connection failed", self.name)
            return UpstreamUnavailable(f"{self.name} could not be connected: {type(problem).__name__}.")
        finally:
            installing.cancel()
            self._connection = None

    async def _end_of(self, connection: Connection) -> UpstreamError:
        """What became of a connection: whoever asks it now is told."""
        if await _is_closed(connection):
            try:
                await connection(Exchange("ping", {}, Nobody()))
            except UpstreamError as problem:
                return problem
        return UpstreamClosed(f"{self.name} closed the connection.")

    def _seems_to_install(self) -> None:
        if self.settings.installs and self.state is State.STARTING:
            self._enter(State.INSTALLING, f"{self.name} is starting; its package is probably being downloaded.")

    def _connected(self, connection: Connection, offer: Offer) -> None:
        self._connection = connection
        self.discovery = connection.discovery
        self.offer = offer
        self.problem = None
        self._circuit.succeeded()
        self._enter(State.READY, f"{self.name} is ready.")

    def _enter(self, state: State, sentence: str) -> None:
        if state is not self.state:
            self.since = time.monotonic()
        self.state = state
        self.sentence = sentence
        if state not in (State.STARTING, State.INSTALLING):
            self._settled.set()
        if state in (State.READY, State.FAILED, State.DISABLED):
            self._decided.set()
        else:
            self._decided.clear()
        self._on_change(self)

    async def _attend(self, connection: Connection) -> None:
        """Follow the server's changes, until it is gone or to be started again."""
        over = asyncio.Event()
        async with TaskScope() as tasks:
            tasks.start(_then(connection.wait_closed(), over))
            tasks.start(_then(self._again.wait(), over))
            tasks.start(self._hear_changes(connection))
            tasks.start(self._fetch_again(connection))
            for uri, watch in self._watches.items():
                tasks.start(self._hold(connection, uri, watch), key=uri)
            self._attending = tasks
            try:
                await over.wait()
            finally:
                self._attending = None
                self._lose(connection)
                tasks.cancel_all()

    def _lose(self, connection: Connection) -> None:
        """Ask this connection no more; who comes now waits for the next one."""
        if self._connection is connection:
            self._connection = None
            self._last_seen = time.monotonic()
            self._enter(State.DEGRADED, f"{self.name} went away; it is started again.")

    async def _hear_changes(self, connection: Connection) -> None:
        """Learn when the server's lists change, if it tells."""
        capabilities = connection.discovery.capabilities
        wanted: Params = {}
        for flag in LIST_CHANGES:
            kind = as_object(capabilities.get(flag.removesuffix("ListChanged"))) or {}
            if kind.get("listChanged") is True:
                wanted[flag] = True
        if wanted:
            await self._listen(connection, {"notifications": wanted}, _Changes(self._told.add, self._stale.set))

    async def _listen(self, connection: Connection, params: Params, sink: "_Changes | _Updates") -> None:
        """Hold a subscription for as long as the connection lasts, however often the server lets go of it."""
        pause = 1.0
        while True:
            try:
                reply = await connection(Exchange(LISTEN, params, sink, Profile()))
                if isinstance(reply, ErrorObject) and reply.code == METHOD_NOT_FOUND:
                    return
            except UpstreamError as problem:
                log.debug("%s: a subscription ended: %s", self.name, problem)
            sink.ended()
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_LISTEN_PAUSE)

    async def _fetch_again(self, connection: Connection) -> None:
        while True:
            await self._stale.wait()
            await asyncio.sleep(self.settings.debounce)
            self._stale.clear()
            told, before = frozenset(self._told), self.offer
            self._told.clear()
            try:
                offer = await self._fetch_offer(connection)
            except UpstreamError as problem:
                log.warning("%s: its lists could not be fetched again: %s", self.name, problem)
                continue
            if offer != before:
                self.offer = offer
                self._on_change(self)
            if same := told - changed_lists(before, offer):
                self._on_told(self, same)

    async def _fetch_offer(self, connection: Connection) -> Offer:
        seconds = self.settings.offer_timeout
        try:
            async with asyncio.timeout(seconds):
                return await fetch_offer(self.name, connection, self.settings.offers)
        except TimeoutError:
            raise UpstreamTimeout(f"{self.name} did not tell what it offers within {seconds:g} s.") from None
        except UpstreamProtocolError as problem:
            # What the server said may hold anything, and our sentence is for everybody.
            details = f" ({problem.message}){problem.details}"
            raise UpstreamProtocolError(f"{self.name} does not tell what it offers.", details=details) from None

    # -------------------------------------------------------------------------------------------------- asking

    async def __call__(self, exchange: Exchange) -> Reply:
        """The server's reply to an exchange in its own words, within its limits.

        Raises:
            UpstreamError: it cannot be asked, went away, took too long or answered something else.
            LimitExceeded: too many wait for it already.
        """
        try:
            return await self._ask(exchange)
        except UpstreamClosed as problem:
            # What is only read may be read again; of tools nobody but the operator knows.
            is_read = exchange.method != "tools/call"
            may_run_twice = is_read or any(fnmatchcase(exchange.name or "", tool) for tool in self.settings.resend)
            if problem.delivered != "no" and not may_run_twice:
                raise
        return await self._ask(exchange)

    async def _ask(self, exchange: Exchange) -> Reply:
        connection = self._connection or await self._wait_until_ready()
        circuit = self._circuit
        if not circuit.is_open:
            return await self._ask_in_turn(exchange, connection)
        if not circuit.admit(self._deadlines.now()):
            raise UpstreamUnavailable(f"{self.name} failed call after call; it is tried again within 10 s.")
        try:
            return await self._ask_in_turn(exchange, connection)
        except UpstreamError as problem:
            if isinstance(problem, UpstreamTimeout):
                self._failed(problem)
            if self._connection is connection:
                # What was tried failed again. It may have come back as another: its era and its lists are found out
                # anew.
                self._again.set()
            raise
        finally:
            circuit.gave_up()  # Whatever came of it: somebody else may try, once it is time.

    async def _ask_in_turn(self, exchange: Exchange, connection: Connection) -> Reply:
        circuit, places, figures = self._circuit, self._places, self.figures
        if not places.take_now():
            await places.take()
        figures.calls += 1
        began = self._deadlines.now()
        settings = self.settings
        deadline = self._deadlines.deadline(settings.timeout_of(exchange.name), settings.longest_call)
        profile = exchange.profile
        sink = Relay(exchange.sink, deadline, settings.prefix, profile.version, self.lost)
        rights: AskingRights | None = None
        if self.discovery is not None and self.discovery.version in SESSION_VERSIONS:
            # It asks what it was told that can be asked; whether this caller can be is looked at here.
            sink = rights = AskingRights(sink, profile.capabilities, self.lost)
            capabilities = ASKABLE
            if settings.roots:
                # Asked in the middle of a call, it is told the same folders as at any other time.
                sink = RootsAnswered(sink, settings.roots)
                capabilities = {**ASKABLE, "roots": {}}
            profile = msgspec.structs.replace(profile, capabilities=capabilities)
        outgoing = Exchange(exchange.method, exchange.params, sink, profile, exchange.caller, let_go=exchange.let_go)
        try:
            async with deadline:
                reply = await connection(outgoing)
            circuit.succeeded()
            if rights is None:
                reply = _said_complete(self.name, reply)
            elif profile.version not in SESSION_VERSIONS:
                reply = rights.judged(reply)
            if isinstance(reply, ErrorObject) or _says_error(reply):
                figures.errors += 1
            return reply
        except UpstreamError as problem:
            figures.errors += 1
            if isinstance(problem, UpstreamClosed) and await _is_closed(connection):
                self._lose(connection)
            # One that is slow, or answers what nobody can read, was reached: its other tools may be as well as ever.
            if not isinstance(problem, UpstreamTimeout) and problem.delivered != "yes":
                self._failed(problem)
            raise
        finally:
            figures.seconds += self._deadlines.now() - began
            places.free()

    def _failed(self, problem: UpstreamError) -> None:
        after = problem.data.get("retryAfter")
        self._circuit.failed(self._deadlines.now(), float(after) if isinstance(after, int | float) else 0.0)

    async def _wait_until_ready(self) -> Connection:
        try:
            async with asyncio.timeout(self.settings.queue_wait):
                await self._decided.wait()
        except TimeoutError:
            pass
        if self._connection is None:
            raise UpstreamUnavailable(self.sentence)
        return self._connection

    # ---------------------------------------------------------------------------------------------- resources

    async def watch(self, uri: str) -> bool:
        """Listen to a resource until `unwatch`; whether the server lets us. Listened to once, whoever wants it."""
        watch = self._watches.get(uri)
        if watch is None:
            watch = self._watches[uri] = _Watch()
            if self._attending is not None and self._connection is not None:
                self._attending.start(self._hold(self._connection, uri, watch), key=uri)
        watch.listeners += 1
        try:
            async with asyncio.timeout(self.settings.queue_wait):
                return await asyncio.shield(watch.accepted)
        except TimeoutError:
            return False

    def unwatch(self, uri: str) -> None:
        """Listen no more, if nobody else does."""
        watch = self._watches.get(uri)
        if watch is None:
            return
        watch.listeners -= 1
        if watch.listeners == 0:
            del self._watches[uri]
            watch.accepted.cancel()
            if self._attending is not None:
                self._attending.cancel(uri)

    async def _hold(self, connection: Connection, uri: str, watch: _Watch) -> None:
        sink = _Updates(uri, watch.accepted, lambda updated: self._on_update(self, updated, uri))
        await self._listen(connection, {"notifications": {"resourceSubscriptions": [uri]}}, sink)
        if not watch.accepted.done():
            watch.accepted.set_result(False)

    # ------------------------------------------------------------------------------------- what belongs to no call

    def lost(self, what: str) -> None:
        """Count something that could not be handed to anybody."""
        self.losses[what] += 1

    async def completed(self, ids: set[str], seconds: float) -> None:
        """Wait until the server says that these elicitations are completed, but not for ever."""
        try:
            async with asyncio.timeout(seconds), self._completed:
                await self._completed.wait_for(lambda: ids <= self._completed_ids)
        except TimeoutError:
            pass
        self._completed_ids -= ids

    async def note_completed(self, elicitation: str) -> None:
        """Remember that an elicitation is completed."""
        async with self._completed:
            if len(self._completed_ids) < 1000:
                self._completed_ids.add(elicitation)
            self._completed.notify_all()


async def _is_closed(connection: Connection) -> bool:
    """Whether a connection is of no more use, as it says without being waited for."""
    try:
        async with asyncio.timeout(0):
            await connection.wait_closed()
    except TimeoutError:
        return False
    return True


def _said_complete(name: str, reply: Reply) -> Reply:
    """The reply of a server of 2026-07-28, with the `resultType` that some leave out and clients may insist on."""
    if not isinstance(reply, Result) or not isinstance(reply.value, msgspec.Raw):
        return reply
    # Nearly all have it, and at the beginning: these pass as the bytes that came.
    for end in (_HEAD, None):
        if b'"resultType"' in bytes(memoryview(reply.value)[:end]):
            return reply
    try:
        return Result(complete(opened(reply)))
    except RemoteProtocolError as problem:
        raise UpstreamProtocolError(f"{name}: {problem.message}") from None


def _says_error(reply: Result) -> bool:
    """Whether a tool says that it failed. Looked for where servers write it: what passes as bytes is not opened."""
    if isinstance(reply.value, msgspec.Raw):
        view = memoryview(reply.value)
        ends = bytes(view[:200]) + bytes(view[-200:])
        return b'"isError":true' in ends or b'"isError": true' in ends
    return reply.value.get("isError") is True


async def _then(work: Awaitable[object], event: asyncio.Event) -> None:
    await work
    event.set()


class _Unasked:
    """Where things of a server go that belong to no call: nobody caused them, so nobody is shown them (§3.4)."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount

    async def emit(self, notification: Notification) -> None:
        """Drop it, and count that."""
        if notification.method == "notifications/elicitation/complete":
            elicitation = notification.params.get("elicitationId")
            if isinstance(elicitation, str):
                await self._mount.note_completed(elicitation)
        elif notification.method == "notifications/message":
            self._mount.lost("log messages that belong to no call")

    async def ask(self, questions: Questions) -> Answers:
        """Refuse, and count that; only roots are known without a caller, if they are configured."""
        if self._mount.settings.roots and all(question.method == "roots/list" for question in questions.values()):
            return dict.fromkeys(questions, roots_answer(self._mount.settings.roots))
        self._mount.lost("questions that belong to no call")
        raise InputRefused("Nobody is there to be asked: no call caused this.")


class _Changes:
    """Hears that lists changed."""

    def __init__(self, told: Callable[[str], None], heard: Callable[[], None]) -> None:
        self._told = told
        self._heard = heard

    async def emit(self, notification: Notification) -> None:
        if notification.method != ACKNOWLEDGED:
            self._told(notification.method)
            self._heard()

    async def ask(self, questions: Questions) -> Answers:
        raise InputRefused("Nobody is there to be asked.")

    def ended(self) -> None:
        # Between this end and the next beginning something may have changed unheard.
        self._heard()


class _Updates:
    """Hears that a resource changed."""

    def __init__(self, uri: str, accepted: "asyncio.Future[bool]", heard: Callable[[str], None]) -> None:
        self._uri = uri
        self._accepted = accepted
        self._heard = heard

    async def emit(self, notification: Notification) -> None:
        if notification.method == ACKNOWLEDGED:
            honoured = as_object(notification.params.get("notifications")) or {}
            is_accepted = self._uri in (as_array(honoured.get("resourceSubscriptions")) or [])
            if not self._accepted.done():
                self._accepted.set_result(is_accepted)
            elif is_accepted:
                self._heard(self._uri)  # Listened to again, after a while in which anything may have happened.
        elif notification.method == "notifications/resources/updated":
            uri = notification.params.get("uri")
            self._heard(uri if isinstance(uri, str) else self._uri)

    async def ask(self, questions: Questions) -> Answers:
        raise InputRefused("Nobody is there to be asked.")

    def ended(self) -> None:
        if not self._accepted.done():
            self._accepted.set_result(False)
