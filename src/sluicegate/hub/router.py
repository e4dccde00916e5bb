"""Answers the clients of one profile: lists from the catalog, and forwards every other request to its mount."""

import re
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Final

import msgspec

from sluicegate.errors import (
    METHOD_NOT_FOUND,
    URL_ELICITATION_REQUIRED,
    ErrorObject,
    InvalidParams,
    Refused,
    RemoteProtocolError,
    UnknownTarget,
    UpstreamProtocolError,
)
from sluicegate.exchange import Caller, Exchange, Handler
from sluicegate.hub.call_sink import losses_in
from sluicegate.hub.calls import Calls, is_plain, revision_of
from sluicegate.hub.catalog import Catalog, Entry, Subset, with_hop
from sluicegate.hub.context import HubContext
from sluicegate.hub.extensions import Extensions
from sluicegate.hub.input_requests import settle_links
from sluicegate.hub.instructions import about_servers
from sluicegate.hub.listen import hold
from sluicegate.hub.mount import Mount
from sluicegate.hub.naming import exposed_uri, heads_of, looks_like_any, reply_rewritten
from sluicegate.hub.route import Outdated, Route
from sluicegate.hub.tasks.notifications import TaskNotifications
from sluicegate.hub.tasks.passthrough import TaskPassthrough
from sluicegate.hub.tasks.run_legacy import Wanted
from sluicegate.hub.unattributed import LogForwarding, wants_log
from sluicegate.hub.views import LIST_METHODS, CallerView, Views, resource_target
from sluicegate.protocol.headers import check_marks
from sluicegate.protocol.message import Params, Reply, Result, as_object
from sluicegate.protocol.methods import METHODS
from sluicegate.protocol.modern_era import SERVER_INFO_KEY, complete
from sluicegate.protocol.tasks import REQUESTS, says_task
from sluicegate.protocol.translate.results import error_to_pass
from sluicegate.protocol.types import ONLY_KEY
from sluicegate.protocol.validate import shortened_completion, valid_result
from sluicegate.protocol.versions import MODERN_VERSIONS, SUPPORTED_VERSIONS
from sluicegate.runtime.change_feed import LISTS_PACE, RESOURCE_UPDATED, Changes, read_filter
from sluicegate.runtime.task_scope import TaskScope

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

# The methods whose answer depends on which servers are connected, and the list that has what they name.
_LIST_OF: Final = {
    "tools/list": "tools",
    "tools/call": "tools",
    "prompts/list": "prompts",
    "prompts/get": "prompts",
    "completion/complete": "prompts",  # Or a template: `Exchange.name` does not say, so it waits for all servers.
    "resources/list": "resources",
    "resources/templates/list": "templates",
    "resources/read": "resources",
}

