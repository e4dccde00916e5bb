"""List changes reach all sessions of an endpoint through one subscription for each caller and offer."""

import asyncio
from typing import cast

from sluicegate.downstream.http_response import HttpRequest
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Notification, Reply, Result
from sluicegate.protocol.modern_era import ACKNOWLEDGED
from tests.downstream.http_client import Answer, http_client
from tests.downstream.raw_client import Json

TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
ADA, BOB = [("Authorization", "ada")], [("Authorization", "bob")]


class Publisher:
    """A handler that notifies its listeners of what the test says, and counts them."""

    def __init__(self) -> None:
        self.began = 0
        self.listening: list[Exchange] = []
        self.offers = ["tools"]
        self.end = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> Reply:
        if exchange.method == "server/discover":
            capabilities: Json = {name: {} for name in self.offers}
            return Result({"supportedVersions": ["2026-07-28"], "capabilities": capabilities})
        assert exchange.method == "subscriptions/listen"
        self.began += 1
        self.listening.append(exchange)
        try:
            await exchange.emit(Notification(ACKNOWLEDGED, {"notifications": exchange.params["notifications"]}))
            await self.end.wait()
        finally:
            self.listening = [each for each in self.listening if each is not exchange]
        return Result({})

    async def heard_by(self, number: int) -> None:
        """Wait until so many listen."""
        async with asyncio.timeout(10):
            while len(self.listening) != number:  # noqa: ASYNC110 - nobody else wants to know
                await asyncio.sleep(0)

    async def say(self, method: str, caller: str | None = None) -> None:
        """Notify all listeners, or those of this caller."""
        for exchange in self.listening:
            if caller is None or exchange.caller.id == caller:
                await exchange.emit(Notification(method, {}))


async def listening(answer: Answer) -> Answer:
    """The answer to a GET, behind its priming event."""
    assert (await answer.event()).data == ""
    return answer


async def test_one_subscription_notifies_all_sessions_of_a_caller() -> None:
    publisher = Publisher()
    async with http_client(publisher) as client:
        sessions = [await client.initialize(headers=ADA) for _ in range(5)]
        streams = [await listening(await session.listen()) for session in sessions[:4]]
        await publisher.heard_by(1)
        await publisher.say(TOOLS)
        streams.append(await listening(await sessions[4].listen()))  # was not there, and is told all the same
        assert [(await stream.message())["method"] for stream in streams] == [TOOLS] * 5
        assert publisher.began == 1


async def test_each_caller_has_a_subscription_of_its_own() -> None:
    publisher = Publisher()
    async with http_client(publisher) as client:
        ada, bob = await client.initialize(headers=ADA), await client.initialize(headers=BOB)
        to_ada, to_bob = await listening(await ada.listen()), await listening(await bob.listen())
        await publisher.heard_by(2)
        await publisher.say(TOOLS, "ada")
        await publisher.say(PROMPTS, "bob")
        assert (await to_ada.message())["method"] == TOOLS
        assert (await to_bob.message())["method"] == PROMPTS


async def test_sessions_with_other_offers_have_another_subscription() -> None:
    publisher = Publisher()
    async with http_client(publisher) as client:
        await client.initialize()
        publisher.offers = ["tools", "prompts"]
        await client.initialize()
        await publisher.heard_by(2)
        await client.initialize()
        assert publisher.began == 2


async def test_the_last_session_ends_the_subscription_and_the_next_begins_another() -> None:
    publisher = Publisher()
    async with http_client(publisher) as client:
        first, second = await client.initialize(), await client.initialize()
        await publisher.heard_by(1)
        await first.delete()
        third = await client.initialize()
        assert publisher.began == 1
        await second.delete()
        await third.delete()
        await publisher.heard_by(0)
        fourth = await client.initialize()
        stream = await listening(await fourth.listen())
        await publisher.heard_by(1)
        await publisher.say(TOOLS)
        assert (await stream.message())["method"] == TOOLS
        assert publisher.began == 2


async def test_a_subscription_that_ended_is_opened_again_for_the_next_session() -> None:
    publisher = Publisher()
    async with http_client(publisher) as client:
        await client.initialize()
        await publisher.heard_by(1)
        publisher.end.set()
        await publisher.heard_by(0)
        publisher.end.clear()
        session = await client.initialize()
        stream = await listening(await session.listen())
        await publisher.heard_by(1)
        await publisher.say(TOOLS)
        assert (await stream.message())["method"] == TOOLS


async def test_a_slow_client_delays_no_other_and_gets_many_changes_as_one() -> None:
    publisher = Publisher()
    async with http_client(publisher) as client, asyncio.timeout(10):
        slow, quick = await client.initialize(), await client.initialize()
        stalled, stream = await listening(await slow.listen()), await listening(await quick.listen())
        await publisher.heard_by(1)
        pushes = client.endpoint._sessions._sessions[slow.id].pushes  # pyright: ignore[reportPrivateUsage]
        assert pushes.carrier is not None
        brake = Brake(pushes.carrier)
        pushes.carrier = cast(HttpRequest, brake)  # It takes megabytes to fill a socket, and a change is a line.
        for _ in range(10):
            await publisher.say(TOOLS)
            await publisher.say(PROMPTS)
            assert [(await stream.message())["method"] for _ in range(2)] == [TOOLS, PROMPTS]
        brake.go.set()
        heard = [(await stalled.message())["method"] for _ in range(3)]
        assert heard == [TOOLS, PROMPTS, TOOLS], "what it was about to take, and each of the others once"
        assert (await slow.delete()).status == 204
        assert await stalled.events() == []


class Brake:
    """The request of a client that takes nothing before it is told to."""

    is_behind = True

    def __init__(self, request: HttpRequest) -> None:
        self.go = asyncio.Event()
        self._request = request

    def __getattr__(self, name: str) -> object:
        return getattr(self._request, name)

    async def drain(self) -> None:
        await self.go.wait()
