"""What session-era clients may have missed: the last events of each session. Pure, and bounded in number and size."""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

MOST_REMEMBERED: Final = 1000
MOST_REMEMBERED_BYTES: Final = 1 << 20
_BESIDE_MESSAGE: Final = 200  # What an event takes beside its bytes, about.


class Memory:
    """What the journals of all sessions may hold together: the one that was not written into for longest forgets."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        """What they hold now. Journals count it."""
        self.newest: Journal | None = None
        """The one that was written into last."""
        # The order is that of the last event. A plain dict would look through all that went before the first one left.
        self._journals: OrderedDict[Journal, None] = OrderedDict()

    def wrote(self, journal: "Journal") -> None:
        """Let this journal be the last to forget. For journals."""
        self.newest = journal
        self._journals[journal] = None
        self._journals.move_to_end(journal)

    def emptied(self, journal: "Journal") -> None:
        """Expect nothing more to be forgotten of this journal. For journals."""
        del self._journals[journal]
        if self.newest is journal:
            self.newest = None

    def make_room(self) -> None:
        """Let the oldest forget until the rest has room; the last event of all always has. For journals."""
        while self.size > self.most:
            oldest = next(iter(self._journals))
            if oldest is self.newest and len(oldest) == 1:
                return
            oldest.forget_one()


class Journal:
    """The last events of one session, for a client that lost its connection."""

    __slots__ = ("_events", "_last", "_memory", "_on_forgotten", "_size")

    def __init__(self, memory: Memory, on_forgotten: Callable[[int], object]) -> None:
        """`on_forgotten` is told of each stream of which nothing is remembered any more."""
        self._memory = memory
        self._on_forgotten = on_forgotten
        self._events: deque[tuple[int, int, bytes]] = deque()
        self._last: dict[int, int] = {}
        """The position of each stream's last event. The oldest is forgotten first, so with that one all are."""
        self._size = 0

    def __len__(self) -> int:
        return len(self._events)

    def __contains__(self, stream: int) -> bool:
        return stream in self._last

    def add(self, stream: int, position: int, message: bytes) -> None:
        """Remember an event, which is behind all others of its stream; the oldest give way."""
        events, memory = self._events, self._memory
        events.append((stream, position, message))
        self._last[stream] = position
        self._size += len(message)
        memory.size += len(message) + _BESIDE_MESSAGE
        if memory.newest is not self:
            memory.wrote(self)
        if memory.size > memory.most:
            memory.make_room()
        while len(events) > MOST_REMEMBERED or (self._size > MOST_REMEMBERED_BYTES and len(events) > 1):
            self.forget_one()

    def forget_one(self) -> None:
        """Forget the oldest event."""
        stream, position, message = self._events.popleft()
        self._size -= len(message)
        self._memory.size -= len(message) + _BESIDE_MESSAGE
        if not self._events:
            self._memory.emptied(self)
        if self._last[stream] == position:
            del self._last[stream]
            self._on_forgotten(stream)

    def clear(self) -> None:
        """Forget everything."""
        while self._events:
            self.forget_one()

    def of(self, stream: int, after: int) -> list[tuple[int, bytes]]:
        """The events of a stream behind a position, as far as they are remembered."""
        return [(place, message) for number, place, message in self._events if number == stream and place > after]
