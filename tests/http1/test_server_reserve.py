"""Connections leave descriptors to others (R33)."""

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Generator
from contextlib import ExitStack

import pytest

from sluicegate.http1 import Request, serve, server
from tests.polling import until

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
PATIENCE = 10.0


def answer(request: Request) -> None:
    request.respond(200, (), b"here")


@pytest.fixture
def few_descriptors(monkeypatch: pytest.MonkeyPatch) -> Generator[int]:
    """A limit that leaves this process some forty descriptors."""
    monkeypatch.setattr(server, "ACCEPT_RETRY", 0.01)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _next_descriptor() + 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
    try:
        yield most
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _next_descriptor() -> int:
    following = os.dup(0)
    os.close(following)
    return following


def crowd_for(address: tuple[str, int], stack: ExitStack, count: int) -> list[socket.socket]:
    """So many clients that have connected, as far as the system can tell, and have asked."""
    crowd: list[socket.socket] = []
    for _ in range(count):
        client = stack.enter_context(socket.create_connection(address))
        client.setblocking(False)
        client.sendall(GET)
        crowd.append(client)
    return crowd


async def answered(client: socket.socket) -> bool:
    async with asyncio.timeout(PATIENCE):
        return (await asyncio.get_running_loop().sock_recv(client, 1000)).startswith(b"HTTP/1.1 200 ")


async def test_connections_stop_where_the_reserve_begins_and_one_line_is_logged(
    few_descriptors: int, caplog: pytest.LogCaptureFixture
) -> None:
    reserve = max(server.LEAST_RESERVE, few_descriptors // 4)
    with caplog.at_level(logging.WARNING), ExitStack() as stack:
        async with serve(answer) as listener, asyncio.timeout(PATIENCE):
            # Each client is two descriptors here: its own end, and the one that is accepted.
            crowd = crowd_for(listener.addresses[0], stack, (few_descriptors - reserve - _next_descriptor()) // 2 + 10)
            await until(lambda: "Clients have to wait" in caplog.text)
            for _ in range(10):
                await asyncio.sleep(server.ACCEPT_RETRY)  # It looks again and again, and stays quiet.
            assert caplog.text.count("Clients have to wait") == 1
            spare = [stack.enter_context(socket.socket()) for _ in range(reserve // 2)]
            assert len(spare) == reserve // 2, "who is no connection gets descriptors"
            for each in spare:
                each.close()
            for client in crowd:  # Who goes makes room for who waits.
                assert await answered(client)
                client.close()


async def test_a_few_come_in_even_where_others_have_taken_nearly_all(few_descriptors: int) -> None:
    with ExitStack() as stack:
        async with serve(answer) as listener:
            while _next_descriptor() < few_descriptors - 2 * server.ALWAYS_ACCEPTED - 1:
                stack.enter_context(socket.socket())
            crowd = crowd_for(listener.addresses[0], stack, server.ALWAYS_ACCEPTED)
            for client in crowd:
                assert await answered(client)


@pytest.mark.parametrize(("most", "highest"), [(64, 32), (40, 20), (256, 192), (1024, 768), (100_000, 98_976)])
def test_a_quarter_is_kept_but_neither_too_little_nor_too_much(
    monkeypatch: pytest.MonkeyPatch, most: int, highest: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (most, most))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert serve(answer).highest_descriptor == highest
