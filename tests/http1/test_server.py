"""The server role, seen from raw sockets."""

import asyncio
import contextlib
import logging
import os
import resource
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.errors import LocalProtocolError
from sluicegate.http1 import Limits, Request, serve, server
from sluicegate.http1.server_connection import HttpConnection
from tests.http1.raw import PATIENCE, Peer, connected, echo, exchange
from tests.polling import until_steady

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = b"POST /mcp HTTP/1.1\r\nHost: x\r\n"


def post(body: bytes, path: bytes = b"/mcp") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path, len(body), body)


async def test_connection_is_kept_for_the_next_request() -> None:
    async with exchange() as peer:
        for body in (b"one", b"two", b"two"):
            peer.send(post(body))
            assert (await peer.read_reply()).body == body


async def test_connection_is_closed_when_the_client_wants_it() -> None:
    async with exchange() as peer:
        peer.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: foo, Close\r\n\r\n")
        reply = await peer.read_reply()
        assert reply.headers["connection"] == "close"
        assert await peer.read_rest() == b""


async def test_request_is_handed_over_as_it_was_sent() -> None:
    seen: list[Request] = []

    def handler(request: Request) -> None:
        seen.append(request)
        request.respond(204)

    async with exchange(handler) as peer:
        peer.send(b"DELETE /a%2Fb/..;/?q=%20&r HTTP/1.1\r\nHost: x:80\r\nX-A: 1\r\nx-a:  caf\xe9 \t\r\nEmpty:\r\n\r\n")
        assert (await peer.read_reply()).status == 204
    (request,) = seen
    assert (request.method, request.path, request.query) == ("DELETE", "/a%2Fb/..;/", "q=%20&r")
    assert request.headers.get_all("X-a") == ["1", "caf\xe9"]
    assert request.headers.get("X-A") == "1, caf\xe9"
    assert request.headers.get("empty") == "" and request.headers.get("other") is None
    assert "HOST" in request.headers and dict(request.headers)["host"] == "x:80"
    assert (request.peer, request.scheme, request.body) == ("127.0.0.1", "http", b"")


@pytest.mark.parametrize("in_task", [False, True])
async def test_pipelined_requests_are_answered_in_order(in_task: bool) -> None:
    async def later(request: Request) -> None:
        await asyncio.sleep(0)
        echo(request)

    async with exchange(later if in_task else echo) as peer:
        peer.send(b"".join(post(b"%d" % n) for n in range(50)))
        for n in range(50):
            assert (await peer.read_reply()).body == b"%d" % n


@pytest.mark.parametrize("in_task", [False, True])
async def test_long_answers_follow_their_heads_in_order(in_task: bool) -> None:
    async def later(request: Request) -> None:
        await asyncio.sleep(0)
        echo(request)

    bodies = [b"%d" % n * size for n, size in enumerate((3, 70_000, 5, 2_000_000, 900_000))]
    async with exchange(later if in_task else echo) as peer:
        for body in bodies:
            peer.send(post(body))
            assert (await peer.read_reply()).body == body
        peer.send(b"".join(post(body) for body in bodies[:3]))
        for body in bodies[:3]:
            assert (await peer.read_reply()).body == body


async def test_client_that_asks_faster_than_it_is_answered_is_not_read_from() -> None:
    release = asyncio.Event()

    async def handler(request: Request) -> None:
        await release.wait()
        request.respond(200, (), b"%d" % len(request.body))

    async with exchange(handler) as peer:
        data = post(b"x" * 100_000) * 200
        peer.send(data)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await peer.writer.drain()  # Twenty megabytes: more than all buffers on the way can hold.
        release.set()
        for _ in range(200):
            assert (await peer.read_reply()).body == b"100000"


async def test_chunked_request_is_put_together() -> None:
    async with exchange() as peer:
        peer.send(
            HEAD
            + b"Transfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n1;ext=1\r\n \r\n00A\r\n0123456789\r\n0\r\nT: x\r\n\r\n"
            + GET
        )
        assert (await peer.read_reply()).body == b"hello 0123456789"
        assert (await peer.read_reply()).headers["x-path"] == "/a"


