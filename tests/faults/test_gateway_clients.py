"""Clients of a gateway that do everything wrong, with a server on a pipe behind it (R21, R22, R24, R25).

What the front alone makes of them is in test_downstream_*.py. Here all of it shares one pipe, and a server's process
that must never see what was refused.
"""

import asyncio
import re
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from sluicegate.downstream.http import HttpEndpoint
from sluicegate.http1 import serve
from tests.downstream.http_client import initialize, notification, request, standard
from tests.downstream.raw_client import Json, modern
from tests.faults import gateway_stage
from tests.faults.gateway_stage import Folder, gateway_process, hostile
from tests.faults.load import Answer, LoadServer, Wire, call_of, encoded, raw_post, statuses
from tests.faults.load_server import by_header
from tests.faults.test_downstream_crowds import check_refused, first
from tests.faults.test_downstream_garbage import check_garbage
from tests.faults.test_downstream_slow import EVENTS, MIB, check_undisturbed, slow_readers
from tests.polling import PATIENCE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")

ROOT: Final = Path(__file__).parents[2]
BEHIND: Final[Json] = {
    "command": sys.executable,
    "args": ["-c", "import sluicegate, tests.faults.load_server as it; sluicegate.run(it.make_server())"],
    "env": {"PYTHONPATH": str(ROOT)},
}
ROOMY: Final = '[servers.behind]\nprefix = ""\nconcurrency = 500\n'


@asynccontextmanager
async def served(base: Path) -> AsyncGenerator[LoadServer]:
    """A gateway, to which one speaks as to the server behind it: that has no prefix."""
    folder = Folder(base, {"behind": BEHIND, "good": hostile()}, ROOMY)
    try:
        async with gateway_process(folder) as gateway:
            await gateway.ready("behind", "good")
            server = LoadServer(gateway.process, gateway.port, gateway.port)
            try:
                yield server
            finally:
                server.close()
            assert await gateway.stopped() == 0
    finally:
        folder.remove()


async def pid_of(server: LoadServer) -> str:
    return (await server.aside("good__pid")).text


# ---------------------------------------------------------------------------------------------------- garbage (R21)


async def test_1_200_broken_requests_end_at_the_gateway(tmp_path: Path) -> None:
    params = modern({"name": "echo", "arguments": {"text": "good"}})
    good, headers = encoded(request(7, "tools/call", params)), standard("tools/call", params)
    async with served(tmp_path) as server, asyncio.timeout(50):
        tasks = (await server.census()).tasks
        await check_garbage(await server.wire(), good, headers)
        await server.wait_census(lambda census: census.tasks <= tasks)


async def test_no_broken_request_reaches_a_server_that_would_break_of_it(tmp_path: Path) -> None:
    params = modern({"name": "good__pid", "arguments": {}})
    good, headers = encoded(request(7, "tools/call", params)), standard("tools/call", params)
    async with served(tmp_path) as server, asyncio.timeout(50):
        wire, pid = await server.wire(), await pid_of(server)
        for body in (b"", b"{}", b"[]", b"null", b"\xff", good + b"}", good[:-1], good * 2, b"[" * 100_000):
            assert (await wire.ask(raw_post(body, headers))).status == 400
            assert (await wire.ask(raw_post(good, headers))).text == pid


# ------------------------------------------------------------------------------------------------- the same id (R22)


