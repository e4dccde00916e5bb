"""The lines that servers write: the last ones are kept in their order, and a new one wakes all that wait for it."""

import asyncio

from sluicegate.gateway.server_logs import KEPT, ServerLogs
from sluicegate.runtime.task_scope import TaskScope


def test_lines_of_all_servers_are_returned_in_the_order_of_their_arrival() -> None:
    logs = ServerLogs()
    logs.of("one").add(["a"])
    logs.of("two").add_printed("b")
    logs.of("one").add(["c"])
    assert [(line.server, line.text, line.is_stdout) for line in logs.lines(["two", "one"])] == [
        ("one", "a", False),
        ("two", "b", True),
        ("one", "c", False),
    ]
    assert [line.text for line in logs.lines(["one"], after=1)] == ["c"]
    logs.of("one").add(["x"] * (KEPT + 1))
    assert len(logs.lines(["one", "two"])) == KEPT


async def test_a_new_line_wakes_all_that_wait() -> None:
    logs = ServerLogs()
    woken: list[int] = []

    async def wait(number: int) -> None:
        await logs.wait_added()
        woken.append(number)

    async with asyncio.timeout(5), TaskScope() as tasks:
        tasks.start(wait(1))
        tasks.start(wait(2))
        await asyncio.sleep(0)
        assert woken == []
        logs.of("one").add(["a"])
    assert sorted(woken) == [1, 2]
