"""Log lines that belong to no call, on their way to a session-era client over HTTP."""

import asyncio

from sluicegate.errors import InvalidParams
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Notification, Params, Reply, Result
from sluicegate.protocol.modern_era import ACKNOWLEDGED, SERVER_INFO_KEY, complete
from sluicegate.protocol.versions import SUPPORTED_VERSIONS
from tests.downstream.http_client import Session, http_client

OFFER = {"tools": {}, "logging": {}, "resources": {"subscribe": True}}


class Speaker:
    """A handler with a log, and nothing that could be subscribed to."""

    def __init__(self) -> None:
        self.listeners: list[Exchange] = []
        self.changed = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> Reply:
        if exchange.method != "subscriptions/listen":
            info = {SERVER_INFO_KEY: {"name": "x", "version": "1"}}
            said: Params = {"supportedVersions": list(SUPPORTED_VERSIONS), "capabilities": OFFER, "_meta": info}
            return Result(complete(said, ttl_ms=0))
        if exchange.profile.log_level is None:
            raise InvalidParams("There is nothing to listen to.")
        self.listeners.append(exchange)
        self.changed.set()
        try:
            await exchange.emit(Notification(ACKNOWLEDGED, {"notifications": {}}))
            return await asyncio.Future[Reply]()
        finally:
            self.listeners.remove(exchange)
            self.changed.set()

    async def wait_for(self, listeners: int) -> None:
        async with asyncio.timeout(10):
            while len(self.listeners) != listeners:
                self.changed.clear()
                await self.changed.wait()

    async def say(self, text: str) -> None:
        await self.listeners[-1].emit(Notification("notifications/message", {"level": "info", "data": text}))


async def set_level(session: Session, id: int) -> None:
    assert (await session.request(id, "logging/setLevel", {"level": "debug"})).status == 200


async def test_a_session_has_one_listener_whatever_else_it_subscribes_to_and_none_behind_its_end() -> None:
    speaker = Speaker()
    async with http_client(speaker) as client:
        session = await client.initialize()
        for id in range(1, 9, 2):
            await set_level(session, id)
            await session.request(id + 1, "resources/subscribe", {"uri": "log"})
        await set_level(session, 9)
        await speaker.wait_for(1)
        assert (await session.delete()).status == 204
        await speaker.wait_for(0)


async def test_a_log_line_is_sent_to_clients_that_listen_and_not_kept_for_replay() -> None:
    speaker = Speaker()
    async with http_client(speaker) as client:
        session = await client.initialize()
        await set_level(session, 1)
        await speaker.wait_for(1)
        for number in range(3):
            await speaker.say(f"unheard {number}")
        stream = await session.listen()
        await speaker.say("heard")
        assert (await stream.event()).data == ""  # the one that lets it come back
        event = await stream.event()
        assert event.id is None and "unheard" not in event.data and "heard" in event.data
