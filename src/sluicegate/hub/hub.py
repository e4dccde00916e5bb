"""`Hub`: named mounts behind one handler. A mount that fails never stops or delays the others."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from sluicegate import __version__
from sluicegate.errors import ConfigError
from sluicegate.exchange import BEING_REVIEWED, DescribeTool, Exchange, Governor, Handler, Step, Target, Upstream, chain
from sluicegate.hub.call_sink import notice_of_server
from sluicegate.hub.catalog import Catalog, Offer, Share, Subset, build_catalog, definitions_of, without_quarantined
from sluicegate.hub.context import MAX_INSTRUCTIONS, PAGE_SIZE, HubContext
from sluicegate.hub.instructions import instructions_to_review
from sluicegate.hub.mount import Mount, MountSettings, MountState
from sluicegate.hub.naming import MAX_TOOL_NAME, Naming
from sluicegate.hub.router import Router
from sluicegate.hub.subscriptions import Subscriptions
from sluicegate.hub.unattributed import LogForwarding
from sluicegate.protocol.message import Notification, Params, Reply
from sluicegate.runtime.task_scope import TaskScope

log = logging.getLogger("sluicegate")

GRACE: Final = 30.0
"""Seconds that the tools of an unreachable server stay in the lists."""
DRAIN: Final = 10.0
"""Seconds that calls have to finish when their server is removed; otherwise they have the longest call besides."""
MAX_DRAINING: Final = 4
"""Replaced servers of one name that may have calls in progress; the calls of older ones are ended."""
MAX_LOGGED: Final = 5
"""Findings that are logged at a time: a server may have thousands."""

REVIEW_PATIENCE: float = 0.5
"""Seconds after which a catalog is shown without the definitions whose review is not over."""
MAX_REVIEW: float = 10.0
"""Seconds after which a review has failed."""
REVIEW_AGAIN_AFTER: float = 5.0
"""Seconds after which a review that failed is tried again, unless something changes before."""

_prefix: Final = re.compile(r"[A-Za-z0-9_-]{1,31}")
"""Also the rule of `prefix` in sluicegate.toml."""


class Hub:
    """Many servers as one. `async with` keeps them connected; the hub is a `Handler` for all of them.

    Args:
        name: what clients see as the server's name.
        naming: how names are kept unique: "prefix" (`server__tool`), "collide" (bare unless two servers have
            it), or "claude" (`mcp__server__tool`).
        steps: middleware for all requests, as for a `Server`; names are those that clients see.
    """

    def __init__(
        self,
        name: str = "sluicegate",
        *,
        version: str = __version__,
        naming: Naming = "prefix",
        longest_name: int = MAX_TOOL_NAME,
        page_size: int = PAGE_SIZE,
        grace: float = GRACE,
        longest_instructions: int = MAX_INSTRUCTIONS,
        steps: Sequence[Step] = (),
    ) -> None:
        self.catalog = Catalog()
        self._context = context = HubContext({"name": name, "version": version})
        context.naming, context.longest_name = naming, longest_name
        context.page_size, context.longest_instructions = page_size, longest_instructions
        self._grace = grace
        self.log = LogForwarding(self._set_log_levels)
        self._mounts = context.mounts
        self.find = context.find
        """Finds a mount by its name."""
        self.instructions = context.instructions
        self.unlisted = context.unlisted
        """Tools that are in no list, by their names: the handlers that list and call them."""
        self._routers: dict[str, Router] = {}
        router = self.router("")
        self._main: Handler = chain(steps, router) if steps else router
        self.describe_tool: DescribeTool = router.describe_tool
        self._tasks: TaskScope | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where it is open, or was open last."""
        self._is_closed = asyncio.Event()
        self._shares: list[Share] = []
        self._instructions: Mapping[Target, Params] = {}
        """Those that were reviewed with the shares."""
        self._is_rebuilding = False
        self._reviewing: asyncio.Event | None = None
        """Set at the end of the review that is in progress."""
        self._has_undecided = False
        """Whether the catalog leaves out definitions because they are being reviewed."""
        self._has_review_failed = False
        self._next_review: asyncio.TimerHandle | None = None
        """Starts a review again after one that failed."""
        self._next_change = asyncio.Event()
        self._graces: dict[Mount, asyncio.TimerHandle] = {}
        self._draining: dict[Mount, None] = {}  # A dict for its order.
        self._first: frozenset[Mount] = frozenset()
        """The mounts at opening: among them their order decides about names, and not which one connects first."""
        self._listened_to: WeakValueDictionary[str, Subscriptions] = WeakValueDictionary()
        """Subscriptions of removed servers, while they have listeners: the servers may come back."""

    @property
    def name(self) -> str:
        """What clients see as the server's name."""
        return str(self._context.info["name"])

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self._tasks is not None

    async def __aenter__(self) -> "Hub":
        if self._tasks is not None:
            raise ConfigError("This Hub is open already. Open it once, where it is made; connect(hub) needs no more.")
        self._loop = asyncio.get_running_loop()
        self._is_closed = asyncio.Event()
        self._is_rebuilding = False  # Its callback may have been lost with another loop.
        self._reviewing = self._next_review = None
        self._next_change = asyncio.Event()
        self._listened_to.clear()
        await self.wait_reviewed()
        self._tasks = await TaskScope().__aenter__()
        self._first = frozenset(self._mounts.values())
        for router in self._routers.values():
            router.open()
        for mount in self._mounts.values():
            mount.open()
            self._tasks.start(mount.run(), key=mount)
        return self

    async def __aexit__(self, *error: object) -> None:
        for router in self._routers.values():
            router.close()
        self.log.close()
        if self._tasks is not None:
            self._tasks.cancel_all()
            try:
                await self._tasks.__aexit__(None, None, None)
            finally:
                self._tasks = None
                for mount in list(self._draining):
                    self._end(mount)  # A task that is cancelled before its first step does not run `finally`.
                for mount in self._mounts.values():
                    mount.close()
                for timer in self._graces.values():
                    timer.cancel()
                self._graces.clear()
                if self._next_review is not None:
                    self._next_review.cancel()
                self._is_closed.set()

    async def wait_closed(self) -> None:
        """Return when it is closed."""
        if self._tasks is not None:
            await self._is_closed.wait()

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        """The reply of the mount that an exchange is for."""
        return self._main(exchange)

    # ------------------------------------------------------------------------------------------------------ mounts

    @property
    def mounts(self) -> Sequence[Mount]:
        """All mounts, in their order."""
        return list(self._mounts.values())

    def mount(
        self,
        name: str,
        upstream: Upstream,
        settings: MountSettings | None = None,
        *,
        remembered: Offer | None = None,
    ) -> Mount:
        """Add a server; its name is the prefix of its tools. `remembered` is what it offered earlier.

        Raises:
            ConfigError: the name or the prefix is taken or not valid, or the upstream is not one.
        """
        if not hasattr(upstream, "connect"):  # Without type checks this would fail much later.
            kind = type(upstream).__name__
            raise ConfigError(f"Mount a Server, stdio(…) or http(…) under {name!r}, not {kind}.")
        if settings is None:
            if not _prefix.fullmatch(name):
                raise ConfigError(f"The name of a mount has 1 to 31 letters, digits, - and _; {name!r} does not.")
            settings = MountSettings(prefix=name)
        if name in self._mounts:
            raise ConfigError(f"There is a server {name!r} already.")
        self._check_prefixes({name: settings})
        mount = self._mounts[name] = self._made(name, upstream, settings, remembered)
        if self._tasks is not None:
            mount.subscriptions = self._listened_to.pop(name, mount.subscriptions)
            self._tasks.start(mount.run(), key=mount)
        return mount

    def replace(self, name: str, upstream: Upstream, settings: MountSettings) -> Mount:
        """Replace the server of a name: calls to the old one finish, and its listeners move to the new one.

        Until the new one is connected, the lists stay the same. Raises KeyError if there is no such name.
        """
        old = self._mounts[name]
        self._check_prefixes({name: settings})
        mount = self._mounts[name] = self._made(name, upstream, settings)
        mount.take_over(old)
        self._let_go(old, old.settings.longest_call + DRAIN)
        if self._tasks is not None:
            self._tasks.start(mount.run(), key=mount)
        return mount

    async def unmount(self, name: str) -> None:
        """Remove a server; return when its calls have ended or their time is over. Raises KeyError if there is none."""
        mount = self._mounts[name]
        self._take_away(mount, DRAIN)
        await mount.gone()

    def dismiss(self, name: str) -> None:
        """Remove a server without waiting for its calls, which finish. Raises KeyError if there is none."""
        mount = self._mounts[name]
        self._take_away(mount, mount.settings.longest_call + DRAIN)

    def adjust(self, settings: Mapping[str, MountSettings]) -> None:
        """Change the settings of servers without reconnecting; all at once, since two may swap their prefixes.

        Raises:
            ConfigError: two would have the same prefix; nothing was changed.
        """
        self._check_prefixes(settings)
        for name, own in settings.items():
            self._mounts[name].adjust(own)
        self._rebuild()

    def configure(
        self,
        *,
        naming: Naming,
        longest_name: int,
        page_size: int,
        grace: float,
        longest_instructions: int,
        searches: bool = False,
    ) -> None:
        """Change how entries are named and listed; with `searches`, two tools are listed in place of all."""
        context = self._context
        context.page_size, context.searches = page_size, searches
        context.longest_instructions = longest_instructions
        if grace != self._grace:
            self._grace = grace
            for mount, timer in list(self._graces.items()):
                timer.cancel()
                del self._graces[mount]
                self._await_end_of_grace(mount)
        if (naming, longest_name) != (context.naming, context.longest_name):
            context.naming, context.longest_name = naming, longest_name
            self._shares = []
        self._rebuild()

    def _made(self, name: str, upstream: Upstream, settings: MountSettings, remembered: Offer | None = None) -> Mount:
        return Mount(
            name,
            upstream,
            settings,
            hub_id=self._context.id,
            client_info=self._context.info,
            on_change=self._changed,
            on_update=self._updated,
            on_list_notice=self._on_list_notice,
            on_log=self._logged,
            log_level=self.log.level_of(name),
            remembered=remembered,
        )

    def _take_away(self, mount: Mount, seconds: float) -> None:
        del self._mounts[mount.name]
        self._listened_to[mount.name] = mount.subscriptions
        self._rebuild(at_once=True)
        self._let_go(mount, seconds)

    def _let_go(self, mount: Mount, seconds: float) -> None:
        mount.leave()
        if self._tasks is None:
            mount.dismissed()
            return
        # Each may be a process, and a changing configuration file may replace one every second.
        others = [other for other in self._draining if other.name == mount.name]
        if len(others) >= MAX_DRAINING:
            self._tasks.cancel((self, others[0]))
            self._end(others[0])
        self._draining[mount] = None
        self._tasks.start(self._drain(mount, seconds), key=(self, mount))

    async def _drain(self, mount: Mount, seconds: float) -> None:
        # A task of its own: the caller of `unmount` may be cancelled before it is done.
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await mount.calls.limit.wait_idle()
        finally:
            self._end(mount)

    def _end(self, mount: Mount) -> None:
        self._draining.pop(mount, None)
        if (timer := self._graces.pop(mount, None)) is not None:
            timer.cancel()
        if self._tasks is not None:
            self._tasks.cancel(mount)
        mount.dismissed()

    def arrange(self, names: Sequence[str]) -> None:
        """Put the mounts, and so all lists, into this order; mounts that are not named come last."""
        order = {name: place for place, name in enumerate(names)}
        arranged = sorted(self._mounts.items(), key=lambda item: order.get(item[0], len(order)))
        self._mounts.clear()
        self._mounts.update(arranged)
        self._rebuild()

    async def settled(self) -> None:
        """Return once the first attempt to connect each mount has ended and the catalog is built.

        Raises:
            ConfigError: it is open in another event loop.
        """
        if self._tasks is not None and self._loop is not asyncio.get_running_loop():
            raise ConfigError("This Hub is open in another event loop; use it in that one.")
        for mount in self.mounts:
            await mount.settled()
        await self.wait_reviewed()

    async def wait_reviewed(self) -> None:
        """Return once the catalog shows what the mounts offer now, as far as the governor allows it.

        If the review fails or takes too long, the catalog is without the definitions that were not reviewed.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_REVIEW):
                while not self._rebuild():
                    if self._reviewing is not None:
                        await self._reviewing.wait()
                    else:
                        await self._review()
                    if self._has_review_failed:
                        break
        if self._tasks is None:
            self._rebuild(at_once=True)  # In an open hub, the review does it.

    def can_answer(self, exchange: Exchange) -> bool:
        """Whether the servers that an exchange needs are known, from this start or remembered from an earlier one."""
        return self.router("").can_answer(exchange)

    async def wait_change(self) -> None:
        """Return once the next change of a mount's state or offer is in the catalog."""
        await self._next_change.wait()

    def _check_prefixes(self, settings: Mapping[str, MountSettings]) -> None:
        """Raise ConfigError if two mounts would have one prefix, with these settings."""
        prefixes = {mount.name: mount.prefix for mount in self._mounts.values()}
        prefixes |= {name: own.prefix for name, own in settings.items()}
        owners: dict[str, str] = {}
        for name, prefix in prefixes.items():
            other = owners.setdefault(prefix, name)
            if other != name:
                what = f"the prefix {prefix!r}" if prefix else "no prefix"
                raise ConfigError(f"{name} and {other} both have {what}; their names would be ambiguous.")

    # ----------------------------------------------------------------------------------------------------- catalog

    def router(self, name: str, profile: Subset | None = None) -> Router:
        """The handler of a profile, which is created or changed."""
        router = self._routers.get(name)
        if router is None:
            router = self._routers[name] = Router(self._context, self.log, profile or Subset(), self.catalog)
        elif profile is not None:
            router.set_catalog(self.catalog, profile)
        return router

    def govern(self, governor: Governor) -> None:
        """Let every request to a server pass through this one."""
        self._context.governor = governor
        self.review()

    def review(self) -> None:
        """Apply what the governor decides now: its rules, or what it quarantines, have changed."""
        self._shares = []
        self._rebuild()
        for router in self._routers.values():
            router.set_rules()
        self._set_log_levels()

    def _changed(self, mount: Mount) -> None:
        is_ours = self._mounts.get(mount.name) is mount
        if is_ours and mount.state not in (MountState.READY, MountState.DISABLED) and mount.offer is not None:
            # It may be back soon: its tools leave the lists only after a while.
            self._await_end_of_grace(mount)
        for router in self._routers.values():
            router.forget_pages()
        if not self._is_rebuilding:
            self._is_rebuilding = True
            asyncio.get_running_loop().call_soon(self._refresh)

    def _refresh(self, *, at_once: bool = False) -> None:
        if self._rebuild(at_once=at_once) or at_once:  # Else it is called again after the review.
            self._next_change.set()
            self._next_change = asyncio.Event()

    def _await_end_of_grace(self, mount: Mount) -> None:
        # The first timer counts: it started when the server went away, however often it was tried since.
        if mount not in self._graces:
            self._graces[mount] = asyncio.get_running_loop().call_later(self._grace, self._grace_is_over, mount)

    def _grace_is_over(self, mount: Mount) -> None:
        del self._graces[mount]
        self._rebuild()

    def _updated(self, mount: Mount, uri: str, subscribed: str) -> None:
        for router in self._routers.values():
            router.on_resource_updated(mount, uri, subscribed)

    def _on_list_notice(self, mount: Mount, notices: Collection[str]) -> None:
        # A server without a prefix looks as if the client were connected to it directly, so its notices pass even if
        # the lists are the same; for all others only real changes count. Notices of another gateway do not pass: if it
        # mounts us, its notice answers ours, without end.
        if not mount.prefix and not mount.is_gateway:
            for router in self._routers.values():
                router.on_list_notice(mount, notices)

    def _logged(self, mount: Mount, line: Notification) -> bool:
        # Log lines of 2026-07-28 belong to calls.
        line = notice_of_server(line, mount.calls.label)
        return mount.may_use_session and self.log.forward(mount.name, mount.calls.callers, line)

    def _set_log_levels(self) -> None:
        for mount in self._mounts.values():
            if (level := self.log.level_of(mount.name)) != mount.log_level:
                mount.log_at(level)

    def _rebuild(self, *, at_once: bool = False) -> bool:
        """Show what the mounts offer now; False if some of it has to be reviewed first, which is started then.

        Until that is done nothing changes: most reviews are short, and a tool whose definition changed would leave the
        lists for a moment. With `at_once`, all is shown but the definitions that are being reviewed (T21).
        """
        self._is_rebuilding = False
        shares, instructions = self._current_shares(), instructions_to_review(self.mounts)
        if shares == self._shares and instructions == self._instructions and not self._has_undecided:
            return True
        catalog, has_undecided = self._built(shares, instructions)
        if has_undecided:
            if self._tasks is not None and self._reviewing is None:
                self._reviewing = asyncio.Event()
                self._tasks.start(self._review_and_refresh(self._reviewing))
            if not at_once:
                return False
        self._shares, self._instructions, self._has_undecided = shares, instructions, has_undecided
        self._show(catalog)
        return not has_undecided

    def _show(self, catalog: Catalog) -> None:
        before = frozenset(self.catalog.findings)
        self.catalog = catalog
        news = [finding for finding in catalog.findings if finding not in before]
        for finding in news[:MAX_LOGGED]:
            log.warning("%s", finding)
        if len(news) > MAX_LOGGED:
            log.warning("%d more findings are not shown.", len(news) - MAX_LOGGED)
        for router in self._routers.values():
            router.set_catalog(self.catalog)
        self._set_log_levels()

    def _current_shares(self) -> list[Share]:
        return [
            Share(
                *(mount.name, mount.prefix, offer, mount.settings.tools),
                is_awaited=mount.is_awaited and mount in self._first,
                key=mount.settings.key,
                origin=mount.settings.origin,
            )
            for mount in self._mounts.values()
            if (offer := mount.shown_offer(self._grace)) is not None
        ]

    async def _review_and_refresh(self, is_over: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        if self._next_review is not None:
            self._next_review.cancel()
        patience = loop.call_later(REVIEW_PATIENCE, partial(self._refresh, at_once=True))
        try:
            await self._review()
            if self._has_review_failed:
                self._next_review = loop.call_later(REVIEW_AGAIN_AFTER, self._refresh)
                self._refresh(at_once=True)  # Here, since no other review starts before the end of this one.
        finally:
            patience.cancel()
            self._reviewing = None
            is_over.set()
        if not self._has_review_failed:
            # At once: a server that keeps changing its lists must not keep the changes of others from being shown.
            self._refresh(at_once=True)

    async def _review(self) -> None:
        """Let the governor decide on what the mounts offer now. A failure is logged, once until it works again."""
        governor = self._context.governor
        if governor is None:
            return
        definitions = definitions_of(self._unreviewed(self._current_shares()))
        try:
            async with asyncio.timeout(MAX_REVIEW):
                await governor.review(definitions | instructions_to_review(self.mounts))
            self._has_review_failed = False
        except Exception:  # An edge: a store may raise anything, and the scope of this task owns all mounts.
            if not self._has_review_failed:
                log.exception("New definitions of servers could not be reviewed, so they are not shown yet.")
            self._has_review_failed = True

    def _built(self, shares: Sequence[Share], instructions: Mapping[Target, Params]) -> tuple[Catalog, bool]:
        """The catalog of these shares; and whether the governor has to review some definitions or instructions."""
        catalog = self._unreviewed(shares)
        if self._context.governor is None:
            return catalog, False
        whys = self._context.governor.reviewed(definitions_of(catalog) | dict(instructions))
        return without_quarantined(catalog, whys), BEING_REVIEWED in whys.values()

    def _unreviewed(self, shares: Sequence[Share]) -> Catalog:
        return build_catalog(
            shares, naming=self._context.naming, longest_name=self._context.longest_name, known=self.catalog
        )
