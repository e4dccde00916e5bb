"""Reading the streams of servers."""

import asyncio
from typing import cast

import pytest

from sluicegate.http1 import Answer
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.upstream import http_messages
from sluicegate.upstream.http_messages import MAX_CHUNK, Chunks


class Flood:
    """An answer whose next bytes are always there already."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = [*chunks]

    async def next_chunk(self) -> bytes | None:
        return self._chunks.pop(0) if self._chunks else None


async def test_a_stream_that_never_pauses_lets_other_tasks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """T4."""
    monkeypatch.setattr(http_messages, "TURN", 0.0)
    chunks = Chunks(cast(Answer, Flood(*[b":\n\n" * 100_000] * 3)))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with TaskScope() as tasks:
        tasks.start(count(), key="count")
        sizes: list[int] = []
        while (chunk := await chunks.next()) is not None:
            sizes.append(len(chunk))
        tasks.cancel("count")
    assert sum(sizes) == 900_000 and max(sizes) == MAX_CHUNK
    assert turns >= len(sizes) - 1
