"""One timer for all silent streams."""

import asyncio

import pytest

from sluicegate.downstream import http_response
from sluicegate.downstream.http_response import KeepAlive

PATIENCE = 10.0


class Stream:
    """Counts how often it spoke."""

    def __init__(self) -> None:
        self.spoke = 0
        self.heard = asyncio.Event()

    def stay_alive(self) -> None:
        self.spoke += 1
        self.heard.set()

    async def speaks(self) -> None:
        """Return when it has spoken again."""
        self.heard.clear()
        async with asyncio.timeout(PATIENCE):
            await self.heard.wait()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_response, "KEEP_ALIVE", 0.001)


async def test_each_stream_speaks_again_and_again_until_it_is_forgotten() -> None:
    rota, first, second = KeepAlive(), Stream(), Stream()
    rota.watch(first)
    rota.watch(second)
    await first.speaks()
    await first.speaks()
    await second.speaks()
    rota.forget(first)
    rota.forget(first)
    said = first.spoke
    await second.speaks()
    await second.speaks()
    assert first.spoke == said
    rota.close()


async def test_a_stream_that_is_watched_after_all_others_ended_gets_comments_too() -> None:
    rota, first, second = KeepAlive(), Stream(), Stream()
    rota.watch(first)
    await first.speaks()
    rota.forget(first)
    assert len(rota) == 0
    rota.watch(second)
    await second.speaks()
    rota.close()


async def test_a_stream_that_cannot_speak_leaves_the_others_their_turn() -> None:
    class Broken(Stream):
        def stay_alive(self) -> None:
            rota.forget(self)
            raise ValueError("nobody there")

    rota, after = KeepAlive(), Stream()
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    rota.watch(Broken())
    rota.watch(after)
    await after.speaks()
    assert [type(context["exception"]) for context in told] == [ValueError]
    rota.close()


async def test_a_stream_that_is_watched_again_waits_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rota, early, late = KeepAlive(), Stream(), Stream()
    rota.watch(early)
    monkeypatch.setattr(http_response, "KEEP_ALIVE", 3600.0)
    rota.watch(late)
    rota.watch(early)
    turns = Stream()
    monkeypatch.setattr(http_response, "KEEP_ALIVE", 0.001)
    other = KeepAlive()
    other.watch(turns)
    await turns.speaks()
    await turns.speaks()
    assert (early.spoke, late.spoke) == (0, 0)
    rota.close()
    other.close()
