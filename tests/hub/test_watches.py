"""Resources of one server that are listened to: each once, on whichever connection is the latest."""

import asyncio

from sluicegate.concurrency import TaskScope, forever
from sluicegate.hub.watches import Hold, Watches


class Held:
    """A connection that notes what is held on it."""

    def __init__(self) -> None:
        self.uris: list[str] = []

    def hold(self) -> Hold:
        async def hold(uri: str, accepted: "asyncio.Future[bool]") -> None:
            self.uris.append(uri)
            if not accepted.done():
                accepted.set_result(True)
            try:
                await forever()
            finally:
                self.uris.remove(uri)

        return hold


async def turn() -> None:
    """Let tasks begin and end."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_resource_is_held_once_for_all_who_listen_and_let_go_with_the_last() -> None:
    watches, held = Watches(), Held()
    async with asyncio.timeout(10), TaskScope() as tasks:
        watches.begin(tasks, held.hold())
        assert await watches.watch("x://1") and await watches.watch("x://1")
        assert held.uris == ["x://1"]
        watches.unwatch("x://1")
        await turn()
        assert held.uris == ["x://1"]
        watches.unwatch("x://1")
        await turn()
        assert (held.uris, len(watches)) == ([], 0)
        watches.unwatch("x://1")  # Who listens no more may say so twice.


async def test_what_is_wanted_while_there_is_no_connection_is_held_on_the_next() -> None:
    watches, held = Watches(), Held()
    accepted = watches.watch("x://1")
    assert not accepted.done()
    async with asyncio.timeout(10), TaskScope() as tasks:
        watches.begin(tasks, held.hold())
        assert await accepted
        watches.end(tasks)
        tasks.cancel_all()
    assert held.uris == []
    async with asyncio.timeout(10), TaskScope() as tasks:
        watches.begin(tasks, held.hold())
        await turn()
        assert held.uris == ["x://1"]
        tasks.cancel_all()


async def test_a_new_connection_takes_over_and_the_end_of_the_old_one_changes_nothing() -> None:
    watches, old, new = Watches(), Held(), Held()
    async with asyncio.timeout(10), TaskScope() as first, TaskScope() as second:
        watches.begin(first, old.hold())
        assert await watches.watch("x://1")
        watches.begin(second, new.hold())
        await turn()
        assert (old.uris, new.uris) == ([], ["x://1"])
        watches.end(first)
        assert await watches.watch("x://2")
        assert new.uris == ["x://1", "x://2"]
        second.cancel_all()
