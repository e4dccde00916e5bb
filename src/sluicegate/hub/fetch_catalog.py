"""Fetch what one server offers, within limits, and fetch it again when the server announces a change.

Changes are listened to first and the lists fetched second, so that no change is missed between the two. Large lists
are read piece by piece, so that other work of the process gets its turn in between.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, cast

import msgspec

from sluicegate.errors import (
    METHOD_NOT_FOUND,
    ErrorObject,
    InvalidParams,
    RemoteProtocolError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
)
from sluicegate.exchange import NOBODY, Connection, Exchange
from sluicegate.hub.calls import is_closed
from sluicegate.hub.catalog import (
    GATEWAY,
    HOPS,
    KINDS,
    MAX_HOPS,
    REST,
    Entries,
    Offer,
    Offered,
    OfferLimits,
    salient_argument,
    with_hop,
)
from sluicegate.hub.mount_settings import MountSettings
from sluicegate.hub.subscriptions import ListChanges, listen
from sluicegate.hub.supervise import FIRST_RETRY, MAX_RETRY, Reachability
from sluicegate.protocol.definition_digest import digest_of
from sluicegate.protocol.extensions import offered_by
from sluicegate.protocol.headers import Marks, marks_of
from sluicegate.protocol.message import Params, as_array, as_object
from sluicegate.protocol.methods import LIST_CHANGES
from sluicegate.protocol.modern_era import ClientProfile, Discovery
from sluicegate.protocol.own_marks import without_own_marks
from sluicegate.protocol.pagination import (
    MAX_ENTRIES,
    MAX_MALFORMED,
    Gathering,
    Kind,
    entries_of,
    is_beyond_limits,
    own_name,
    page_of,
    value_of,
)
from sluicegate.protocol.validate import PromptShape, ResourceShape, Shape, TemplateShape, ToolShape, shaped
from sluicegate.runtime.task_scope import TaskScope, Turns

log = logging.getLogger("sluicegate")

LISTENS_WITHIN: Final = 1.0
"""Seconds that a server has to acknowledge the subscription to changes. If it is later, its lists are fetched again."""

REST_FACTOR: Final = 10
"""The pause before lists are fetched again, in multiples of the CPU time that they took before: a server with long
lists that always change gets a tenth of the time. For most servers `debounce` is longer."""

LATER_LISTS: Final = 5.0
"""Seconds for each further list after one that did not come in time."""

MAX_NAMED: Final = 5
"""Faulty entries that are named in a finding."""

_SCHEMAS: Final = ("inputSchema", "outputSchema")
_SPARED: Final = ((), ("icons",), ("_meta",), ("icons", "_meta"))
"""Members that an entry that is too large can lose before it is left out, the least important first."""


def offered(member: str, entry: Params) -> Offered:
    """An entry of a list, by the member that identifies it."""
    marks: Marks = {}
    if "inputSchema" in entry:
        found = marks_of(entry["inputSchema"])
        # Invalid marks would make clients leave out the tool, and matter only over HTTP in 2026-07-28.
        if found is None:
            entry = {**entry, "inputSchema": _without_marks(entry["inputSchema"])}
        marks = found or {}
    as_bytes = {name: msgspec.Raw(msgspec.json.encode(entry[name])) for name in _SCHEMAS if name in entry}
    salient = salient_argument(entry.get("inputSchema"))
    return Offered(str(entry[member]), {**entry, **as_bytes}, marks, digest_of(entry), salient)


def _without_marks(schema: object) -> object:
    """The schema without any `x-mcp-header`."""
    items = as_array(schema)
    if items is not None:
        return [_without_marks(item) for item in items]
    members = as_object(schema)
    if members is None:
        return schema
    return {key: _without_marks(value) for key, value in members.items() if key != "x-mcp-header"}


def changed_lists(before: Offer | None, after: Offer) -> frozenset[str]:
    """The notifications for the lists in which two offers of a server differ."""
    before = before or Offer()
    pairs = {
        "toolsListChanged": (before.tools, after.tools),
        "promptsListChanged": (before.prompts, after.prompts),
        "resourcesListChanged": ((before.resources, before.templates), (after.resources, after.templates)),
    }
    return frozenset(LIST_CHANGES[flag] for flag, (old, new) in pairs.items() if old != new)


class _List(msgspec.Struct, frozen=True):
    """One of the four lists: its capability, its method, and the shape of its entries."""

    capability: str
    method: str
    found_in: str
    member: str
    """The member that identifies its entries."""
    shape: type[Shape]

    def kind(self) -> Kind[Offered]:
        """How pages of entries that are decoded already are gathered."""
        return Kind(self.method, self.found_in, lambda entry: cast(Offered, entry), lambda entry: entry.own)


LISTS: Final[Mapping[str, _List]] = {
    "tools": _List("tools", "tools/list", "tools", "name", ToolShape),
    "prompts": _List("prompts", "prompts/list", "prompts", "name", PromptShape),
    "resources": _List("resources", "resources/list", "resources", "uri", ResourceShape),
    "templates": _List("resources", "resources/templates/list", "resourceTemplates", "uriTemplate", TemplateShape),
}
"""Each list by its name in an offer."""


class _Faults(msgspec.Struct):
    """The names of faulty entries of a list."""

    too_large: list[str] = []
    malformed: list[str] = []
    mended: list[str] = []
    lightened: list[str] = []
    opened: list[str] = []
    """Tools without `inputSchema`."""
    looping: int = 0
    """How many passed too many gateways."""

    def sentences(self, which: str) -> list[str]:
        """The findings."""
        kinds = {
            f"left out of its {which}, as too large or nested too deeply": self.too_large,
            f"left out of its {which}, as malformed": self.malformed,
            f"members left out of its {which}, as malformed": self.mended,
            f"members left out of its {which}, as too large": self.lightened,
            f"without inputSchema among its {which}, offered with any arguments": self.opened,
        }
        sentences = [f"{what}: {_named(entries)}." for what, entries in kinds.items() if entries]
        if self.looping:
            why = f"they passed through more than {MAX_HOPS} gateways, which probably mount each other"
            sentences.append(f"{self.looping} left out of its {which}: {why}.")
        return sentences


def _named(entries: list[str]) -> str:
    more = f" and {len(entries) - MAX_NAMED} more" if len(entries) > MAX_NAMED else ""
    return ", ".join(entries[:MAX_NAMED]) + more


async def fetch_offer(
    name: str,
    connection: Connection,
    limits: OfferLimits,
    turns: Turns | None = None,
    *,
    before: Offer | None = None,
    seconds: float | None = None,
    own_id: str = "",
) -> Offer:
    """The offer of a server, within the limits. A list that cannot be fetched in time stays as it was `before`.

    Raises:
        UpstreamError: it went away, or none of the lists that it announced can be fetched.
        RemoteProtocolError: none of them can be read.
    """
    fetching = _Fetching(name, connection, limits, turns or Turns(), own_id)
    found: dict[str, Entries] = {}
    problems: dict[str, UpstreamError | RemoteProtocolError] = {}
    for which, each in LISTS.items():
        if each.capability not in connection.discovery.capabilities or fetching.is_full:
            continue
        try:
            async with asyncio.timeout(seconds):
                found[which] = await fetching.fetch(which, each)
        except TimeoutError:
            problems[which] = UpstreamTimeout(f"{name} did not return its lists within {seconds:g} s.")
            seconds = min(seconds or LATER_LISTS, LATER_LISTS)
        except (UpstreamError, RemoteProtocolError) as problem:
            problems[which] = problem
        if which in problems:
            if await is_closed(connection):
                raise problems[which]
            found[which] = getattr(before or Offer(), which)
    if problems and len(problems) == len(found):
        raise next(iter(problems.values()))
    # The shortest lifetime counts, and the cache is public only if all lists are.
    return Offer(
        **found,
        ttl_ms=0 if problems else min((ttl for ttl, _ in fetching.lives), default=0),
        is_public=bool(fetching.lives) and all(public for _, public in fetching.lives),
        takes_tasks=_takes_tasks(connection.discovery),
        is_gateway=fetching.is_gateway,
        hub_id=fetching.hub_id,
        findings=tuple(fetching.findings),
        extensions=offered_by(connection.discovery),
        failures={which: str(problem) for which, problem in problems.items()},
    )


def _takes_tasks(discovery: Discovery) -> bool:
    """Whether a server's tools may be called as tasks, which only 2025-11-25 has."""
    found: object = discovery.capabilities.get("tasks") if discovery.version == "2025-11-25" else None
    for member in ("requests", "tools", "call"):
        found = (as_object(found) or {}).get(member)
    return as_object(found) is not None


