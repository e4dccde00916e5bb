"""Slow readers, slow senders and silent clients cost us little, and others nothing (R24)."""

import asyncio
import json
import socket
import sys

import pytest

from sluicegate.http1 import Limits, Request, serve
from tests.downstream.raw_client import modern
from tests.faults.load import LoadServer, Wire, call_of, encoded, load_server, post_of, raise_descriptors
from tests.faults.load_server import LONG_URI

MIB = 1 << 20
READERS = 2000
EVENTS = "application/json, text/event-stream"


def room_for(count: int) -> None:
    if raise_descriptors() < count + 500:
        pytest.skip("the system allows too few open files for a crowd")


async def check_undisturbed(server: LoadServer, rounds: int = 20) -> None:
    """Twenty others ask and get their own answers, none refused."""

    async def ask(wire: Wire, number: int) -> None:
        for n in range(rounds):
            answer = await wire.ask(call_of("echo", {"text": f"{number} {n}"}))
            assert answer.status == 200 and answer.text == f"{number} {n}"

    async with asyncio.timeout(40), asyncio.TaskGroup() as group:
        for number, wire in enumerate(await server.wires(20)):
            group.create_task(ask(wire, number))


async def warm(server: LoadServer) -> int:
    """How many descriptors are open once the server has seen its first clients, and all have left."""
    await check_undisturbed(server)
    await server.census()
    server.hang_up()
    await server.wait_census(lambda census: census.tasks < 10)
    return server.descriptors


async def slow_readers(server: LoadServer, count: int, request: bytes) -> list[socket.socket]:
    """Clients that ask and then do not read."""
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []

    async def ask() -> None:
        sock = await server.socket(buffer=4096)
        sockets.append(sock)
        await loop.sock_sendall(sock, request)

    for start in range(0, count, 200):
        await asyncio.gather(*(ask() for _ in range(min(200, count - start))))
    return sockets


async def test_2_000_clients_that_do_not_read_a_running_call_are_held_back_then_cut_off() -> None:
    room_for(READERS)
    limits = Limits(connections=20_000, blocked_time=3.0, unsent_to_all=128 * MIB)
    async with load_server(http=limits, calls=2 * READERS) as server:
        descriptors, tasks = await warm(server), (await server.census()).tasks
        sockets = await slow_readers(server, READERS, call_of("pour", {}, accept=EVENTS))
        try:
            await server.wait_census(lambda census: census.begun == READERS)
            await check_undisturbed(server)
            assert server.peak_rss < 512 * MIB, f"{server.peak_rss / MIB:.0f} MiB"
            # Nobody reads, so all are cut off in time and their calls with them, without anybody hanging up.
            census = await server.wait_census(lambda census: census.running == 0)
            assert census.cancelled == READERS
            server.hang_up()
            await server.wait_descriptors(descriptors)
            await server.wait_census(lambda census: census.tasks <= tasks)
        finally:
            for sock in sockets:
                sock.close()