async def test_writes_of_one_turn_leave_in_one_chunk_with_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    real = HttpConnection._write  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(HttpConnection, "_write", lambda self, data: (writes.append(data), real(self, data))[1])  # pyright: ignore

    async def handler(request: Request) -> None:
        request.start(200, (("Content-Type", "text/event-stream"),))
        for _ in range(100):
            request.write(b"event\n\n")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        request.write(b"last")
        request.write(b"")
        request.end()

    async with exchange(handler) as peer:
        peer.send(GET)
        assert (await peer.read_reply()).body == b"event\n\n" * 100 + b"last"
        peer.send(GET)
        assert (await peer.read_reply()).status == 200
    assert len(writes) == 4


async def test_answers_to_pipelined_requests_leave_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    real = HttpConnection._write  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(HttpConnection, "_write", lambda self, data: (writes.append(data), real(self, data))[1])  # pyright: ignore
    async with exchange() as peer:
        peer.send(GET * 8)
        for _ in range(8):
            await peer.read_reply()
    assert len(writes) == 1


async def test_head_of_a_stream_leaves_before_its_first_event() -> None:
    more = asyncio.Event()

    async def handler(request: Request) -> None:
        request.start(200)
        await more.wait()
        request.end()

    async with exchange(handler) as peer:
        peer.send(GET)
        assert (await peer.read_head())[0] == 200
        more.set()
        assert [chunk async for chunk in peer.chunks()] == []


