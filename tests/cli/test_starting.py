"""What is said of a server that takes long to start."""

import asyncio
import sys

import pytest

from sluicegate.config import GatewayConfig, ServerConfig, ServerSettings, Stdio
from sluicegate.config.values import Secret
from sluicegate.control import statuses
from sluicegate.gateway import Gateway, ServerStatus


def silent(**settings: object) -> GatewayConfig:
    """A gateway in front of a program that never says anything."""
    words = ("-c", "import sys; sys.stdin.read()")
    source = Stdio(command=sys.executable, program=sys.executable, cwd="/", args=tuple(Secret(w, w) for w in words))
    own = ServerSettings(**settings)  # pyright: ignore[reportArgumentType]
    return GatewayConfig(root="/", servers={"mute": ServerConfig(name="mute", key="mute", source=source, settings=own)})


async def starting(gateway: Gateway) -> ServerStatus:
    """How the server is while it starts, once it has failed before."""
    while True:
        (server,) = statuses(gateway)
        if server.state == "starting" and server.restarts:
            return server
        await asyncio.sleep(0.01)


async def test_one_that_is_silent_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.control.LONG", 0.0)
    async with Gateway(silent()) as gateway:
        (server,) = statuses(gateway)
    assert server.sentence == "mute has not answered for 0 s; is it an MCP server on stdio?"


async def test_why_it_failed_the_last_time_is_still_said_while_it_is_tried_again() -> None:
    async with asyncio.timeout(30), Gateway(silent(start_timeout=0.2, probe_timeout=0.1, stop_grace=0.1)) as gateway:
        server = await starting(gateway)
    assert server.sentence.startswith(
        "mute is starting. The last time: mute did not answer the handshake within 0.3 s."
    )
