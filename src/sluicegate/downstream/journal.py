"""What session-era clients may have missed: the last events of each session. Pure, and bounded in number and size."""

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

MOST_REMEMBERED: Final = 1000
MOST_REMEMBERED_BYTES: Final = 1 << 20
_BESIDE_MESSAGE: Final = 200  # What an event takes beside its bytes, about.


class Memory:
    """What the journals of all sessions may hold together: the one that was not written into for longest forgets."""

    def __init__(self, most: int) -> None:
        self.size = 0
        self._most = most
        self._journals: dict[Journal, None] = {}  # The order is that of the last event.

    def grew(self, journal: "Journal", size: int) -> None:
        """Count one more event of a journal, the last thing that is forgotten for it. For journals."""
        self.size += size
        self._journals.pop(journal, None)
        self._journals[journal] = None
        while self.size > self._most:
            oldest = next(iter(self._journals))
            if oldest is journal and len(journal) == 1:
                return
            oldest.forget_one()

    def shrank(self, journal: "Journal", size: int) -> None:
        """Count what a journal has forgotten. For journals."""
        self.size -= size
        if not len(journal):
            self._journals.pop(journal, None)


class Journal:
    """The last events of one session, for a client that lost its connection."""

    def __init__(self, memory: Memory, on_forgotten: Callable[[int], object]) -> None:
        """`on_forgotten` is told of each stream of which nothing is remembered any more."""
        self._memory = memory
        self._on_forgotten = on_forgotten
        self._events: deque[tuple[int, int, bytes]] = deque()
        self._counts: Counter[int] = Counter()
        self._size = 0

    def __len__(self) -> int:
        return len(self._events)

    def __contains__(self, stream: int) -> bool:
        return stream in self._counts

    def add(self, stream: int, position: int, message: bytes) -> None:
        """Remember an event; the oldest give way."""
        self._events.append((stream, position, message))
        self._counts[stream] += 1
        self._size += len(message)
        self._memory.grew(self, len(message) + _BESIDE_MESSAGE)
        while len(self._events) > MOST_REMEMBERED or (self._size > MOST_REMEMBERED_BYTES and len(self._events) > 1):
            self.forget_one()

    def forget_one(self) -> None:
        """Forget the oldest event."""
        stream, _, message = self._events.popleft()
        self._size -= len(message)
        self._memory.shrank(self, len(message) + _BESIDE_MESSAGE)
        self._counts[stream] -= 1
        if not self._counts[stream]:
            del self._counts[stream]
            self._on_forgotten(stream)

    def clear(self) -> None:
        """Forget everything."""
        while self._events:
            self.forget_one()

    def of(self, stream: int, after: int) -> list[tuple[int, bytes]]:
        """The events of a stream behind a position, as far as they are remembered."""
        return [(place, message) for number, place, message in self._events if number == stream and place > after]
