"""Answers the clients of one profile: lists from the catalog, and forwards every other request to its mount."""

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from sluicegate.errors import (
    METHOD_NOT_FOUND,
    URL_ELICITATION_REQUIRED,
    ErrorObject,
    InvalidParams,
    Quarantined,
    Refused,
    RemoteProtocolError,
    UnknownTarget,
    UpstreamProtocolError,
)
from sluicegate.exchange import Caller, Exchange, Governor, Target
from sluicegate.hub.call_sink import losses_in
from sluicegate.hub.calls import Check, is_plain, revision_of
from sluicegate.hub.catalog import Catalog, Entry, Subset, seen_through, with_hop
from sluicegate.hub.extensions import Extensions
from sluicegate.hub.input_requests import settle_links
from sluicegate.hub.instructions import about_servers
from sluicegate.hub.list_pages import LIST_METHODS
from sluicegate.hub.listen import hold
from sluicegate.hub.mount import Mount
from sluicegate.hub.naming import exposed_uri, reply_rewritten
from sluicegate.hub.tasks.notifications import TaskNotifications
from sluicegate.hub.tasks.passthrough import TaskPassthrough
from sluicegate.hub.tasks.run_legacy import as_task
from sluicegate.hub.unattributed import wants_log
from sluicegate.hub.unlisted import server_of_unlisted
from sluicegate.hub.variants import Variants
from sluicegate.hub.views import Views
from sluicegate.protocol.headers import check_marks
from sluicegate.protocol.message import Params, Reply, Result, as_object
from sluicegate.protocol.modern_era import SERVER_INFO_KEY, complete
from sluicegate.protocol.tasks import REQUESTS, says_task
from sluicegate.protocol.translate.results import error_to_pass
from sluicegate.protocol.validate import shortened_completion, valid_result
from sluicegate.protocol.versions import MODERN_VERSIONS, SUPPORTED_VERSIONS
from sluicegate.runtime.change_feed import LISTS_PACE, RESOURCE_UPDATED, Changes, read_filter
from sluicegate.runtime.task_scope import TaskScope

if TYPE_CHECKING:
    from sluicegate.hub.hub import Hub

# Static: a session-era client gets them once, and servers come and go. An empty list is legal, a missing one is not.
CAPABILITIES: Final[Params] = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}

MAX_DECISIONS: Final = 3
"""How often a request is decided on if rules or definitions keep changing before it can be sent."""

_NO_ARGUMENTS: Final[Params] = {}


class _Outdated(Refused):
    """Rules or definition have changed between the decision and the moment of sending; nothing was sent."""

    reason = "outdated"


FindTarget = Callable[[], Target]
"""The target of a request as it is now; raises UnknownTarget if it is gone."""


