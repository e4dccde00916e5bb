"""Whatever a client sends is answered as what it is, and the next request is served as if nothing had been (R21)."""

import asyncio
import json
import random
import socket
from collections.abc import Iterator
from typing import cast

from tests.downstream.http_client import Headers, initialize, notification, request, standard
from tests.downstream.raw_client import Json, modern
from tests.faults.load import Answer, LoadServer, Wire, call_of, encoded, load_server, raw_post

CASES = 1200
STATUS_OF = {-32700: 400, -32600: 400, -32602: 400, -32601: 404, -32020: 400, -32021: 400, -32022: 400}
PARAMS = modern({"name": "echo", "arguments": {"text": "good"}})

# In place of a value, wherever it stands.
ODD_VALUES = [
    *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-0", b"1" * 300, b"0x10", b"01", b"1.", b".5", b"+1", b"1_000"),
    *(b"true", b"null", b"[]", b"{}", b'""', b"-1", b"1.5", b"9007199254740993", b"1e2", b"tru", b"undefined"),
    *(b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xff"', b'"\xc0\xaf"', b'"\xed\xa0\x80"', b'"\0"', b'"\\u0000"', b'"\n"'),
    *(b'"' + b"x" * 300 + b'"', b"[" * 200 + b"]" * 200, b'{"a":' * 150 + b"1" + b"}" * 150, b'{"a":1,"a":2}'),
    *(b"'x'", b"/* c */ 1", b'"\\x41"', b"[1,]", b'{"a":1,}', b"{,}", b'{"a" 1}', b"\xef\xbb\xbf1"),
]
ODD_MEMBERS = [
    *(b'"id":2', b'"ID":1', b'"method":"ping"', b'"Method":"ping"', b'"jsonrpc":"1.0"', b'"params":{}', b'"result":{}'),
    *('"metho\u0131d":1'.encode(), '"\uff49d":1'.encode(), b'"id\\u0000":1', b'" id":1', b'"":""', b'"extra":[[[]]]'),
]
ODD_BODIES = [
    *(b"", b" ", b"\n", b"null", b"1", b'"text"', b"[]", b"{}", b"[{}]", b"[[]]", b"[1]", b"{", b"}", b"[", b'"'),
    *(b"[" * 100_000, b'{"a":' * 50_000, b"1" * 100_000, b"\0" * 100, b"\xff\xfe{\0}\0", b"\xef\xbb\xbf{}"),
    b"{" + b",".join(b'"k%d":%d' % (n, n) for n in range(11_000)) + b"}",
]


def garbage(good: bytes) -> Iterator[bytes]:
    """Bodies that are wrong in some way: odd ones, odd values, odd members, then bytes changed at random."""
    yield from ODD_BODIES
    for odd in (*ODD_BODIES, b"\xef\xbb\xbf", b" 1", b"{}"):
        yield good + odd
        yield odd + good
    for value in ODD_VALUES:
        for name in (b"id", b"method", b"params", b"jsonrpc", b"name", b"arguments", b"text", b"_meta"):
            yield with_value(good, name, value)
    for member in ODD_MEMBERS:
        yield good[:-1] + b"," + member + b"}"
        yield b"{" + member + b"," + good[1:]
        yield good.replace(b'"arguments": {', b'"arguments": {' + member + b", ")
    while True:
        body = bytearray(good)
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(body) + 1)
            match random.randrange(4):
                case 0:
                    del body[at : at + random.randint(1, 30)]
                case 1:
                    body[at:at] = random.randbytes(random.randint(1, 8))
                case 2:
                    body[at:at] = random.choice(ODD_VALUES)
                case _:
                    body[at : at + 1] = b"%c" % random.randrange(256)
            if not body:
                break
        yield bytes(body)


def with_value(body: bytes, name: bytes, value: bytes) -> bytes:
    """The body with another value for a member."""
    decoder = json.JSONDecoder()
    text = body.decode()
    key = f'"{name.decode()}": '
    if key not in text:
        return value
    start = text.index(key) + len(key)
    _, end = decoder.raw_decode(text, start)
    return body[:start] + value + body[end:]


