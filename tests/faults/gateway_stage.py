"""A gateway over a folder of its own, in this process or in another, with a hostile server and a good one behind it.

async with staged(tmp_path, {"bad": hostile("era=session"), "good": hostile()}) as stage:
    async with stage.client() as client:
        await client.call("bad__echo", text="hello")
"""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, cast

import pytest

import sluicegate
from sluicegate import RpcError
from sluicegate.config.load import load
from sluicegate.config.model import GatewayConfig, HttpFront
from sluicegate.config.paths import Places, control_socket
from sluicegate.errors import ErrorObject
from sluicegate.exchange import Exchange
from sluicegate.gate.admission import Startup
from sluicegate.gateway.gateway import Gateway, ServerStatus
from sluicegate.hub.mount import Mount
from sluicegate.serve.process import Running
from sluicegate.serve.reload import as_loaded
from sluicegate.upstream.duplex import Era, SocketUpstream
from tests.faults.load import Wire
from tests.faults.promises import LEFT_OVER, STOPPED, assert_kept
from tests.polling import PATIENCE, until, until_called

HOSTILE: Final = str(Path(__file__).with_name("gateway_hostile.py"))

Json = dict[str, object]


class BriefStartup(Startup):
    """A start-up in which requests wait for servers only for a moment."""

    def __init__(
        self,
        settled: Callable[[], Awaitable[None]],
        wait_change: Callable[[], Awaitable[None]],
        can_answer: Callable[[Exchange], bool],
        seconds: float,
    ) -> None:
        super().__init__(settled, wait_change, can_answer, min(seconds, 0.2))


def hostile(*words: str, **entry: object) -> Json:
    """The entry of a hostile server in `.mcp.json`; without a word, it behaves."""
    return {"command": sys.executable, "args": ["-I", "-S", HOSTILE, *words], **entry}


class Folder:
    """A folder with its configuration, and the environment of the gateway that serves it."""

    def __init__(self, base: Path, servers: Mapping[str, object], settings: str = "") -> None:
        self.root = base / "root"
        self.home = base / "home"
        self.root.mkdir()
        self.home.mkdir()
        # The path of a socket is short by nature, those of tests are long.
        self.runtime = tempfile.mkdtemp(prefix="sg-")
        self.environ = {**os.environ, "HOME": str(self.home), "XDG_RUNTIME_DIR": self.runtime}
        self.environ.pop("XDG_CONFIG_HOME", None)
        self.servers(servers)
        self.settings(settings)

    def servers(self, servers: Mapping[str, object]) -> None:
        """Write `.mcp.json`."""
        self._write(".mcp.json", json.dumps({"mcpServers": servers}))

    def settings(self, text: str) -> None:
        """Write `sluicegate.toml`."""
        self._write("sluicegate.toml", text)

    def _write(self, name: str, text: str) -> None:
        # As editors do it: nobody ever sees half of it.
        (self.root / f"{name}.new").write_text(text)
        (self.root / f"{name}.new").rename(self.root / name)

    @property
    def places(self) -> Places:
        return Places(root=str(self.root), home=str(self.home), environ=self.environ)

    def config(self) -> GatewayConfig:
        loaded = load(self.places)
        assert loaded.config is not None, loaded.problems
        return loaded.config

    @property
    def socket(self) -> str:
        """Where commands are met."""
        return control_socket(self.config(), self.environ)

    @property
    def has_socket(self) -> bool:
        """Whether there is a socket of a gateway, served or not."""
        return any(name.endswith(".sock") for _, _, names in os.walk(self.runtime) for name in names)

    def remove(self) -> None:
        shutil.rmtree(self.runtime, ignore_errors=True)


class Stage:
    """A gateway in this process, with its HTTP front."""

    def __init__(self, folder: Folder, gateway: Gateway, running: Running) -> None:
        self.folder = folder
        self.gateway = gateway
        self.running = running

    def client(self, era: Era = "modern") -> AbstractAsyncContextManager[sluicegate.Client]:
        """A client of ours, by HTTP."""
        return sluicegate.connect(self.running.address, era=era, timeout=PATIENCE)

    @property
    def port(self) -> int:
        return port_of(self.running.address)

    def mount(self, name: str) -> Mount:
        mount = self.gateway.hub.find(name)
        assert mount is not None
        return mount

    def status(self, name: str) -> ServerStatus:
        return next(status for status in self.gateway.status() if status.name == name)

    async def until(self, name: str, is_so: Callable[[ServerStatus], bool]) -> ServerStatus:
        """The status of a server when it is so."""
        return await until(lambda: self.status(name), is_so)

    async def ready(self, *names: str) -> None:
        """Return when these are ready."""
        for name in names:
            await self.until(name, lambda status: status.state == "ready")


def port_of(address: str) -> int:
    """The port of an endpoint; 0 if it has none."""
    found = re.fullmatch(r"http://127\.0\.0\.1:([0-9]+)/mcp", address)
    return int(found[1]) if found else 0


async def wires(port: int, count: int) -> list[Wire]:
    """So many connections to an endpoint."""
    loop = asyncio.get_running_loop()
    found: list[Wire] = []
    while len(found) < count:
        more = min(200, count - len(found))
        opened = await asyncio.gather(*(loop.create_connection(Wire, "127.0.0.1", port) for _ in range(more)))
        found += [wire for _, wire in opened]
    return found


