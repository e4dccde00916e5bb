"""`Hub`: named mounts behind one handler. One that fails never stops the others, nor delays them."""

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

from sluicegate import __version__
from sluicegate.concurrency import TaskScope
from sluicegate.errors import ConfigError
from sluicegate.exchange import Exchange, Upstream
from sluicegate.hub.background_log import BackgroundLog
from sluicegate.hub.catalog import Catalog, Profile, Share, build_catalog
from sluicegate.hub.mount import Mount, MountSettings, State
from sluicegate.hub.naming import LONGEST_NAME, Naming, head_of
from sluicegate.hub.states import States
from sluicegate.hub.task_ids import TaskIds
from sluicegate.hub.view import View
from sluicegate.hub.watches import Watches
from sluicegate.protocol.message import Notification, Reply

log = logging.getLogger("sluicegate")

PAGE_SIZE: Final = 1000
GRACE: Final = 30.0
"""Seconds that the tools of a server that is away stay in the lists."""
DRAIN: Final = 10.0
"""Seconds that calls have when somebody waits for their server to be taken away, and beyond the longest call if not."""
MOST_DRAINING: Final = 4
"""Of the servers that had one name and have calls under way: beyond that, those of the oldest are ended."""
LONGEST_INSTRUCTIONS: Final = 4096
MOST_TOLD: Final = 5
"""Things that were found wrong with what is offered, of those that came together: a server may have thousands."""

_prefix: Final = re.compile(r"[A-Za-z0-9_-]{1,31}")
"""What can stand before a tool's name and leave it readable: the rule of `prefix` in sluicegate.toml, too."""

_RULES: Final[Mapping[Naming, str]] = {
    "prefix": "The name of each tool and prompt begins with that of its server: SERVER__NAME.",
    "claude": "The name of each tool and prompt begins with that of its server: mcp__SERVER__NAME.",
    "collide": "Tools and prompts of several servers; where two are called the same, one is SERVER__NAME.",
}
"""What stands before the instructions of the servers."""


