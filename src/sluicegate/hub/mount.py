"""A named server, kept alive: connected, watched, asked within limits, connected again (threats R1, R2, R6–R9, R12)."""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Final

import msgspec

from sluicegate.concurrency import TaskScope
from sluicegate.errors import (
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
from sluicegate.hub.deadlines import Deadlines
from sluicegate.hub.listening import LONGEST_PAUSE, SHORTEST_PAUSE, ListChanges, ResourceUpdates, listen
from sluicegate.hub.offers import Nobody, Offer, changed_lists, fetch_offer
from sluicegate.hub.places import Places
from sluicegate.hub.plan import MOST_RESTARTS, Circuit, Restarts
from sluicegate.hub.relay import Relay
from sluicegate.hub.roots import RootsAnswered, roots_answer
from sluicegate.hub.treatment import Figures, MountSettings, State
from sluicegate.hub.watches import Watches
from sluicegate.protocol.message import Notification, Params, Reply, Result, as_object, opened
from sluicegate.protocol.methods import LIST_CHANGES
from sluicegate.protocol.modern import Answers, Discovery, Questions, complete
from sluicegate.protocol.versions import SESSION_VERSIONS

log = logging.getLogger("sluicegate")

INSTALLS_AFTER: Final = 3.0
"""Seconds after which a package runner that says nothing is taken to be downloading its package."""
MOST_VISITS: Final = 1000
"""Visits to pages that a server tells of and nobody has waited for yet."""
_HEAD: Final = 200  # Bytes of a result in which its type is looked for first.

# What we say to servers of the session era, once for all callers: a connection outlives any of them. Whether the
# caller at hand can be asked is looked at when a question comes. Roots are left out: many a server would take them in
# place of the folders that its command line names.
ASKABLE: Final[Mapping[str, object]] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}}


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
        askable: Mapping[str, object] = {**ASKABLE, "roots": {}} if settings.roots else ASKABLE
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
        self._ready_since: float | None = None
        self._watches = Watches()
        self._completed = asyncio.Condition()
        self._completed_ids: dict[str, None] = {}  # Those that came last.
        self._opening: asyncio.Timeout | None = None
        self._gone = asyncio.Event()
        self._has_heir = False

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
        if self._opening is not None:
            # One that hangs while it starts is not waited for: its time is over now.
            self._opening.reschedule(asyncio.get_running_loop().time())
            self._opening = None

    async def wait_idle(self) -> None:
        """Return when no call is under way."""
        await self._places.wait_empty()

    def dismissed(self) -> None:
        """Learn that it is taken away: nobody waits for it any longer."""
        self._enter(State.DISABLED, f"{self.name} was taken away.")
        self._gone.set()

    async def gone(self) -> None:
        """Return when it is taken away."""
        await self._gone.wait()

    def inherit(self, other: "Mount") -> None:
        """Take the place of another: what it offers is shown until we know better, who listens to it hears of us."""
        self.offer = other.offer
        self._last_seen = time.monotonic() if other.is_ready else other._last_seen
        self._watches = other._watches
        other._has_heir = True

    # ---------------------------------------------------------------------------------------------- its life

    async def run(self) -> None:
        """Keep it connected, until cancelled."""
        while True:
            self._again.clear()
            self._ready_since = None
            self._enter(State.STARTING, f"{self.name} is starting.")
            problem = await self._live()
            if self._again.is_set():
                continue  # A person asked for it: no pause, and nothing went wrong.
            self.figures.restarts += 1
            now = asyncio.get_running_loop().time()
            lived = 0.0 if self._ready_since is None else now - self._ready_since
            pause = self._restarts.ended(now, random.random(), lived=lived)
            is_news = self.problem is None or str(self.problem) != str(problem)
            self.problem = problem
            cause = self.settings.explain(problem)
            if self.name not in cause:
                cause = f"{self.name}: {cause}"
            # One that fails in the same way each minute is not told each minute.
            text = str(problem) if str(problem).startswith(self.name) else f"{self.name}: {problem}"
            log.log(logging.WARNING if is_news else logging.DEBUG, "%s", text)
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
            async with asyncio.timeout(None) as self._opening, self._upstream.connect(self._host) as connection:
                offer = await self._fetch_offer(connection)
                self._opening = None
                installing.cancel()
                self._connected(connection, offer)
                await self._attend(connection)
                return await self._end_of(connection)
        except UpstreamError as problem:
            return problem
        except TimeoutError:
            return UpstreamTimeout(f"{self.name} did not start in time.")
        except Exception as problem:  # The edge: whatever a server does, it is supervised.
            log.exception("%s: the connection failed", self.name)
            return UpstreamUnavailable(f"{self.name} could not be connected: {type(problem).__name__}.")
        finally:
            installing.cancel()
            self._connection = self._opening = None

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
        self._ready_since = asyncio.get_running_loop().time()
        self.problem = None
        self._circuit.succeeded()
        self._enter(State.READY, f"{self.name} is ready.")

    def _enter(self, state: State, sentence: str) -> None:
        if self.state is State.DISABLED:
            return  # Taken away for good; what its connection says of its own end is nobody's business.
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
            if not self._has_heir:
                self._watches.begin(tasks, partial(self._hold, connection))
            try:
                await over.wait()
            finally:
                self._watches.end(tasks)
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
            await listen(self.name, connection, wanted, ListChanges(self._told.add, self._stale.set))

    async def _fetch_again(self, connection: Connection) -> None:
        """Fetch its lists whenever they changed; where that fails, until it does not: the server says it only once."""
        pause = SHORTEST_PAUSE
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
                self._told |= told
                self._stale.set()
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            pause = SHORTEST_PAUSE
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
        except (UpstreamProtocolError, RemoteProtocolError) as problem:
            # What the server said may hold anything, and our sentence is for everybody.
            details = f" ({problem.message}){problem.details if isinstance(problem, UpstreamError) else ''}"
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
            capabilities: Mapping[str, object] = ASKABLE
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

    def watch(self, uri: str) -> "asyncio.Future[bool]":
        """Listen to a resource until `unwatch`; the future says whether the server lets us, once that is known."""
        return self._watches.watch(uri)

    def unwatch(self, uri: str) -> None:
        """Listen no more, if nobody else does."""
        self._watches.unwatch(uri)

    async def _hold(self, connection: Connection, uri: str, accepted: "asyncio.Future[bool]") -> None:
        sink = ResourceUpdates(uri, accepted, lambda updated: self._on_update(self, updated, uri))
        await listen(self.name, connection, {"resourceSubscriptions": [uri]}, sink)
        if not accepted.done():
            accepted.set_result(False)

    # ------------------------------------------------------------------------------------- what belongs to no call

    def lost(self, what: str) -> None:
        """Count something that could not be handed to anybody."""
        self.losses[what] += 1

    async def completed(self, ids: set[str], seconds: float) -> None:
        """Wait until the server says that these elicitations are completed, but not for ever."""
        try:
            async with asyncio.timeout(seconds), self._completed:
                await self._completed.wait_for(lambda: ids <= self._completed_ids.keys())
        except TimeoutError:
            pass
        for known in ids:
            self._completed_ids.pop(known, None)

    async def note_completed(self, elicitation: str) -> None:
        """Remember that an elicitation is completed."""
        async with self._completed:
            self._completed_ids[elicitation] = None
            if len(self._completed_ids) > MOST_VISITS:
                del self._completed_ids[next(iter(self._completed_ids))]  # Nobody waited for it.
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
