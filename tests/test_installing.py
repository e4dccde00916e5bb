"""Servers that have to be fetched before they run: a program that is silent for minutes, and then a server."""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import sluicegate
from sluicegate.config.commands import fetching
from sluicegate.config.model import GatewayConfig, ServerConfig, ServerSettings, Stdio
from sluicegate.config.secrets import Secret
from sluicegate.control.operations import statuses
from sluicegate.errors import RpcError
from sluicegate.gateway.gateway import Gateway, ServerStatus
from sluicegate.hub import mount as mount_module
from sluicegate.protocol.message import as_object
from sluicegate.testing import MemoryUpstream
from tests.polling import until

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"
LIMIT = 45.0

# As npx and uvx do it: not a word while they fetch the package, then the server takes the place of the process, or is
# its child.
EXEC = f"exec {shlex.quote(sys.executable)} {shlex.quote(str(DEMO))}"
CHILD = f"{shlex.quote(sys.executable)} {shlex.quote(str(DEMO))}\nexit $?"


class Registry:
    """Where packages are fetched from: nothing arrives before it is let. Programs that fetch are found on its PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gate = folder / "gate"
        self.starts = folder / "starts"
        os.mkfifo(self.gate)

    def program(self, name: str, then: str = EXEC) -> ServerConfig:
        """A server that is fetched by a program of that name."""
        program = self.folder / name
        # To open the gate for reading waits until somebody writes to it.
        program.write_text(f"#!/bin/sh\necho $$ >>{self.starts}\nread -r arrived <{self.gate}\n{then}\n")
        program.chmod(0o755)
        source = Stdio(command=name, program=str(program), cwd=str(self.folder), args=(Secret("-y", "-y"),))
        return ServerConfig(name="demo", key="demo", source=source)

    @property
    def started(self) -> list[str]:
        """The processes that were started so far."""
        return self.starts.read_text().split() if self.starts.exists() else []

    async def deliver(self) -> None:
        """Let the package of whoever waits for it arrive."""
        await asyncio.to_thread(self.gate.write_text, "here\n")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(mount_module, "INSTALLS_AFTER", 0.0)  # It is silent from the beginning.
    return Registry(tmp_path)


def with_settings(server: ServerConfig, **settings: object) -> GatewayConfig:
    own = ServerSettings(**settings)  # pyright: ignore[reportArgumentType]
    server = ServerConfig(name=server.name, key=server.key, source=server.source, settings=own)
    return GatewayConfig(root="/", servers={server.name: server})


@asynccontextmanager
async def running(config: GatewayConfig) -> AsyncGenerator[Gateway]:
    async with asyncio.timeout(LIMIT), Gateway(config) as gateway:
        yield gateway


async def becomes(gateway: Gateway, state: str, *, restarts: int = 0, tools: int = 0) -> ServerStatus:
    """How the server is, once that is so."""
    return await until(
        lambda: statuses(gateway)[0],
        lambda server: server.state == state and server.restarts >= restarts and server.tools >= tools,
    )


@pytest.mark.parametrize(("program", "then"), [("npx", EXEC), ("uvx", CHILD)])
async def test_a_server_that_is_being_fetched_has_its_time_and_comes(
    registry: Registry, program: str, then: str
) -> None:
    # Its lists have that long, too, so it must be enough for a slow machine.
    start_timeout = 2.0
    async with running(with_settings(registry.program(program, then), start_timeout=start_timeout)) as gateway:
        server = await becomes(gateway, "installing")
        assert re.fullmatch(
            rf"demo has not answered for \d+ s: {program} is probably fetching it, for which it has 300 s\. Run its"
            r" command once by hand to see how far it gets, or raise install_timeout in sluicegate\.toml\.",
            server.sentence,
        )
        await asyncio.sleep(start_timeout + 0.1)  # Without more time for the download it would be restarted now.
        await registry.deliver()
        server = await becomes(gateway, "ready", tools=1)  # The catalog has them a moment later.
        assert (server.sentence, server.tools, server.restarts) == ("demo is ready.", 1, 0)
    assert len(registry.started) == 1


async def test_status_says_how_long_it_has_been_and_calls_are_answered_meanwhile(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 0.0
    real = mount_module.time.monotonic

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return real() + passed

    monkeypatch.setattr(mount_module, "time", Clock)
    config = with_settings(registry.program("npx"), queue_wait=0.05)
    async with running(config) as gateway, sluicegate.connect(MemoryUpstream(gateway.hub)) as client:
        await becomes(gateway, "installing")
        passed = 120.0
        # Nobody knows its tools yet; why that is so is told.
        with pytest.raises(RpcError, match=r"Unknown tool: demo__count\. demo has not answered for 1[2-9]\d s: npx is"):
            await client.call("demo__count", to=1)
        await registry.deliver()
        await becomes(gateway, "ready")
        assert (await client.call("demo__count", to=1)).text == "counted to 1"
        gateway.restart("demo")
        await becomes(gateway, "installing")
        # Those that are known wait for as long as any call may, and are told the same.
        with pytest.raises(RpcError, match=r"^demo has not answered for \d+ s: npx is probably fetching it") as refused:
            await client.call("demo__count", to=1)
        assert (as_object(refused.value.error.data) or {})["reason"] == "backend_unavailable"
        await registry.deliver()
        await becomes(gateway, "ready")
    assert len(registry.started) == 2


async def test_a_package_that_never_arrives_is_restarted_when_its_time_is_over(registry: Registry) -> None:
    settings = {"start_timeout": 0.05, "install_timeout": 1, "stop_grace": 0.1}
    async with running(with_settings(registry.program("uvx"), **settings)) as gateway:
        server = await becomes(gateway, "installing", restarts=1)
        assert (
            "The last time: demo did not answer the handshake within 1 s. If it is an MCP server that needs longer,"
            " raise start_timeout, or install_timeout if it has to be fetched first." in server.sentence
        )
        await until(lambda: len(registry.started) >= 2)


async def test_a_longer_start_timeout_counts(registry: Registry) -> None:
    config = with_settings(registry.program("npx"), start_timeout=900)
    async with running(config) as gateway:
        assert "for which it has 900 s" in (await becomes(gateway, "installing")).sentence


async def test_a_program_that_fetches_nothing_stays_starting_and_is_restarted_in_its_time(
    registry: Registry,
) -> None:
    settings = {"start_timeout": 0.2, "install_timeout": 600, "stop_grace": 0.1}
    states: set[str] = set()
    async with running(with_settings(registry.program("my-server"), **settings)) as gateway:

        def restarts() -> int:
            (server,) = statuses(gateway)
            states.add(server.state)
            return server.restarts

        await until(restarts)
    assert states <= {"starting", "degraded"} and "starting" in states


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("npx", "npx"),
        ("/usr/local/bin/uvx", "uvx"),
        (r"C:\Program Files\nodejs\npx.cmd", "npx"),
        (r"C:\Users\ada\uvx.exe", "uvx"),
        ("podman", "podman"),
        ("python", ""),
        ("npx-server", ""),
    ],
)
def test_programs_that_fetch_are_known_wherever_they_are(program: str, name: str) -> None:
    assert fetching(program) == name