def check_answer(answer: Answer, body: bytes) -> None:
    """An answer that keeps the connection: a result, or an error that says what was wrong, under its own status."""
    shown = body[:200]
    assert b"Connection: close" not in answer.head, shown
    if answer.status == 202:
        assert answer.body == b"", shown
        return
    message = answer.message
    assert message["jsonrpc"] == "2.0" and "id" in message, shown
    if "error" in message:
        code = cast(Json, message["error"])["code"]
        assert STATUS_OF.get(cast(int, code)) == answer.status, (shown, answer)
        assert "Traceback" not in answer.body.decode() and "/" + "src/" not in answer.body.decode()
    else:
        assert answer.status == 200, (shown, answer)


async def check_garbage(wire: Wire, good: bytes, headers: Headers) -> None:
    """Broken requests are answered, and the same connection serves good ones in between."""
    refused = 0
    for number, body in zip(range(CASES), garbage(good), strict=False):
        answer = await wire.ask(raw_post(body, headers))
        check_answer(answer, body)
        refused += answer.status == 400
        if number % 100 == 0:
            assert (await wire.ask(raw_post(good, headers))).text == "good"
    assert refused > CASES // 2
    assert (await wire.ask(raw_post(good, headers))).text == "good"


async def test_1_200_broken_requests_of_2026_07_28_leave_their_connection_usable() -> None:
    good = encoded(request(7, "tools/call", PARAMS))
    headers = standard("tools/call", PARAMS)
    async with load_server() as server, asyncio.timeout(50):
        await check_garbage(await server.wire(), good, headers)


async def test_1_200_broken_messages_in_a_session_leave_it_and_its_connection_usable() -> None:
    params: Json = {"name": "echo", "arguments": {"text": "good"}}
    good = encoded(request(7, "tools/call", params))
    async with load_server() as server, asyncio.timeout(50):
        wire = await server.wire()
        opened = await wire.ask(raw_post(encoded(initialize("2025-03-26"))))
        headers = [("Mcp-Session-Id", opened.header("mcp-session-id"))]
        started = await wire.ask(raw_post(encoded(notification("notifications/initialized")), headers))
        assert started.status == 202
        for number, body in zip(range(CASES), garbage(good), strict=False):
            answer = await wire.ask(raw_post(body, headers))
            assert b"Connection: close" not in answer.head and answer.status in (200, 202, 400), (body[:200], answer)
            assert answer.status != 200 or answer.body, body[:200]
            if number % 100 == 0:
                assert (await wire.ask(raw_post(good, headers))).text == "good"
        assert (await wire.ask(raw_post(good, headers))).text == "good"


async def test_1_000_broken_heads_harm_no_other_client() -> None:
    good = call_of("echo", {"text": "good"})
    async with load_server() as server, asyncio.timeout(50):
        assert (await server.call("echo", text="first")).text == "first"
        server.hang_up()
        await server.census()
        descriptors = server.descriptors
        for _ in range(10):
            await asyncio.gather(*(send_broken_head(server, good) for _ in range(100)))
            assert (await server.call("echo", text="next")).text == "next"
        server.hang_up()
        await server.wait_descriptors(descriptors)


async def send_broken_head(server: LoadServer, good: bytes) -> None:
    """Send a request with a head that is changed anywhere; whatever is said to it is an answer of HTTP."""
    end = good.index(b"\r\n\r\n")
    data = bytearray(good)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(end)
        data[at : at + random.choice([0, 1, 1, 5])] = random.choice(
            [random.randbytes(2), b"\r\n", b"\n", b"\0", b": ", b"\r\nTransfer-Encoding: chunked\r\n", b"\xff", b""]
        )
    loop = asyncio.get_running_loop()
    sock = await server.socket()
    try:
        await loop.sock_sendall(sock, data)
        sock.shutdown(socket.SHUT_WR)
        heard = b""
        while more := await loop.sock_recv(sock, 4096):
            heard += more
    except ConnectionError:
        return
    finally:
        sock.close()
    assert heard == b"" or heard.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4", b"HTTP/1.1 5")), data
    assert not heard.startswith(b"HTTP/1.1 500"), data
