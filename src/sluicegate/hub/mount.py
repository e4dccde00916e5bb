"""A named server, kept alive: connected, watched, connected again (threats R2, R6–R9)."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from sluicegate.concurrency import TaskScope
from sluicegate.errors import UpstreamClosed, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from sluicegate.exchange import NOBODY, Carried, Connection, Exchange, Host, OfBothEras, Upstream
from sluicegate.hub.calls import Calls, askable, is_closed
from sluicegate.hub.condition import Condition, fetching, out_of_reach, told_of, tried_singly, without_lists
from sluicegate.hub.listening import Hearing, listen
from sluicegate.hub.lists import Lists
from sluicegate.hub.offers import Offer
from sluicegate.hub.plan import SOUGHT_PAUSE, Restarts, is_undelivered
from sluicegate.hub.task_ids import Owners
from sluicegate.hub.tasks import Heard
from sluicegate.hub.treatment import MountSettings, State
from sluicegate.hub.unasked import Unasked, Visits
from sluicegate.hub.watches import Watches
from sluicegate.protocol.discovery import Discovery
from sluicegate.protocol.message import Notification
from sluicegate.protocol.versions import SESSION_VERSIONS

log = logging.getLogger("sluicegate")

INSTALLS_AFTER: Final = 3.0
"""Seconds after which a program that may have to fetch a server, and says nothing, is taken to do so."""

SOUGHT_WITHIN: Final = 3.0
"""Seconds that somebody who asks for an unknown tool waits for a server that may have it: it may have no such one."""

SETS_LEVEL_WITHIN: Final = 10.0
"""Seconds that a server has to answer how much it is to log."""


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
        on_log: Callable[["Mount", Notification], bool],
        log_level: str | None = None,
        instance: str = "",
    ) -> None:
        """`on_change` hears that its offer or state is another, `on_update` of a resource (and what was subscribed),
        and `on_told` by their notices of lists that the server says changed, when we find them as they were; `on_log`
        gets log lines that belong to no call, and says whether anybody is told them.
        `instance` is the hub, of which nothing is offered to itself.
        """
        self.name = name
        self.instance = instance
        self.settings = settings
        self.state = State.STARTING
        self._sentence = f"{name} is starting."
        self.problem: UpstreamError | None = None
        self.offer: Offer | None = None
        self.discovery: Discovery | None = None
        self.connection: Connection | None = None
        self.transport = ""
        """What carries it, or did last, where that had to be found out."""
        self.task_owners = Owners()
        self.task_listens = 0
        """Subscriptions to its tasks that are held now, each of which may take a connection of its own."""
        self.since = time.monotonic()
        self._last_seen = time.monotonic()
        self._unfetched: UpstreamError | None = None
        self._lists_since = 0.0
        self._upstream = upstream
        self._on_change = on_change
        self._on_update = on_update
        self._on_told = on_told
        self._on_log = on_log
        self._log_level = log_level
        self._attending: TaskScope | None = None
        self._client_info = client_info
        self._restarts = Restarts()
        self._began = time.monotonic()
        self._ready_since: float | None = None
        self._opening: asyncio.Timeout | None = None
        self._lists: Lists | None = None
        self._succession = _Succession(self)
        self._is_leaving = False
        self._is_pausing = False
        self._begin()

    def _begin(self) -> None:
        """Have all that waits, which belongs to the event loop that it first waits in."""
        self.calls = Calls(self.name, self, self.settings)
        self.visits = Visits()
        sink = Heard(self.calls.tasks, Unasked(self.calls, self.visits, partial(self._on_log, self)))
        lost = self.calls.lost
        self._host = Host(askable(self.settings), self._client_info, sink, self._noticed, self._renewed, lost, True)
        self._decided = asyncio.Event()  # It is ready, or will not be for a while: no use in waiting.
        self._settled = asyncio.Event()
        self._again = asyncio.Event()
        self.watches = Watches()
        self._gone = asyncio.Event()

    @property
    def prefix(self) -> str:
        """What its names begin with."""
        return self.settings.prefix

    @property
    def sentence(self) -> str:
        """How it is, for everybody."""
        settings, seconds = self.settings, time.monotonic() - self._began
        if self.state is State.INSTALLING:
            return fetching(self.name, settings.fetched_by, seconds, settings.opens_within)
        if self.state is State.FAILED:
            return f"{self._sentence} {tried_singly(seconds, settings.restarted_by, is_light=settings.is_light)}"
        return self._sentence

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked now."""
        return self.connection is not None

    @property
    def in_flight(self) -> int:
        """Calls under way."""
        return self.calls.places.taken

    @property
    def is_awaited(self) -> bool:
        """Whether it has yet to say for the first time what it offers, or that it cannot."""
        return self.offer is None and not self._settled.is_set()

    def shown_offer(self, grace: float) -> Offer | None:
        """What it offers, or last offered if it is not away for longer than the grace."""
        if self.state is State.DISABLED:
            return None
        if self.offer is None:
            return Offer()
        return self.offer if self.is_ready or time.monotonic() - self._last_seen < grace else Offer()

    def condition(self) -> Condition:
        """How it is, for those who look at it: one that is connected and cannot be reached is not well."""
        if self.state is not State.READY:
            return Condition(self.state, self.sentence, self.since, self.problem)
        circuit, explain = self.calls.circuit, self.settings.explain
        if (trouble := out_of_reach(self.name, circuit, explain, time.monotonic())) is not None:
            return trouble
        if self._unfetched is not None:
            return without_lists(self.name, self._unfetched, explain, self._lists_since)
        return Condition(self.state, self.sentence, max(self.since, circuit.since, self._lists_since))

    async def settled(self) -> None:
        """Return once it has connected, or failed to, for the first time."""
        await self._settled.wait()

    def adjust(self, settings: MountSettings) -> None:
        """Treat it in another way from now on; calls under way go on as they began."""
        if settings.offers != self.settings.offers and self._lists is not None:
            self._lists.outdate()
        self.settings = settings
        self.calls.adjust(settings)

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
        await self.calls.places.wait_empty()

    def leave(self) -> None:
        """Learn that nothing new will be asked of it: it stays for the calls that are under way."""
        self._is_leaving = True

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
        self.watches = other.watches
        self.task_owners = other.task_owners
        self.calls.callers = other.calls.callers
        self._succession = other._succession
        self._succession.latest = self
        other._decided.set()  # Whoever waits for it waits for us.

    # ---------------------------------------------------------------------------------------------- its life

    def open(self, *, is_elsewhere: bool) -> None:
        """Learn that its hub is opened, so that it will run; `is_elsewhere` if that is in another event loop."""
        if is_elsewhere:
            before = self.calls
            self._begin()
            self.calls.figures, self.calls.losses, self.calls.callers = before.figures, before.losses, before.callers
        self.state = State.STARTING
        self._sentence = f"{self.name} is starting."
        self._settled.clear()
        self._decided.clear()

    def close(self) -> None:
        """Learn that its hub is closed: whoever asks it now is told so at once."""
        self.state = State.DEGRADED
        self._sentence = f"{self.name} is not connected: its hub is closed."
        self._settled.set()
        self._decided.set()

    async def run(self) -> None:
        """Keep it connected, until cancelled."""
        while True:
            self._again.clear()
            self._ready_since = None
            self._enter(State.STARTING, f"{self.name} is starting.")
            problem = await self._live()
            if self._again.is_set():
                continue  # A person asked for it: no pause, and nothing went wrong.
            self.calls.figures.restarts += 1
            now = asyncio.get_running_loop().time()
            lived = 0.0 if self._ready_since is None else now - self._ready_since
            pause = self._restarts.ended(now, random.random(), lived=lived)
            is_news = self.problem is None or str(self.problem) != str(problem)
            self.problem = problem
            cause = told_of(self.name, self.settings.explain(problem))
            # One that fails in the same way each minute is not told each minute.
            text = str(problem) if str(problem).startswith(self.name) else f"{self.name}: {problem}"
            log.log(logging.WARNING if is_news else logging.DEBUG, "%s", text, extra={"server": self.name})
            if pause.is_failed:
                self._enter(State.FAILED, cause)
            else:
                self._enter(State.DEGRADED, f"{cause} It is tried again in {pause.seconds:.1f} s.")
            self._is_pausing = True
            try:
                async with asyncio.timeout(pause.seconds):
                    await self._again.wait()
            except TimeoutError:
                pass
            finally:
                self._is_pausing = False

    async def _live(self) -> UpstreamError:
        """One connection from its beginning to its end; why it ended."""
        self._began = time.monotonic()
        installing = asyncio.get_running_loop().call_later(INSTALLS_AFTER, self._seems_to_install)
        try:
            async with asyncio.timeout(None) as self._opening, self._upstream.connect(self._host) as connection:
                async with TaskScope() as tasks:
                    lists = self._lists = Lists(self, connection)
                    offer = await lists.fetch(tasks)
                    self._opening = None
                    installing.cancel()
                    self.calls.tasks.begin(tasks)
                    self._connected(connection, offer)
                    tasks.start(lists.follow(offer, self._offers, partial(self._on_told, self)))
                    await self._attend(connection, tasks)
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
            self.connection = self._opening = self._lists = None

    async def _end_of(self, connection: Connection) -> UpstreamError:
        """What became of a connection: whoever asks it now is told."""
        if await is_closed(connection):
            try:
                await connection(Exchange("ping", {}, NOBODY))
            except UpstreamError as problem:
                return problem
        return UpstreamClosed(f"{self.name} closed the connection.")

    def _seems_to_install(self) -> None:
        if self.settings.fetched_by and self.state is State.STARTING:
            self._enter(State.INSTALLING, "")

    def _connected(self, connection: Connection, offer: Offer) -> None:
        self.connection = connection
        self.discovery = connection.discovery
        self.transport = connection.transport if isinstance(connection, Carried) else ""
        self.calls.is_session_era = connection.discovery.version in SESSION_VERSIONS
        self.calls.of_both_eras = connection if isinstance(connection, OfBothEras) else None
        self.offer = offer
        self._ready_since = asyncio.get_running_loop().time()
        self.problem = self._unfetched = None
        self.calls.circuit.succeeded(time.monotonic())
        self._enter(State.READY, f"{self.name} is ready.")

    def _enter(self, state: State, sentence: str) -> None:
        if self.state is State.DISABLED:
            return  # Taken away for good; what its connection says of its own end is nobody's business.
        if state is not self.state:
            self.since = time.monotonic()
        self.state = state
        self._sentence = sentence
        if state not in (State.STARTING, State.INSTALLING):
            self._settled.set()
        if state in (State.READY, State.FAILED, State.DISABLED):
            self._decided.set()
        else:
            self._decided.clear()
        self._on_change(self)

    async def _attend(self, connection: Connection, tasks: TaskScope) -> None:
        """Listen to its resources, until it is gone or to be started again."""
        over = asyncio.Event()
        self._attending = tasks
        if self._log_level is not None:
            self.log_at(self._log_level)
        tasks.start(_then(connection.wait_closed, over))
        tasks.start(_then(self._again.wait, over))
        if not self._is_leaving:
            hold, heard = partial(self._hold, connection), partial(self._on_update, self)
            self.watches.begin(tasks, hold, heard, self.calls.lost)
        try:
            await over.wait()
        finally:
            self._attending = None
            self.watches.end(tasks)
            self.lose(connection)
            self.calls.tasks.end()
            tasks.cancel_all()

    # ------------------------------------------------------------------------------------------- can it be reached?

    def unreachable(self, problem: UpstreamError) -> None:
        """Learn that it cannot be reached: shown from now on, while all who ask it are treated as before."""
        self.calls.circuit.unreachable(problem, time.monotonic())

    def reached(self) -> None:
        """Learn that it can be reached."""
        self.calls.circuit.reached(time.monotonic())

    def _noticed(self, problem: UpstreamError | None) -> None:
        if problem is None:
            self.reached()
        else:
            self.unreachable(problem)

    def _renewed(self) -> None:
        # It was started again, mostly, and may be a newer one.
        if self.connection is not None and self._lists is not None:
            self.discovery = self.connection.discovery
            self._lists.outdate()

    def unfetched(self, problem: UpstreamError) -> None:
        """Learn that its lists could not be fetched again."""
        if is_undelivered(problem):
            self.unreachable(problem)
            return
        # It may answer all else, so that only its lists show when this is over.
        if self._unfetched is None:
            self._lists_since = time.monotonic()
        self._unfetched = problem

    def fetched(self) -> None:
        """Learn that its lists are up to date."""
        if self._unfetched is not None:
            self._unfetched = None
            self._lists_since = time.monotonic()
        self.reached()

    def _offers(self, offer: Offer) -> None:
        self.offer = offer
        self._on_change(self)

    # -------------------------------------------------------------------------------------------------- asking

    @property
    def latest(self) -> "Mount":
        """Which has taken its place, or the place of that one, and so on; itself if none has."""
        return self._succession.latest

    async def wait_until_ready(self) -> Connection:
        """The connection, once there is one: that of the latest, if another has taken its place.

        Raises:
            UpstreamUnavailable: there will be none for a while.
        """
        try:
            async with asyncio.timeout(self.settings.queue_wait):
                mount = None
                while mount is not self.latest:
                    mount = self.latest
                    mount.seek()
                    await mount._decided.wait()
        except TimeoutError:
            pass
        mount = self.latest
        if mount.connection is None:
            raise UpstreamUnavailable(mount.sentence)
        return mount.connection

    def seek(self) -> bool:
        """Try now, for somebody who asks for it, if that starts nothing and was not done just before.

        Whether it is being tried, be it by this or not.
        """
        if not self.settings.is_light:
            return False  # What is started by each call could crash with each call (threats R7).
        if self._is_pausing and time.monotonic() - self._began >= SOUGHT_PAUSE:
            self._again.set()
            self._decided.clear()
        return not self.is_ready and not self._decided.is_set()

    async def sought(self) -> None:
        """Return when it is ready, or is not to be had now; soon in any case."""
        if self.seek():
            with suppress(TimeoutError):
                async with asyncio.timeout(SOUGHT_WITHIN):
                    await self._decided.wait()
            await asyncio.sleep(0)  # What it offers is in the lists one turn of the loop after it is ready.

    def lose(self, connection: Connection) -> None:
        """Ask this connection no more; who comes now waits for the next one."""
        if self.connection is connection:
            self.connection = None
            self._last_seen = time.monotonic()
            self._enter(State.DEGRADED, f"{self.name} went away; it is tried again.")

    def begin_anew(self, connection: Connection) -> None:
        """Connect again, if this is still the connection."""
        if self.connection is connection:
            self._again.set()

    # ---------------------------------------------------------------------------------------------- resources

    def watch(self, uri: str) -> "asyncio.Future[bool]":
        """Listen to a resource until `unwatch`; the future says whether the server lets us, once that is known."""
        return self.watches.watch(uri)

    def unwatch(self, uri: str) -> None:
        """Listen no more, if nobody else does."""
        self.watches.unwatch(uri)

    async def _hold(self, connection: Connection, uris: Sequence[str], hearing: Hearing) -> None:
        await listen(self, connection, {"resourceSubscriptions": list(uris)}, hearing)

    # ---------------------------------------------------------------------------------------------------- log

    def log_at(self, level: str | None) -> None:
        """Let a server of the session era log so much, also while nobody calls it; None if nobody wants to know."""
        self._log_level = level
        connection = self.connection
        if self._attending is None or connection is None or not self.calls.may_be_in_session:
            return
        if self.calls.of_both_eras is not None or "logging" in connection.discovery.capabilities:
            with suppress(RuntimeError):  # Its life is about to end; in the next one it is told anyway.
                self._attending.start(_set_level(connection, level))


class _Succession:
    """Mounts that took each other's place. Not a chain of them: one who listens would keep all that ever were."""

    def __init__(self, latest: Mount) -> None:
        self.latest = latest


async def _set_level(connection: Connection, level: str | None) -> None:
    with suppress(UpstreamError, TimeoutError):
        async with asyncio.timeout(SETS_LEVEL_WITHIN):
            await connection(Exchange("logging/setLevel", {"level": level}, NOBODY))


async def _then(wait: Callable[[], Awaitable[object]], event: asyncio.Event) -> None:
    await wait()
    event.set()
