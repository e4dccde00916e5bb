"""Random actions of clients and a server: an acknowledged listener gets each update once."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from sluicegate.hub import subscriptions as watches
from sluicegate.hub.subscriptions import MAX_GROUPS, ListenSink, Subscriptions
from sluicegate.protocol.message import Notification, Params
from sluicegate.protocol.modern_era import ACKNOWLEDGED
from sluicegate.runtime.task_scope import TaskScope, forever
from tests.own_time import run_in_own_time

URIS = [f"x://{number}" for number in range(40)]
STEPS = 150


class Held:
    """One subscription."""

    def __init__(self, uris: Sequence[str], hearing: ListenSink) -> None:
        self.uris = uris
        self._hearing = hearing

    async def acknowledge(self, uris: Sequence[str]) -> None:
        named: Params = {"notifications": {"resourceSubscriptions": list(uris)}}
        await self._hearing.emit(Notification(ACKNOWLEDGED, named))

    async def update(self, uri: str) -> None:
        await self._hearing.emit(Notification("notifications/resources/updated", {"uri": uri}))


class Moody:
    """A server that refuses some resources, acknowledges late, and ends subscriptions at random."""

    def __init__(self, chance: random.Random) -> None:
        self.refuses = {uri for uri in URIS if chance.random() < 0.1}
        self.is_calm = False
        self.live: list[Held] = []
        self.told = Counter[str]()
        self.most = 0
        self._chance = chance
        self._held = 0

    def heard(self, uri: str, subscribed: str) -> None:
        self.told[subscribed] += 1

    async def hold(self, uris: Sequence[str], hearing: ListenSink) -> None:
        self._held += 1
        self.most = max(self.most, self._held)
        try:
            while True:
                await asyncio.sleep(self._chance.choice([0, 0, 0.1, 0.5]))
                await self._tell(Held([uri for uri in uris if uri not in self.refuses], hearing))
                hearing.ended()
                await asyncio.sleep(0.2)
        finally:
            self._held -= 1

    async def _tell(self, held: Held) -> None:
        await held.acknowledge(held.uris)
        self.live.append(held)
        try:
            await (
                forever() if self.is_calm or self._chance.random() < 0.6 else asyncio.sleep(self._chance.random() * 3)
            )
        finally:
            self.live.remove(held)

    async def update(self, uri: str) -> None:
        for held in list(self.live):
            if uri in held.uris:
                await held.update(uri)


class Crowd:
    """Those who listen, come and go."""

    def __init__(self, own: Subscriptions, chance: random.Random) -> None:
        self._own = own
        self._chance = chance
        self._count = Counter[str]()
        self._latest: dict[str, asyncio.Future[bool]] = {}

    async def act(self) -> None:
        draw, uri = self._chance.random(), self._chance.choice(URIS)
        if draw < 0.5:
            self._latest[uri] = self._own.watch(uri)
            self._count[uri] += 1
        elif draw >= 0.87:
            await asyncio.sleep(self._chance.choice([0, 0, 0.1, 0.4]))
        elif self._count[uri]:
            self._own.unwatch(uri)
            self._count[uri] -= 1

    def listened_to(self) -> dict[str, "asyncio.Future[bool]"]:
        return {uri: self._latest[uri] for uri, count in self._count.items() if count}

    def leave(self) -> None:
        for uri in self._count.elements():
            self._own.unwatch(uri)


async def trial(seed: int) -> list[str]:
    """What was not as it should be."""
    chance = random.Random(seed)
    own, server, problems = Subscriptions(), Moody(chance), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(str(context)))
    crowd = Crowd(own, chance)
    for number in range(4):  # Connections, one after the other.
        async with TaskScope() as tasks:
            own.begin(tasks, server.hold, server.heard)
            for _ in range(STEPS // 4):
                await crowd.act()
            if number == 3:
                server.is_calm = True
                await asyncio.sleep(60)
                for uri, accepted in crowd.listened_to().items():
                    if not accepted.done():
                        problems.append(f"{uri} is not decided")
                    elif accepted.result() and uri not in server.refuses:
                        server.told.clear()
                        await server.update(uri)
                        await asyncio.sleep(2)
                        if server.told[uri] != 1:
                            problems.append(f"{uri} was told {server.told[uri]} times")
                if not any(accepted.done() and accepted.result() for accepted in crowd.listened_to().values()):
                    problems.append("nothing is told of")
                crowd.leave()
                await asyncio.sleep(2)
                if len(own) or server.live:
                    problems.append(f"{len(own)} are listened to and {len(server.live)} held, though all have left")
            own.end(tasks)
            tasks.cancel_all()
        await asyncio.sleep(0.2)
    if server.most > 3 * MAX_GROUPS:
        problems.append(f"there were {server.most} subscriptions")
    return problems


@pytest.mark.parametrize("most_uris", [1000, 6])
def test_an_acknowledged_listener_gets_each_update_once(most_uris: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "MAX_URIS", most_uris)
    found = {seed: problems for seed in range(200) if (problems := run_in_own_time(trial(seed)))}
    assert found == {}
