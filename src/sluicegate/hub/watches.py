"""The resources of one server that somebody listens to: few subscriptions carry all of them, on the latest connection.

They outlive the connection, and the mount itself where another takes its place: who listens need not know. Each
subscription may take a connection of its own, so there are never many (threats R0, R25). What is new gets one of its
own: what a server does not answer, or refuses, holds up nobody else. What is new at the same time shares one, and is
asked for again in smaller ones if the server does not take it so. When there are several they are gathered into one,
and let go once that is acknowledged. Who comes while there is no room for another waits for as long as there may be.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from sluicegate.concurrency import TaskScope
from sluicegate.errors import InputRefused
from sluicegate.hub.listening import Hearing
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, as_array, as_object
from sluicegate.protocol.modern import ACKNOWLEDGED, PENDING
from sluicegate.protocol.spelling import Spellings

MOST_STREAMS: Final = 8
"""Subscriptions at a server at a time; one more while it takes the place of others."""
ENOUGH_STREAMS: Final = 4
"""Beyond this they are gathered into one."""
MOST_URIS: Final = 1000
"""Resources in one subscription: that is what a server made of this toolkit allows."""

ANSWERS_WITHIN: Final = 10.0
"""Seconds that a server has to say which resources it will tell of."""
SPLITS_AFTER: Final = 2.5
"""Seconds until several that it says nothing of are asked for apart: who listens does not wait for long."""
MOST_SPLITS: Final = 16
"""How often what was asked for together is asked for in smaller parts: a server may refuse whatever it is asked."""
ASKS_AGAIN: Final = 10.0
"""Seconds until it is asked again for one that it told of before, or to take several subscriptions as one."""
SETTLES: Final = 0.25
"""Seconds in which two subscriptions tell the same, when one takes the place of the other."""
LONGEST_DELAY: Final = 1.0
"""Seconds that what changes meanwhile is kept back at most."""

UNKNOWN: Final = "updates of resources that were not asked for"

Hold = Callable[[Sequence[str], Hearing], Coroutine[object, object, None]]
"""Subscribes to resources until it is cancelled; who hears learns what the server says."""

Heard = Callable[[str, str], None]
"""Learns that a resource changed, and which was subscribed to."""

Lost = Callable[[str], None]
"""Counts what could not be handed on, by the words for it."""


class _Watch:
    def __init__(self) -> None:
        self.listeners = 0
        self.accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.stream: _Stream | None = None
        """The subscription that tells of it."""

    @property
    def is_refused(self) -> bool:
        return self.accepted.done() and not self.accepted.result()

    @property
    def is_owed(self) -> bool:
        """Whether those who listen were told that they will hear of it."""
        return self.accepted.done() and self.accepted.result()


class Watches:
    """Who listens to which resource of one server."""

    def __init__(self) -> None:
        self._watches: dict[str, _Watch] = {}
        self._fresh: dict[str, None] = {}  # Those that no subscription carries yet; a dict for its order.
        self._parts: list[_Part] = []  # Those that are to be asked for apart from others.
        self._streams: list[_Stream] = []
        self._gathering: _Stream | None = None  # The one that is to take the place of others.
        self._gathers_from = 0.0
        self._is_due = False
        self._kept_back: dict[tuple[str, str], None] | None = None
        self._settling: asyncio.TimerHandle | None = None
        self._tasks: TaskScope | None = None
        self._hold: Hold | None = None
        self._heard: Heard | None = None
        self._lost: Lost | None = None

    def __len__(self) -> int:
        return len(self._watches)

    def watch(self, uri: str) -> "asyncio.Future[bool]":
        """Listen to a resource until `unwatch`; the future says whether the server lets us, once that is known."""
        watch = self._watches.get(uri)
        if watch is None or watch.is_refused:
            listeners = 0 if watch is None else watch.listeners
            watch = self._watches[uri] = _Watch()
            watch.listeners = listeners
            self._want((uri,))
        watch.listeners += 1
        return watch.accepted

    def unwatch(self, uri: str) -> None:
        """Listen no more, if nobody else does."""
        watch = self._watches.get(uri)
        if watch is None:
            return
        watch.listeners -= 1
        if watch.listeners == 0:
            del self._watches[uri]
            self._fresh.pop(uri, None)
            watch.accepted.cancel()
            if watch.stream is not None:
                self._release(watch.stream, uri)

    def begin(self, tasks: TaskScope, hold: Hold, heard: Heard, lost: Lost | None = None) -> None:
        """Subscribe to all of them on a new connection, by tasks that end with it; an older one's are ended."""
        if self._tasks is not None:
            self._forget()
        self._tasks, self._hold, self._heard, self._lost = tasks, hold, heard, lost
        self._want(uri for uri, watch in self._watches.items() if not watch.is_refused)

    def end(self, tasks: TaskScope) -> None:
        """Learn that these tasks end, and that there may be no others for a while."""
        if self._tasks is tasks:
            self._forget()
            self._tasks = self._hold = self._heard = self._lost = None

    def _forget(self) -> None:
        self._settle()
        self._parts.clear()
        for stream in list(self._streams):
            self._close(stream)
        self._gathers_from = 0.0

    # ------------------------------------------------------------------------------------- having subscriptions

    def _want(self, uris: Iterable[str]) -> None:
        self._fresh.update((uri, None) for uri in self._uncarried(uris))
        self._arrange_soon()

    def _uncarried(self, uris: Iterable[str]) -> list[str]:
        """Those that somebody listens to and no subscription tells of."""
        return [uri for uri in uris if (watch := self._watches.get(uri)) is not None and watch.stream is None]

    def _arrange_soon(self) -> None:
        # At the end of this turn of the loop: a client names many resources at once.
        if self._tasks is not None and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._arrange)

    def _arrange(self) -> None:
        self._is_due = False
        if self._tasks is None:
            return
        while (self._parts or self._fresh) and len(self._streams) < MOST_STREAMS:
            part = self._parts.pop(0) if self._parts else _Part(list(islice(self._fresh, MOST_URIS)))
            uris = self._uncarried(part.uris)
            for uri in part.uris:
                self._fresh.pop(uri, None)
            if uris:
                stream = self._open(uris)
                stream.splits = part.splits
                stream.carried.update(uris)
                for uri in uris:
                    self._watches[uri].stream = stream
        self._gather()
        may_be_room = self._gathering is not None or self._settling is not None
        if not may_be_room and not any(stream.is_awaited for stream in self._streams):
            parts, self._parts = self._parts, []
            self._fresh.update((uri, None) for part in parts for uri in self._uncarried(part.uris))
            for uri in list(self._fresh):
                if not self._watches[uri].is_owed:
                    del self._fresh[uri]
                    self._refuse(uri)

    def _gather(self) -> None:
        """Have one subscription in place of several, or of one of whose resources few are listened to any more."""
        now = asyncio.get_running_loop().time()
        if self._gathering is not None or self._settling is not None or now < self._gathers_from:
            return
        # Not those that the server has yet to answer for in part: the others need not wait for this.
        known = [stream for stream in self._streams if stream.carried and stream.carried <= stream.honoured]
        known.sort(key=lambda stream: len(stream.carried))
        if len(self._streams) <= ENOUGH_STREAMS:
            known = [stream for stream in known if stream.is_thin]
        uris: list[str] = []
        places: list[_Stream] = []
        for stream in known:
            if len(uris) + len(stream.carried) <= MOST_URIS:
                uris += stream.carried
                places.append(stream)
        is_better = len(places) > 1 or any(stream.is_thin for stream in places)
        if not is_better and places and len(self._streams) >= MOST_STREAMS:
            # Two are too much for one, but there is room in each: what is new comes to what the smallest has.
            new = list(islice(self._fresh, MOST_URIS - len(uris)))
            is_better = bool(new)
            uris += new
        if is_better:
            self._keep_back(LONGEST_DELAY)
            self._gathering = self._open(uris)
            self._gathering.replaces = places

    def _open(self, uris: Sequence[str]) -> "_Stream":
        assert self._tasks is not None  # Else nothing is arranged.
        stream = _Stream(self, uris)
        self._tasks.start(self._run(stream), key=stream)
        self._streams.append(stream)
        stream.patience = asyncio.get_running_loop().call_later(SPLITS_AFTER, self._lapse, stream)
        return stream

    async def _run(self, stream: "_Stream") -> None:
        assert self._hold is not None
        await self._hold(stream.uris, stream)
        self.unanswered(stream)
        owed = list(stream.carried)
        self._close(stream)
        self._ask_again(owed)

    def _release(self, stream: "_Stream", uri: str) -> None:
        stream.carried.discard(uri)
        if not stream.carried:
            self._close(stream)
        elif stream.is_thin:
            self._arrange_soon()

    def _close(self, stream: "_Stream") -> None:
        if stream not in self._streams:
            return
        self._streams.remove(stream)
        stream.patience.cancel()
        if self._tasks is not None:
            self._tasks.cancel(stream)
        if stream is self._gathering:
            self._gathering = None
            self._gather_later()
        for uri in stream.carried:
            self._watches[uri].stream = None
        self._arrange_soon()

    def _gather_later(self) -> None:
        """Let those be several for a while that the server did not take as one."""
        self._gathers_from = asyncio.get_running_loop().time() + ASKS_AGAIN
        asyncio.get_running_loop().call_later(ASKS_AGAIN, self._arrange_soon)

    def _accept(self, uri: str) -> None:
        watch = self._watches[uri]
        if not watch.accepted.done():
            watch.accepted.set_result(True)
        else:
            self._tell(uri, uri)  # Listened to again, after a while in which anything may have happened.

    def _refuse(self, uri: str) -> None:
        watch = self._watches[uri]
        if not watch.accepted.done():
            watch.accepted.set_result(False)

    # --------------------------------------------------------------------------------- what a subscription says

    def acknowledged(
        self, stream: "_Stream", honoured: Collection[str], pending: Collection[str] = (), known: Collection[str] = ()
    ) -> None:
        """Learn which resources a server will tell of in a subscription.

        Args:
            pending: those that it has yet to answer for, and of which there will be word.
            known: those that it has said so of before, since it was asked.
        """
        if stream not in self._streams:
            return
        stream.patience.cancel()
        stream.is_awaited = bool(pending)
        if pending:
            stream.patience = asyncio.get_running_loop().call_later(ANSWERS_WITHIN, self.unanswered, stream)
        if stream is self._gathering:
            if not pending:
                self._take_over(stream, honoured)
            return
        missing = [uri for uri in stream.carried if uri not in honoured and uri not in pending]
        for uri in stream.carried.intersection(honoured).difference(known):
            self._accept(uri)
        for uri in missing:
            self._refuse(uri)
            self._watches[uri].stream = None
        self._ask_again([uri for uri in missing if self._watches[uri].is_owed])
        for uri in missing:
            self._release(stream, uri)
        self._arrange_soon()  # There may be room now for those that wait for it.

    def _take_over(self, stream: "_Stream", honoured: Collection[str]) -> None:
        self._gathering = None
        replaced, stream.replaces = stream.replaces, ()
        for uri in stream.uris:
            watch = self._watches.get(uri)
            if watch is None:
                continue
            if uri in self._fresh:
                del self._fresh[uri]
                if uri not in honoured:
                    self._refuse(uri)
                    self._ask_again([uri] if watch.is_owed else [])
                    continue
                self._accept(uri)
            elif watch.stream is not None and watch.stream in replaced and uri in honoured:
                watch.stream.carried.discard(uri)
            else:
                continue
            watch.stream = stream
            stream.carried.add(uri)
        # What these were told before is still on its way, and the same may be on both ways.
        self._keep_back(SETTLES)
        if any(each.carried for each in replaced):
            self._gather_later()  # It does not take so many at once.
        if not stream.carried:
            self._close(stream)

    def _ask_again(self, uris: Sequence[str]) -> None:
        if uris:
            asyncio.get_running_loop().call_later(ASKS_AGAIN, self._want, uris)

    def _lapse(self, stream: "_Stream") -> None:
        """Ask apart for what a server is silent on, or wait on for what is a single one."""
        if not self.split(stream):
            rest = max(ANSWERS_WITHIN - SPLITS_AFTER, 0.0)
            stream.patience = asyncio.get_running_loop().call_later(rest, self.unanswered, stream)

    def split(self, stream: "_Stream") -> bool:
        """Ask apart for what a server did not take together; whether that is to be done."""
        uris = [uri for uri in stream.uris if uri in stream.carried]
        # What is asked for without others that nobody wants now is less, too.
        is_one = len(stream.uris) < 2 or not uris
        if stream.honoured or stream not in self._streams or is_one or next(stream.splits, None) is None:
            return False
        self._close(stream)
        size = -(-len(uris) // max(MOST_STREAMS - len(self._streams), 2))
        self._parts += [_Part(uris[at : at + size], stream.splits) for at in range(0, len(uris), size)]
        return True

    def unanswered(self, stream: "_Stream") -> None:
        """Learn that a subscription ended, or that it takes long; who was not told that it is held waits no more."""
        if stream not in self._streams:
            return
        stream.is_awaited = False
        for uri in stream.carried.difference(stream.honoured):
            if not self._watches[uri].is_owed:
                self._refuse(uri)
                self._watches[uri].stream = None
                stream.carried.discard(uri)
        if not stream.carried:
            self._close(stream)
        self._arrange_soon()

    def told(self, stream: "_Stream", uri: str) -> None:
        """Learn that a resource changed."""
        if stream not in self._streams or (stream is self._gathering and self._kept_back is None):
            return  # In the latter case those whose place it is to take tell the same.
        found = stream.subscribed_for(uri)
        if found is None and self._lost is not None:
            self._lost(UNKNOWN)
        for subscribed in found or ():
            if self._kept_back is None:
                self._tell(uri, subscribed)
                continue
            self._kept_back[uri, subscribed] = None
            if len(self._kept_back) >= MOST_URIS:
                self._settle()

    def _tell(self, uri: str, subscribed: str) -> None:
        if self._heard is not None:
            self._heard(uri, subscribed)

    def _keep_back(self, seconds: float) -> None:
        """Tell of changes so much later: those that are the same fall into one."""
        self._kept_back = {} if self._kept_back is None else self._kept_back
        if self._settling is not None:
            self._settling.cancel()
        self._settling = asyncio.get_running_loop().call_later(seconds, self._settle)

    def _settle(self) -> None:
        """Tell what was kept back, and let go of what others have taken the place of."""
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        told, self._kept_back = self._kept_back, None
        for uri, subscribed in told or ():
            self._tell(uri, subscribed)
        for stream in list(self._streams):
            if not stream.carried and stream is not self._gathering:
                self._close(stream)
        self._arrange_soon()


class _Part:
    """Resources that are to be asked for together, and how often these may be asked for apart."""

    def __init__(self, uris: Sequence[str], splits: Iterator[int] | None = None) -> None:
        self.uris = uris
        self.splits = iter(range(MOST_SPLITS)) if splits is None else splits
        """Shared by all parts of what was asked for together at first."""


class _Stream:
    """One subscription: what the server says of it goes to the watches."""

    def __init__(self, watches: Watches, uris: Sequence[str]) -> None:
        self.uris = uris
        self.carried: set[str] = set()
        """Those that are listened to and that no other subscription tells of."""
        self.honoured: frozenset[str] = frozenset()
        """Those that the server said it will tell of, when it was last asked."""
        self.replaces: Sequence[_Stream] = ()
        self.splits: Iterator[int] = iter(())
        self.patience: asyncio.TimerHandle
        self.is_awaited = True
        """Whether the server still has time to answer, for all of them or for the rest."""
        self._spellings = Spellings(uris)
        self._watches = watches
        self._is_asked = False  # Whether it has said a part of what there is to say.

    @property
    def is_thin(self) -> bool:
        """Whether so few of its resources are listened to that it is better to have another."""
        return bool(self.honoured) and 0 < 2 * len(self.carried) <= len(self.uris)

    def subscribed_for(self, uri: str) -> Collection[str] | None:
        """What was subscribed to of a resource that changed: itself, or what it is a part of; None if nobody knows."""
        # One that carries nothing any more was told this before another took its place.
        told = self.carried or self.honoured
        is_known = False
        for same in self._spellings.of(uri):
            if found := [one for one in same if one in told]:
                return found
            is_known = True
        if is_known:
            return ()  # It is not listened to any more, or another subscription tells of it.
        return tuple(told) if len(self.uris) == 1 else None  # There is only one that it can be, whatever it is called.

    async def emit(self, notification: Notification) -> None:
        """Learn what the server says."""
        if notification.method == ACKNOWLEDGED:
            wanted = as_object(notification.params.get("notifications")) or {}
            said = as_array(wanted.get("resourceSubscriptions")) or []
            named = frozenset(uri for uri in said if isinstance(uri, str))
            meta = as_object(notification.params.get("_meta")) or {}
            pending = frozenset(uri for uri in as_array(meta.get(PENDING)) or [] if isinstance(uri, str))
            known = self.honoured if self._is_asked else ()
            self._is_asked = bool(pending)
            self.honoured = named.intersection(self.uris)
            self._watches.acknowledged(self, self.honoured, pending, known)
        elif notification.method == "notifications/resources/updated":
            uri = notification.params.get("uri")
            if isinstance(uri, str):
                self._watches.told(self, uri)

    async def ask(self, questions: Questions) -> Answers:
        """Refuse."""
        raise InputRefused("Nobody is there to be asked.")

    def ended(self) -> None:
        """Learn that the server lets go; it is asked again for what it told of."""
        self._is_asked = False
        if not self._watches.split(self):
            self._watches.unanswered(self)