class Hub:
    """Many servers as one. `async with` keeps them; it is itself a `Handler`, which shows all of them.

    Args:
        name: what clients see as the server's name.
        naming: how names are told apart: "prefix" (`server__tool`), "collide" (bare unless two have it), or "claude"
            (`mcp__server__tool`).
    """

    def __init__(
        self,
        name: str = "sluicegate",
        *,
        version: str = __version__,
        naming: Naming = "prefix",
        longest_name: int = LONGEST_NAME,
        page_size: int = PAGE_SIZE,
        grace: float = GRACE,
        longest_instructions: int = LONGEST_INSTRUCTIONS,
        instance: str = "",
    ) -> None:
        """`instance` is by what it knows itself where it comes back to itself through other gateways: if it lasts
        beyond this process, these see the same as before.
        """
        self.info: Mapping[str, object] = {"name": name, "version": version}
        self.instance = instance or secrets.token_hex(8)
        self.page_size = page_size
        self.states = States()
        self.task_ids = TaskIds()
        self.catalog = Catalog()
        self._naming: Naming = naming
        self._longest_name = longest_name
        self._longest_instructions = longest_instructions
        self._grace = grace
        self.log = BackgroundLog(self._log_at)
        self._mounts: dict[str, Mount] = {}
        self._views: dict[str, View] = {}
        self._main = self.view("")
        self._tasks: TaskScope | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where it is open, or was last."""
        self._is_closed = asyncio.Event()
        self._shares: list[Share] = []
        self._is_rebuilding = False
        self._graces: dict[Mount, asyncio.TimerHandle] = {}
        self._draining: dict[Mount, None] = {}  # A dict for its order.
        self._first: frozenset[Mount] = frozenset()
        """Those that were there when it was opened: among them the order decides about names, not who is quicker."""
        self._listened_to: WeakValueDictionary[str, Watches] = WeakValueDictionary()
        """What is listened to at servers that were taken away, while somebody does: they may come back."""

    @property
    def name(self) -> str:
        """What clients see as the server's name."""
        return str(self.info["name"])

    @property
    def is_open(self) -> bool:
        """Whether its servers are kept connected."""
        return self._tasks is not None

    async def __aenter__(self) -> "Hub":
        if self._tasks is not None:
            raise ConfigError("This Hub is open already. Open it once, where it is made; connect(hub) needs no more.")
        loop = asyncio.get_running_loop()
        is_elsewhere = self._loop is not None and self._loop is not loop
        self._loop = loop
        self._is_closed = asyncio.Event()
        self._is_rebuilding = False  # Begun in a loop that may have ended before.
        self._listened_to.clear()
        self._tasks = await TaskScope().__aenter__()
        self._first = frozenset(self._mounts.values())
        for view in self._views.values():
            view.open()
        for mount in self._mounts.values():
            mount.open(is_elsewhere=is_elsewhere)
            self._tasks.start(mount.run(), key=mount)
        return self

    async def __aexit__(self, *error: object) -> None:
        for view in self._views.values():
            view.close()
        self.log.close()
        if self._tasks is not None:
            self._tasks.cancel_all()
            try:
                await self._tasks.__aexit__(None, None, None)
            finally:
                self._tasks = None
                for mount in list(self._draining):
                    self._end(mount)  # A task that is cancelled before its first step has not begun.
                for mount in self._mounts.values():
                    mount.close()
                for timer in self._graces.values():
                    timer.cancel()
                self._graces.clear()
                self._is_closed.set()

    async def wait_closed(self) -> None:
        """Return when it is closed, if it is open."""
        if self._tasks is not None:
            await self._is_closed.wait()

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        """The reply to an exchange, of whichever mount it is for."""
        return self._main(exchange)

    # ------------------------------------------------------------------------------------------------------ mounts

    @property
    def mounts(self) -> Sequence[Mount]:
        """All mounts, in their order."""
        return list(self._mounts.values())

    def find(self, name: str) -> Mount | None:
        """The mount of that name."""
        return self._mounts.get(name)

    def mount(self, name: str, upstream: Upstream, settings: MountSettings | None = None) -> Mount:
        """Offer a server from now on, under its name, which stands before those of its tools.

        Raises:
            ConfigError: there is a mount of that name, or another without a prefix; or the name has other characters
                than letters, digits, - and _, or more than 31; or it is nothing to connect to.
        """
        if not hasattr(upstream, "connect"):  # Not everybody checks types, and it would show much later.
            kind = type(upstream).__name__
            raise ConfigError(f"Mount a Server, stdio(…) or http(…) under {name!r}, not {kind}.")
        if settings is None:
            if not _prefix.fullmatch(name):
                raise ConfigError(f"The name of a mount is letters, digits, - and _, 31 at most; {name!r} is not.")
            settings = MountSettings(prefix=name)
        if name in self._mounts:
            raise ConfigError(f"There is a server {name!r} already.")
        self._check_prefixes({name: settings})
        mount = self._mounts[name] = self._made(name, upstream, settings)
        if self._tasks is not None:
            mount.watches = self._listened_to.pop(name, mount.watches)
            self._tasks.start(mount.run(), key=mount)
        return mount

    def replace(self, name: str, upstream: Upstream, settings: MountSettings) -> Mount:
        """Have another server under a name that is taken: its calls finish, its listeners go over to the new one.

        Until that is there, the lists are as they were. Raises KeyError if there is none of that name.
        """
        old = self._mounts[name]
        self._check_prefixes({name: settings})
        mount = self._mounts[name] = self._made(name, upstream, settings)
        mount.inherit(old)
        self._let_go(old, old.settings.longest_call + DRAIN)
        if self._tasks is not None:
            self._tasks.start(mount.run(), key=mount)
        return mount

    async def unmount(self, name: str) -> None:
        """Offer a server no more; return when its calls have finished, or had a while to. KeyError if there is none."""
        mount = self._mounts[name]
        self._take_away(mount, DRAIN)
        await mount.gone()

    def dismiss(self, name: str) -> None:
        """Offer a server no more, without waiting for its calls, which finish. Raises KeyError if there is none."""
        mount = self._mounts[name]
        self._take_away(mount, mount.settings.longest_call + DRAIN)

    def adjust(self, settings: Mapping[str, MountSettings]) -> None:
        """Treat servers in another way, without touching their connections.

        All at once, for two of them may change places.

        Raises:
            ConfigError: two would have one prefix; nothing was changed.
        """
        self._check_prefixes(settings)
        for name, own in settings.items():
            self._mounts[name].adjust(own)
        self._rebuild()

    def configure(
        self, *, naming: Naming, longest_name: int, page_size: int, grace: float, longest_instructions: int
    ) -> None:
        """Name and list everything in another way from now on."""
        self.page_size = page_size
        self._longest_instructions = longest_instructions
        if grace != self._grace:
            self._grace = grace
            for mount, timer in list(self._graces.items()):
                timer.cancel()
                del self._graces[mount]
                self._await_end_of_grace(mount)
        if (naming, longest_name) != (self._naming, self._longest_name):
            self._naming, self._longest_name = naming, longest_name
            self._shares = []
        self._rebuild()

    def _made(self, name: str, upstream: Upstream, settings: MountSettings) -> Mount:
        return Mount(
            name,
            upstream,
            settings,
            client_info=self.info,
            instance=self.instance,
            on_change=self._changed,
            on_update=self._updated,
            on_told=self._told,
            on_log=self._logged,
            log_level=self.log.level,
        )

    def _take_away(self, mount: Mount, seconds: float) -> None:
        del self._mounts[mount.name]
        self._listened_to[mount.name] = mount.watches
        self._rebuild()
        self._let_go(mount, seconds)

    def _let_go(self, mount: Mount, seconds: float) -> None:
        mount.leave()
        if self._tasks is None:
            mount.dismissed()
            return
        # Each may be a process, and a file may be written every second.
        others = [other for other in self._draining if other.name == mount.name]
        if len(others) >= MOST_DRAINING:
            self._tasks.cancel((self, others[0]))
            self._end(others[0])
        self._draining[mount] = None
        self._tasks.start(self._drain(mount, seconds), key=(self, mount))

    async def _drain(self, mount: Mount, seconds: float) -> None:
        # A task of our own: whoever wanted it taken away may leave before that is done.
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await mount.wait_idle()
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
        """Put the mounts into this order, which is that of all lists; what is not named comes last."""
        order = {name: place for place, name in enumerate(names)}
        self._mounts = dict(sorted(self._mounts.items(), key=lambda item: order.get(item[0], len(order))))
        self._rebuild()

    async def settled(self) -> None:
        """Return once every mount has connected or failed to, for the first time, and the catalog has its offer.

        Raises:
            ConfigError: it is open in another event loop.
        """
        if self._tasks is not None and self._loop is not asyncio.get_running_loop():
            raise ConfigError("This Hub is open in another event loop; use it in that one.")
        for mount in self.mounts:
            await mount.settled()
        self._rebuild()

    def _check_prefixes(self, settings: Mapping[str, MountSettings]) -> None:
        """Raise ConfigError if two mounts would have one prefix, with these settings."""
        prefixes = {mount.name: mount.prefix for mount in self._mounts.values()}
        prefixes |= {name: own.prefix for name, own in settings.items()}
        owners: dict[str, str] = {}
        for name, prefix in prefixes.items():
            other = owners.setdefault(prefix, name)
            if other != name:
                what = f"the prefix {prefix!r}" if prefix else "no prefix"
                raise ConfigError(f"{name} and {other} both have {what}; their names could not be told apart.")

    # ----------------------------------------------------------------------------------------------------- catalog

    def view(self, name: str, profile: Profile | None = None) -> View:
        """The handler of a named part of the catalog; one that exists is shown through the new profile."""
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = View(self, profile or Profile(), self.catalog)
        elif profile is not None:
            view.show(self.catalog, profile)
        return view

    def instructions(self, names: Mapping[str, str]) -> str | None:
        """How the tools of these mounts are called, and how best used, each server in its own words (protocol §4.4)."""
        parts: list[str] = []
        for name, prefix in names.items():
            mount = self._mounts.get(name)
            text = mount.discovery.instructions if mount is not None and mount.discovery is not None else None
            # What a gateway says that has us behind it has our own words in it, and theirs in these, without end.
            if mount is not None and text and mount.settings.instructions and name not in self.catalog.leading_back:
                head = "" if prefix in ("", name) else f" ({head_of(prefix, self._naming)}…)"
                parts.append(f"## {name}{head}\n\n{text[: self._longest_instructions]}")
        if not any(names.values()):
            # Alone and without a prefix, it is as if it were spoken to directly.
            return parts[0].partition("\n\n")[2] if parts else None
        bare = "".join(f" Those of {name} have their own names." for name, prefix in names.items() if not prefix)
        return "\n\n".join([_RULES[self._naming] + bare, *parts])

    def life(self, names: Mapping[str, str]) -> tuple[int, str]:
        """How long lists of these mounts may be kept, and by whom."""
        offers = [mount.offer if mount.is_ready else None for name in names if (mount := self._mounts.get(name))]
        known = [offer for offer in offers if offer is not None]
        if not known or len(known) < len(offers):
            return 0, "private"
        return min(offer.ttl_ms for offer in known), "public" if all(o.is_public for o in known) else "private"

    def _changed(self, mount: Mount) -> None:
        is_ours = self._mounts.get(mount.name) is mount
        if is_ours and mount.state not in (State.READY, State.DISABLED) and mount.offer is not None:
            # It may be back soon; only a long absence takes its tools out of the lists.
            self._await_end_of_grace(mount)
        for view in self._views.values():
            view.forget_pages()
        if not self._is_rebuilding:
            self._is_rebuilding = True
            asyncio.get_running_loop().call_soon(self._rebuild)

    def _await_end_of_grace(self, mount: Mount) -> None:
        # The first timer is the right one: it began when the server went away, however often it is tried since.
        if mount not in self._graces:
            self._graces[mount] = asyncio.get_running_loop().call_later(self._grace, self._grace_is_over, mount)

    def _grace_is_over(self, mount: Mount) -> None:
        del self._graces[mount]
        self._rebuild()

    def _updated(self, mount: Mount, uri: str, subscribed: str) -> None:
        for view in self._views.values():
            view.updated(mount, uri, subscribed)

    def _told(self, mount: Mount, notices: Collection[str]) -> None:
        # Without a prefix it is as if it were spoken to directly, so its word passes even where we see no change.
        # Of all others clients hear only what changes their lists (protocol §4.6).
        # Nor of one that leads back to us: our word would come back as its, and again as ours, without end.
        leads_back = mount.offer is not None and mount.offer.leads_back
        if not mount.prefix and not leads_back:
            for view in self._views.values():
                view.told(mount, notices)

    def _logged(self, mount: Mount, line: Notification) -> bool:
        # Of one that is certainly newer nobody notes who called it: its lines come with the calls that want them.
        return mount.calls.may_be_in_session and self.log.tell(mount.name, mount.calls.callers, line)

    def _log_at(self, level: str | None) -> None:
        for mount in self._mounts.values():
            mount.log_at(level)

    def _rebuild(self) -> None:
        self._is_rebuilding = False
        shares = [
            Share(
                *(mount.name, mount.prefix, offer, mount.settings.tools),
                is_awaited=mount.is_awaited and mount in self._first,
                key=mount.settings.key,
            )
            for mount in self._mounts.values()
            if (offer := mount.shown_offer(self._grace)) is not None
        ]
        if shares == self._shares:
            return
        self._shares = shares
        before = frozenset(self.catalog.findings)
        known = self.catalog
        self.catalog = build_catalog(shares, naming=self._naming, longest_name=self._longest_name, known=known)
        news = [finding for finding in self.catalog.findings if finding not in before]
        for finding in news[:MOST_TOLD]:
            log.warning("%s", finding)
        if len(news) > MOST_TOLD:
            log.warning("%d more like that.", len(news) - MOST_TOLD)
        for view in self._views.values():
            view.show(self.catalog)