@pytest.mark.parametrize("many", [2, 100])
async def test_the_same_id_in_flight_at_once_is_independent_without_sessions(many: int, tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        waiting = [
            wire.ask(call_of("hold", {"text": str(n)}, id="same")) for n, wire in enumerate(await server.wires(many))
        ]
        await server.wait_census(lambda census: census.running == many)
        await server.aside("open_gate", name="go")
        async with asyncio.timeout(PATIENCE):
            answers = await asyncio.gather(*waiting)
        assert [(answer.message["id"], answer.text) for answer in answers] == [("same", str(n)) for n in range(many)]


async def test_the_same_id_in_flight_at_once_is_refused_in_a_session_and_the_first_goes_on(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        opened = await (await server.wire()).ask(raw_post(encoded(initialize())))
        session = [("Mcp-Session-Id", opened.header("mcp-session-id")), ("MCP-Protocol-Version", "2025-11-25")]
        started = await (await server.wire()).ask(raw_post(encoded(notification("notifications/initialized")), session))
        assert started.status == 202
        params: Json = {"name": "hold", "arguments": {"text": "first"}}
        body = raw_post(encoded(request("same", "tools/call", params)), session)
        waiting = [wire.ask(body) for wire in await server.wires(20)]
        await first(19, waiting)
        refused = [future.result() for future in waiting if future.done()]
        assert {(answer.status, answer.reason) for answer in refused} == {(400, "invalid_request")}
        assert (await server.wait_census(lambda census: census.begun > 0)).begun == 1
        (last,) = (future for future in waiting if not future.done())
        await server.aside("open_gate", name="go")
        async with asyncio.timeout(PATIENCE):
            assert (await last).text == "first"


# -------------------------------------------------------------------------------------------------- slow readers (R24)


async def test_clients_that_do_not_read_delay_no_client_of_another_server(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        assert (await server.call("echo", text="first")).text == "first"
        sockets = await slow_readers(server, 50, call_of("pour", {}, accept=EVENTS))
        try:
            for _ in range(500):
                assert (await server.aside("good__echo", text="here")).text == "here"
            assert server.peak_rss < 512 * MIB, f"{server.peak_rss / MIB:.0f} MiB"
        finally:
            for sock in sockets:
                sock.close()
        # Nobody is left who would hold up the others of their own server.
        await server.wait_census(lambda census: census.running == 0)
        await check_undisturbed(server)


async def test_a_client_that_does_not_read_delays_no_client_of_the_same_server(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await check_undisturbed(server)
        (sock,) = await slow_readers(server, 1, call_of("pour", {}, accept=EVENTS))
        try:
            async with asyncio.timeout(20):  # Less than the 30 s after which such a client is cut off.
                for _ in range(3):
                    await check_undisturbed(server)
        finally:
            sock.close()


async def test_a_client_over_http_sse_that_does_not_read_delays_no_client_of_the_same_server(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        await check_undisturbed(server)
        stream = b"GET /sse HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        (sock,) = await slow_readers(server, 1, stream)
        try:
            received = b""
            async with asyncio.timeout(PATIENCE):
                while (told := re.search(rb"event: endpoint\ndata: (\S+)\n", received)) is None:
                    received += await asyncio.get_running_loop().sock_recv(sock, 1024)
            wire = await server.wire()
            params: Json = {"name": "pour", "arguments": {}, "_meta": {"progressToken": "p"}}
            for message in (
                initialize(),  # The words of progress, which make it much, are of a later revision than the transport.
                notification("notifications/initialized"),
                request(1, "tools/call", params),
            ):
                assert (await wire.ask(raw_post(encoded(message), path=told[1].decode()))).status == 202
            await server.wait_census(lambda census: census.begun == 1)
            async with asyncio.timeout(20):  # Less than the 30 s after which such a client is cut off.
                for _ in range(3):
                    await check_undisturbed(server)
            assert (await server.census()).running == 1  # It was not cut off instead.
        finally:
            sock.close()
        await server.wait_census(lambda census: census.running == 0)


async def test_a_slow_reader_that_reads_at_last_gets_every_event_in_order(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        sock: socket.socket = await server.socket(buffer=4096)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, call_of("tell", {"times": 1000, "until": "go"}, accept=EVENTS))
        await server.wait_census(lambda census: census.begun == 1)
        await server.aside("open_gate", name="go")
        await check_undisturbed(server)
        received = bytearray()
        async with asyncio.timeout(PATIENCE):
            while b"told 2000" not in received:
                data = await loop.sock_recv(sock, 1500)
                assert data
                received += data
        sock.close()
        places = [received.find(b'"progress":%d,' % n) for n in range(1, 2001)]
        assert -1 not in places and places == sorted(places)


# ------------------------------------------------------------------------------------------------ one who floods (R25)


async def test_a_client_that_floods_meets_its_own_limit_and_others_do_not_notice(tmp_path: Path) -> None:
    async with (
        gateway_stage.staged(tmp_path, {"behind": BEHIND}, ROOMY) as stage,
        # The gateway knows one caller; this endpoint of it knows them by what they say they are.
        HttpEndpoint(stage.gateway.handler(), identify=by_header) as endpoint,
        serve(endpoint) as listener,
    ):
        port = listener.addresses[0][1]
        flooder = [("Authorization", "flooder")]
        held = [wire.ask(call_of("hold", {"text": "mine"}, flooder)) for wire in await gateway_stage.wires(port, 100)]
        await stage.until("behind", lambda status: status.in_flight == 100)
        stop = asyncio.Event()
        refused: list[Answer] = []

        async def flood(wire: Wire) -> None:
            while not stop.is_set():
                refused.append(await wire.ask(call_of("echo", {"text": "more"}, flooder)))

        async def work(number: int, wire: Wire) -> None:
            for n in range(50):
                text = f"{number} {n}"
                answer = await wire.ask(call_of("echo", {"text": text}, [("Authorization", f"other {number}")]))
                assert answer.status == 200 and answer.text == text

        flooding, working = await gateway_stage.wires(port, 50), await gateway_stage.wires(port, 10)
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            floods = [group.create_task(flood(wire)) for wire in flooding]
            await asyncio.gather(*(work(number, wire) for number, wire in enumerate(working)))
            stop.set()
            await asyncio.gather(*floods)
        assert len(refused) > 50 and set(statuses(refused)) == {429}
        check_refused(refused[0], 429, 1003, "rate_limited")
        others = [("Authorization", "other 0")]
        assert (await working[0].ask(call_of("open_gate", {"name": "go"}, others))).text == "open"
        async with asyncio.timeout(PATIENCE):
            assert {answer.text for answer in await asyncio.gather(*held)} == {"mine"}
        assert (await flooding[0].ask(call_of("echo", {"text": "again"}, flooder))).text == "again"
        for wire in (*flooding, *working):
            wire.close()