class _Fetching:
    """Fetches the lists of one server."""

    def __init__(self, name: str, connection: Connection, limits: OfferLimits, turns: Turns, own_id: str) -> None:
        self._own_id = own_id
        self.lives: list[tuple[int, bool]] = []
        self.is_gateway = False
        self.hub_id = ""
        self.is_full = False
        self.findings: list[str] = []
        self._name = name
        self._connection = connection
        self._limits = limits
        self._turns = turns
        self._room = limits.whole

    async def fetch(self, which: str, each: _List) -> Entries:
        """A list, as far as the limits allow."""
        most = self._limits.entries
        gathering = Gathering(self._name, each.kind())
        faults = _Faults()
        params: Params | None = {}
        while params is not None and not self.is_full:
            is_known = self.is_gateway
            if is_known:
                params = {**params, "_meta": {GATEWAY: self._own_id}}
            reply = await self._connection(Exchange(each.method, params, NOBODY, ClientProfile()))
            if isinstance(reply, ErrorObject):
                if reply.code == METHOD_NOT_FOUND:
                    return ()  # Many servers have resources but no templates.
                raise UpstreamProtocolError(f"{self._name} refuses {each.method}: {reply.message[:200]}")
            self._turns.begin()
            found = page_of(reply)
            if found is None:
                self.is_full = True
                self._turns.end()
                break
            await self._turns.share()
            entries = entries_of(listed := found.pop(each.found_in, None))
            # Long members, which we do not use, stay encoded.
            page = {key: value_of(value) if len(memoryview(value)) <= REST else value for key, value in found.items()}
            self.lives.append(_life_of(page))
            if (mark := (as_object(page.get("_meta")) or {}).get(GATEWAY)) is not None:
                self.is_gateway, self.hub_id = True, mark if isinstance(mark, str) else ""
                if not is_known:  # Asked again, it leaves out what it has from us.
                    self.lives.pop()
                    self._turns.end()
                    continue
            if entries is not None:
                page[each.found_in] = await self._fitting(each, entries, faults)
            elif listed is None or bytes(listed) == b"null":
                self._leave_out(f"its answer to {each.method} has no {each.found_in}, which is read as an empty list.")
                page[each.found_in] = []
            else:
                page[each.found_in] = listed  # Whatever it is, it is no list.
            params = gathering.add(page)
            self._turns.end()
            if len(gathering.items) > most:
                self._leave_out(f"it has more than {most} {which}; the rest is left out.")
                break
            if len(faults.malformed) > MAX_MALFORMED:
                self._leave_out(f"more than {MAX_MALFORMED} of its {which} are malformed; the rest is left out.")
                break
        for sentence in faults.sentences(which):
            self._leave_out(sentence)
        if self.is_full:
            size = f"{self._limits.whole / 1024 / 1024:g} MiB"
            self._leave_out(f"its lists are larger than {size} together; the rest, from its {which} on, is left out.")
        return tuple(gathering.items[:most])

    def _leave_out(self, sentence: str) -> None:
        self.findings.append(f"{self._name}: {sentence}")

    async def _fitting(self, each: _List, entries: list[msgspec.Raw], faults: _Faults) -> list[Offered]:
        """The valid entries of a page."""
        taken: list[Offered] = []
        for data in entries[: MAX_ENTRIES + 1]:
            await self._turns.share()
            size = len(memoryview(data))
            self._room -= min(size, self._limits.entry)  # One huge entry does not push out all others.
            if self._room < 0:
                self.is_full = True
                break
            if size > self._limits.entry:
                faults.too_large.append(_name_in(data, each.member))
                continue
            try:
                entry = value_of(data)
            except RemoteProtocolError:
                # A number out of range, for example: pages are split without decoding their entries.
                faults.malformed.append(f"{_name_in(data, each.member)} (it cannot be decoded)")
                if len(faults.malformed) > MAX_MALFORMED:
                    break
                continue
            if is_beyond_limits(data, entry):
                faults.too_large.append(_name_in(data, each.member))
                continue
            if (members := as_object(entry)) is not None:
                try:
                    entry = members = with_hop(members) if self.is_gateway else members
                except InvalidParams:
                    faults.looping += 1
                    continue
                entry = members = without_own_marks(members, (HOPS,) if self.is_gateway else ())
                if each.shape is ToolShape and members.get("inputSchema") is None:
                    entry = {**members, "inputSchema": {"type": "object"}}
                    faults.opened.append(_name_in(data, each.member))
            try:
                read = shaped(entry, each.shape)
            except msgspec.ValidationError as problem:
                faults.malformed.append(f"{_name_in(data, each.member)} ({problem})")
                if len(faults.malformed) > MAX_MALFORMED:
                    break
                continue
            found = offered(each.member, read.entry)
            spared = self._spared(found.definition)
            if spared is None:
                faults.too_large.append(_shown(found.own))
                continue
            if spared:
                faults.lightened.append(f"{_shown(found.own)} ({', '.join(spared)})")
                found = msgspec.structs.replace(found, definition=_lighter(found.definition, spared))
            taken.append(found)
            if read.lost:
                faults.mended.append(f"{_shown(found.own)} ({', '.join(read.lost)})")
        return taken

    def _spared(self, definition: Params) -> tuple[str, ...] | None:
        """The members without which an entry is small enough; None if it is still too large."""
        limits = self._limits
        description = definition.get("description")
        if isinstance(description, str) and len(description.encode("utf-8", "replace")) > limits.description:
            return None
        rest = {key: value for key, value in definition.items() if key not in _SCHEMAS}
        schemas = (definition[key] for key in _SCHEMAS if key in definition)
        sizes = (len(memoryview(schema)) for schema in schemas if isinstance(schema, msgspec.Raw))
        if any(size > limits.schema for size in sizes):
            return None
        for spared in _SPARED:
            if len(msgspec.json.encode(_lighter(rest, spared))) <= limits.description + REST:
                return spared
        return None


