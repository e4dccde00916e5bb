"""A named server, kept alive: connected, watched, connected again (threats R2, R6–R9)."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from sluicegate.errors import UpstreamClosed, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from sluicegate.exchange import NOBODY, Carried, Connection, Exchange, Host, Upstream, WithSession
from sluicegate.hub.calls import Calls, askable, is_closed
from sluicegate.hub.catalog import Offer
from sluicegate.hub.fetch_catalog import Lists
from sluicegate.hub.mount_settings import MountSettings
from sluicegate.hub.subscriptions import ListenSink, Subscriptions, listen
from sluicegate.hub.supervise import (
    REQUESTED_RETRY_PAUSE,
    Backoff,
    MountCondition,
    MountState,
    Reachability,
    fetching,
    told_of,
    tried_singly,
)
from sluicegate.hub.tasks.ids import TaskOwners
from sluicegate.hub.unattributed import Unattributed, Visits, set_level
from sluicegate.protocol.message import Notification
from sluicegate.protocol.modern_era import Discovery
from sluicegate.protocol.versions import SESSION_VERSIONS
from sluicegate.runtime.task_scope import TaskScope

log = logging.getLogger("sluicegate")

INSTALLS_AFTER: Final = 3.0
"""Seconds of silence after which a program such as npx is assumed to be fetching the server."""

SHOWN_AFTER_HANG: Final = 600.0
"""Seconds for which a server that works again is shown to have hung."""

REQUESTED_RETRY_WITHIN: Final = 3.0
"""Seconds that a call of an unknown tool waits for a server that may have it."""


class Mount:
    """One server behind the hub."""

    def __init__(
        self,
        name: str,
        upstream: Upstream,
        settings: MountSettings,
        *,
        hub_id: str,
        client_info: Mapping[str, object],
        on_change: Callable[["Mount"], None],
        on_update: Callable[["Mount", str, str], None],
        on_list_notice: Callable[["Mount", Collection[str]], None],
        on_log: Callable[["Mount", Notification], bool],
        log_level: str | None = None,
        remembered: Offer | None = None,
    ) -> None:
        """
        Args:
            hub_id: the id of the hub, which other gateways are told.
            on_change: called when its offer or its state changes.
            on_update: gets the URI of a resource that changed, and the subscribed URI.
            on_list_notice: called when the server announces list changes but the lists turn out to be the same.
            on_log: gets log lines that belong to no call; returns whether a client gets them.
            remembered: what it offered earlier; shown until it has connected or failed.
        """
        self.name = name
        self.settings = settings
        self._hub_id = hub_id
        self.state = MountState.STARTING
        self._sentence = f"{name} is starting."
        self.problem: UpstreamError | None = None
        self.offer = remembered
        self._is_remembered = remembered is not None
        self.is_gateway = remembered is not None and remembered.is_gateway
        """Whether it is another gateway."""
        self.discovery: Discovery | None = None
        self.connection: Connection | None = None
        self.transport = ""
        """The transport in use, or last used, where it had to be found out."""
        self.task_owners = TaskOwners()
        self.task_listens = 0
        """Open subscriptions to its tasks; each may take a connection."""
        self.since = time.monotonic()
        self._last_seen = time.monotonic()
        self._upstream, self._on_change, self._on_update = upstream, on_change, on_update
        self._on_list_notice = on_list_notice
        self._on_log = on_log
        self.log_level = log_level
        self._attending: TaskScope | None = None
        self._client_info = client_info
        self._backoff = Backoff()
        self._began = time.monotonic()
        self._ready_since: float | None = None
        self._opening: asyncio.Timeout | None = None
        self._lists: Lists | None = None
        self._successor: Mount | None = None
        self._hung: UpstreamError | None = None
        self._hung_at = -SHOWN_AFTER_HANG
        self._is_leaving = False
        self._is_pausing = False
        self._has_run = False
        self._reset()

    def _reset(self) -> None:
        """Make everything that belongs to one event loop."""
        self.calls = Calls(self.name, self, self.settings)
        self.reachability = Reachability(self.name, self.calls.circuit)
        self.visits = Visits()
        sink = Unattributed(self.calls, self.visits, partial(self._on_log, self))
        lost = self.calls.lost
        on_unreachable = self.reachability.on_unreachable
        on_life = self.calls.note_sign_of_life
        self._host = Host(
            askable(self.settings), self._client_info, sink, on_unreachable, self._renewed, lost, True, on_life
        )
        self._state_known = asyncio.Event()  # It is ready, or will not be for a while.
        self._settled = asyncio.Event()
        self._again = asyncio.Event()
        self.subscriptions = Subscriptions()
        self._gone = asyncio.Event()

    @property
    def prefix(self) -> str:
        return self.settings.prefix

    @property
    def sentence(self) -> str:
        """Its state as a sentence that is safe to show."""
        settings, seconds = self.settings, time.monotonic() - self._began
        if self.state is MountState.INSTALLING:
            return fetching(self.name, settings.fetched_by, seconds, settings.opens_within)
        if self.state is MountState.FAILED:
            return f"{self._sentence} {tried_singly(seconds, settings.restarted_by, is_light=settings.is_light)}"
        if self.state is MountState.READY and time.monotonic() - self._hung_at < SHOWN_AFTER_HANG:
            return f"{self._sentence} It was restarted because it answered neither calls nor pings (see `hang_after`)."
        return self._sentence

    @property
    def is_ready(self) -> bool:
        return self.connection is not None

    @property
    def in_flight(self) -> int:
        return self.calls.limit.in_use

    @property
    def session_version(self) -> str:
        """The revision of the session that a server of 2026-07-28 has beside it; empty without one."""
        return self.connection.session_version if isinstance(self.connection, WithSession) else ""

    @property
    def may_use_session(self) -> bool:
        """Whether calls may be made in a session."""
        return self.calls.is_session_era or isinstance(self.connection, WithSession)

    @property
    def has_settled(self) -> bool:
        """Whether it has connected, or failed to, for the first time."""
        return self._settled.is_set()

    @property
    def is_awaited(self) -> bool:
        """Whether its first offer, or first failure, is still to come."""
        return self.offer is None and not self.has_settled

    def shown_offer(self, grace: float) -> Offer | None:
        """What it offers; while it starts, what is remembered; for the grace after it went away, what it offered."""
        if self.state is MountState.DISABLED:
            return None
        if self.offer is None:
            return Offer()
        is_shown = self.is_ready or (self._is_remembered and not self.has_settled)
        return self.offer if is_shown or time.monotonic() - self._last_seen < grace else Offer()

    def condition(self) -> MountCondition:
        """Its state, which is degraded where it is connected but cannot be reached."""
        if self.state is not MountState.READY:
            return MountCondition(self.state, self.sentence, self.since, self.problem)
        trouble = self.reachability.trouble(self.settings.explain)
        return trouble or MountCondition(self.state, self.sentence, max(self.since, self.reachability.since))

    async def settled(self) -> None:
        await self._settled.wait()

    def adjust(self, settings: MountSettings) -> None:
        """Apply other settings; calls in progress keep theirs."""
        if settings.offers != self.settings.offers and self._lists is not None:
            self._lists.outdate()
        self.settings = settings
        self.calls.adjust(settings)

    def restart(self) -> None:
        """Reconnect at once, however often that failed before."""
        self._backoff.forget()
        self._again.set()
        if self._opening is not None:
            # A server that hangs while it starts has no more time.
            self._opening.reschedule(asyncio.get_running_loop().time())
            self._opening = None

    def leave(self) -> None:
        """Take no new subscriptions: it stays only for the calls in progress."""
        self._is_leaving = True

    def dismissed(self) -> None:
        self._enter(MountState.DISABLED, f"{self.name} was removed.")
        self._gone.set()

    async def gone(self) -> None:
        await self._gone.wait()

    def take_over(self, old: "Mount") -> None:
        """Replace another mount: its offer is shown until ours is known, its listeners and waiting calls come to us."""
        self.offer, self.is_gateway = old.offer, old.is_gateway
        self._last_seen = time.monotonic() if old.is_ready else old._last_seen
        self.subscriptions = old.subscriptions
        self.task_owners = old.task_owners
        self.calls.callers = old.calls.callers
        old._successor = self
        old._state_known.set()

    # ---------------------------------------------------------------------------------------------- its life

    def open(self) -> None:  # `run` may be in another event loop than before.
        if self._has_run:
            before = self.calls
            self._reset()
            self.calls.figures, self.calls.losses, self.calls.callers = before.figures, before.losses, before.callers
            self.calls.lost_at = before.lost_at
        self.state = MountState.STARTING
        self._sentence = f"{self.name} is starting."

    def close(self) -> None:
        """Fail all calls at once from now on: its hub is closed."""
        self.state = MountState.DEGRADED
        self._sentence = f"{self.name} is not connected: its hub is closed."
        self._settled.set()
        self._state_known.set()

    async def run(self) -> None:
        """Keep it connected, until cancelled."""
        self._has_run = True
        while True:
            self._again.clear()
            self._ready_since = None
            self._enter(MountState.STARTING, f"{self.name} is starting.")
            problem = await self._live()
            if self._hung is not None:
                problem, self._hung = self._hung, None
                self.calls.figures.hangs += 1
                self._again.clear()
            elif self._again.is_set():
                continue  # Requested by a user: no pause, and nothing went wrong.
            self.calls.figures.restarts += 1
            now = asyncio.get_running_loop().time()
            lived = 0.0 if self._ready_since is None else now - self._ready_since
            pause = self._backoff.ended(now, random.random(), lived=lived)
            why = self.settings.explain(problem)  # The same is logged once; details often have a time in them.
            is_news = self.problem is None or self.settings.explain(self.problem) != why
            self.problem = problem
            cause = told_of(self.name, why)
            text = str(problem) if str(problem).startswith(self.name) else f"{self.name}: {problem}"
            level = logging.WARNING if is_news else logging.DEBUG
            log.log(level, "%s", text, extra={"server": self.name, "why": why, "details": problem.details})
            if pause.is_failed:
                self._enter(MountState.FAILED, cause)
            else:
                self._enter(MountState.DEGRADED, f"{cause} It is tried again in {pause.seconds:.1f} s.")
            self._is_pausing = True
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause.seconds):
                        await self._again.wait()
            finally:
                self._is_pausing = False

    async def _live(self) -> UpstreamError:
        """Run one connection to its end; return why it ended."""
        self._began = time.monotonic()
        installing = asyncio.get_running_loop().call_later(INSTALLS_AFTER, self._seems_to_install)
        try:
            async with asyncio.timeout(None) as self._opening, self._upstream.connect(self._host) as connection:
                async with TaskScope() as tasks:
                    lists = Lists(self.reachability, lambda: self.settings, connection, self._hub_id)
                    self._lists = lists
                    offer = await lists.fetch(tasks)
                    self._opening = None
                    installing.cancel()
                    self.calls.tasks.begin(tasks)
                    self._connected(connection, offer)
                    tasks.start(self.calls.watch(connection))
                    tasks.start(lists.follow(offer, self._offers, partial(self._on_list_notice, self)))
                    await self._attend(connection, tasks)
                return await self._end_of(connection)
        except UpstreamError as problem:
            return problem
        except TimeoutError:
            return UpstreamTimeout(f"{self.name} did not start in time.")
        except Exception as problem:  # An edge: supervision must survive whatever an upstream does.
            log.exception("%s: the connection failed", self.name)
            return UpstreamUnavailable(f"{self.name} could not be connected: {type(problem).__name__}.")
        finally:
            installing.cancel()
            self.connection = self._opening = self._lists = None

    async def _end_of(self, connection: Connection) -> UpstreamError:
        """Why a connection ended, as it says itself where it can."""
        if await is_closed(connection):
            try:
                await connection(Exchange("ping", {}, NOBODY))
            except UpstreamError as problem:
                return problem
        return UpstreamClosed(f"{self.name} closed the connection.")

    def _seems_to_install(self) -> None:
        if self.settings.fetched_by and self.state is MountState.STARTING:
            self._enter(MountState.INSTALLING, "")

    def _connected(self, connection: Connection, offer: Offer) -> None:
        self.connection = connection
        self.discovery = connection.discovery
        self.transport = connection.transport if isinstance(connection, Carried) else ""
        self.calls.is_session_era = connection.discovery.version in SESSION_VERSIONS
        self.offer, self.is_gateway = offer, offer.is_gateway
        self._ready_since = asyncio.get_running_loop().time()
        self.problem = None
        self.reachability.connected()
        self._enter(MountState.READY, f"{self.name} is ready.")

    def _enter(self, state: MountState, sentence: str) -> None:
        if self.state is MountState.DISABLED:
            return  # Removed for good; the end of its connection changes nothing.
        if state is not self.state:
            self.since = time.monotonic()
        self.state = state
        self._sentence = sentence
        if state not in (MountState.STARTING, MountState.INSTALLING):
            self._settled.set()
        if state in (MountState.READY, MountState.FAILED, MountState.DISABLED):
            self._state_known.set()
        else:
            self._state_known.clear()
        self._on_change(self)

    async def _attend(self, connection: Connection, tasks: TaskScope) -> None:
        """Subscribe to its resources, until it is gone or to be restarted."""
        over = asyncio.Event()
        self._attending = tasks
        if self.log_level is not None:
            self.log_at(self.log_level)
        tasks.start(_then(connection.wait_closed, over))
        tasks.start(_then(self._again.wait, over))
        if not self._is_leaving:
            hold, heard = partial(self._hold, connection), partial(self._on_update, self)
            self.subscriptions.begin(tasks, hold, heard, self.calls.lost)
        try:
            await over.wait()
        finally:
            self._attending = None
            self.subscriptions.end(tasks)
            self.lose(connection)
            self.calls.tasks.end()
            tasks.cancel_all()

    def _renewed(self) -> None:
        # The server was probably restarted, and may be another version.
        if self.connection is not None and self._lists is not None:
            self.discovery = self.connection.discovery
            self._lists.outdate()

    def _offers(self, offer: Offer) -> None:
        self.offer, self.is_gateway = offer, offer.is_gateway
        self._on_change(self)

    # -------------------------------------------------------------------------------------------------- asking

    @property
    def latest(self) -> "Mount":
        """The mount that has replaced this one; itself if none has."""
        mount = self
        while mount._successor is not None:
            mount = mount._successor
        return mount

    async def wait_until_ready(self) -> Connection:
        """The connection, once there is one: that of the latest, if another has replaced this mount.

        Raises:
            UpstreamUnavailable: there will be none for a while.
        """
        settings = self.settings
        with suppress(TimeoutError):
            if not self.has_settled:  # Its tools may be known from an earlier start.
                async with asyncio.timeout(settings.opens_within + settings.offer_timeout):
                    await self._settled.wait()
            async with asyncio.timeout(settings.queue_wait):
                mount = None
                while mount is not self.latest:
                    mount = self.latest
                    mount.retry_now()
                    await mount._state_known.wait()
        mount = self.latest
        if mount.connection is None:
            raise UpstreamUnavailable(mount.sentence)
        return mount.connection

    def retry_now(self) -> bool:
        """Try to connect now, because of a request, if that starts no process and was not done just before.

        Returns whether an attempt is in progress.
        """
        if not self.settings.is_light:
            return False  # A server that crashes would be started with every call (threats R7).
        if self._is_pausing and time.monotonic() - self._began >= REQUESTED_RETRY_PAUSE:
            self._again.set()
            self._state_known.clear()
        return not self.is_ready and not self._state_known.is_set()

    async def wait_retry(self) -> None:
        """Try to connect because of a request, and wait for the outcome, but not for long."""
        if self.retry_now():
            with suppress(TimeoutError):
                async with asyncio.timeout(REQUESTED_RETRY_WITHIN):
                    await self._state_known.wait()
            await asyncio.sleep(0)  # The lists have its tools one turn of the loop after it is ready.

    def lose(self, connection: Connection) -> None:
        """Stop using this connection; new calls wait for the next one."""
        if self.connection is connection:
            self.connection = None
            self._last_seen = time.monotonic()
            if self._hung is not None:
                self._hung_at = time.monotonic()
            why = f"{self.name} went away" if self._hung is None else self._hung.message.rstrip(".")
            self._enter(MountState.DEGRADED, f"{why} and will be reconnected.")

    def reconnect(self, connection: Connection, problem: UpstreamError | None = None) -> None:
        """Connect again, if this is still the connection; because of a problem, as after a crash."""
        if self.connection is connection:
            self._hung = problem
            self._again.set()

    async def _hold(self, connection: Connection, uris: Sequence[str], sink: ListenSink) -> None:
        await listen(self.reachability, connection, {"resourceSubscriptions": list(uris)}, sink)

    # ---------------------------------------------------------------------------------------------------- log

    def log_at(self, level: str | None) -> None:
        """Set the log level of a session-era server, also for lines outside of calls; None if no client wants them."""
        self.log_level = level
        connection = self.connection
        if self._attending is None or connection is None or not self.may_use_session:
            return
        if not self.calls.is_session_era or "logging" in connection.discovery.capabilities:
            with suppress(RuntimeError):  # The connection is about to end; the next one sets the level anyway.
                self._attending.start(set_level(connection, level))


async def _then(wait: Callable[[], Awaitable[object]], event: asyncio.Event) -> None:
    await wait()
    event.set()