async def test_continue_is_sent_only_while_the_body_is_awaited() -> None:
    async with exchange() as peer:
        peer.send(HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert (await peer.read_reply()).status == 100
        peer.send(b"ok")
        assert (await peer.read_reply()).body == b"ok"
        peer.send(HEAD + b"Expect: 100-Continue\r\nContent-Length: 2\r\n\r\nok")
        assert (await peer.read_reply()).body == b"ok"
        peer.send(HEAD + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert (await peer.read_reply()).status == 100
        peer.send(b"2\r\nok\r\n0\r\n\r\n")
        assert (await peer.read_reply()).body == b"ok"


async def test_body_that_is_too_large_is_refused_instead_of_continued() -> None:
    async with exchange() as peer:
        peer.send(HEAD + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
        assert (await peer.read_reply()).status == 413
        assert await peer.read_rest() == b""


async def test_old_client_gets_its_answer_until_the_connection_closes() -> None:
    async def stream(request: Request) -> None:
        request.start(200)
        request.write(b"a")
        await asyncio.sleep(0)
        request.write(b"b")
        request.end()

    async with exchange(stream) as peer:
        peer.send(b"GET / HTTP/1.0\r\n\r\n")
        reply = await peer.read_reply()
        assert reply.body == b"ab" and "transfer-encoding" not in reply.headers
    async with exchange() as peer:
        peer.send(b"POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx")
        assert (await peer.read_reply()).body == b"x"
        assert await peer.read_rest() == b""


async def test_head_is_answered_without_a_body() -> None:
    async def handler(request: Request) -> None:
        if request.path == "/a":
            request.respond(200, (), b"12345")
        else:
            request.start(200)
            request.write(b"12345")
            request.end()

    async with exchange(handler) as peer:
        peer.send(b"HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await peer.read_reply(to_head=True)).headers["content-length"] == "5"
        peer.send(b"HEAD /b HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await peer.read_reply(to_head=True)).status == 200
        peer.send(GET)
        assert (await peer.read_reply()).body == b"12345"


async def test_client_that_closes_its_sending_side_still_gets_its_answers() -> None:
    told = asyncio.Event()

    async def handler(request: Request) -> None:
        request.on_disconnect(told.set)
        await told.wait()
        assert request.disconnected
        request.respond(200, (), request.body)

    async with exchange(handler) as peer:
        peer.send(post(b"one") + post(b"two"))
        peer.send_eof()
        assert (await peer.read_reply()).body == b"one"
        assert (await peer.read_reply()).body == b"two"
        assert await peer.read_rest() == b""


@pytest.mark.parametrize("streaming", [False, True])
async def test_the_handler_learns_that_the_client_hung_up(streaming: bool) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> None:
        task = asyncio.current_task()
        assert task
        request.on_disconnect(task.cancel)
        if streaming:
            request.start(200)
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with serve(handler) as listener, asyncio.timeout(PATIENCE):
        async with connected(listener) as peer:
            peer.send(GET)
            await started.wait()
        await cancelled.wait()


async def test_handler_that_does_not_care_may_finish_into_the_void() -> None:
    started, gone, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> None:
        request.on_disconnect(gone.set)
        request.on_disconnect(lambda: 1 / 0)  # Contained, and written to the log.
        started.set()
        await gone.wait()
        request.start(200)
        request.write(b"x" * 5_000_000)
        await request.drain()
        request.end()
        done.set()

    async with serve(handler) as listener, asyncio.timeout(PATIENCE):
        async with connected(listener) as peer:
            peer.send(GET)
            await started.wait()
        await done.wait()


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"\r\n",
        b"GET / HT",
        HEAD + b"Content-Length: 5\r\n\r\n123",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n1",
    ],
)
async def test_request_cut_short_never_reaches_the_handler(beginning: bytes) -> None:
    seen: list[Request] = []
    async with exchange(lambda request: seen.append(request)) as peer:
        peer.send(beginning)
        peer.send_eof()
        assert await peer.read_rest() == b""
    assert not seen


@pytest.mark.parametrize(
    ("beginning", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost", 408),
        (b"\r\n", None),
        (b"\r\nG", 408),
        (HEAD + b"Content-Length: 5\r\n\r\n123", 408),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n123", 408),
        (b"", None),
        (GET, 200),
        (GET + b"\r\n", 200),  # Behind a body, an empty line is a habit of old clients, and begins nothing.
    ],
)
async def test_slow_request_is_given_up_and_idle_connection_closed(beginning: bytes, status: int | None) -> None:
    # The time for which a connection may be idle runs already while what is to be answered is on its way.
    limits = Limits(header_time=0.05, body_time=0.05, idle_time=2 if status else 0.05)
    async with exchange(limits=limits) as peer:
        peer.send(beginning)
        if status:
            assert (await peer.read_reply()).status == status
        assert await peer.read_rest() == b""


async def test_drip_does_not_prolong_the_time_for_headers() -> None:
    async with exchange(limits=Limits(header_time=0.1)) as peer:

        async def drip() -> None:
            peer.send(b"GET / HTTP/1.1\r\nX: ")
            while True:
                peer.send(b"x")
                await asyncio.sleep(0.01)  # The pace of the drip.

        with contextlib.suppress(TimeoutError):
            async with asyncio.TaskGroup() as group:
                dripping = group.create_task(drip())
                assert (await peer.read_reply()).status == 408
                dripping.cancel()


BAD_HEADS = {
    "HTTP/0.9": (b"GET /\r\n\r\n", 400),
    "HTTP/0.9 and no more": (b"GET /\r\n", 400),
    "bare LF": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    "bare LF after a header": (b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n", 400),
    "bare CR in a value": (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\rC: d\r\n\r\n", 400),
    "HTTP/2.0": (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nHost: x\r\n\r\n", 505),
    "preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "TLS on a plain port": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "no Host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two Hosts": (b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400),
    "two Hosts in HTTP/1.0": (b"GET / HTTP/1.0\r\nHost: x\r\nhost: y\r\n\r\n", 400),
    "Host with a path": (b"GET / HTTP/1.1\r\nHost: x/y\r\n\r\n", 400),
    "Host with a query": (b"GET / HTTP/1.1\r\nHost: ok?x\r\n\r\n", 400),
    "Host with userinfo": (b"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", 400),
    "Host with a wild port": (b"GET / HTTP/1.1\r\nHost: a:99999\r\n\r\n", 400),
    "empty Host": (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", 400),
    "folded header": (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400),
    "blank before the colon": (HEAD + b"Content-Length : 5\r\n\r\nhello", 400),
    "blank in a name": (b"GET / HTTP/1.1\r\nHost: x\r\nA B: c\r\n\r\n", 400),
    "nameless header": (b"GET / HTTP/1.1\r\nHost: x\r\n: c\r\n\r\n", 400),
    "line without a colon": (b"GET / HTTP/1.1\r\nHost: x\r\nA\r\n\r\n", 400),
    "NUL in a value": (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n", 400),
    "NUL in the path": (b"GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "bytes above ASCII in the path": (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "two blanks": (b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "fragment": (b"GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "absolute form": (b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "no leading slash": (b"GET mcp HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "CONNECT": (b"CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n", 400),
    "unknown method": (b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", 501),
    "lower-case method": (b"get / HTTP/1.1\r\nHost: x\r\n\r\n", 501),
    "two lengths": (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
    "the same length twice": (HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400),
    "a list of lengths": (HEAD + b"Content-Length: 5, 5\r\n\r\nhello", 400),
    "length with a sign": (HEAD + b"Content-Length: +5\r\n\r\nhello", 400),
    "negative length": (HEAD + b"Content-Length: -5\r\n\r\nhello", 400),
    "length in hex": (HEAD + b"Content-Length: 0x5\r\n\r\nhello", 400),
    "length with an underscore": (HEAD + b"Content-Length: 1_0\r\n\r\nhello12345", 400),
    "empty length": (HEAD + b"Content-Length:\r\n\r\n", 400),
    "endless length": (HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
    "length and chunks": (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunks and length": (HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400),
    "two codings": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    "chunked twice": (HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "identity coding": (HEAD + b"Transfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello", 400),
    "odd coding": (HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    "coding with a vertical tab": (HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "chunks in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "unknown expectation": (HEAD + b"Expect: 200-ok\r\nContent-Length: 1\r\n\r\nx", 417),
    "too many headers": (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 128 + b"\r\n", 431),
    "five empty lines": (b"\r\n" * 5 + GET, 400),
}
CHUNKS = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BAD_BODIES = {
    "no size": (CHUNKS + b"\r\n\r\n", 400),
    "size that is no number": (CHUNKS + b"G\r\nx\r\n", 400),
    "size with a sign": (CHUNKS + b"+1\r\nx\r\n0\r\n\r\n", 400),
    "size with 0x": (CHUNKS + b"0x1\r\nx\r\n0\r\n\r\n", 400),
    "size with a blank": (CHUNKS + b"1 \r\nx\r\n0\r\n\r\n", 400),
    "endless size": (CHUNKS + b"F" * 17 + b"\r\n", 400),
    "size ended by LF": (CHUNKS + b"1\nx\r\n0\r\n\r\n", 400),
    "size ended by CR": (CHUNKS + b"1\rx\r\n0\r\n\r\n", 400),
    "LF in an extension": (CHUNKS + b"1;a\nb\r\nx\r\n0\r\n\r\n", 400),
    "chunk longer than its size": (CHUNKS + b"1\r\nxy\r\n0\r\n\r\n", 400),
    "chunk ended by LF": (CHUNKS + b"1\r\nx\n0\r\n\r\n", 400),
    "trailer that is no header": (CHUNKS + b"0\r\nGET / HTTP/1.1\r\n\r\n", 400),
    "endless extension": (CHUNKS + b"1;" + b"x" * 2000, 400),
    "endless trailers": (CHUNKS + b"0\r\n" + b"A: %b\r\n" % (b"x" * 900) * 10, 400),
    "crumbs": (CHUNKS + b"1\r\nx\r\n" * 2000 + b"0\r\n\r\n", 413),
}


@pytest.mark.parametrize(("data", "status"), (BAD_HEADS | BAD_BODIES).values(), ids=(BAD_HEADS | BAD_BODIES).keys())
async def test_an_ambiguous_head_is_refused_and_nothing_after_it_is_read(data: bytes, status: int) -> None:
    seen: list[str] = []

    def handler(request: Request) -> None:
        seen.append(request.path)
        request.respond(200)

    async with exchange(handler) as peer:
        peer.send(GET + data + b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await peer.read_reply()).status == 200
        reply = await peer.read_reply()
        assert (reply.status, reply.headers["connection"]) == (status, "close")
        assert await peer.read_rest() == b""
    assert seen == ["/a"]


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c", b"TLS/1.0"])
async def test_wish_to_upgrade_is_a_request_like_any_other(upgrade: bytes) -> None:
    async with exchange() as peer:
        fields = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %b\r\nContent-Length: 4\r\n\r\nbody" % upgrade
        peer.send(HEAD + fields + GET)
        assert (await peer.read_reply()).body == b"body"
        assert (await peer.read_reply()).headers["x-path"] == "/a"


@pytest.mark.parametrize(
    ("size", "status"), [(999, 200), (1000, 200), (1001, 413), (100_000, 413)], ids=["-1", "at", "+1", "x100"]
)
@pytest.mark.parametrize("chunked", [False, True])
async def test_body_up_to_its_ceiling_passes(size: int, status: int, chunked: bool) -> None:
    body = b"x" * size
    data = CHUNKS + b"%x\r\n%b\r\n0\r\n\r\n" % (size, body) if chunked else post(body)
    async with exchange(limits=Limits(body=1000)) as peer:
        peer.send(data)
        assert (await peer.read_reply()).status == status


@pytest.mark.parametrize(
    ("size", "status"), [(999, 200), (1000, 200), (1001, 414), (2000, 414)], ids=["-1", "at", "+1", "x2"]
)
async def test_url_up_to_its_ceiling_passes(size: int, status: int) -> None:
    async with exchange(limits=Limits(url=1000)) as peer:
        peer.send(b"GET /" + b"x" * (size - 1) + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await peer.read_reply()).status == status


@pytest.mark.parametrize(
    ("size", "status"), [(999, 200), (1000, 200), (1001, 431), (100_000, 431)], ids=["-1", "at", "+1", "x100"]
)
async def test_headers_up_to_their_ceiling_pass(size: int, status: int) -> None:
    async with exchange(limits=Limits(headers=1000)) as peer:
        fields = b"Host: x\r\nA: " + b"x" * (size - 14) + b"\r\n"
        assert len(fields) == size
        peer.send(b"GET / HTTP/1.1\r\n" + fields + b"\r\n")
        assert (await peer.read_reply()).status == status


@pytest.mark.parametrize(
    ("beginning", "status"),
    [
        (b"GET /" + b"x" * 1100, 414),
        (b"GET /" + b"x" * 1100 + b" HTTP/1.1\r\n", 414),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 1100, 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200, 431),
    ],
)
async def test_head_without_end_is_refused_before_its_end(beginning: bytes, status: int) -> None:
    async with exchange(limits=Limits(url=1000, headers=1000)) as peer:
        peer.send(beginning)
        assert (await peer.read_reply()).status == status


async def test_refused_upload_is_read_on_so_that_the_answer_arrives() -> None:
    async with exchange() as peer:
        peer.send(HEAD + b"Content-Length: 50000000\r\n\r\n" + b"x" * 5_000_000)
        assert (await peer.read_reply()).status == 413
        peer.send_eof()
        assert await peer.read_rest() == b""


@pytest.mark.parametrize("in_task", [False, True])
async def test_failing_handler_costs_its_own_request_only(in_task: bool, caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: Request) -> None:
        if request.path == "/a":
            raise RuntimeError("secret")
        echo(request)

    async def fail_later(request: Request) -> None:
        fail(request)

    async with exchange(fail_later if in_task else fail) as peer:
        peer.send(GET)
        reply = await peer.read_reply()
        assert reply.status == 500 and b"secret" not in reply.body
        peer.send(post(b"fine"))
        assert (await peer.read_reply()).body == b"fine"
    assert "secret" in caplog.text


async def test_stream_that_fails_is_cut_so_that_it_cannot_look_complete() -> None:
    async def handler(request: Request) -> None:
        request.start(200)
        request.write(b"half")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        raise RuntimeError

    async with exchange(handler) as peer:
        peer.send(GET)
        assert not (await peer.read_rest()).endswith(b"0\r\n\r\n")


async def test_handler_that_forgets_to_answer_is_answered_for() -> None:
    async def forget(request: Request) -> None:
        pass

    async with exchange(forget) as peer:
        peer.send(GET)
        assert (await peer.read_reply()).status == 500


async def test_request_may_be_kept_and_answered_without_a_task() -> None:
    kept: asyncio.Queue[Request] = asyncio.Queue()
    async with exchange(kept.put_nowait) as peer, asyncio.timeout(PATIENCE):
        peer.send(GET)
        request = await kept.get()
        assert not request.started
        request.respond(202)
        assert request.answered
        assert (await peer.read_reply()).status == 202


async def test_second_answer_is_a_mistake_of_ours() -> None:
    problems: list[LocalProtocolError] = []

    def handler(request: Request) -> None:
        for mistake in (lambda: request.write(b""), request.end):
            with pytest.raises(LocalProtocolError):
                mistake()
        for header in (("A", "b\r\nc: d"), ("A b", ""), ("Content-Length", "1"), ("A", "\N{SNOWMAN}")):
            with pytest.raises(LocalProtocolError):
                request.respond(200, (header,))
        with pytest.raises(LocalProtocolError):
            request.respond(101)
        with pytest.raises(LocalProtocolError):
            request.start(204)
        request.respond(200)
        for again in (lambda: request.respond(200), lambda: request.start(200)):
            try:
                again()
            except LocalProtocolError as problem:
                problems.append(problem)

    async with exchange(handler) as peer:
        peer.send(GET)
        assert (await peer.read_reply()).status == 200
    assert len(problems) == 2


async def test_slow_reader_is_cut_off_and_the_others_are_not() -> None:
    gone = asyncio.Event()

    async def handler(request: Request) -> None:
        if request.path != "/a":
            return echo(request)
        request.on_disconnect(gone.set)
        request.start(200)
        while not request.disconnected:
            request.write(b"x" * 100_000)
            await request.drain()
            assert request.unsent <= 200_000
            await asyncio.sleep(0)
        request.end()

    limits = Limits(unsent=100_000, blocked_time=0.2)
    async with serve(handler, limits=limits) as listener, asyncio.timeout(PATIENCE):
        async with connected(listener) as slow, connected(listener) as other:
            slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.writer.transport.pause_reading()  # pyright: ignore
            slow.send(GET)
            while not gone.is_set():
                other.send(post(b"fine"))
                assert (await other.read_reply()).body == b"fine"


async def test_answer_in_one_piece_that_is_never_taken_is_given_up() -> None:
    async with (
        serve(lambda request: request.respond(200, (), b"x" * 20_000_000), limits=Limits(blocked_time=1)) as listener,
        connected(listener) as peer,
        asyncio.timeout(PATIENCE),
    ):
        peer.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        await peer.read_head()
        peer.writer.transport.pause_reading()  # pyright: ignore
        assert await listener.drain(PATIENCE)


async def test_no_more_requests_are_begun_for_a_client_that_does_not_read() -> None:
    """T4, R24: answers to pipelined requests would fill the memory."""
    begun, size = 0, 1_000_000

    async def handler(request: Request) -> None:
        nonlocal begun
        begun += 1
        await asyncio.sleep(0)
        request.respond(200, (), b"x" * size)

    async with exchange(handler, Limits(unsent=2_000_000)) as peer:
        peer.send(GET * 100)
        await until_steady(lambda: begun)
        assert 0 < begun < 40  # What the system buffers for the connection, and two more.
        for _ in range(100):
            assert len((await peer.read_reply()).body) == size
        assert begun == 100


async def test_reader_that_takes_its_time_but_takes_gets_everything() -> None:
    async def handler(request: Request) -> None:
        request.start(200)
        for _ in range(200):
            request.write(b"x" * 100_000)
            await request.drain()
        request.end()

    async with exchange(handler, Limits(unsent=100_000)) as peer:
        peer.send(GET)
        assert len((await peer.read_reply()).body) == 20_000_000


async def test_a_thousand_idle_connections_do_not_delay_answers() -> None:
    async with serve(echo) as listener, contextlib.AsyncExitStack() as stack:
        for _ in range(1000):
            await stack.enter_async_context(connected(listener))
        async with connected(listener) as peer, asyncio.timeout(PATIENCE):
            peer.send(post(b"fine"))
            assert (await peer.read_reply()).body == b"fine"
            assert len(listener.connections) == 1001


async def test_client_beyond_the_most_connections_waits_until_one_is_closed() -> None:
    async with serve(echo, limits=Limits(connections=2)) as listener:
        async with connected(listener) as first, connected(listener) as second:
            for peer in (first, second):
                peer.send(GET)
                await peer.read_reply()
            async with connected(listener) as third:
                third.send(post(b"patient"))
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await third.reader.read(1)
                await first.aclose()
                assert (await third.read_reply()).body == b"patient"


async def test_without_descriptors_accepting_pauses_and_recovers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "ACCEPT_RETRY", 0.01)
    loop = asyncio.get_running_loop()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as client, caplog.at_level(logging.WARNING):
        async with serve(echo) as listener, asyncio.timeout(PATIENCE):
            client.setblocking(False)
            lowest_free = os.dup(client.fileno())
            os.close(lowest_free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
            try:
                await loop.sock_connect(client, listener.addresses[0])
                await loop.sock_sendall(client, GET)
                while caplog.text.count("Too many open files") < 3:  # noqa: ASYNC110 - the log has no event
                    await asyncio.sleep(0)
                assert caplog.text.count("Too many open files") < 10
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert (await loop.sock_recv(client, 1000)).startswith(b"HTTP/1.1 200 ")


async def test_drain_lets_requests_finish_and_closes_idle_connections_at_once() -> None:
    release, started = asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> None:
        if request.method == "POST":
            started.set()
            await release.wait()
        echo(request)

    async with serve(handler) as listener, asyncio.timeout(PATIENCE):
        async with connected(listener) as busy, connected(listener) as idle:
            busy.send(post(b"kept"))
            await started.wait()
            assert not await listener.drain(0.01)
            assert await idle.read_rest() == b""
            async with connected(listener) as check, connected(listener) as silent:
                check.send(GET)
                assert (await check.read_reply()).headers["connection"] == "close"
                assert await check.read_rest() == b""
                release.set()
                reply = await busy.read_reply()
                assert (reply.body, reply.headers["connection"]) == (b"kept", "close")
                assert await busy.read_rest() == b""
                assert await listener.drain(PATIENCE)
                assert await silent.read_rest() == b""
            with pytest.raises(OSError):
                await asyncio.open_connection(*listener.addresses[0])


async def test_end_of_the_listener_cancels_what_is_left() -> None:
    started = asyncio.Event()
    ends: list[str] = []

    async def handler(request: Request) -> None:
        request.on_disconnect(lambda: ends.append("gone"))
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cancelled")

    async with asyncio.timeout(PATIENCE):
        async with serve(handler) as listener:
            peer = Peer(*await asyncio.open_connection(*listener.addresses[0]))
            peer.send(GET)
            await started.wait()
        assert sorted(ends) == ["cancelled", "gone"]
        assert await peer.read_rest() == b""
        await peer.aclose()


async def test_name_with_several_addresses_has_one_port() -> None:
    async with serve(echo, host="localhost") as listener:
        assert len({port for _, port in listener.addresses}) == 1
    with pytest.raises(OSError):
        async with serve(echo, host="203.0.113.1"):
            pass


STREAM = (
    post(b'{"a":1}')
    + GET
    + CHUNKS
    + b"3\r\n\r\n\r\r\n5;x\r\n0\r\n\r\n\r\n0\r\nTrailer: x\r\n\r\n"
    + b"\r\n"
    + post(b"\r\n\r\n")
    + b"OPTIONS * HTTP/1.1\r\nHost: [::1]:80\r\nUpgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 3\r\n\r\nabc"
    + GET
)
MEANING = [
    ("/mcp", b'{"a":1}'),
    ("/a", b""),
    ("/mcp", b"\r\n\r0\r\n\r\n"),
    ("/mcp", b"\r\n\r\n"),
    ("*", b"abc"),
    ("/a", b""),
]


class Taker(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


def read_in_pieces(pieces: list[bytes]) -> tuple[list[tuple[str, bytes]], bytes]:
    """The requests that a connection makes of these pieces, and what it answers."""
    seen: list[tuple[str, bytes]] = []

    def handler(request: Request) -> None:
        seen.append((request.path, request.body))
        request.respond(200, (), request.body)

    async def feed() -> bytes:
        connection = HttpConnection(serve(handler))  # pyright: ignore[reportPrivateUsage]
        transport = Taker()
        connection.connection_made(transport)
        for piece in pieces:
            connection.data_received(piece)
        connection.connection_lost(None)
        return transport.data

    return seen, asyncio.run(feed())


@settings(max_examples=60)
@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cutting_of_the_stream_gives_the_same_requests(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    seen, answers = read_in_pieces([STREAM[a:b] for a, b in zip(edges, edges[1:], strict=False)])
    assert seen == MEANING
    assert answers == read_in_pieces([STREAM])[1]


def test_single_bytes_give_the_same_requests() -> None:
    assert read_in_pieces([bytes((byte,)) for byte in STREAM]) == read_in_pieces([STREAM])