class Router:
    """A `Handler` for the clients of one profile."""

    def __init__(self, hub: "Hub", profile: Subset, catalog: Catalog, *, may_vary: bool = True) -> None:
        """`may_vary` is False for the router of some clients only, which declare the same extensions."""
        self.profile = profile
        self.catalog = seen_through(catalog, profile)
        self._hub = hub
        self._tasks = TaskPassthrough(hub, self, self._forward)
        self._extensions = Extensions(hub, self, self._forward, self._find, self._resource)
        self._variants = Variants(hub, self, self._variant if may_vary else None)
        self._changes = Changes(LISTS_PACE)
        self._views = Views(hub, self.catalog)
        self.view = self._views.of
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
        answer = self._methods.get(exchange.method, self._extensions.answer)
        key = self._variants.key_of(exchange)
        return self._variants.answer(key, exchange, answer) if key else answer(exchange)

    def describe_tool(self, caller: Caller, name: str) -> msgspec.Raw | None:
        """The definition of a tool that a caller sees under this name."""
        entry = self.view(caller).catalog.tools.get(name)
        return None if entry is None else entry.encoded

    def _variant(self, catalog: Catalog) -> "Router":
        return Router(self._hub, self.profile, catalog, may_vary=False)

    def set_catalog(self, catalog: Catalog, profile: Subset | None = None) -> None:
        """Replace the catalog; listeners are notified of the lists that really changed."""
        is_narrowed = profile is not None and profile != self.profile
        self.profile = profile or self.profile
        self.catalog = seen_through(catalog, self.profile)
        for notice in self._views.set_catalog(self.catalog, is_narrowed=is_narrowed):
            self._changes.note(notice)
        self._variants.refresh()

    def set_rules(self) -> None:
        """Apply other rules; listeners are notified of the lists that they change."""
        for notice in self._views.set_rules():
            self._changes.note(notice)
        self._variants.refresh()

    def forget_pages(self) -> None:
        """Encode lists again: the state of a server, which is part of them, has changed."""
        self._views.forget_pages()
        self._variants.forget_pages()

    def on_resource_updated(self, mount: Mount, uri: str, subscribed: str) -> None:
        """Notify the listeners of a resource of a mount."""
        if mount.name in self.catalog.prefixes:
            self._changes.note(RESOURCE_UPDATED, exposed_uri(mount.prefix, uri))
            is_below = uri.startswith(subscribed.rstrip("/") + "/")
            if uri != subscribed and not is_below:  # Listeners hear of paths below; this is another spelling.
                self._changes.note(RESOURCE_UPDATED, exposed_uri(mount.prefix, subscribed))

    def on_list_notice(self, mount: Mount, notices: Collection[str]) -> None:
        """Pass on a mount's notice that its lists changed, though they are the same."""
        self._variants.outdate(mount)
        if mount.name in self.catalog.prefixes:
            for notice in notices:
                self._changes.note(notice)

    def open(self) -> None:
        """Accept listeners, also after `close`."""
        self._changes = Changes(LISTS_PACE)
        self._variants.open()

    def close(self) -> None:
        """End all subscriptions normally."""
        self._changes.close()

    async def _discover(self, exchange: Exchange) -> Reply:
        prefixes = (catalog := self.view(exchange.caller).catalog).prefixes
        value: Params = {
            "supportedVersions": list(SUPPORTED_VERSIONS),
            "capabilities": {**CAPABILITIES, **self._extensions.capabilities(prefixes)},
            "_meta": {SERVER_INFO_KEY: dict(self._hub.info), **about_servers(exchange.params, catalog, self._hub.find)},
        }
        if (instructions := self._hub.instructions(prefixes)) is not None:
            value["instructions"] = instructions
        return Result(complete(value, ttl_ms=60_000 if self._tasks.is_settled else 0))

    async def _list(self, exchange: Exchange) -> Reply:
        return self.view(exchange.caller).lists.page(exchange)

    def _call_tool(self, exchange: Exchange) -> Awaitable[Reply]:
        name = exchange.params.get("name")
        entry = self.view(exchange.caller).catalog.tools.get(name) if isinstance(name, str) else None
        if entry is None:
            return self._call_unknown(exchange, name)
        return self._call_entry(exchange, entry)

    async def _call_unknown(self, exchange: Exchange, name: object) -> Reply:
        """Call a tool that is not in the catalog: the server that has it may be connecting."""
        mount = self._away(exchange.caller, name)
        if mount is not None:
            await mount.wait_retry()
        catalog = self.view(exchange.caller).catalog
        entry = catalog.tools.get(name) if isinstance(name, str) else None
        if entry is None:
            self._check_quarantine("tools", exchange.caller, name)
            if isinstance(name, str) and (bare := server_of_unlisted(self._hub, self, name)) is not None:
                find = partial(self.tool_target, exchange.caller, bare, name)
                return await self._request(exchange, bare, "name", name, find)
            why = "" if mount is None or mount.is_ready else f". {mount.sentence}"
            raise self._unknown("tools", name, why)
        return await self._call_entry(exchange, entry)

    def _call_entry(self, exchange: Exchange, entry: Entry) -> Awaitable[Reply]:
        if entry.marks and exchange.headers is not None and exchange.profile.version in MODERN_VERSIONS:
            check_marks(exchange.headers, None, exchange.params, entry.marks)
        mount = self._mount(entry)
        find = partial(self._find, "tools", exchange.caller, exchange.params["name"])
        if entry.needs_task:
            params = as_task(exchange.params, mount.settings.longest_call)
            exchange = msgspec.structs.replace(exchange, params=params)
        return self._request(exchange, mount, "name", entry.own, find)

    def _find(self, kind: str, caller: Caller, name: object) -> Target:
        """The target of an entry; raises UnknownTarget if the caller may not use it, or it is gone."""
        entry = self.view(caller).catalog.of(kind).get(str(name))
        if entry is None:
            self._check_quarantine(kind, caller, name)
            raise self._unknown(kind, name)
        return entry.target

    def _unknown(self, kind: str, name: object, why: str = "") -> UnknownTarget:
        unknown = UnknownTarget(f"Unknown {kind.removesuffix('s')}: {str(name)[:200]}{why}")
        hidden = self.catalog.of(kind).get(str(name))
        unknown.hidden = None if hidden is None else hidden.target
        return unknown

    def _check_quarantine(self, kind: str, caller: Caller, name: object) -> None:
        """Raise Quarantined if an entry is quarantined and the caller could use it otherwise."""
        found = self.catalog.quarantined.get((kind, str(name)))
        governor = self._hub.governor
        if found is not None and (governor is None or not governor.hides(caller, found[0].target)):
            raise Quarantined(f"{str(name)[:200]} may not be used until a person has approved it. {found[1]}")

    def _away(self, caller: Caller, name: object) -> Mount | None:
        """The server that is away now and whose names begin like this one, if there is one."""
        own = str(name).removeprefix("mcp__")
        for mount in map(self._hub.find, self.view(caller).catalog.prefixes):
            if mount is None or mount.is_ready or not mount.prefix:
                continue
            if own.startswith((f"{mount.prefix}__", f"{mount.prefix}.")):
                return mount
        return None

    def _get_prompt(self, exchange: Exchange) -> Awaitable[Reply]:
        entry = self._prompt(exchange.caller, name := exchange.params.get("name"))
        find = partial(self._find, "prompts", exchange.caller, name)
        return self._request(exchange, self._mount(entry), "name", entry.own, find)

    def _prompt(self, caller: Caller, name: object) -> Entry:
        entry = self.view(caller).catalog.prompts.get(name) if isinstance(name, str) else None
        if entry is None:
            self._check_quarantine("prompts", caller, name)
            raise self._unknown("prompts", name)
        return entry

    def _read(self, exchange: Exchange) -> Awaitable[Reply]:
        uri = exchange.params.get("uri")
        mount, target = self._resource(exchange.caller, uri)
        find = partial(self._resource_target, exchange.caller, uri)
        return self._request(exchange, mount, "uri", target.name, find)

    def _resource(self, caller: Caller, uri: object) -> tuple[Mount, Target]:
        """The mount of a URI, and what rules judge.

        Raises:
            UnknownTarget: no server has it, or the caller may not use it.
        """
        found = self.catalog.owner_of_uri(uri) if isinstance(uri, str) else None
        mount = self._hub.find(found[0]) if found is not None else None
        if found is not None and mount is not None:
            entry = self.catalog.resources.get(str(uri))
            definition = entry.target.definition if entry is not None else ""
            target = _resource_target(mount, found[1], definition)
            governor = self._hub.governor
            if governor is None or not governor.hides(caller, target):
                return mount, target
        raise UnknownTarget(f"Resource not found: {str(uri)[:200]}", data={"uri": uri})

    def _resource_target(self, caller: Caller, uri: object) -> Target:
        return self._resource(caller, uri)[1]

    def _mount(self, entry: Entry) -> Mount:
        mount = self._hub.find(entry.mount)
        if mount is None:
            raise UnknownTarget(f"{entry.mount} was removed.")
        return mount

    def tool_target(self, caller: Caller, mount: Mount, own: str) -> Target:
        """The target of a tool by its own name, which may have left the catalog: a task goes on without its tool.

        Raises:
            UnknownTarget: the caller may not use it.
        """
        target = Target(mount.settings.key or mount.name, "tool", own)
        governor = self._hub.governor
        if governor is not None and governor.hides(caller, target):
            raise UnknownTarget(f"Unknown tool: {own[:200]}")
        return target

    def _forward(
        self, exchange: Exchange, mount: Mount, params: Params, find: FindTarget, check: Check | None = None
    ) -> Awaitable[Reply]:
        """Send an exchange to its mount, with params that use the server's own names.

        Every request to a server passes here, and so through the governor of the hub.
        """
        if mount.is_gateway:
            params = with_hop(params)
        governor = self._hub.governor
        if governor is None:
            return mount.calls.call_typed(exchange, params, check)
        return self._governed(governor, exchange, mount, params, find, check)

    async def _governed(
        self,
        governor: Governor,
        exchange: Exchange,
        mount: Mount,
        params: Params,
        find: FindTarget,
        check: Check | None,
    ) -> Reply:
        for _ in range(MAX_DECISIONS):
            version = governor.version
            target = exchange.target = find()

            def send(decided: Exchange, version: object = version, target: Target = target) -> Awaitable[Reply]:
                def holds() -> None:
                    if check is not None:
                        check()
                    if governor.version != version or find() != target:
                        raise _Outdated("It is decided on again.")

                return mount.calls.call_typed(decided, params, holds)

            try:
                return await governor(exchange, send)
            except _Outdated:
                continue
        raise Refused("The rules or the definition of what you call keep changing; nothing was sent. Try again later.")

    async def _request(self, exchange: Exchange, mount: Mount, member: str, own: str, find: FindTarget) -> Reply:
        """The reply to a request about one tool, prompt or resource, which the server knows by its own name."""
        params = exchange.params
        if type(params.get("arguments", _NO_ARGUMENTS)) is not dict and params["arguments"] is not None:
            raise InvalidParams("Invalid params: arguments must be a JSON object, such as {}.")
        if "requestState" in params:
            # The state is ours and bound to these arguments, so the call has been decided on and has begun. If it is
            # used again, that is another call.
            params, exchange.is_continued = self._hub.request_states.unwrapped(exchange, mount.name)
        params = {**params, member: own}
        reply = await self._forward(exchange, mount, params, find)
        if is_plain(reply, exchange.profile.version):
            return reply
        return await self._rewrite_reply(exchange, mount, params, reply, find)

    async def _rewrite_reply(
        self, exchange: Exchange, mount: Mount, params: Params, reply: Reply, find: FindTarget
    ) -> Reply:
        """The reply with the names of this router, and what else its caller needs."""
        if says_task(reply) and self._tasks.may_begin(exchange, mount):
            return self._tasks.begun(exchange, mount, str(params.get("name")), reply)
        if isinstance(reply, ErrorObject) and reply.code == URL_ELICITATION_REQUIRED:
            exchange.is_continued = True
            send_again = partial(self._forward, exchange, mount, params, find)
            reply = await settle_links(mount, exchange, reply, send_again)
        elif isinstance(reply, ErrorObject):
            reply = error_to_pass(exchange.method, params, reply)
        else:
            mount.calls.count(reply)
        asked, reply = (
            reply,
            self._hub.request_states.wrapped(exchange, mount.name, reply, mount.calls.label, mount.calls.lost),
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
        reference, caller = as_object(exchange.params.get("ref")) or {}, exchange.caller
        match reference.get("type"):
            case "ref/prompt":
                entry = self._prompt(caller, name := reference.get("name"))
                mount, own = self._mount(entry), {**reference, "name": entry.own}
                find = partial(self._find, "prompts", caller, name)
            case "ref/resource":
                uri = reference.get("uri")
                template = self.view(caller).catalog.templates.get(uri) if isinstance(uri, str) else None
                if template is not None:
                    mount, own = self._mount(template), {**reference, "uri": template.own}
                    find = partial(self._find, "templates", caller, uri)
                else:
                    mount, target = self._resource(caller, uri)
                    own = {**reference, "uri": target.name}
                    find = partial(self._resource_target, caller, uri)
            case _:
                raise InvalidParams("Invalid params: the type of ref must be ref/prompt or ref/resource.")
        reply = await self._forward(exchange, mount, {**exchange.params, "ref": own}, find)
        if isinstance(reply, ErrorObject):
            # We declare completions for all servers; one without them has no proposals.
            has_none = reply.code == METHOD_NOT_FOUND
            return Result(complete({"completion": {"values": []}})) if has_none else reply
        return shortened_completion(reply)

    async def _listen(self, exchange: Exchange) -> Reply:
        if wants_log(exchange.profile):
            return await self._hub.log.hold(exchange, partial(self._views.sees, exchange.caller))
        wanted, tasks = read_filter(exchange.params), self._tasks.listened_to(exchange)
        # A subscription outlives its decision, so each resource is decided on as a request of its own.
        resources = {uri: found for uri in wanted.uris if (found := await self._may_listen(exchange, uri)) is not None}
        may_notify = partial(self._may_notify, exchange.caller)
        if not tasks:
            return await hold(exchange, self._changes, wanted, resources, may_notify)
        async with TaskScope() as scope:
            news = TaskNotifications(exchange, scope, partial(self._tasks.may_notify, exchange.caller))
            for mount, names in tasks.items():
                news.listen(mount, names)
            try:
                return await hold(exchange, self._changes, wanted, resources, may_notify, news)
            finally:
                scope.cancel_all()

    def _may_notify(self, caller: Caller, mount: Mount, own: str) -> bool:
        governor = self._hub.governor
        return governor is None or not governor.hides(caller, _resource_target(mount, own))

    async def _may_listen(self, exchange: Exchange, uri: str) -> tuple[Mount, str] | None:
        """The mount of a resource and its URI there; None if there is none, or the caller may not subscribe to it."""
        try:
            mount, target = self._resource(exchange.caller, uri)
            governor = self._hub.governor
            if governor is not None:
                asked = msgspec.structs.replace(exchange, method="resources/subscribe", params={"uri": uri})
                asked.target = target
                if not isinstance(await governor(asked, _accepted), Result):
                    return None
        except (UnknownTarget, Refused):
            return None
        return mount, target.name


def _resource_target(mount: Mount, own: str, definition: str = "") -> Target:
    return Target(mount.settings.key or mount.name, "resource", own, definition)


async def _accepted(exchange: Exchange) -> Reply:
    return Result(complete({}))
