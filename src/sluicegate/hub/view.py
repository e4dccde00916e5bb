"""One client-facing side of the hub: what a profile shows of the catalog, and the way of each request to its mount."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Final, Protocol

import msgspec

from sluicegate.changes import LISTS_PACE, RESOURCE_UPDATED, Changes, Filter, Subtrees, read_filter
from sluicegate.concurrency import TaskScope
from sluicegate.errors import (
    METHOD_NOT_FOUND,
    URL_ELICITATION_REQUIRED,
    ErrorObject,
    InvalidParams,
    MethodNotFound,
    RemoteProtocolError,
    UnknownTarget,
    UpstreamProtocolError,
)
from sluicegate.exchange import Exchange
from sluicegate.hub.background_log import BackgroundLog, wants_log
from sluicegate.hub.catalog import Catalog, Entry, Profile, seen_through
from sluicegate.hub.circles import GATEWAY
from sluicegate.hub.links_required import settle_links
from sluicegate.hub.losses import losses_in, revision_of
from sluicegate.hub.mount import Mount
from sluicegate.hub.replies import is_plain
from sluicegate.hub.rewriting import reply_rewritten
from sluicegate.hub.states import States
from sluicegate.hub.task_desk import TaskDesk
from sluicegate.hub.task_ids import TaskIds
from sluicegate.hub.task_news import TaskNews
from sluicegate.hub.tasks import as_task
from sluicegate.hub.uris import exposed_uri
from sluicegate.protocol.headers import check_marks
from sluicegate.protocol.message import Notification, Params, Reply, Result, as_array, as_object, opened
from sluicegate.protocol.methods import LIST_CHANGES
from sluicegate.protocol.modern import ACKNOWLEDGED, SERVER_INFO_KEY, complete
from sluicegate.protocol.result_shapes import in_shape
from sluicegate.protocol.seal import Sealer
from sluicegate.protocol.tasks import REQUESTS, REQUIRED, WANTED, says_task
from sluicegate.protocol.translate import error_to_pass
from sluicegate.protocol.versions import SUPPORTED_VERSIONS

SNAPSHOTS: Final = 16
"""Older states of the lists that cursors may still point into."""

MOST_COMPLETIONS: Final = 100

LONGEST_WAIT: Final = 5.0
"""Seconds that servers have to say which of their tasks they will tell of."""

# Static, as a session-era client is told once and servers come and go: an empty list is legal, a missing one is not.
CAPABILITIES: Final[Params] = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}

_LISTS: Final[Mapping[str, tuple[str, str]]] = {
    "tools/list": ("tools", "tools"),
    "prompts/list": ("prompts", "prompts"),
    "resources/list": ("resources", "resources"),
    "resources/templates/list": ("templates", "resourceTemplates"),
}
"""For each method: its list in a catalog, and the member of the result."""

_NOTICES: Final = {
    "tools": LIST_CHANGES["toolsListChanged"],
    "prompts": LIST_CHANGES["promptsListChanged"],
    "resources": LIST_CHANGES["resourcesListChanged"],
    "templates": LIST_CHANGES["resourcesListChanged"],
}


class Mounts(Protocol):
    """The hub, as a view needs it."""

    @property
    def info(self) -> Mapping[str, object]: ...
    @property
    def instance(self) -> str: ...
    @property
    def page_size(self) -> int: ...
    @property
    def states(self) -> States: ...
    @property
    def task_ids(self) -> TaskIds: ...
    @property
    def log(self) -> BackgroundLog: ...
    def find(self, name: str) -> Mount | None: ...
    def instructions(self, names: Mapping[str, str]) -> str | None: ...
    def life(self, names: Mapping[str, str]) -> tuple[int, str]: ...


class View:
    """A `Handler` for the clients of one profile."""

    def __init__(self, hub: Mounts, profile: Profile, catalog: Catalog) -> None:
        self.profile = profile
        self.catalog = seen_through(catalog, profile)
        self._hub = hub
        self._tasks = TaskDesk(hub, self)
        self._changes = Changes(LISTS_PACE)
        self._sealer = Sealer(secrets.token_bytes(32))
        self._snapshot = 0
        self._snapshots: dict[int, Catalog] = {0: self.catalog}
        self._pages: dict[tuple[str, int], Result] = {}
        self._methods: dict[str, Callable[[Exchange], Awaitable[Reply]]] = {
            "server/discover": self._discover,
            "tools/call": self._call_tool,
            "prompts/get": self._get_prompt,
            "resources/read": self._read,
            "completion/complete": self._complete,
            "subscriptions/listen": self._listen,
            **{method: self._tasks.answer for method in REQUESTS},
            **{method: self._list for method in _LISTS},
        }

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        """The reply to an exchange; names and URIs are those of this view.

        Raises:
            SluicegateError: nobody answers it, or whoever should could not.
        """
        answer = self._methods.get(exchange.method)
        if answer is None:
            raise MethodNotFound(f"Method not found: {exchange.method[:100]}")
        return answer(exchange)

    def show(self, catalog: Catalog, profile: Profile | None = None) -> None:
        """Show another catalog from now on; who listens is told of the lists that really changed."""
        self.profile = profile or self.profile
        before, self.catalog = self.catalog, seen_through(catalog, self.profile)
        self._pages.clear()
        changed = {notice for kind, notice in _NOTICES.items() if _differs(before.of(kind), self.catalog.of(kind))}
        if changed:
            self._snapshot += 1
            self._snapshots.pop(self._snapshot - SNAPSHOTS, None)
        # The same lists, but perhaps of other servers.
        self._snapshots[self._snapshot] = self.catalog
        for notice in changed:
            self._changes.note(notice)

    def forget_pages(self) -> None:
        """Make lists anew: how a server is, which is told with them, is not as it was."""
        self._pages.clear()

    def updated(self, mount: Mount, uri: str, subscribed: str) -> None:
        """Tell who listens to a resource of a mount that it changed."""
        if mount.name in self.catalog.prefixes:
            self._changes.note(RESOURCE_UPDATED, exposed_uri(mount.prefix, uri))
            is_below = uri.startswith(subscribed.rstrip("/") + "/")
            if uri != subscribed and not is_below:  # Who listens hears of paths below; this has another spelling.
                self._changes.note(RESOURCE_UPDATED, exposed_uri(mount.prefix, subscribed))

    def told(self, mount: Mount, notices: Collection[str]) -> None:
        """Pass on a mount's word that its lists changed, though they look as before."""
        if mount.name in self.catalog.prefixes:
            for notice in notices:
                self._changes.note(notice)

    def open(self) -> None:
        """Let clients listen, again if it was closed."""
        self._changes = Changes(LISTS_PACE)

    def close(self) -> None:
        """End all listening, in order."""
        self._changes.close()

    # ------------------------------------------------------------------------------------------------- what there is

    async def _discover(self, exchange: Exchange) -> Reply:
        value: Params = {
            "supportedVersions": list(SUPPORTED_VERSIONS),
            "capabilities": {**CAPABILITIES, **REQUIRED} if self._tasks.are_offered else CAPABILITIES,
            "_meta": {SERVER_INFO_KEY: dict(self._hub.info)},
        }
        instructions = self._hub.instructions(self.catalog.prefixes)
        if instructions is not None:
            value["instructions"] = instructions
        return Result(complete(value, ttl_ms=60_000 if self._tasks.is_settled else 0))

    async def _list(self, exchange: Exchange) -> Reply:
        kind, member = _LISTS[exchange.method]
        cursor = exchange.params.get("cursor")
        number, start = self._snapshot, 0
        if cursor is not None:
            opened_cursor = self._sealer.open(cursor, (kind, exchange.caller.id))
            number, start = _place_in(opened_cursor) if opened_cursor is not None else (-1, 0)
        catalog = self._snapshots.get(number)
        if catalog is None:
            raise InvalidParams("Invalid params: the cursor is not one that this list gave; start again without it.")
        entries = list(catalog.of(kind).values())
        end = start + self._hub.page_size
        # The first and only page is what nearly everybody asks for, again and again: it is kept as bytes.
        whole = cursor is None and end >= len(entries)
        ttl_ms, scope = self._hub.life(catalog.prefixes)
        if whole and (kept := self._pages.get((kind, ttl_ms))) is not None:
            return kept
        value: Params = {member: [entry.encoded for entry in entries[start:end]]}
        if end < len(entries):
            place = number.to_bytes(8, "big") + end.to_bytes(8, "big")
            value["nextCursor"] = self._sealer.seal(place, (kind, exchange.caller.id))
        info = {SERVER_INFO_KEY: dict(self._hub.info), GATEWAY: self._hub.instance}
        value["_meta"] = {**info, **self._absences(catalog)}
        result = Result(msgspec.Raw(msgspec.json.encode(complete(value, ttl_ms=ttl_ms, scope=scope))), is_final=True)
        if whole:
            self._pages[kind, ttl_ms] = result
        return result

    def _absences(self, catalog: Catalog) -> Params:
        """Which servers are away now, so that nobody takes a shorter list for the whole."""
        mounts = ((name, self._hub.find(name)) for name in catalog.prefixes)
        away = {name: mount.state.value for name, mount in mounts if mount is not None and not mount.is_ready}
        return {"dev.sluicegate/servers": away} if away else {}

    # -------------------------------------------------------------------------------------------------- where it goes

    def _call_tool(self, exchange: Exchange) -> Awaitable[Reply]:
        name = exchange.params.get("name")
        entry = self.catalog.tools.get(name) if isinstance(name, str) else None
        if entry is None:
            return self._call_unknown(exchange, name)
        return self._call_entry(exchange, entry)

    async def _call_unknown(self, exchange: Exchange, name: object) -> Reply:
        """Call a tool that nobody knows: the server that may have it may be there by now."""
        mount = self._away(name)
        if mount is not None:
            await mount.sought()
        entry = self.catalog.tools.get(name) if isinstance(name, str) else None
        if entry is None:
            why = "" if mount is None or mount.is_ready else f". {mount.sentence}"
            raise UnknownTarget(f"Unknown tool: {str(name)[:200]}{why}")
        return await self._call_entry(exchange, entry)

    def _call_entry(self, exchange: Exchange, entry: Entry) -> Awaitable[Reply]:
        if entry.marks and exchange.headers is not None:
            check_marks(exchange.headers, None, exchange.params, entry.marks)
        mount = self._mount(entry)
        if entry.needs_task:
            exchange = exchange.again(as_task(exchange.params, mount.settings.longest_call))
        return self._relay(exchange, mount, "name", entry.own)

    def _away(self, name: object) -> Mount | None:
        """The server that is away now and whose names begin like this one, if there is one."""
        own = str(name).removeprefix("mcp__")
        for mount in map(self._hub.find, self.catalog.prefixes):
            if mount is not None and not mount.is_ready and mount.prefix and own.startswith(f"{mount.prefix}__"):
                return mount
        return None

    def _get_prompt(self, exchange: Exchange) -> Awaitable[Reply]:
        entry = self._prompt(exchange.params.get("name"))
        return self._relay(exchange, self._mount(entry), "name", entry.own)

    def _prompt(self, name: object) -> Entry:
        entry = self.catalog.prompts.get(name) if isinstance(name, str) else None
        if entry is None:
            raise UnknownTarget(f"Unknown prompt: {str(name)[:200]}")
        return entry

    def _read(self, exchange: Exchange) -> Awaitable[Reply]:
        mount, own = self._owner(exchange.params.get("uri"))
        return self._relay(exchange, mount, "uri", own)

    def _owner(self, uri: object) -> tuple[Mount, str]:
        found = self.catalog.owner_of_uri(uri) if isinstance(uri, str) else None
        mount = self._hub.find(found[0]) if found is not None else None
        if found is None or mount is None:
            raise UnknownTarget(f"Resource not found: {str(uri)[:200]}", data={"uri": uri})
        return mount, found[1]

    def _mount(self, entry: Entry) -> Mount:
        mount = self._hub.find(entry.mount)
        if mount is None:  # Taken away between two turns of the loop.
            raise UnknownTarget(f"{entry.mount} is not there any more.")
        return mount

    async def _relay(self, exchange: Exchange, mount: Mount, member: str, own: str) -> Reply:
        """The reply of a mount, which knows its own names only."""
        params = exchange.params
        if "requestState" in params:
            params = self._hub.states.unwrapped(exchange, mount.name)
        params = {**params, member: own}
        reply = await mount.calls.ask(exchange, params)
        if is_plain(reply, exchange.method, exchange.profile.version):
            return reply if reply.is_final else Result(reply.value, is_final=True)
        return await self._treat(exchange, mount, params, mount.calls.typed(reply))

    async def _treat(self, exchange: Exchange, mount: Mount, params: Params, reply: Reply) -> Reply:
        """A reply in the names of this view, with what else its caller needs."""
        if says_task(reply) and self._tasks.may_be_begun(exchange, mount):
            return self._tasks.begun(exchange, mount, str(params.get("name")), reply)
        if isinstance(reply, ErrorObject) and reply.code == URL_ELICITATION_REQUIRED:
            reply = await settle_links(mount, exchange, params, reply)
        elif isinstance(reply, ErrorObject):
            reply = error_to_pass(exchange.method, params, reply)
        else:
            mount.calls.count(reply)
        asked, reply = reply, self._hub.states.wrapped(exchange, mount.name, reply, mount.prefix)
        if reply is asked and isinstance(reply, Result):
            try:
                reply = in_shape(exchange.method, reply)
            except RemoteProtocolError as problem:
                mount.calls.figures.errors += 1
                raise UpstreamProtocolError(f"{mount.name}: {problem.message}") from None
        for loss in losses_in(exchange.method, reply, revision_of(exchange.profile.version)):
            mount.calls.lost(loss)
        if not mount.prefix:
            return reply
        try:
            return reply_rewritten(exchange.method, reply, partial(exposed_uri, mount.prefix))
        except RemoteProtocolError as problem:
            raise UpstreamProtocolError(f"{mount.name}: {problem.message}") from None

    async def _complete(self, exchange: Exchange) -> Reply:
        reference = as_object(exchange.params.get("ref")) or {}
        match reference.get("type"):
            case "ref/prompt":
                entry = self._prompt(reference.get("name"))
                mount, own = self._mount(entry), {**reference, "name": entry.own}
            case "ref/resource":
                uri = reference.get("uri")
                template = self.catalog.templates.get(uri) if isinstance(uri, str) else None
                if template is not None:
                    mount, own = self._mount(template), {**reference, "uri": template.own}
                else:
                    mount, own_uri = self._owner(uri)
                    own = {**reference, "uri": own_uri}
            case _:
                raise InvalidParams("Invalid params: the type of ref is ref/prompt or ref/resource.")
        reply = await mount.calls.make(exchange, {**exchange.params, "ref": own})
        if isinstance(reply, ErrorObject):
            # We say that we complete, on behalf of all; a server that does not has nothing to propose.
            unable = reply.code == METHOD_NOT_FOUND
            return Result(complete({"completion": {"values": []}})) if unable else reply
        return _at_most_a_hundred(reply)

    # -------------------------------------------------------------------------------------------------- listening

    async def _listen(self, exchange: Exchange) -> Reply:
        if wants_log(exchange.profile):
            return await self._hub.log.hold(exchange, lambda server: server in self.catalog.prefixes)
        wanted = read_filter(exchange.params)
        tasks = self._tasks.listened_to(exchange)
        if not tasks:
            return await self._hold(exchange, wanted)
        async with TaskScope() as scope:
            news = TaskNews(exchange, scope, partial(self._tasks.may_tell, exchange.caller))
            for mount, names in tasks.items():
                news.begin(mount, names)
            try:
                return await self._hold(exchange, wanted, news)
            finally:
                scope.cancel_all()

    async def _hold(self, exchange: Exchange, wanted: Filter, news: TaskNews | None = None) -> Reply:
        owned: list[tuple[Mount, str]] = []
        asked: dict[str, asyncio.Future[bool]] = {}
        exposed: dict[str, str] = {}
        try:
            for uri in wanted.uris:
                try:
                    mount, own = self._owner(uri)
                except UnknownTarget:
                    continue
                owned.append((mount, own))
                mount.calls.know_caller(exchange.caller)
                asked[uri] = mount.watch(own)
                exposed[uri] = exposed_uri(mount.prefix, own)
            # From now on: one server may tell of a resource while another has yet to answer.
            with self._changes.listener(Filter(wanted.lists, tuple(dict.fromkeys(exposed.values())))) as listener:
                await _wait_for(asked.values(), max((mount.settings.queue_wait for mount, _ in owned), default=0.0))
                names = {uri: exposed[uri] for uri, one in asked.items() if one.done() and one.result()}
                honoured = Filter(wanted.lists, tuple(dict.fromkeys(names.values())))
                listener.narrow(honoured)
                said = {**honoured.wire(), **({"resourceSubscriptions": list(names)} if names else {})}
                ids = [] if news is None else await news.accepted(LONGEST_WAIT)
                if ids:
                    said[WANTED] = ids
                renamed = Subtrees[tuple[str, str]]()
                for given, shown in names.items():
                    if given != shown:
                        renamed.add(shown, (given, shown))
                await exchange.emit(Notification(ACKNOWLEDGED, {"notifications": said}))
                if news is not None:
                    news.tell(ids, listener.close)
                while (notice := await listener.wait()) is not None:
                    await exchange.emit(_as_named(notice, renamed))
        finally:
            for mount, own in owned:
                mount.unwatch(own)
        return Result(complete({}))


