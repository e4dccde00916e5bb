"""Every client with every server through one gateway, once.

`python -m tests.bridge.matrix` runs it, and writes what came of it as docs/bridge.md.
"""

import asyncio
import json
import time
import traceback
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.bridge.checks import CHECKS, Pair, whole
from tests.bridge.clients import Client, Json
from tests.bridge.servers import NOTE
from tests.bridge.stage import SIDES, Side, Stage, stage

UPDATED: Final = "notifications/resources/updated"
CHANGED: Final = "notifications/tools/list_changed"


class Cell:
    """What came of one pair."""

    def __init__(self) -> None:
        self.marks: set[str] = set()
        self.failures: list[str] = []
        self.losses: Counter[str] = Counter()

    @contextmanager
    def noting(self, what: str) -> Generator[None]:
        """Note what fails, for the test of the pair to show; all else goes on."""
        try:
            yield
        except Exception:  # noqa: BLE001 - whatever it is
            self.failures.append(f"{what}:\n{traceback.format_exc(limit=-4)}")


Matrix = dict[tuple[Side, Side], Cell]


async def run_matrix(folder: Path) -> Matrix:
    """What comes of all pairs."""
    cells: Matrix = {(client, server): Cell() for client in SIDES for server in SIDES}
    async with stage(folder) as ready:
        # In each round every client has a server for itself: nothing that is seen can be another pair's.
        for turn in range(len(SIDES)):
            pairs = [(client, SIDES[(n + turn) % len(SIDES)]) for n, client in enumerate(SIDES)]
            await asyncio.gather(*(_meet(ready, client, server, cells[client, server]) for client, server in pairs))
        for server in SIDES:
            await _change(ready, server, {client: cells[client, server] for client in SIDES})
    return cells


async def _meet(ready: Stage, client: Side, server: Side, cell: Cell) -> None:
    pair = Pair(ready.clients[client], server)
    losses = ready.mount(server).calls.losses
    before = Counter(losses)
    pair.client.complaints.clear()
    for name, check in CHECKS.items():
        with cell.noting(name):
            cell.marks |= await check(pair)
    with cell.noting("complaints"):
        assert json.loads((await pair.client.call(pair.tool("complaints"))).text) == []
        assert pair.client.complaints == []
    cell.losses = losses - before


class _Listener:
    """One client while it listens to one server: what it had heard before, and what ends it."""

    def __init__(self, client: Client, cell: Cell) -> None:
        self.client = client
        self.cell = cell
        self.updated = client.count(UPDATED)
        self.changed = client.count(CHANGED)
        self.listening: Json | None = None
        self.lists: Json | None = None


async def _change(ready: Stage, server: Side, cells: dict[Side, Cell]) -> None:
    """Updates of a resource and changes of a list: told to every client that wants to know, once."""
    uri, someone = f"{server.name}+{NOTE}", ready.clients[SIDES[0]]
    listeners = [_Listener(client, cells[side]) for side, client in ready.clients.items()]
    for listener in listeners:
        with listener.cell.noting("update"):
            listener.listening = await listener.client.subscribe(uri)
            if listener.client.is_modern:
                listener.lists = await listener.client.listen({"toolsListChanged": True})
    assert (await someone.call(f"{server.name}__touch")).text == "touched"
    for listener in listeners:
        with listener.cell.noting("update"):
            await listener.client.heard(UPDATED, listener.updated + 1)
            assert listener.client.last(UPDATED)["params"]["uri"] == uri
            await listener.client.unsubscribe(uri, listener.listening)
    # Nobody is subscribed any more, so that this is told to nobody; the list is told after it, to all.
    assert (await someone.call(f"{server.name}__touch")).text == "touched"
    grown = f"grown-{time.monotonic_ns()}"
    assert (await someone.call(f"{server.name}__grow", {"text": grown})).text == "grown"
    for listener in listeners:
        with listener.cell.noting("update"):
            await listener.client.heard(CHANGED, listener.changed + 1)
            tools = await whole(listener.client, "tools/list", "tools")
            assert f"{server.name}__{grown}" in [tool["name"] for tool in tools]
            if listener.lists is not None:
                listener.client.cancel(listener.lists)
    for listener in listeners:
        with listener.cell.noting("update"):
            assert listener.client.count(UPDATED) == listener.updated + 1
            assert listener.client.count(CHANGED) == listener.changed + 1


if __name__ == "__main__":
    from tests.bridge.page import write_page

    write_page()
