"""Many clients of one gateway, and many lives of its servers: no answer goes astray, nothing is left (R0, R22–R25).

`--soak` makes 100,000 calls in each era.
"""

import asyncio
import json
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final, cast

import pytest

from tests.downstream.http_client import initialize, notification, request
from tests.downstream.raw_client import Json
from tests.faults.gateway_stage import Folder, children, descriptors, gateway_process, hostile, staged, wires
from tests.faults.load import Answer, Wire, call_of, encoded, raise_descriptors, raw_post
from tests.faults.promises import LEFT_OVER, assert_kept
from tests.polling import PATIENCE, until, until_called

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")

CLIENTS: Final = 1000
SESSIONS: Final = 100
LISTENERS: Final = 200
ROOMY: Final = """
[servers."*"]
concurrency = 2000
timeout = 300
[limits]
in_flight = 4000
in_flight_per_caller = 4000
sessions_per_caller = 1000
"""


class Stream(asyncio.Protocol):
    """A connection whose answers are event streams; it asks for progress with the token that all others use as well."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._waiting: asyncio.Future[list[Json]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._buffer.endswith(b"\r\n0\r\n\r\n") and self._waiting is not None:
            lines = [line for line in self._buffer.split(b"\n") if line.startswith(b"data: {")]
            self._buffer = b""
            self._waiting.set_result([json.loads(line[6:]) for line in lines])
            self._waiting = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None:
            self._waiting.set_exception(exc or ConnectionResetError(repr(self._buffer[:500])))

    def ask(self, data: bytes) -> "asyncio.Future[list[Json]]":
        """Send a request; its messages come later."""
        assert self._transport is not None and self._waiting is None
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return self._waiting

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


@pytest.fixture
def folder(tmp_path: Path) -> Generator[Folder]:
    made = Folder(tmp_path, {"shared": hostile()}, ROOMY)
    yield made
    made.remove()


@pytest.mark.timeout(300)
@pytest.mark.soak(short=5, full=50)
@pytest.mark.parametrize("era", ["modern", "session"])
async def test_a_thousand_clients_with_the_same_ids_and_tokens_get_their_own_answers(
    era: str, folder: Folder, repeats: int
) -> None:
    if raise_descriptors() < 4 * CLIENTS:
        pytest.skip("the system allows too few open files for a crowd")
    folder.servers({"shared": hostile(f"era={era}")})
    made = 0

    async def plain(number: int, wire: Wire) -> None:
        nonlocal made
        for n in range(repeats):
            text = f"plain {number}/{n} " + "x" * (number % 50)
            answer = await wire.ask(call_of("shared__tell", {"text": text}, id=n))
            assert (answer.status, answer.message["id"], answer.text) == (200, n, text)
            made += 1

    async def in_session(number: int, wire: Wire) -> None:
        nonlocal made
        opened = await wire.ask(raw_post(encoded(initialize())))
        headers = [("Mcp-Session-Id", opened.header("mcp-session-id")), ("MCP-Protocol-Version", "2025-11-25")]
        assert (await wire.ask(raw_post(encoded(notification("notifications/initialized")), headers))).status == 202
        for n in range(repeats):
            text = f"session {number}/{n}"
            params: Json = {"name": "shared__tell", "arguments": {"text": text}}
            answer: Answer = await wire.ask(raw_post(encoded(request(n, "tools/call", params)), headers))
            assert (answer.status, answer.message["id"], answer.text) == (200, n, text)
            made += 1

    async def listening(number: int, stream: Stream) -> None:
        nonlocal made
        for n in range(repeats):
            text = f"listening {number}/{n}"
            accept = "application/json, text/event-stream"
            *events, last = await stream.ask(call_of("shared__tell", {"text": text}, id=n, accept=accept))
            told = [cast(Json, event["params"]) for event in events]
            assert [(each["progressToken"], each["progress"], each["message"]) for each in told] == [
                ("p", 1, text),
                ("p", 2, text),
                ("p", 3, text),
            ]
            content = cast(list[Json], cast(Json, last["result"])["content"])
            assert (last["id"], content[0]["text"]) == (n, text)
            made += 1

    async with gateway_process(folder) as gateway:
        await gateway.ready("shared")
        crowd = await wires(gateway.port, CLIENTS - LISTENERS)
        loop = asyncio.get_running_loop()
        streams = [
            stream
            for _, stream in await asyncio.gather(
                *(loop.create_connection(Stream, "127.0.0.1", gateway.port) for _ in range(LISTENERS))
            )
        ]
        async with asyncio.TaskGroup() as group:
            for number, wire in enumerate(crowd):
                group.create_task(in_session(number, wire) if number < SESSIONS else plain(number, wire))
            for number, stream in enumerate(streams):
                group.create_task(listening(number, stream))
        assert made == repeats * CLIENTS
        for wire in (*crowd, *streams):
            wire.close()
        assert await gateway.stopped() == 0


# ------------------------------------------------------------------------------------- one that is bad, and the others


async def test_others_are_answered_while_one_hangs_one_floods_and_one_dies_again_and_again(tmp_path: Path) -> None:
    servers = {"hanging": hostile(), "raving": hostile(), "dying": hostile(), "good": hostile()}
    settings = '[servers."*"]\nqueue_wait = 0.2\nstop_grace = 0.2\n'
    async with staged(tmp_path, servers, settings) as stage:
        held = [wire.ask(call_of("hanging__hang", {})) for wire in await wires(stage.port, 100)]
        await stage.until("hanging", lambda status: status.in_flight == 64)
        stop = asyncio.Event()

        async def vex(tool: str, arguments: Json, wire: Wire) -> int:
            times = 0
            while not stop.is_set():
                await wire.ask(call_of(tool, arguments))
                times += 1
            return times

        vexing = await wires(stage.port, 3)
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            vexed = [
                group.create_task(vex("raving__say", {"line": "raving", "times": 500}, vexing[0])),
                group.create_task(vex("raving__flood_stderr", {"size": 1 << 20}, vexing[1])),
                group.create_task(vex("dying__die", {}, vexing[2])),
            ]
            crowd = await wires(stage.port, 20)
            for n in range(50):
                answers = await asyncio.gather(*(wire.ask(call_of("good__echo", {"text": f"{n}"})) for wire in crowd))
                assert {answer.text for answer in answers} == {f"{n}"}
            stop.set()
        stage.gateway.restart("hanging")
        assert all(task.result() > 0 for task in vexed)
        assert {answer.reason for answer in await asyncio.gather(*held)} <= {"backend_crashed", "overloaded"}
        assert stage.status("good").errors == 0


# ---------------------------------------------------------------------------------------------------- many restarts


@pytest.mark.timeout(180)
@pytest.mark.soak(short=5, full=50)
async def test_many_restarts_leave_nothing_behind(tmp_path: Path, repeats: int) -> None:
    names = [f"server{n}" for n in range(10)]
    begun = {name: tmp_path / name for name in names}
    servers = {
        name: hostile(f"begun={begun[name]}", era)
        for name, era in zip(names, ["era=session", "era=modern"] * 5, strict=True)
    }
    family, tasks = children(), asyncio.all_tasks()
    async with staged(tmp_path, servers, '[servers."*"]\nqueue_wait = 60\n') as stage:
        open_files, running = descriptors(), len(asyncio.all_tasks())

        async def restart_often(name: str) -> None:
            mount = stage.mount(name)
            for n in range(1, repeats + 1):
                mount.restart()

                def lives(n: int = n) -> int:
                    return len(begun[name].read_text().splitlines()) if mount.is_ready else 0

                await until(lives, lambda seen, n=n: seen > n)

        await asyncio.gather(*(restart_often(name) for name in names))
        assert sum(len(file.read_text().splitlines()) for file in begun.values()) >= len(names) * (repeats + 1)
        async with stage.client() as client:
            for name in names:
                assert (await client.call(f"{name}__echo", text=name)).text == name
        ended = time.monotonic()
        await until(descriptors, lambda seen: seen <= open_files)
        await until(lambda: len(asyncio.all_tasks()), lambda seen: seen <= running)
        await until(lambda: len(children() - family), lambda seen: seen == len(names))  # A guardian each.
        assert_kept(LEFT_OVER, ended)
        ended = time.monotonic()
    await until(lambda: children() - family, lambda left: not left)
    await until(lambda: asyncio.all_tasks() - tasks, lambda left: not left)
    assert_kept(LEFT_OVER, ended)
    pids = [int(line) for file in begun.values() for line in file.read_text().splitlines()]
    assert not [pid for pid in pids if _is_ours(pid)]


def _is_ours(pid: int) -> bool:
    """Whether a process of that number is one of those servers, and not another that has got the number since."""
    try:
        return b"gateway_hostile" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


async def test_a_restart_under_load_answers_each_request_once(tmp_path: Path) -> None:
    async with staged(tmp_path, {"bad": hostile()}, "[servers.bad]\nqueue_wait = 30\n") as stage:
        answers: list[Answer] = []
        stop = asyncio.Event()

        async def ask_on(wire: Wire, number: int) -> None:
            while not stop.is_set():
                answer = await wire.ask(call_of("bad__echo", {"text": f"{number}"}))
                assert "error" in answer.message or answer.text == f"{number}"
                answers.append(answer)

        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            for number, wire in enumerate(await wires(stage.port, 30)):
                group.create_task(ask_on(wire, number))
            for _ in range(10):
                seen = len(answers)
                stage.gateway.restart("bad")
                await until(lambda seen=seen: len(answers) - seen, lambda more: more > 60)
            stop.set()
        refused = {answer.reason for answer in answers if "error" in answer.message}
        assert refused <= {"backend_crashed"}
        assert stage.status("bad").in_flight == 0
        async with stage.client() as client:
            await until_called(lambda: client.call("bad__echo", text="x"), lambda result: result.text == "x")
