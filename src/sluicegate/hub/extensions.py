"""Requests of extensions that we do not know, routed without knowing them.

A server that declares the extension `…/NAME` gets requests whose method begins with `NAME/`. A request that names a
tool, a prompt or a resource goes to the server that has it, whatever its method, if that server declares extensions at
all. Lists of several servers are merged. URIs in results are those that clients know.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from sluicegate.errors import (
    ErrorObject,
    InvalidParams,
    MethodNotFound,
    Refused,
    RemoteProtocolError,
    SluicegateError,
    UnknownTarget,
    UpstreamProtocolError,
)
from sluicegate.exchange import Exchange, Target
from sluicegate.hub.context import HubContext
from sluicegate.hub.mount import Mount
from sluicegate.hub.naming import Rewrite, exposed_uri, looks_like_any, reply_rewritten
from sluicegate.hub.route import FindTarget, Route
from sluicegate.hub.views import Views
from sluicegate.protocol.extensions import declared_in, extension_named_like, merged
from sluicegate.protocol.input_required import read_input_required
from sluicegate.protocol.json_limits import is_deep
from sluicegate.protocol.message import Params, Reply, Result, as_array, as_object, opened
from sluicegate.protocol.modern_era import complete
from sluicegate.protocol.pagination import MAX_PAGES
from sluicegate.protocol.translate.results import error_to_pass
from sluicegate.runtime.task_scope import TaskScope

Forward = Callable[[Exchange, Route], Awaitable[Reply]]
"""Sends an exchange to its mount."""

_OF_PAGES: Final = frozenset({"resultType", "_meta", "nextCursor", "ttlMs", "cacheScope"})
"""Members of a list that belong to one page of one server."""


class _Named(msgspec.Struct, frozen=True):
    """What a request names."""

    mount: Mount
    member: str
    """The member of the params that names it."""
    find: FindTarget


class Extensions:
    """Everything that a router does for extensions that it does not know."""

    def __init__(self, context: HubContext, views: Views, forward: Forward) -> None:
        self._context = context
        self._views = views
        self._forward = forward

    def capabilities(self, names: Iterable[str]) -> Params:
        """The extensions of these servers, as a server declares them; one that is away still counts."""
        found = merged(map(_offered, self._context.mounts_of(names)))
        return {"extensions": found} if found else {}

    async def answer(self, exchange: Exchange) -> Reply:
        """The reply of the server that a request is for, or of all that have such a list.

        Raises:
            SluicegateError: no server declares such an extension or has what the request names, or it could not answer.
        """
        method, caller = exchange.method, exchange.caller
        exchange.is_extension = True
        declaring = [mount for mount in self._views.mounts if extension_named_like(method, _offered(mount))]
        named = self._named(exchange, declaring)
        if named is not None:
            return await self._ask_about(exchange, named)
        hides = self._context.hides
        servers = [mount for mount in declaring if not hides(caller, _method_target(mount, method))]
        if not servers:
            raise MethodNotFound(f"Method not found: {method[:100]}")
        if len(servers) == 1:
            return await self._ask(exchange, self._route(servers[0], {}, partial(_method_target, servers[0], method)))
        if method.endswith("/list"):
            return await self._list(exchange, servers)
        names = ", ".join(mount.name for mount in servers)
        raise InvalidParams(f"Invalid params: it is unclear which server {method} is for. These have it: {names}.")

    def _route(self, mount: Mount, own: Params, find: FindTarget) -> Route:
        return Route(self._context, mount, own, find(), find)

    def _named(self, exchange: Exchange, declaring: Sequence[Mount]) -> "_Named | None":
        """What a request names, if it is one of ours.

        Raises:
            UnknownTarget: only a server that declares the extension could have it, and does not; or the caller may not
                use it.
        """
        params, caller = exchange.params, exchange.caller
        servers = declaring or [mount for mount in self._views.mounts if _offered(mount)]
        uri, name = params.get("uri"), params.get("name")
        if isinstance(uri, str):
            with suppress(UnknownTarget):
                mount, _ = self._views.resource(caller, uri)
                if mount in servers:
                    return _Named(mount, "uri", lambda: self._views.resource(caller, uri)[1])
            if declaring:
                # Not left to the one server that declares it: rules for the resource would not hold.
                raise UnknownTarget(f"Resource not found: {uri[:200]}", data={"uri": uri})
        for kind in ("tools", "prompts") if isinstance(name, str) else ():
            entry = self._views.catalog.of(kind).get(str(name))
            mount = None if entry is None else self._context.find(entry.mount)
            if mount is not None and mount in servers:
                return _Named(mount, "name", partial(self._views.target, kind, caller, name))
        if isinstance(name, str) and any(_has_like(mount, name) for mount in declaring):
            # A server's own name, or one that is hidden or quarantined: rules for it would not hold.
            raise UnknownTarget(f"Unknown tool: {name[:200]}")
        return None

    async def _ask_about(self, exchange: Exchange, named: "_Named") -> Reply:
        """The reply to a request about a tool, prompt or resource.

        It is decided on as if that were used: an unknown method must not do what the caller may not.
        """
        own: Params = {named.member: named.find().name}
        return await self._ask(exchange, self._route(named.mount, own, named.find))

    async def _ask(self, exchange: Exchange, route: Route) -> Reply:
        reply, mount = await self._forward(exchange, route), route.mount
        try:
            return _as_exposed(exchange, mount, {**exchange.params, **route.own}, reply)
        except RemoteProtocolError as problem:
            mount.calls.figures.errors += 1
            raise UpstreamProtocolError(f"{mount.name}: {problem.message}") from None

    # ------------------------------------------------------------------------------------------------- merged lists

    async def _list(self, exchange: Exchange, servers: Sequence[Mount]) -> Reply:
        """The lists of several servers as one page: few servers have such lists, and these are short."""
        if exchange.params.get("cursor") is not None:
            raise InvalidParams("Invalid params: the cursor is not one that this list gave; start again without it.")
        pages: dict[str, list[Params]] = {mount.name: [] for mount in servers}
        problems: dict[Mount, Reply | SluicegateError] = {}
        async with TaskScope() as tasks:
            for mount in servers:
                # A copy for each: all are decided on by the rules, at the same time.
                own = msgspec.structs.replace(exchange)
                tasks.start(self._gather(own, mount, pages[mount.name], problems))
        if len(problems) == len(servers):
            problem = problems[servers[0]]
            if isinstance(problem, SluicegateError):
                raise problem
            return problem
        away = {mount.name: mount.state.value for mount, why in problems.items() if not isinstance(why, Refused)}
        return Result(_one_page([page for found in pages.values() for page in found], away))

    async def _gather(
        self, exchange: Exchange, mount: Mount, pages: list[Params], problems: dict[Mount, Reply | SluicegateError]
    ) -> None:
        limits = mount.settings.offers
        own: Params = {}
        cursors, entries, size = set[str](), 0, 0
        find = partial(_method_target, mount, exchange.method)
        while len(pages) < MAX_PAGES and entries <= limits.entries and size <= limits.whole:
            try:
                reply = await self._ask(exchange, self._route(mount, own, find))
            except SluicegateError as problem:
                reply = problem
            if not isinstance(reply, Result):
                if not pages:
                    problems[mount] = reply
                return
            page = opened(reply)
            pages.append(page)
            entries += sum(len(items) for value in page.values() if (items := as_array(value)) is not None)
            size += len(msgspec.json.encode(page))
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or cursor in cursors:
                return
            cursors.add(cursor)
            own = {"cursor": cursor}


def _has_like(mount: Mount, name: str) -> bool:
    """Whether a server has a tool or prompt with this name, or with one that looks like it."""
    offer = mount.offer
    return offer is not None and looks_like_any(name, (entry.own for entry in (*offer.tools, *offer.prompts)))


def _offered(mount: Mount) -> Params:
    return mount.offer.extensions if mount.offer is not None else {}


def _method_target(mount: Mount, method: str) -> Target:
    return Target(mount.settings.key or mount.name, "method", method, origin=mount.settings.origin)


def _one_page(pages: Sequence[Params], away: Mapping[str, str]) -> Params:
    whole: dict[str, list[object]] = {}
    rest: Params = {}
    for page in pages:
        for member in page.keys() - _OF_PAGES:
            items = as_array(page[member])
            if items is not None:
                whole.setdefault(member, []).extend(items)
            else:
                rest.setdefault(member, page[member])
    if away:
        rest["_meta"] = {"dev.sluicegate/servers": away}
    lives = [page.get("ttlMs") for page in pages]
    is_public = all(page.get("cacheScope") == "public" for page in pages) and not away
    ttl_ms = min((life if isinstance(life, int) and life > 0 else 0 for life in lives), default=0)
    return complete({**rest, **whole}, ttl_ms=0 if away else ttl_ms, scope="public" if is_public else "private")


def _as_exposed(exchange: Exchange, mount: Mount, params: Params, reply: Reply) -> Reply:
    """A reply with the URIs that clients know."""
    rewrite = partial(exposed_uri, mount.prefix)
    if isinstance(reply, ErrorObject):
        return reply_rewritten(exchange.method, error_to_pass(exchange.method, params, reply), rewrite)
    if isinstance(reply.value, msgspec.Raw) and is_deep(bytes(reply.value)):
        raise RemoteProtocolError("The answer's result is nested too deeply.")
    value = opened(reply)
    if value.get("resultType") == "input_required" or not declared_in(exchange.profile.capabilities):
        read_input_required(exchange.method, Result(value))  # Raises: only a client that knows a type can read it.
    if mount.calls.is_session_era:
        value = complete(value, ttl_ms=0)  # In 2026-07-28 many results must have a lifetime, and others may.
    if mount.prefix:
        value = {name: _value_rewritten(inner, rewrite) for name, inner in _with_uri(value, rewrite).items()}
    return Result(value)


def _value_rewritten(value: object, rewrite: Rewrite) -> object:
    """A member of a result: an entry, a list of entries, or something else."""
    entry, items = as_object(value), as_array(value)
    if entry is not None:
        return _entry_rewritten(entry, rewrite)
    if items is not None:
        return [item if (inner := as_object(item)) is None else _entry_rewritten(inner, rewrite) for item in items]
    return value


def _entry_rewritten(entry: Params, rewrite: Rewrite) -> Params:
    """An entry: its own URI, and those of entries in its lists. Objects in it are data of which nothing is known."""
    changed = _with_uri(entry, rewrite)
    for name, value in entry.items():
        if as_array(value) is not None:
            changed[name] = _value_rewritten(value, rewrite)
    return changed


def _with_uri(entry: Params, rewrite: Rewrite) -> Params:
    uri = entry.get("uri")
    return {**entry, "uri": rewrite(uri)} if isinstance(uri, str) else dict(entry)
