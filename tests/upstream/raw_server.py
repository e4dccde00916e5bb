"""A server that writes and reads plain messages: the peer of a `DuplexConnection`, scripted by the test."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from sluicegate.exchange import Exchange, Host
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, Reply
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.testing import MemoryWire
from sluicegate.upstream.duplex import DuplexConnection, Era

Json = dict[str, object]
DISCOVERED: Json = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
ALL: Json = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "logging": {},
}


class RawServer:
    """The server's end of a memory wire, spoken to in JSON."""

    def __init__(self, wire: MemoryWire) -> None:
        self.wire = wire
        self._lines: asyncio.Queue[Json] = asyncio.Queue()
        self._rest = b""
        wire.attach(self)

    def received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._lines.put_nowait(json.loads(line))

    def ended(self) -> None:
        pass

    def send(self, **message: object) -> None:
        self.send_bytes(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def send_bytes(self, line: bytes) -> None:
        self.wire.write(line + b"\n")

    async def next(self, method: str | None = None) -> Json:
        """The next message of the client, which must be of this method if one is given."""
        async with asyncio.timeout(10):
            message = await self._lines.get()
        assert method is None or message.get("method") == method, message
        return message

    async def answer(self, method: str, result: Mapping[str, object]) -> Json:
        """Wait for a request of this method and answer it; the request."""
        request = await self.next(method)
        self.send(id=request["id"], result=result)
        return request

    async def refuse(self, method: str, code: int, message: str = "no", **data: object) -> None:
        request = await self.next(method)
        self.send(id=request["id"], error={"code": code, "message": message, **data})

    async def welcome(self, version: str = "2025-11-25", **capabilities: object) -> Json:
        """Answer `initialize`; its params."""
        info = {"name": "raw", "version": "1"}
        result: Json = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
        request = await self.answer("initialize", result)
        await self.next("notifications/initialized")
        return request

    def hang_up(self) -> None:
        self.wire.hang_up()


class Recorder:
    """A sink that keeps what it gets and answers what it is asked."""

    def __init__(self, *answers: Params) -> None:
        self.notices: list[Notification] = []
        self.questions: list[Questions] = []
        self.heard = asyncio.Event()
        self._answers = list(answers)

    async def emit(self, notification: Notification) -> None:
        self.notices.append(notification)
        self.heard.set()

    async def ask(self, questions: Questions) -> Answers:
        self.questions.append(questions)
        return {key: self._answers.pop(0) for key in questions}


class Bench:
    """A link under test, the raw server at its other end, and a scope for pending exchanges."""

    def __init__(self, link: DuplexConnection, server: RawServer, tasks: TaskScope, idle: Recorder) -> None:
        self.link = link
        self.server = server
        self.tasks = tasks
        self.idle = idle

    def start(self, exchange: Exchange, *, key: object = None) -> "asyncio.Future[Reply]":
        """Run an exchange in the background; its reply or its error."""
        outcome: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            try:
                outcome.set_result(await self.link(exchange))
            except asyncio.CancelledError:
                outcome.cancel()
                raise
            except Exception as problem:  # noqa: BLE001 - the outcome of the test
                outcome.set_exception(problem)

        self.tasks.start(work(), key=key)  # pyright: ignore[reportArgumentType]
        return outcome


def exchange(
    method: str = "tools/call",
    params: Params | None = None,
    sink: Recorder | None = None,
    **profile: object,
) -> Exchange:
    """An exchange as a client would make it."""
    chosen = ClientProfile(**profile)  # pyright: ignore[reportArgumentType]
    return Exchange(method, {"name": "t"} if params is None else params, sink or Recorder(), chosen)


@asynccontextmanager
async def bench(
    *, era: Era = "auto", probe_timeout: float = 5.0, open_timeout: float = 5.0, capabilities: Params | None = None
) -> AsyncGenerator[tuple[Bench, "asyncio.Future[None]"]]:
    """A bench and the future of its opening, which the test's script has to bring about."""
    ours, theirs = MemoryWire.pair()
    idle = Recorder({"roots": []})
    async with TaskScope() as tasks:
        link = DuplexConnection("raw", Host(capabilities or {}, {"name": "test", "version": "1"}, idle), tasks)
        ours.attach(link)
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def open_link() -> None:
            try:
                await link.open(ours, era, probe_timeout=probe_timeout, open_timeout=open_timeout)
                opened.set_result(None)
            except Exception as problem:  # noqa: BLE001 - the outcome of the test
                opened.set_exception(problem)

        tasks.start(open_link())
        try:
            async with asyncio.timeout(10):
                yield Bench(link, RawServer(theirs), tasks, idle), opened
        finally:
            link.close()
            tasks.cancel_all()


@asynccontextmanager
async def modern_bench() -> AsyncGenerator[Bench]:
    """A link that is open to a server of 2026-07-28."""
    async with bench() as (table, opened):
        await table.server.answer("server/discover", DISCOVERED)
        await opened
        yield table


@asynccontextmanager
async def session_bench(version: str = "2025-11-25", **capabilities: object) -> AsyncGenerator[Bench]:
    """A link that is open to a session-era server."""
    async with bench(era="session") as (table, opened):
        await table.server.welcome(version, **(capabilities or ALL))
        await opened
        yield table
