"""Servers that are started before the gateway is loaded."""

import asyncio
import os
import socket
import sys
from collections.abc import Generator

import pytest

import sluicegate
from sluicegate.client.in_process import InProcess
from sluicegate.config.model import GatewayConfig, Http, HttpFront, Secret, ServerConfig, Stdio
from sluicegate.gateway.gateway import Gateway
from sluicegate.serve.early_start import Launches, check_address
from tests.cli.folders import NOTES
from tests.descriptors import descriptors
from tests.polling import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and only Linux promises all of this")

WAITING = "import sys; sys.stdin.read()"


@pytest.fixture(autouse=True)
def leaves_nothing() -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    """Afterwards there is no descriptor and no child, not even a dead one."""
    before = descriptors()
    yield
    assert descriptors() <= before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def python(*words: str, command: str = sys.executable, cwd: str = "/") -> Stdio:
    """A command that is Python with these arguments."""
    return Stdio(command=command, program=None, cwd=cwd, args=tuple(Secret(word, word) for word in words))


def configured(**sources: Stdio | Http) -> GatewayConfig:
    servers = {name: ServerConfig(name=name, key=name, source=source) for name, source in sources.items()}
    return GatewayConfig(root="/", servers=servers)


def test_every_enabled_command_is_started_and_stopped_if_it_is_not_taken() -> None:
    config = configured(
        waits=python("-c", WAITING),
        ends=python("-c", ""),
        missing=python(command="no-such-program-anywhere"),
        homeless=python(cwd="/no/such/folder"),
        unfit=python("-c", "\0"),
        remote=Http(url=Secret("http://127.0.0.1:1/mcp", "")),
    )
    off = ServerConfig(name="off", key="off", source=python("-c", WAITING), disabled="It is disabled.")
    config.servers["off"] = off
    with Launches() as launches:
        launches.start(config)
        started = dict(launches.servers)
        assert set(started) == {"waits", "ends"}
    assert launches.servers == {}
    assert all(launched.process.returncode == 0 for launched in started.values())


def test_an_error_ends_them_too() -> None:
    with pytest.raises(KeyboardInterrupt), Launches() as launches:
        launches.start(configured(waits=python("-c", WAITING)))
        assert len(launches.servers) == 1
        raise KeyboardInterrupt


async def test_a_gateway_takes_them_and_starts_none_of_its_own() -> None:
    config = configured(notes=python(*map(str, NOTES["args"])))  # pyright: ignore[reportArgumentType]
    with Launches() as launches:
        launches.start(config)
        (launched,) = launches.servers.values()
        async with asyncio.timeout(30), Gateway(config, launched=launches.servers) as gateway:
            await gateway.hub.settled()
            launches.dismiss()
            async with sluicegate.connect(InProcess(gateway.hub)) as client:
                assert [tool.name for tool in await client.tools()] == ["notes__write", "notes__forget"]
            assert launched.process.poll() is None
            children = await asyncio.to_thread(_children)
            assert children == [launched.process.pid]
            gateway.restart("notes")
            await _again(gateway)
            assert await asyncio.to_thread(_children) != children


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(word) for word in file.read().split()]


async def _again(gateway: Gateway) -> None:
    mount = gateway.hub.find("notes")
    assert mount is not None
    before = mount.connection
    await until(lambda: mount.connection, lambda connection: connection not in (before, None))


async def test_a_server_that_the_gateway_does_not_need_is_dismissed_while_it_runs() -> None:
    with Launches() as launches:
        launches.start(configured(waits=python("-c", WAITING)))
        (launched,) = launches.servers.values()
        async with Gateway(configured(), launched=launches.servers):
            launches.dismiss()
            async with asyncio.timeout(10):
                await asyncio.to_thread(launched.process.wait, 10)


def test_an_address_that_is_taken_is_found_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OSError, match="in use"):
            check_address(HttpFront(port=taken.getsockname()[1]))
    check_address(HttpFront(port=0))
