"""An activation: a class whose methods are tools. Try it with `sluicegate serve examples/counter.py`."""

from collections.abc import AsyncIterator

import msgspec

import sluicegate


class Counted(msgspec.Struct, tag="counted"):
    number: int


@sluicegate.activation("counter", version="1.0")
class Counter:
    """Counts, and remembers how far."""

    def __init__(self, start: int = 0) -> None:
        self.number = start

    async def count(self, steps: int) -> AsyncIterator[Counted]:
        """Count on, one event for each number.

        Args:
            steps: How many numbers to count.
        """
        for _ in range(steps):
            self.number += 1
            yield Counted(self.number)

    async def get(self) -> int:
        """The last number."""
        return self.number
