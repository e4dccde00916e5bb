"""The client role, against servers that behave, misbehave and go away."""

import asyncio
import gc
import gzip
import math
import shutil
import ssl
import subprocess
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from sluicegate.errors import (
    ConfigError,
    LocalProtocolError,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from sluicegate.http1 import ClientLimits, Pool, Request, client, client_connection, limits, serve
from tests.http1.raw import PATIENCE, Peer, echo, scripted
from tests.polling import until, until_steady

EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@asynccontextmanager
async def pooled(limits: ClientLimits | None = None) -> AsyncGenerator[Pool]:
    pool = Pool(limits=limits)
    try:
        async with asyncio.timeout(PATIENCE):
            yield pool
    finally:
        async with asyncio.timeout(PATIENCE):
            await pool.aclose()


async def read_request(peer: Peer) -> bytes:
    """The head of the next request, its body read and forgotten."""
    head = await peer.reader.readuntil(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length: "):
            await peer.reader.readexactly(int(line[16:]))
    return head


def answering(answer: bytes, *, hold: bool = False):
    async def script(peer: Peer) -> None:
        await read_request(peer)
        peer.send(answer)
        if hold:
            await peer.reader.read()

    return script


async def test_connection_is_used_again_when_an_answer_is_complete() -> None:
    async with serve(echo) as listener, pooled() as pool:
        url = f"http://127.0.0.1:{listener.addresses[0][1]}/mcp?a=b"
        for body in (b"one", b"two", b"", b"four"):
            answer = await pool.request("POST", url, (("A", "b"),), body)
            assert (answer.status, answer.headers.get("x-path"), await answer.read()) == (200, "/mcp", body)
        assert len(listener.connections) == 1


async def test_head_that_was_written_once_goes_with_any_body() -> None:
    async with serve(echo) as listener, pooled() as pool:
        letter = client.request_template("POST", f"http://127.0.0.1:{listener.addresses[0][1]}/mcp", (("A", "b"),))
        for body in (b"one", b"", b"three"):
            answer = await pool.send(letter, body)
            assert (answer.headers.get("x-method"), answer.whole(), await answer.read()) == ("POST", body, body)
        assert len(listener.connections) == 1


async def test_requests_at_the_same_time_have_a_connection_each_up_to_the_most() -> None:
    async def handler(request: Request) -> None:
        await until(lambda: len(listener.connections) == 3)
        echo(request)

    async with serve(handler) as listener, pooled(ClientLimits(per_origin=3)) as pool:
        url = f"http://127.0.0.1:{listener.addresses[0][1]}/"

        async def ask(number: int) -> None:
            assert await (await pool.request("POST", url, (), b"%d" % number)).read() == b"%d" % number

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(ask(number))
        assert len(listener.connections) == 3


@asynccontextmanager
async def all_in_use() -> AsyncGenerator[tuple[Pool, str]]:
    """A pool whose only connection has a request under way, and which lets nobody wait for it for long."""
    asked = asyncio.Event()

    async def script(peer: Peer) -> None:
        await read_request(peer)
        asked.set()
        await peer.reader.read()

    async with scripted(script) as url, pooled(ClientLimits(per_origin=1)) as pool, asyncio.TaskGroup() as group:
        first = group.create_task(pool.request("GET", url))
        await asked.wait()
        pool.limits = ClientLimits(per_origin=1, connect=0.05)
        yield pool, url
        first.cancel()


async def test_wait_for_a_free_connection_has_an_end() -> None:
    async with all_in_use() as (pool, url):
        with pytest.raises(UpstreamUnavailable):
            await pool.request("GET", url)


async def test_nothing_is_kept_of_requests_that_waited_in_vain() -> None:
    async with all_in_use() as (pool, url):

        async def wait_in_vain() -> None:
            with pytest.raises(UpstreamUnavailable):
                await pool.request("GET", url)

        kept: list[int] = []
        gc.freeze()  # To look through all that other tests have left in this process takes seconds.
        try:
            for _ in range(3):
                await asyncio.gather(*(wait_in_vain() for _ in range(50)))
                gc.collect()
                kept.append(sum(isinstance(thing, asyncio.Future) for thing in gc.get_objects()))
        finally:
            gc.unfreeze()
        assert kept[2] <= kept[0]


async def test_certificates_of_the_system_are_read_once_for_all_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 65 ms and more, for which the loop stands still."""
    made: list[ssl.SSLContext] = []
    make = ssl.create_default_context

    def count() -> ssl.SSLContext:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", count)
    for _ in range(3):
        async with pooled() as pool:
            with pytest.raises(UpstreamUnavailable, match="nothing listens"):
                await pool.request("GET", "https://127.0.0.1:1/")
    assert len(made) <= 1


async def test_a_cancelled_wait_for_a_connection_leaves_the_connection_to_the_next_request() -> None:
    release, asked = asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> None:
        asked.set()
        await release.wait()
        echo(request)

    async with serve(handler) as listener, pooled(ClientLimits(per_origin=1)) as pool:
        url = f"http://127.0.0.1:{listener.addresses[0][1]}/"
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(pool.request("GET", url)) for _ in range(10)]
            await asked.wait()
            tasks[1].cancel()
            release.set()
            await tasks[0]
            tasks[2].cancel()  # In the moment in which it was handed the connection.
            tasks[3].cancel()
        assert [task.cancelled() for task in tasks[4:]] == [False] * 6
        assert len(listener.connections) == 1


async def test_resent_request_does_not_trust_the_other_old_connections() -> None:
    requests = 0

    async def script(peer: Peer) -> None:
        nonlocal requests
        while True:
            head = await read_request(peer)
            requests += 1
            if head.startswith(b"PUT") and requests == 3:
                return
            if requests == 2:
                together.set()
            await together.wait()
            peer.send(EMPTY)

    together = asyncio.Event()
    async with scripted(script) as url, pooled() as pool:
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(pool.request("GET", url))
        assert (await pool.request("PUT", url, resend=True)).status == 200
        assert requests == 4


async def test_request_is_sent_as_it_should_be() -> None:
    heads: list[bytes] = []

    async def script(peer: Peer) -> None:
        while True:
            heads.append(await read_request(peer))
            peer.send(EMPTY)

    async with scripted(script) as url, pooled() as pool:
        await pool.request("GET", url + "#fragment")
        await pool.request("POST", url.replace("/mcp", "?q"), (("Accept-Encoding", "gzip"), ("X", "caf\xe9")))
    port = url.split(":")[2].split("/")[0].encode()
    assert heads == [
        b"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1:%b\r\nAccept-Encoding: identity\r\n\r\n" % port,
        b"POST /?q HTTP/1.1\r\nHost: 127.0.0.1:%b\r\nAccept-Encoding: gzip\r\nX: caf\xe9\r\nContent-Length: 0\r\n\r\n"
        % port,
    ]


@pytest.mark.parametrize(
    ("url", "origin", "host", "target"),
    [
        ("HTTPS://Example.COM", ("https", "example.com", 443), "example.com", "/"),
        ("http://example.com:80/a?b", ("http", "example.com", 80), "example.com", "/a?b"),
        ("https://[::1]:8443/a//..;/%2f", ("https", "::1", 8443), "[::1]:8443", "/a//..;/%2f"),
        ("http://[2001:db8::1]?x", ("http", "2001:db8::1", 80), "[2001:db8::1]", "/?x"),
    ],
)
def test_url_says_where_to_go(url: str, origin: tuple[str, str, int], host: str, target: str) -> None:
    assert client._place(url) == (origin, host, target)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    "url",
    [
        *("", "ftp://x/", "//x/", "http://", "http:///a", "http://user:pass@x/", "http://x:0/", "http://x:99999/"),
        *(
            "http://x:y/",
            "http://x/a b",
            "http://x/\r\nHost: y",
            "http://x\\@y/",
            "http://caf\xe9/",
            "http://[::1%25lo]/",
        ),
        "http://x/caf\xe9",
    ],
)
async def test_url_that_could_mean_something_else_is_refused(url: str) -> None:
    async with pooled() as pool:
        with pytest.raises(LocalProtocolError):
            await pool.request("GET", url)


@pytest.mark.parametrize(
    ("method", "header"),
    [
        ("G T", ("A", "b")),
        ("GET", ("A", "b\r\nC: d")),
        ("GET", ("A\n", "b")),
        ("GET", ("Host", "x")),
        ("GET", ("A", "\0")),
    ],
)
async def test_header_cannot_smuggle_another(method: str, header: tuple[str, str]) -> None:
    async with pooled() as pool:
        with pytest.raises(LocalProtocolError):
            await pool.request(method, "http://127.0.0.1:1/", (header,))
        with pytest.raises(LocalProtocolError):
            await pool.request("POST", "http://127.0.0.1:1/", (("Transfer-Encoding", "chunked"),))


async def test_server_that_is_not_there_has_got_nothing() -> None:
    async with scripted(answering(b"")) as url:
        pass
    async with pooled() as pool:
        for unreachable in (url, "http://name.invalid/"):
            with pytest.raises(UpstreamUnavailable) as problem:
                await pool.request("POST", f"{unreachable}?secret")
            host = unreachable.split("/")[2]
            assert problem.value.delivered == "no" and "secret" not in problem.value.message
            assert problem.value.message.startswith((f"{host} could not", f"{host}:80 could not"))


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\nA: b\r\n\r\n", b"hello"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", b"hello"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\n" + EMPTY, b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 307 See\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n", b""),
    ],
)
@pytest.mark.parametrize("dripped", [False, True])
async def test_body_is_read_however_it_is_framed_and_cut(answer: bytes, body: bytes, dripped: bool) -> None:
    async def script(peer: Peer) -> None:
        while True:
            await read_request(peer)
            for piece in [answer[n : n + 1] for n in range(len(answer))] if dripped else [answer]:
                peer.send(piece)
                await asyncio.sleep(0)
            if b"HTTP/1.0" in answer or b"\r\nCon" not in answer:
                return

    async with scripted(script) as url, pooled() as pool:
        for _ in range(2):
            received = await pool.request("POST", url, resend=True)
            assert await received.read() == body
            assert await received.next_chunk() is None
            received.close()


async def test_answer_to_head_has_a_length_and_no_body() -> None:
    async with serve(lambda request: request.respond(200, (), b"12345")) as listener, pooled() as pool:
        url = f"http://127.0.0.1:{listener.addresses[0][1]}/"
        answer = await pool.request("HEAD", url)
        assert (answer.head.length, await answer.read()) == (5, b"")
        assert await (await pool.request("GET", url)).read() == b"12345"
        assert len(listener.connections) == 1


@pytest.mark.parametrize(
    "answer",
    {
        "garbage": b"SSH-2.0-OpenSSH_9.2\r\n",
        "half a status line": b"HTTP/1.1 2",
        "status line without a status": b"HTTP/1.1 OK\r\n\r\n",
        "HTTP/2": b"HTTP/2.0 200 OK\r\n\r\n",
        "status out of range": b"HTTP/1.1 000 OK\r\n\r\n",
        "bare LF": b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "length and chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "header flood": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000,
        "many headers": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        "one endless header": b"HTTP/1.1 200 OK\r\nA: " + b"b" * 100_000,
        "switching protocols": b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
        "endless interim answers": b"HTTP/1.1 100 Continue\r\n\r\n" * 9,
        "truncated body": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
        "truncated chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        "missing last chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "unknown coding": b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx",
        "no gzip at all": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
        "truncated gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"hello" * 100)[:-9],
    }.items(),
    ids=lambda item: item[0],
)
async def test_answer_that_cannot_be_read_is_an_error(answer: tuple[str, bytes]) -> None:
    async with scripted(answering(answer[1])) as url, pooled() as pool:
        with pytest.raises(UpstreamProtocolError):
            await (await pool.request("POST", url)).read()


async def test_bytes_before_the_cut_can_be_used() -> None:
    async with scripted(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")) as url, pooled() as pool:
        answer = await pool.request("POST", url)
        assert await answer.next_chunk() == b"hello"
        with pytest.raises(UpstreamProtocolError) as problem:
            await answer.next_chunk()
        assert problem.value.delivered == "unknown"


async def test_server_that_hangs_up_without_an_answer_may_have_got_the_request() -> None:
    async with scripted(answering(b"")) as url, pooled() as pool:
        with pytest.raises(UpstreamClosed) as problem:
            await pool.request("POST", url, resend=True)  # A fresh connection: nothing was stale, so nothing is resent.
        assert problem.value.delivered == "unknown"


@pytest.mark.parametrize("resend", [False, True])
async def test_dead_kept_connection_is_replaced_only_if_the_caller_says_so(resend: bool) -> None:
    connections = requests = 0

    async def script(peer: Peer) -> None:
        nonlocal connections, requests
        connections += 1
        await read_request(peer)
        requests += 1
        peer.send(EMPTY)
        if connections == 1:
            await read_request(peer)  # And then it hangs up.
        else:
            await peer.reader.read()

    async with scripted(script) as url, pooled() as pool:
        await pool.request("POST", url)
        if resend:
            assert (await pool.request("POST", url, resend=True)).status == 200
            assert (connections, requests) == (2, 2)
        else:
            with pytest.raises(UpstreamClosed) as problem:
                await pool.request("POST", url)
            assert problem.value.delivered == "unknown"
            assert connections == 1


async def test_connection_that_the_server_has_closed_is_not_used_again() -> None:
    closed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await read_request(peer)
        peer.send(EMPTY)
        closed.set()

    async with scripted(script) as url, pooled() as pool:
        for _ in range(3):
            assert (await pool.request("POST", url)).status == 200
            await closed.wait()
            while pool._all:  # pyright: ignore[reportPrivateUsage]  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_bytes_that_answer_nothing_end_the_connection() -> None:
    extra = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx" * 2
    async with scripted(answering(extra, hold=True)) as url, pooled() as pool:
        for _ in range(2):
            assert await (await pool.request("POST", url)).read() == b"x"


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\nContent-", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe"]
)
async def test_server_that_falls_silent_is_given_up(answer: bytes) -> None:
    limits = ClientLimits(first_byte=0.05, idle=0.05)
    async with scripted(answering(answer, hold=True)) as url, pooled(limits) as pool:
        with pytest.raises(UpstreamTimeout) as problem:
            await (await pool.request("POST", url)).read()
        assert problem.value.delivered == "unknown"


async def test_slow_drip_lasts_as_long_as_bytes_come_and_the_caller_waits() -> None:
    async def script(peer: Peer) -> None:
        await read_request(peer)
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            peer.send(b"x")
            await asyncio.sleep(0.01)  # The pace of the drip.

    async with scripted(script) as url, pooled(ClientLimits(idle=2)) as pool:
        answer = await pool.request("POST", url)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await answer.read()
        answer.close()


async def test_stream_may_be_silent_if_the_caller_says_so() -> None:
    release = asyncio.Event()

    async def handler(request: Request) -> None:
        request.start(200)
        await release.wait()
        request.write(b"late")
        request.end()

    async with serve(handler) as listener, pooled(ClientLimits(first_byte=0.01, idle=0.01)) as pool:
        url = f"http://127.0.0.1:{listener.addresses[0][1]}/"
        answer = await pool.request("GET", url, first_byte=math.inf, idle=math.inf)
        asyncio.get_running_loop().call_later(0.1, release.set)
        assert await answer.read() == b"late"


async def test_answer_that_may_end_by_itself_leaves_a_connection_to_be_used_again() -> None:
    release = asyncio.Event()

    async def handler(request: Request) -> None:
        request.start(200)
        request.write(b"said")
        await release.wait()
        request.write(b"x" * 2 * client_connection.READ_AHEAD)  # More than lies unread before a server has to wait.
        request.end()

    async with serve(handler) as listener, pooled() as pool:
        url = f"http://127.0.0.1:{listener.addresses[0][1]}/"
        for _ in range(2):
            release.clear()
            answer = await pool.request("GET", url)
            assert await answer.next_chunk() == b"said"
            answer.let_end(PATIENCE)
            release.set()
            await until(lambda answer=answer: answer.is_complete)
        assert len(listener.connections) == 1


async def test_answer_that_does_not_end_in_its_time_is_cut_however_many_bytes_come() -> None:
    hung_up = asyncio.Event()

    async def script(peer: Peer) -> None:
        await read_request(peer)
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                peer.send(b"1\r\nx\r\n")
                await peer.writer.drain()
                await asyncio.sleep(0.01)  # The pace of the drip.
        finally:
            hung_up.set()

    async with scripted(script) as url, pooled() as pool:
        answer = await pool.request("POST", url)
        assert await answer.next_chunk()
        answer.let_end(0.1)
        await hung_up.wait()


@pytest.mark.parametrize("headers_sent", [False, True])
async def test_giving_up_closes_the_connection_so_that_the_server_knows(headers_sent: bool) -> None:
    gone, asked = asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> None:
        request.on_disconnect(gone.set)
        if headers_sent:
            request.start(200)
        asked.set()
        await gone.wait()
        request.abort()

    async with serve(handler) as listener, pooled() as pool:
        url = f"http://127.0.0.1:{listener.addresses[0][1]}/"
        if headers_sent:
            answer = await pool.request("POST", url)
            answer.close()
            with pytest.raises(UpstreamClosed):
                await answer.read()
        else:
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(pool.request("POST", url))
                await asked.wait()
                asking.cancel()
        await gone.wait()


TEXT = b"hello, " * 1000


@pytest.mark.parametrize(
    ("coding", "data"),
    [
        ("gzip", gzip.compress(TEXT)),
        ("x-gzip", gzip.compress(TEXT[:5]) + gzip.compress(TEXT[5:])),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", zlib.compress(TEXT)[2:-4]),
        ("identity", TEXT),
    ],
    ids=["gzip", "gzip twice", "zlib", "bare deflate", "identity"],
)
@pytest.mark.parametrize("dripped", [False, True])
async def test_compressed_answer_is_decompressed(coding: str, data: bytes, dripped: bool) -> None:
    async def handler(request: Request) -> None:
        request.start(200, (("Content-Encoding", coding),))
        for piece in [data[n : n + 1] for n in range(len(data))] if dripped else [data]:
            request.write(piece)
            await asyncio.sleep(0)
        request.end()

    async with serve(handler) as listener, pooled() as pool:
        answer = await pool.request("GET", f"http://127.0.0.1:{listener.addresses[0][1]}/")
        assert await answer.read() == TEXT


async def test_small_bomb_stays_small() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    largest = 0
    async with (
        serve(lambda request: request.respond(200, (("Content-Encoding", "gzip"),), bomb)) as listener,
        pooled(ClientLimits(body=1_000_000)) as pool,
    ):
        url = f"http://127.0.0.1:{listener.addresses[0][1]}/"
        with pytest.raises(UpstreamProtocolError):
            await (await pool.request("GET", url)).read()
        answer = await pool.request("GET", url)
        with pytest.raises(UpstreamProtocolError, match="compressed in a way that cannot be read"):
            while chunk := await answer.next_chunk():
                largest = max(largest, len(chunk))
    assert largest <= client_connection.INFLATED_AT_ONCE


async def test_no_more_is_read_at_once_than_the_allocator_has_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # asyncio does not document how it is told so. If it stops listening, answers still come, but take twice the time.
    read: list[int] = []
    received = client_connection.ClientConnection.data_received

    def noted(connection: client_connection.ClientConnection, data: bytes) -> None:
        read.append(len(data))
        received(connection, data)

    monkeypatch.setattr(client_connection.ClientConnection, "data_received", noted)
    is_uvloop = type(asyncio.get_running_loop()).__module__ == "uvloop"
    body = b"x" * (4 << 20)
    async with serve(lambda request: request.respond(200, (), body)) as listener, pooled() as pool:
        answer = await pool.request("GET", f"http://127.0.0.1:{listener.addresses[0][1]}/")
        assert await answer.read() == body
    assert is_uvloop or max(read) <= limits.READ_BUFFER


@pytest.mark.parametrize(("size", "fits"), [(999, True), (1000, True), (1001, False), (100_000, False)])
@pytest.mark.parametrize("streamed", [False, True])
async def test_body_up_to_its_ceiling_is_read(size: int, fits: bool, streamed: bool) -> None:
    async def handler(request: Request) -> None:
        if streamed:
            request.start(200)
            request.write(b"x" * size)
            await asyncio.sleep(0)
            request.end()
        else:
            request.respond(200, (), b"x" * size)

    async with serve(handler) as listener, pooled(ClientLimits(body=1000)) as pool:
        answer = await pool.request("GET", f"http://127.0.0.1:{listener.addresses[0][1]}/")
        if fits:
            assert len(await answer.read()) == size
        else:
            with pytest.raises(UpstreamError):
                await answer.read()


async def test_server_that_sends_faster_than_it_is_read_has_to_wait() -> None:
    sent = 0

    async def handler(request: Request) -> None:
        nonlocal sent
        request.start(200)
        for _ in range(400):
            request.write(b"x" * 100_000)
            await request.drain()
            sent += 100_000
        request.end()

    async with serve(handler) as listener, pooled() as pool:
        answer = await pool.request("GET", f"http://127.0.0.1:{listener.addresses[0][1]}/")
        assert await until_steady(lambda: sent) < 40_000_000
        received = 0
        while chunk := await answer.next_chunk():
            received += len(chunk)
        assert received == 40_000_000
        assert await (await pool.request("GET", f"http://127.0.0.1:{listener.addresses[0][1]}/")).next_chunk()


async def test_a_kept_connection_is_closed_when_it_is_not_needed() -> None:
    async with serve(echo) as listener, pooled(ClientLimits(keep=0.02)) as pool:
        await pool.request("GET", f"http://127.0.0.1:{listener.addresses[0][1]}/")
        await until(lambda: not pool._all)  # pyright: ignore[reportPrivateUsage]


async def test_server_says_how_long_a_connection_may_be_kept() -> None:
    answer = b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1\r\nContent-Length: 0\r\n\r\n"
    async with scripted(answering(answer, hold=True)) as url, pooled() as pool:
        await pool.request("GET", url)
        await until(lambda: not pool._all)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_closed_pool_fails_requests_in_progress_and_sends_no_more(streaming: bool) -> None:
    asked = asyncio.Event()

    async def script(peer: Peer) -> None:
        await read_request(peer)
        if streaming:
            peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        asked.set()
        await peer.reader.read()

    async with scripted(script) as url, asyncio.timeout(PATIENCE):
        pool = Pool()

        async def ask() -> None:
            with pytest.raises(UpstreamClosed):
                await (await pool.request("GET", url)).read()

        async with asyncio.TaskGroup() as group:
            group.create_task(ask())
            await asked.wait()
            await pool.aclose()
        with pytest.raises(UpstreamUnavailable):
            await pool.request("GET", url)


# TLS.


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A key and a certificate for localhost, signed by itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed, so no certificate can be made")
    place = tmp_path_factory.mktemp("tls")
    key, certificate = place / "key.pem", place / "certificate.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return key, certificate


def server_context(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])
    return context


async def test_tls_works_in_both_roles(certificate: tuple[Path, Path]) -> None:
    async def handler(request: Request) -> None:
        request.start(200, (("X-Scheme", request.scheme),))
        for _ in range(30):
            request.write(request.body)
            await request.drain()
        request.end()

    trusting = ssl.create_default_context(cafile=str(certificate[1]))
    async with serve(handler, ssl=server_context(certificate)) as listener, asyncio.timeout(PATIENCE):
        pool = Pool(ssl_context=trusting)
        for _ in range(2):
            answer = await pool.request("POST", f"https://localhost:{listener.addresses[0][1]}/", (), b"x" * 200_000)
            assert (answer.headers.get("x-scheme"), len(await answer.read())) == ("https", 6_000_000)
        assert len(listener.connections) == 1
        await pool.aclose()


@pytest.mark.parametrize("case", ["unknown authority", "other name", "no TLS there"])
async def test_certificate_that_is_not_right_is_never_accepted(certificate: tuple[Path, Path], case: str) -> None:
    context = None if case == "unknown authority" else ssl.create_default_context(cafile=str(certificate[1]))
    server = None if case == "no TLS there" else server_context(certificate)
    host = "127.0.0.1" if case == "other name" else "localhost"
    seen: list[Request] = []
    async with serve(lambda request: seen.append(request), ssl=server) as listener, asyncio.timeout(PATIENCE):
        pool = Pool(ssl_context=context)
        with pytest.raises(UpstreamUnavailable) as problem:
            await pool.request("POST", f"https://{host}:{listener.addresses[0][1]}/", (("Authorization", "secret"),))
        assert problem.value.delivered == "no"
        await pool.aclose()
    assert not seen


def test_verification_cannot_be_turned_off() -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    with pytest.raises(ConfigError):
        Pool(ssl_context=context)


async def test_the_handler_learns_that_a_client_hung_up_on_tls(certificate: tuple[Path, Path]) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> None:
        request.on_disconnect(gone.set)
        asked.set()
        await gone.wait()
        request.respond(200)

    trusting = ssl.create_default_context(cafile=str(certificate[1]))
    async with serve(handler, ssl=server_context(certificate)) as listener, asyncio.timeout(PATIENCE):
        pool = Pool(ssl_context=trusting)
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(pool.request("GET", f"https://localhost:{listener.addresses[0][1]}/"))
            await asked.wait()
            asking.cancel()
        await gone.wait()
        await pool.aclose()


@pytest.mark.parametrize("framing", [b"Content-Length: %d" % (5 << 20), b"Transfer-Encoding: chunked"])
async def test_a_long_body_is_read_whole_without_holding_the_server_back(
    framing: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_read = asyncio.Event()
    add = client_connection.Answer.add
    full: list[bool] = []

    def noted(answer: client_connection.Answer, data: bytes) -> bool:
        is_full = add(answer, data)
        full.append(is_full)
        return is_full

    monkeypatch.setattr(client_connection.Answer, "add", noted)

    async def script(peer: Peer) -> None:
        await read_request(peer)
        peer.send(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % framing)
        await is_read.wait()
        for letter in b"abcde":
            piece = bytes([letter]) * (1 << 20)
            peer.send(b"%x\r\n%b\r\n" % (len(piece), piece) if b"chunked" in framing else piece)
            await peer.writer.drain()
        if b"chunked" in framing:
            peer.send(b"0\r\n\r\n")

    async with scripted(script) as url, pooled() as pool:
        answer = await pool.request("GET", url)
        asyncio.get_running_loop().call_soon(is_read.set)
        body = await answer.read()
    assert body == b"".join(bytes([letter]) * (1 << 20) for letter in b"abcde")
    assert len(full) >= 5 and not any(full)


@pytest.mark.parametrize("framing", [b"X: until it closes", b"Transfer-Encoding: chunked"])
async def test_a_body_without_an_end_is_cut_at_the_limit(framing: bytes) -> None:
    hung_up = asyncio.Event()

    async def script(peer: Peer) -> None:
        await read_request(peer)
        peer.send(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % framing)
        with suppress(ConnectionError):
            while True:
                peer.send(b"10000\r\n%b\r\n" % bytes(0x10000))
                await peer.writer.drain()
        hung_up.set()

    async with scripted(script) as url, pooled(ClientLimits(body=1 << 20)) as pool:
        answer = await pool.request("GET", url)
        with pytest.raises(UpstreamProtocolError, match="larger than 1048576 bytes"):
            await answer.read()
        await hung_up.wait()