def _lighter(definition: Params, spared: tuple[str, ...]) -> Params:
    return {key: value for key, value in definition.items() if key not in spared}


def _name_in(data: msgspec.Raw, member: str) -> str:
    try:
        return _shown(own_name(data, member))
    except RemoteProtocolError:
        return _shown("?")


def _shown(own: str) -> str:
    return repr(own[:100])


def _life_of(value: Params) -> tuple[int, bool]:
    ttl = value.get("ttlMs")
    return (ttl if isinstance(ttl, int) and ttl > 0 else 0), value.get("cacheScope") == "public"


class Lists:
    """Keeps the offer of a server up to date while a connection lasts."""

    def __init__(
        self,
        reachability: Reachability,
        settings: Callable[[], MountSettings],
        connection: Connection,
        own_id: str = "",
    ) -> None:
        """`own_id` is the id of our hub, which other gateways are told."""
        self._own_id = own_id
        self._reachability = reachability
        self._settings = settings
        self._connection = connection
        self._is_fetched = False
        self._is_subscribed = asyncio.Event()
        self._stale = asyncio.Event()
        self._notices: set[str] = set()
        self._took = self._fetched_at = 0.0

    async def fetch(self, tasks: TaskScope) -> Offer:
        """Subscribe to list changes in a task, then return the offer.

        Raises:
            UpstreamError: it went away, or its lists cannot be fetched.
        """
        wanted = _supported_changes(self._connection)
        if wanted:
            tasks.start(self._listen(wanted))
            with suppress(TimeoutError):
                async with asyncio.timeout(LISTENS_WITHIN):
                    await self._is_subscribed.wait()
        self._is_fetched = True
        self._notices.clear()
        return await self._fetch()

    async def _listen(self, wanted: Params) -> None:
        try:
            await listen(self._reachability, self._connection, wanted, ListChanges(self._notices.add, self._on_change))
        finally:
            self._is_subscribed.set()  # Also if the server refused it.

    def _on_change(self) -> None:
        self._is_subscribed.set()
        self.outdate()

    def outdate(self) -> None:
        """Fetch the lists again: they, or the limits, have changed."""
        if self._is_fetched:  # Else the fetch to come sees the change.
            self._stale.set()

    async def follow(
        self, offer: Offer, on_change: Callable[[Offer], None], on_notice: Callable[[frozenset[str]], None]
    ) -> None:
        """Fetch the lists whenever they changed, and retry until all succeed: the server notifies only once.

        `on_change` gets each new offer, `on_notice` the notifications of lists that turned out to be the same.
        """
        pause = FIRST_RETRY
        name, problems = self._reachability.name, set[str]()
        problem = _without_some(name, offer)
        while True:
            if problem is None:
                await self._stale.wait()
            else:
                # The same failure is logged once.
                if str(problem) not in problems:
                    problems.add(str(problem))
                    log.warning("%s: lists could not be fetched: %s", name, problem)
                self._reachability.unfetched(problem)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        # Notices are about the lists that work; a server without any is left alone.
                        await (self._stale if offer.failures else asyncio.Event()).wait()
                pause = min(pause * 2, MAX_RETRY)
            rest = self._fetched_at + self._took * REST_FACTOR - asyncio.get_running_loop().time()
            await asyncio.sleep(max(self._settings().debounce, rest))
            self._stale.clear()
            notices = frozenset(self._notices)
            self._notices.clear()
            before = offer
            try:
                offer = await self._fetch(before)
            except UpstreamError as error:
                problem = error
                self._notices |= notices
                continue
            problem = _without_some(name, offer)
            if problem is None:
                pause = FIRST_RETRY
                if problems:
                    problems.clear()
                    log.warning("%s: its lists can be fetched again, and are up to date.", name)
                self._reachability.fetched()
            if offer != before:
                on_change(offer)
            if same := notices - changed_lists(before, offer):
                on_notice(same)

    async def _fetch(self, before: Offer | None = None) -> Offer:
        name, settings, turns = self._reachability.name, self._settings(), Turns()
        seconds = settings.offer_timeout
        try:
            return await fetch_offer(
                name, self._connection, settings.offers, turns, before=before, seconds=seconds, own_id=self._own_id
            )
        except (UpstreamProtocolError, RemoteProtocolError) as problem:
            # The server's own text stays in the details: the sentence must be safe to show.
            details = f" ({problem.message}){problem.details if isinstance(problem, UpstreamError) else ''}"
            raise UpstreamProtocolError(f"{name} did not return valid lists.", details=details) from None
        finally:
            self._took, self._fetched_at = turns.seconds, asyncio.get_running_loop().time()