async def test_2_000_clients_that_do_not_read_large_answers_are_cut_off_before_the_memory_is_full() -> None:
    room_for(READERS)
    limits = Limits(connections=20_000, unsent_to_all=128 * MIB)
    async with load_server(http=limits) as server:
        sockets = await slow_readers(server, READERS, call_of("big", {"size": MIB // 2}))
        try:
            await check_undisturbed(server)
            assert server.peak_rss < 512 * MIB, f"{server.peak_rss / MIB:.0f} MiB"
        finally:
            for sock in sockets:
                sock.close()


async def test_listeners_that_do_not_read_do_not_delay_others() -> None:
    wanted = modern({"notifications": {"resourceSubscriptions": [LONG_URI]}})
    listen = post_of("subscriptions/listen", wanted, accept=EVENTS)
    async with load_server(http=Limits(unsent=64 * 1024)) as server:
        descriptors = await warm(server)
        sockets = await slow_readers(server, 200, listen)
        reader = await server.socket()
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(reader, listen)
        try:
            await server.wait_census(lambda census: census.tasks >= 201)
            for _ in range(20):
                assert (await server.aside("change", times=5)).text == "changed"
                received = b""
                async with asyncio.timeout(40):
                    while b"notifications/resources/updated" not in received:
                        received += await loop.sock_recv(reader, 1 << 16)
            await check_undisturbed(server)
            assert server.peak_rss < 256 * MIB, f"{server.peak_rss / MIB:.0f} MiB"
        finally:
            for sock in (*sockets, reader):
                sock.close()
        server.hang_up()
        await server.wait_descriptors(descriptors)


async def test_5_000_silent_connections_disturb_no_other() -> None:
    room_for(5000)
    async with load_server(http=Limits(connections=20_000)) as server:
        descriptors = await warm(server)
        await server.wires(5000)
        await check_undisturbed(server)
        assert server.peak_rss < 256 * MIB, f"{server.peak_rss / MIB:.0f} MiB"
        server.hang_up()
        await server.wait_descriptors(descriptors)


@pytest.mark.parametrize(
    "beginning", [b"POST /mcp HTTP/1.1\r\nHost: localh", call_of("echo", {"text": "x"})[:-20]], ids=["head", "body"]
)
async def test_500_slow_senders_time_out_and_disturb_no_other(beginning: bytes) -> None:
    async with load_server(http=Limits(header_time=1.0, body_time=1.0)) as server:
        descriptors = await warm(server)
        waiting = [wire.ask(beginning) for wire in await server.wires(500)]
        await check_undisturbed(server)
        async with asyncio.timeout(40):
            answers = await asyncio.gather(*waiting)
        assert {answer.status for answer in answers} == {408}
        server.hang_up()
        await server.wait_descriptors(descriptors)


async def test_a_slow_reader_that_reads_at_last_gets_every_event_in_order() -> None:
    async with load_server(http=Limits(unsent=64 * 1024)) as server:
        sock = await server.socket(buffer=4096)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, call_of("tell", {"times": 2000, "until": "go"}, accept=EVENTS))
        await server.aside("open_gate", name="go")
        await check_undisturbed(server)
        received = bytearray()
        async with asyncio.timeout(40):
            while b"told 4000" not in received:
                data = await loop.sock_recv(sock, 1500)
                assert data
                received += data
        sock.close()
        places = [received.find(b'"progress":%d,' % n) for n in range(1, 4001)]
        assert -1 not in places and places == sorted(places)


async def test_calls_on_a_pipe_that_never_stop_telling_do_not_keep_us_from_hearing() -> None:
    program = "import sluicegate, tests.faults.load_server as it; sluicegate.run(it.make_server())"
    pipes = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdin=pipes, stdout=pipes, limit=MIB)
    assert process.stdin is not None and process.stdout is not None

    def ask(id: object, tool: str, **arguments: object) -> bytes:
        params = modern({"name": tool, "arguments": arguments}, progressToken=id)
        return encoded({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}) + b"\n"

    try:
        process.stdin.write(b"".join(ask(n, "pour") for n in range(50)))
        heard = set[object]()
        async with asyncio.timeout(40):
            while len(heard) < 50:  # All of them are at it.
                heard.add(json.loads(await process.stdout.readline())["params"]["progressToken"])
            process.stdin.write(ask("then", "echo", text="heard"))
            while b'"id":"then"' not in (line := await process.stdout.readline()):
                pass
        assert b"heard" in line
    finally:
        process.kill()
        await process.wait()


# --------------------------------------------------------------------------------------- what is left with us


@pytest.mark.parametrize("keep", ["keep-alive", "close"])
async def test_beyond_the_total_limit_the_slowest_clients_are_cut_off(keep: str) -> None:
    """One answer alone is allowed, two together are too much."""

    def answer(request: Request) -> None:
        request.respond(200, (), b"x" * (40 * MIB))

    request = f"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: {keep}\r\n\r\n".encode()
    loop = asyncio.get_running_loop()
    async with serve(answer, limits=Limits(unsent_to_all=50 * MIB)) as listener, asyncio.timeout(20):
        sockets: list[socket.socket] = []
        for _ in range(4):
            sockets.append(sock := socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await loop.sock_connect(sock, listener.addresses[0])
            await loop.sock_sendall(sock, request)
            assert (await loop.sock_recv(sock, 15)).startswith(b"HTTP/1.1 200")
        sizes: list[int] = []
        for sock in sockets:
            sizes.append(0)
            try:
                while sizes[-1] < 40 * MIB and (data := await loop.sock_recv(sock, MIB)):
                    sizes[-1] += len(data)
            except ConnectionError:
                pass
            sock.close()
        assert [size >= 40 * MIB for size in sizes] == [False, False, False, True]
