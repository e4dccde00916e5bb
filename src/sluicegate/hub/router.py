"""Answers the clients of one profile: lists from the catalog, and forwards every other request to its mount."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

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
from sluicegate.hub.call_sink import losses_in
from sluicegate.hub.calls import Check, is_plain, revision_of
from sluicegate.hub.catalog import Catalog, Entry, Profile, seen_through, with_hop
from sluicegate.hub.input_requests import settle_links
from sluicegate.hub.list_pages import LIST_METHODS, ListPages
from sluicegate.hub.mount import Mount
from sluicegate.hub.naming import exposed_uri, reply_rewritten
from sluicegate.hub.subscriptions import Subscriptions
from sluicegate.hub.tasks.notifications import TaskNotifications
from sluicegate.hub.tasks.passthrough import TaskPassthrough
from sluicegate.hub.tasks.run_legacy import as_task
from sluicegate.hub.unattributed import wants_log
from sluicegate.protocol.headers import check_marks
from sluicegate.protocol.message import Notification, Params, Reply, Result, as_array, as_object, opened
from sluicegate.protocol.methods import LIST_CHANGES
from sluicegate.protocol.modern_era import ACKNOWLEDGED, SERVER_INFO_KEY, complete
from sluicegate.protocol.tasks import REQUESTS, REQUIRED, WANTED, says_task
from sluicegate.protocol.translate.results import error_to_pass
from sluicegate.protocol.validate import valid_result
from sluicegate.protocol.versions import MODERN_VERSIONS, SUPPORTED_VERSIONS
from sluicegate.runtime.change_feed import LISTS_PACE, RESOURCE_UPDATED, Changes, Filter, Subtrees, read_filter
from sluicegate.runtime.task_scope import TaskScope

if TYPE_CHECKING:
    from sluicegate.hub.hub import Hub

MOST_COMPLETIONS: Final = 100

TASKS_ACCEPTED_WITHIN: Final = 5.0
"""Seconds that servers have to acknowledge subscriptions to their tasks."""

# Static: a session-era client gets them once, and servers come and go. An empty list is legal, a missing one is not.
CAPABILITIES: Final[Params] = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}

_NO_ARGUMENTS: Final[Params] = {}

_NOTICES: Final = {
    "tools": LIST_CHANGES["toolsListChanged"],
    "prompts": LIST_CHANGES["promptsListChanged"],
    "resources": LIST_CHANGES["resourcesListChanged"],
    "templates": LIST_CHANGES["resourcesListChanged"],
}


class Router:
    """A `Handler` for the clients of one profile."""

    def __init__(self, hub: "Hub", profile: Profile, catalog: Catalog) -> None:
        self.profile = profile
        self.catalog = seen_through(catalog, profile)
        self._hub = hub
        self._tasks = TaskPassthrough(hub, self, self._forward)
        self._changes = Changes(LISTS_PACE)
        self._lists = ListPages(hub, self.catalog)
        self._methods: dict[str, Callable[[Exchange], Awaitable[Reply]]] = {
            "server/discover": self._discover,
            "tools/call": self._call_tool,
            "prompts/get": self._get_prompt,
            "resources/read": self._read,
            "completion/complete": self._complete,
            "subscriptions/listen": self._listen,
            **{method: self._tasks.answer for method in REQUESTS},
            **{method: self._list for method in LIST_METHODS},
        }

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        """The reply to an exchange that uses the names and URIs of this router.

        Raises:
            SluicegateError: no server has what it names, or the server could not answer.
        """
        answer = self._methods.get(exchange.method)
        if answer is None:
            raise MethodNotFound(f"Method not found: {exchange.method[:100]}")
        return answer(exchange)

    def set_catalog(self, catalog: Catalog, profile: Profile | None = None) -> None:
        """Replace the catalog; listeners are notified of the lists that really changed."""
        is_narrowed = profile is not None and profile != self.profile
        self.profile = profile or self.profile
        before, self.catalog = self.catalog, seen_through(catalog, self.profile)
        changed = {notice for kind, notice in _NOTICES.items() if _differs(before.of(kind), self.catalog.of(kind))}
        self._lists.set_catalog(self.catalog, has_changed=bool(changed), is_narrowed=is_narrowed)
        for notice in changed:
            self._changes.note(notice)

    def forget_pages(self) -> None:
        """Encode lists again: the state of a server, which is part of them, has changed."""
        self._lists.forget()

    def on_resource_updated(self, mount: Mount, uri: str, subscribed: str) -> None:
        """Notify the listeners of a resource of a mount."""
        if mount.name in self.catalog.prefixes:
            self._changes.note(RESOURCE_UPDATED, exposed_uri(mount.prefix, uri))
            is_below = uri.startswith(subscribed.rstrip("/") + "/")
            if uri != subscribed and not is_below:  # Listeners hear of paths below; this is another spelling.
                self._changes.note(RESOURCE_UPDATED, exposed_uri(mount.prefix, subscribed))

    def on_list_notice(self, mount: Mount, notices: Collection[str]) -> None:
        """Pass on a mount's notice that its lists changed, though they are the same."""
        if mount.name in self.catalog.prefixes:
            for notice in notices:
                self._changes.note(notice)

    def open(self) -> None:
        """Accept listeners, also after `close`."""
        self._changes = Changes(LISTS_PACE)

    def close(self) -> None:
        """End all subscriptions normally."""
        self._changes.close()

    # ------------------------------------------------------------------------------------------------- lists

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
        return self._lists.page(exchange)

    # -------------------------------------------------------------------------------------------------- requests

    def _call_tool(self, exchange: Exchange) -> Awaitable[Reply]:
        name = exchange.params.get("name")
        entry = self.catalog.tools.get(name) if isinstance(name, str) else None
        if entry is None:
            return self._call_unknown(exchange, name)
        return self._call_entry(exchange, entry)

    async def _call_unknown(self, exchange: Exchange, name: object) -> Reply:
        """Call a tool that is not in the catalog: the server that has it may be connecting."""
        mount = self._away(name)
        if mount is not None:
            await mount.wait_retry()
        entry = self.catalog.tools.get(name) if isinstance(name, str) else None
        if entry is None:
            why = "" if mount is None or mount.is_ready else f". {mount.sentence}"
            raise UnknownTarget(f"Unknown tool: {str(name)[:200]}{why}")
        return await self._call_entry(exchange, entry)

    def _call_entry(self, exchange: Exchange, entry: Entry) -> Awaitable[Reply]:
        if entry.marks and exchange.headers is not None and exchange.profile.version in MODERN_VERSIONS:
            check_marks(exchange.headers, None, exchange.params, entry.marks)
        mount = self._mount(entry)
        if entry.needs_task:
            exchange = exchange.again(as_task(exchange.params, mount.settings.longest_call))
        return self._request(exchange, mount, "name", entry.own)

    def _away(self, name: object) -> Mount | None:
        """The server that is away now and whose names begin like this one, if there is one."""
        own = str(name).removeprefix("mcp__")
        for mount in map(self._hub.find, self.catalog.prefixes):
            if mount is not None and not mount.is_ready and mount.prefix and own.startswith(f"{mount.prefix}__"):
                return mount
        return None

    def _get_prompt(self, exchange: Exchange) -> Awaitable[Reply]:
        entry = self._prompt(exchange.params.get("name"))
        return self._request(exchange, self._mount(entry), "name", entry.own)

    def _prompt(self, name: object) -> Entry:
        entry = self.catalog.prompts.get(name) if isinstance(name, str) else None
        if entry is None:
            raise UnknownTarget(f"Unknown prompt: {str(name)[:200]}")
        return entry

    def _read(self, exchange: Exchange) -> Awaitable[Reply]:
        mount, own = self._owner(exchange.params.get("uri"))
        return self._request(exchange, mount, "uri", own)

    def _owner(self, uri: object) -> tuple[Mount, str]:
        found = self.catalog.owner_of_uri(uri) if isinstance(uri, str) else None
        mount = self._hub.find(found[0]) if found is not None else None
        if found is None or mount is None:
            raise UnknownTarget(f"Resource not found: {str(uri)[:200]}", data={"uri": uri})
        return mount, found[1]

    def _mount(self, entry: Entry) -> Mount:
        mount = self._hub.find(entry.mount)
        if mount is None:
            raise UnknownTarget(f"{entry.mount} was removed.")
        return mount

    def _forward(
        self, exchange: Exchange, mount: Mount, params: Params, check: Check | None = None
    ) -> Awaitable[Reply]:
        """Send an exchange to its mount, with params that use the server's own names.

        Every request to a server passes here: this is where steps in front of one server belong.
        """
        if mount.is_gateway:
            params = with_hop(params)
        return mount.calls.call_typed(exchange, params, check)

    async def _request(self, exchange: Exchange, mount: Mount, member: str, own: str) -> Reply:
        """The reply to a request about one tool, prompt or resource, which the server knows by its own name."""
        params = exchange.params
        if type(params.get("arguments", _NO_ARGUMENTS)) is not dict and params["arguments"] is not None:
            raise InvalidParams("Invalid params: arguments must be a JSON object, such as {}.")
        if "requestState" in params:
            params = self._hub.request_states.unwrapped(exchange, mount.name)
        params = {**params, member: own}
        reply = await self._forward(exchange, mount, params)
        if is_plain(reply, exchange.profile.version):
            return reply
        return await self._rewrite_reply(exchange, mount, params, reply)

    async def _rewrite_reply(self, exchange: Exchange, mount: Mount, params: Params, reply: Reply) -> Reply:
        """The reply with the names of this router, and what else its caller needs."""
        if says_task(reply) and self._tasks.may_begin(exchange, mount):
            return self._tasks.begun(exchange, mount, str(params.get("name")), reply)
        if isinstance(reply, ErrorObject) and reply.code == URL_ELICITATION_REQUIRED:
            send_again = partial(self._forward, exchange, mount, params)
            reply = await settle_links(mount, exchange, reply, send_again)
        elif isinstance(reply, ErrorObject):
            reply = error_to_pass(exchange.method, params, reply)
        else:
            mount.calls.count(reply)
        asked, reply = (
            reply,
            self._hub.request_states.wrapped(exchange, mount.name, reply, mount.prefix, mount.calls.lost),
        )
        if reply is asked and isinstance(reply, Result):
            try:
                reply = valid_result(exchange.method, reply)
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
                raise InvalidParams("Invalid params: the type of ref must be ref/prompt or ref/resource.")
        reply = await self._forward(exchange, mount, {**exchange.params, "ref": own})
        if isinstance(reply, ErrorObject):
            # We declare completions for all servers; one without them has no proposals.
            has_none = reply.code == METHOD_NOT_FOUND
            return Result(complete({"completion": {"values": []}})) if has_none else reply
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
            news = TaskNotifications(exchange, scope, partial(self._tasks.may_notify, exchange.caller))
            for mount, names in tasks.items():
                news.listen(mount, names)
            try:
                return await self._hold(exchange, wanted, news)
            finally:
                scope.cancel_all()

    async def _hold(self, exchange: Exchange, wanted: Filter, news: TaskNotifications | None = None) -> Reply:
        # The subscriptions and not their mounts: another mount may take them over.
        owned: list[tuple[Subscriptions, str]] = []
        asked: dict[str, asyncio.Future[bool]] = {}
        exposed: dict[str, str] = {}
        patience = 0.0
        try:
            for uri in wanted.uris:
                try:
                    mount, own = self._owner(uri)
                except UnknownTarget:
                    continue
                owned.append((mount.subscriptions, own))
                patience = max(patience, mount.settings.queue_wait)
                mount.calls.know_caller(exchange.caller)
                asked[uri] = mount.subscriptions.watch(own)
                exposed[uri] = exposed_uri(mount.prefix, own)
            # From now on: one server may report a change while another has yet to acknowledge.
            with self._changes.listener(Filter(wanted.lists, tuple(dict.fromkeys(exposed.values())))) as listener:
                if asked:
                    await asyncio.wait(asked.values(), timeout=patience)
                names = {uri: exposed[uri] for uri, one in asked.items() if one.done() and one.result()}
                honoured = Filter(wanted.lists, tuple(dict.fromkeys(names.values())))
                listener.narrow(honoured)
                accepted = {**honoured.wire(), **({"resourceSubscriptions": list(names)} if names else {})}
                ids = [] if news is None else await news.accepted(TASKS_ACCEPTED_WITHIN)
                if ids:
                    accepted[WANTED] = ids
                renamed = Subtrees[tuple[str, str]]()
                for given, shown in names.items():
                    if given != shown:
                        renamed.add(shown, (given, shown))
                await exchange.emit(Notification(ACKNOWLEDGED, {"notifications": accepted}))
                if news is not None:
                    news.start(ids, listener.close)
                while (notice := await listener.wait()) is not None:
                    await exchange.emit(_as_named(notice, renamed))
        finally:
            for subscriptions, own in owned:
                subscriptions.unwatch(own)
        return Result(complete({}))


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


def _at_most_a_hundred(reply: Result) -> Reply:
    value = opened(reply)
    completion = as_object(value.get("completion")) or {}
    values = as_array(completion.get("values")) or []
    if len(values) <= MOST_COMPLETIONS:
        return reply
    return Result({**value, "completion": {**completion, "values": values[:MOST_COMPLETIONS], "hasMore": True}})