def _without_some(name: str, offer: Offer) -> UpstreamError | None:
    """The problem of an offer in which lists are missing."""
    if not offer.failures:
        return None
    which, why = " and ".join(offer.failures), "; ".join(offer.failures.values())
    problem = f"{name} did not return its {which}; everything else of it works."
    return UpstreamProtocolError(problem, details=f" ({why})", data={"lists": list(offer.failures)})


def _supported_changes(connection: Connection) -> Params:
    """The filter for the list changes that a server supports."""
    wanted: Params = {}
    for flag in LIST_CHANGES:
        kind = as_object(connection.discovery.capabilities.get(flag.removesuffix("ListChanged"))) or {}
        if kind.get("listChanged") is True:
            wanted[flag] = True
    return wanted


# ------------------------------------------------------------------------------------------------------- on disk


class _Saved(msgspec.Struct):
    tools: list[Params]
    prompts: list[Params]
    resources: list[Params]
    templates: list[Params]
    takes_tasks: bool
    is_gateway: bool
    extensions: Params = {}


_decoder: Final = msgspec.json.Decoder(_Saved)


def encode_offer(offer: Offer) -> bytes:
    """An offer as JSON, for `decode_offer`."""
    return msgspec.json.encode(
        _Saved(
            tools=_definitions(offer.tools),
            prompts=_definitions(offer.prompts),
            resources=_definitions(offer.resources),
            templates=_definitions(offer.templates),
            takes_tasks=offer.takes_tasks,
            is_gateway=offer.is_gateway,
            extensions=offer.extensions,
        )
    )


def decode_offer(data: bytes) -> Offer | None:
    """The offer that was encoded, without how long it may be cached; None if it cannot be read."""
    try:
        saved = _decoder.decode(data)
        return Offer(
            tools=_entries("tools", saved.tools),
            prompts=_entries("prompts", saved.prompts),
            resources=_entries("resources", saved.resources),
            templates=_entries("templates", saved.templates),
            takes_tasks=saved.takes_tasks,
            is_gateway=saved.is_gateway,
            extensions=saved.extensions,
        )
    except (msgspec.DecodeError, KeyError, RecursionError):
        return None


def _entries(kind: str, definitions: list[Params]) -> Entries:
    return tuple(offered(KINDS[kind], definition) for definition in definitions)


def _definitions(entries: Entries) -> list[Params]:
    return [entry.definition for entry in entries]