async def _wait_for(futures: Collection["asyncio.Future[bool]"], seconds: float) -> None:
    """Return when all are done, or the time is over. All share it: a client may name a thousand."""
    if futures:
        await asyncio.wait(futures, timeout=seconds)


def _as_named(notice: Notification, renamed: Subtrees[tuple[str, str]]) -> Notification:
    """An update of a resource under the name that the client subscribed to: it may have used a server's own URI."""
    uri = notice.params.get("uri")
    if notice.method != RESOURCE_UPDATED or not isinstance(uri, str):
        return notice
    for given, exposed in renamed.of(uri)[:1]:
        return Notification(notice.method, {**notice.params, "uri": given + uri.removeprefix(exposed)})
    return notice


def _differs(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> bool:
    if len(before) != len(after):
        return True
    pairs = zip(before.values(), after.values(), strict=True)
    return any(old is not new and old.encoded != new.encoded for old, new in pairs)


def _place_in(cursor: bytes) -> tuple[int, int]:
    return int.from_bytes(cursor[:8], "big"), int.from_bytes(cursor[8:], "big")


def _at_most_a_hundred(reply: Result) -> Reply:
    value = opened(reply)
    completion = as_object(value.get("completion")) or {}
    values = as_array(completion.get("values")) or []
    if len(values) <= MOST_COMPLETIONS:
        return reply
    return Result({**value, "completion": {**completion, "values": values[:MOST_COMPLETIONS], "hasMore": True}})