@asynccontextmanager
async def staged(
    base: Path, servers: Mapping[str, object], settings: str = "", *, ready: Sequence[str] | None = None
) -> AsyncGenerator[Stage]:
    """A gateway in this process, once those servers are ready that must be, or all."""
    folder = Folder(base, servers, settings)
    try:
        async with Gateway(folder.config()) as gateway:
            running = Running(gateway, folder.places, lambda sentence: None, as_loaded)
            async with running.http(HttpFront(port=0)):
                stage = Stage(folder, gateway, running)
                await stage.ready(*(servers if ready is None else ready))
                yield stage
    finally:
        folder.remove()


# ---------------------------------------------------------------------------------------------- a process of its own

PROGRAM: Final = """
import sys, logging
from sluicegate.config.load import load
from sluicegate.config.model import HttpFront
from sluicegate.config.paths import Places
from sluicegate.serve.process import GatewayProcess
from sluicegate.serve.run_server import run_in_loop

logging.basicConfig(level=logging.ERROR)
root, stdio = sys.argv[1:]
places = Places.here(root=root)
front = None if stdio else HttpFront(port=0)
tell = lambda running: print(running.address, flush=True, file=sys.stderr if stdio else sys.stdout)
quiet = lambda said: None
run_in_loop(GatewayProcess(load(places), places, http=front, stdio=bool(stdio), opened=tell, say=quiet).run())
"""


def servers_in(status: object) -> list[Json]:
    """The servers that the tool `status` tells of."""
    return cast(list[Json], cast(Json, status)["servers"])


class Process:
    """A gateway as a process."""

    def __init__(self, folder: Folder, process: asyncio.subprocess.Process, address: str, began: float) -> None:
        self.folder = folder
        self.process = process
        self.address = address
        self.port = port_of(address)
        self.began = began
        """The moment at which it was started, on the monotonic clock."""

    def client(self, era: Era = "modern") -> AbstractAsyncContextManager[sluicegate.Client]:
        return sluicegate.connect(self.address, era=era, timeout=PATIENCE)

    def control(self) -> AbstractAsyncContextManager[sluicegate.Client]:
        """A client of its management tools."""
        return sluicegate.connect(SocketUpstream(self.folder.socket))

    async def ready(self, *names: str) -> None:
        """Return when these servers are ready."""

        async def states() -> dict[str, str]:
            result = await client.call("status")
            return {str(server["name"]): str(server["state"]) for server in servers_in(result.structured_content)}

        async with self.control() as client:
            await until_called(states, lambda seen: all(seen.get(name) == "ready" for name in names))

    async def stopped(self) -> int:
        """The status with which it ends, after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return await self.ended(STOPPED)

    async def ended(self, within: float, since: float | None = None) -> int:
        """The status with which it ends, and that it does so in time: counted from a moment, or from now."""
        began = time.monotonic() if since is None else since
        async with asyncio.timeout(PATIENCE):
            status = await self.process.wait()
        assert_kept(within, began)
        return status


@asynccontextmanager
async def gateway_process(
    folder: Folder, *, stdio: bool = False, descriptors: int = 0, program: Sequence[str] = ()
) -> AsyncGenerator[Process]:
    """A gateway process that serves a folder; with few file descriptors, if so many are given."""
    words = list(program) or [sys.executable, "-c", PROGRAM, str(folder.root), "stdio" if stdio else ""]
    if descriptors:
        words = ["/bin/sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *words]
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *words,
        env=folder.environ,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE if stdio else None,
        cwd=str(Path(__file__).parents[2]),
    )
    try:
        told = process.stderr if stdio else process.stdout
        assert told is not None
        async with asyncio.timeout(PATIENCE):
            address = (await told.readline()).decode().strip()
        yield Process(folder, process, address, began)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


# ----------------------------------------------------------------------------------------------------- what is seen


async def refusal(call: Awaitable[object]) -> ErrorObject:
    """The error that a call is answered with."""
    with pytest.raises(RpcError) as caught:
        await call
    return caught.value.error


def why(error: ErrorObject) -> tuple[object, object]:
    """The reason of an error, and whether the call was delivered."""
    data = data_of(error)
    assert error.code == -32603 and data["source"] == "sluicegate", error
    return data["reason"], data["delivered"]


def data_of(error: ErrorObject) -> Json:
    """What an error of ours says besides its sentence."""
    data: object = error.data
    assert isinstance(data, dict), error
    return cast(Json, data)


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except FileNotFoundError:
        return False


async def gone(*pids: int, since: float | None = None, within: float = LEFT_OVER) -> None:
    """Return when none of these processes is left, and see that it was so in time: counted from a moment, or from now.

    The moment is that of the signal or of the stop, on the monotonic clock.
    """
    began = time.monotonic() if since is None else since
    await until(lambda: [pid for pid in pids if is_alive(pid)], lambda left: not left)
    assert_kept(within, began)


def children() -> set[int]:
    """The processes that this one has started and that have not ended."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children") as file:
            found.update(int(pid) for pid in file.read().split())
    return {pid for pid in found if is_alive(pid)}


def descriptors() -> int:
    """Files and sockets that this process has open."""
    return len(os.listdir("/proc/self/fd"))
