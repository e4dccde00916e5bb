"""A client that goes away while a question is open: the question goes with it, and nobody is left waiting."""

import asyncio
import logging

import pytest

import sluicegate
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.testing import MemoryUpstream
from tests.downstream.http_client import HttpClient, http_client, initialize, notification, request


class Asking:
    """A server whose tool asks the client's model, and knows how that ended."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.server = sluicegate.Server("asking")
        self.server.add_tool(self.ponder)

    async def ponder(self, call: sluicegate.Call) -> str:
        """Ask the client's model."""
        try:
            return (await call.sample("Well?", max_tokens=10)).text
        finally:
            self.ended.set()


async def _say(client: HttpClient, place: str, message: object) -> None:
    answer = await client.post(message, path=place)
    assert answer.status == 202


async def test_over_the_oldest_transport_nothing_is_sent_to_a_client_that_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asking, hub = Asking(), Hub()
    hub.mount("s", MemoryUpstream(asking.server, era="session"), MountSettings(prefix=""))
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(20), hub:
            await hub.settled()
            await asyncio.sleep(0)  # The catalog is built once for all that changed in one turn of the loop.
            async with http_client(hub) as client:
                stream = await client.open("GET", "/sse", [("Accept", "text/event-stream")])
                place = (await stream.event()).data
                await _say(client, place, initialize("2024-11-05", sampling={}))
                assert (await stream.message())["id"] == "init"
                await _say(client, place, notification("notifications/initialized"))
                await _say(client, place, request(1, "tools/call", {"name": "ponder"}))
                assert (await stream.message())["method"] == "sampling/createMessage"
                stream.hang_up()
                await asking.ended.wait()
            (mount,) = hub.mounts
            await mount.calls.limit.wait_idle()
    assert not caplog.records, [record.getMessage() for record in caplog.records]