_NO_ARGUMENTS: Final[Params] = {}
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Router:
    """A `Handler` for the clients of one profile."""

    def __init__(self, context: HubContext, log: LogForwarding, profile: Subset, catalog: Catalog) -> None:
        self._context = context
        self._log = log
        self._views = Views(context, profile, catalog)
        self._tasks = TaskPassthrough(context, self._views, self._forward)
        self._extensions = Extensions(context, self._views, self._forward)
        self._changes = Changes(LISTS_PACE)
        self._search: Callable[[Exchange, Catalog, Catalog], Reply | None] | None = None
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
        return self._methods.get(exchange.method, self._extensions.answer)(exchange)

    def can_answer(self, exchange: Exchange) -> bool:
        """Whether the servers that an exchange needs are known: for a call its own, for a list all."""
        method, context = exchange.method, self._context
        if method == "server/discover":  # Which extensions there are depends on the servers.
            return "extensions" not in exchange.profile.capabilities or context.are_known
        if method not in METHODS:  # Which server has an extension, too.
            return context.are_known
        if method not in _LIST_OF:
            return True
        if method == "tools/list":
            only = (as_object(exchange.params.get("_meta")) or {}).get(ONLY_KEY)
            return context.searches or only in context.unlisted or context.are_known
        if method.endswith("/list"):
            return context.are_known
        name = exchange.name
        if method == "tools/call" and context.searches:
            from sluicegate.hub.search import SEARCH, searched_name  # Imported late: few gateways search.

            if name == SEARCH:
                return True
            name = searched_name(exchange)
        is_own = method == "tools/call" and name in context.unlisted
        return is_own or (isinstance(name, str) and self.catalog.exposed(_LIST_OF[method], name) is not None)

    @property
    def profile(self) -> Subset:
        """What its clients may see, whatever the rules say."""
        return self._views.profile

    @property
    def catalog(self) -> Catalog:
        """Everything that the profile shows."""
        return self._views.catalog

    def view(self, caller: Caller) -> CallerView:
        """What a caller sees."""
        return self._views.of(caller)

    def describe_tool(self, caller: Caller, name: str) -> msgspec.Raw | None:
        """The definition of a tool that a caller sees under this name."""
        entry = self._views.of(caller).catalog.tools.get(name)
        return None if entry is None else entry.encoded

    # ----------------------------------------------------------------------------------------------------- changes

    def set_catalog(self, catalog: Catalog, profile: Subset | None = None) -> None:
        """Replace the catalog; listeners are notified of the lists that really changed."""
        self._context.revision += 1
        for notice in self._views.set_catalog(catalog, profile):
            self._changes.note(notice)

    def set_rules(self) -> None:
        """Apply other rules; listeners are notified of the lists that they change."""
        self._context.revision += 1
        for notice in self._views.set_rules():
            self._changes.note(notice)

    def forget_pages(self) -> None:
        """Encode lists again: the state of a server, which is part of them, has changed."""
        self._views.forget_pages()

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

    # ------------------------------------------------------------------------------------------------------- lists

    async def _discover(self, exchange: Exchange) -> Reply:
        context, catalog = self._context, self._views.of(exchange.caller).catalog
        about = about_servers(exchange.params, catalog, context.find)
        value: Params = {
            "supportedVersions": list(SUPPORTED_VERSIONS),
            "capabilities": {**CAPABILITIES, **self._extensions.capabilities(catalog.prefixes)},
            "_meta": {SERVER_INFO_KEY: dict(context.info), **about},
        }
        if (instructions := context.instructions(catalog.prefixes)) is not None:
            value["instructions"] = instructions
        return Result(complete(value, ttl_ms=60_000 if self._tasks.is_settled else 0))

    async def _list(self, exchange: Exchange) -> Reply:
        if exchange.method == "tools/list":
            only = (as_object(exchange.params.get("_meta")) or {}).get(ONLY_KEY)
            if isinstance(only, str) and (handler := self._unlisted_handler(only)) is not None:
                return await handler(exchange)
            if self._context.searches:
                from sluicegate.hub.search import SEARCH_TOOLS  # Imported late: few gateways search.

                return Result(complete({"tools": list(SEARCH_TOOLS)}, ttl_ms=60_000))
        return self._views.of(exchange.caller).lists.page(exchange)

    def _unlisted_handler(self, name: str) -> Handler | None:
        """What answers a tool of this hub that is in no list, unless a server has one of that name."""
        handler = self._context.unlisted.get(name)
        return handler if handler is not None and self.catalog.exposed("tools", name) is None else None

    # ------------------------------------------------------------------------------------------------------- tools

    def _call_tool(self, exchange: Exchange) -> Awaitable[Reply]:
        name = exchange.params.get("name")
        entry = self._views.of(exchange.caller).catalog.tools.get(name) if isinstance(name, str) else None
        if entry is None or self._context.searches:
            return self._call_other(exchange)
        return self._call_entry(exchange, entry)

    async def _call_other(self, exchange: Exchange) -> Reply:
        """Call a tool that searches, that no list has, or whose server may be connecting."""
        if self._context.searches and (found := self._searched(exchange)) is not None:
            return found
        name, caller = exchange.params.get("name"), exchange.caller
        if isinstance(name, str) and (handler := self._unlisted_handler(name)) is not None:
            return await handler(exchange)
        entry = self._views.of(caller).catalog.tools.get(name) if isinstance(name, str) else None
        if entry is not None:
            return await self._call_entry(exchange, entry)
        mount = self._away(caller, name)
        if mount is not None:
            await mount.wait_retry()
        known: str | None = None
        if isinstance(name, str):
            catalog = self._views.of(caller).catalog
            known = catalog.exposed("tools", name) or catalog.exposed_to_page(name)
        # The params stay as they are: what the client gets to continue the call is bound to them.
        name = name if known is None else known
        entry = self._views.of(caller).catalog.tools.get(name) if isinstance(name, str) else None
        if entry is not None:
            return await self._call_entry(exchange, entry)
        self._views.check_quarantine("tools", caller, name)
        if isinstance(name, str) and (bare := self._server_of_unlisted(name)) is not None:
            find = partial(self._context.tool_target, caller, bare, name)
            return await self._request(exchange, Route(self._context, bare, {"name": name}, find(), find))
        raise self._views.unknown("tools", name, "" if mount is None or mount.is_ready else f". {mount.sentence}")

    def _call_entry(self, exchange: Exchange, entry: Entry) -> Awaitable[Reply]:
        if entry.marks and exchange.headers is not None and exchange.profile.version in MODERN_VERSIONS:
            check_marks(exchange.headers, None, exchange.params, entry.marks)
        mount = self._context.find(entry.mount) or self._mount(entry)
        own: Params = {"name": entry.own}
        if entry.needs_task:  # It lives as long as the longest call may.
            own["task"] = Wanted(int(mount.settings.longest_call * 1000))
        if entry.is_stream:
            exchange.offer_progress()
        find = partial(self._views.target, "tools", exchange.caller, exchange.params["name"])
        return self._request(exchange, Route(self._context, mount, own, entry.target, find))

    def _searched(self, exchange: Exchange) -> Reply | None:
        """What a search finds; None for other calls. A call of a tool that was found becomes the call of that tool.

        Raises:
            InvalidParams: the arguments of one of the two tools are not valid.
        """
        if self._search is None:
            from sluicegate.hub.search import SearchTools  # Imported late: few gateways search.

            self._search = SearchTools().answer
        return self._search(exchange, self.catalog, self._views.of(exchange.caller).catalog)

    def _away(self, caller: Caller, name: object) -> Mount | None:
        """The server that is away now and whose names begin like this one, if there is one."""
        own = str(name).removeprefix("mcp__")
        for mount in self._context.mounts_of(self._views.of(caller).catalog.prefixes):
            if not mount.is_ready and own.startswith(_heads(mount)):
                return mount
        return None

    def _server_of_unlisted(self, name: str) -> Mount | None:
        """The server that a tool with a name that is in no list may belong to; None if there is none.

        Only a server without a prefix can receive such calls: it looks as if the client were connected to it directly.
        A tool that it lists is not among them: clients may not see it because it is hidden or quarantined. Nor is any
        where rules or a lock file name what may be used.
        """
        prefixes = self.catalog.prefixes
        bare = next((mount for mount, prefix in prefixes.items() if not prefix), None)
        mount = None if bare is None else self._context.find(bare)
        if mount is None or mount.offer is None:
            return None
        plain = name.lower().removeprefix("mcp__")
        others = (each for each in self._context.mounts_of(prefixes) if each.prefix)
        if any(plain.startswith(head.lower()) for other in others for head in _heads(other)):
            return None  # It looks like a tool of another server.
        governor = self._context.governor
        if _PLAIN_NAME.fullmatch(name) is None or (governor is not None and not governor.allows_unlisted):
            return None
        is_listed = looks_like_any(name, (tool.own for tool in mount.offer.tools))
        names = (name, *(f"{other}__{name}" for other in (mount.name, mount.settings.key) if other))
        is_let = mount.settings.tools.let(name) and self.profile.tools.let(*names)
        return mount if is_let and not is_listed else None

    # ---------------------------------------------------------------------------------------- prompts and resources

    def _get_prompt(self, exchange: Exchange) -> Awaitable[Reply]:
        return self._request(exchange, self._route_to_prompt(exchange.caller, exchange.params.get("name")))

    def _route_to_prompt(self, caller: Caller, name: object) -> Route:
        entry = self._views.entry("prompts", caller, name)
        find = partial(self._views.target, "prompts", caller, name)
        return Route(self._context, self._mount(entry), {"name": entry.own}, entry.target, find)

    def _read(self, exchange: Exchange) -> Awaitable[Reply]:
        return self._request(exchange, self._route_to_resource(exchange.caller, exchange.params.get("uri")))

    def _route_to_resource(self, caller: Caller, uri: object) -> Route:
        mount, target = self._views.resource(caller, uri)
        return Route(self._context, mount, {"uri": target.name}, target, lambda: self._views.resource(caller, uri)[1])

    def _mount(self, entry: Entry) -> Mount:
        mount = self._context.find(entry.mount)
        if mount is None:
            raise UnknownTarget(f"{entry.mount} was removed.")
        return mount

    async def _complete(self, exchange: Exchange) -> Reply:
        reference, caller = as_object(exchange.params.get("ref")) or {}, exchange.caller
        match reference.get("type"):
            case "ref/prompt":
                route = self._route_to_prompt(caller, reference.get("name"))
            case "ref/resource":
                uri = reference.get("uri")
                template = self._views.of(caller).catalog.templates.get(uri) if isinstance(uri, str) else None
                if template is None:
                    route = self._route_to_resource(caller, uri)
                else:
                    find = partial(self._views.target, "templates", caller, uri)
                    mount, own = self._mount(template), template.own
                    route = Route(self._context, mount, {"uri": own}, template.target, find)
            case _:
                raise InvalidParams("Invalid params: the type of ref must be ref/prompt or ref/resource.")
        route.own = {"ref": {**reference, **route.own}}
        reply = await self._forward(exchange, route)
        if isinstance(reply, ErrorObject):
            # We declare completions for all servers; one without them has no proposals.
            has_none = reply.code == METHOD_NOT_FOUND
            return Result(complete({"completion": {"values": []}})) if has_none else reply
        return shortened_completion(reply)

    # ----------------------------------------------------------------------------------------------------- forwarding

    async def _forward(self, exchange: Exchange, route: Route) -> Reply:
        """Send an exchange to its mount.

        Every request to a server passes here, and so through the governor of the hub.
        """
        exchange.router = self
        if route.mount.is_gateway:
            route.own = {**route.own, "_meta": with_hop(exchange.params)["_meta"]}
        context = self._context
        governor = context.governor
        if governor is None:
            return await route(exchange)
        exchange.send = route
        for _ in range(MAX_DECISIONS):
            exchange.target, route.version, route.revision = route.target, governor.version, context.revision
            try:
                return await governor.decide(exchange)
            except Outdated:
                route.target = route.find()
        raise Refused("The rules or the definition of what you call keep changing; nothing was sent. Try again later.")

    def _forward_again(self, exchange: Exchange, route: Route) -> Awaitable[Reply]:
        route.target = route.find()  # Its definition may have changed meanwhile.
        return self._forward(exchange, route)

    async def _request(self, exchange: Exchange, route: Route) -> Reply:
        """The reply to a request about one tool, prompt or resource, which the server knows by its own name."""
        params = exchange.params
        if type(params.get("arguments", _NO_ARGUMENTS)) is not dict and params["arguments"] is not None:
            raise InvalidParams("Invalid params: arguments must be a JSON object, such as {}.")
        if "requestState" in params:
            # The state is ours and bound to these arguments, so the call has been decided on and has begun. If it is
            # used again, that is another call.
            self._context.request_states.unwrap(exchange, route.mount.name)
        reply = await self._forward(exchange, route)
        if is_plain(reply, exchange.profile.version):
            return reply
        return await self._rewrite_reply(exchange, route, reply)

    async def _rewrite_reply(self, exchange: Exchange, route: Route, reply: Reply) -> Reply:
        """The reply with the names of this router, and what else its caller needs."""
        mount, calls, params = route.mount, route.mount.calls, {**exchange.params, **route.own}
        if isinstance(reply, ErrorObject) and reply.code == URL_ELICITATION_REQUIRED:
            exchange.is_continued = True
            reply = await settle_links(mount, exchange, reply, partial(self._forward_again, exchange, route))
        elif isinstance(reply, ErrorObject):
            reply = error_to_pass(exchange.method, params, reply)
        elif not reply.is_final and says_task(reply) and self._tasks.may_begin(exchange, mount):
            return self._tasks.begun(exchange, mount, str(params.get("name")), reply)
        else:
            calls.count(reply)
        if isinstance(reply, Result):
            if not reply.is_final:
                asking = self._context.request_states.wrapped(exchange, mount.name, reply, calls.label, calls.lost)
                if asking is not reply:
                    _count_losses(exchange, calls, asking)
                    return asking
            try:
                reply = valid_result(exchange.method, reply)
            except RemoteProtocolError as problem:
                calls.figures.errors += 1
                raise UpstreamProtocolError(f"{mount.name}: {problem.message}") from None
        _count_losses(exchange, calls, reply)
        prefix = mount.settings.prefix
        if not prefix:
            return reply
        try:
            return reply_rewritten(exchange.method, reply, partial(exposed_uri, prefix))
        except RemoteProtocolError as problem:
            raise UpstreamProtocolError(f"{mount.name}: {problem.message}") from None

    # ------------------------------------------------------------------------------------------------- subscriptions

    async def _listen(self, exchange: Exchange) -> Reply:
        if wants_log(exchange.profile):
            return await self._log.hold(exchange, partial(self._views.sees, exchange.caller))
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
        return not self._context.hides(caller, resource_target(mount, own))

    async def _may_listen(self, exchange: Exchange, uri: str) -> tuple[Mount, str] | None:
        """The mount of a resource and its URI there; None if there is none, or the caller may not subscribe to it."""
        governor = self._context.governor
        try:
            mount, target = self._views.resource(exchange.caller, uri)
            if governor is not None:
                asked = msgspec.structs.replace(exchange, method="resources/subscribe", params={"uri": uri})
                asked.target, asked.send = target, _accepted
                if not isinstance(await governor.decide(asked), Result):
                    return None
        except (UnknownTarget, Refused):
            return None
        return mount, target.name


def _heads(mount: Mount) -> tuple[str, ...]:
    """How names of its tools may begin."""
    return tuple(heads_of(mount.name, mount.prefix, mount.settings.key))


def _count_losses(exchange: Exchange, calls: Calls, reply: Reply) -> None:
    revision = revision_of(exchange.profile.version)
    if revision.modern and isinstance(reply, Result):
        return  # The caller gets it unchanged.
    for loss in losses_in(exchange.method, reply, revision):
        calls.lost(loss)


async def _accepted(exchange: Exchange) -> Reply:
    return Result(complete({}))
