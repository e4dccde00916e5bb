"""What is no JSON by the public parsing suite, written by rules of our own: nothing of it arrives at a server (T1)."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import pytest

from tests.downstream.http_client import standard
from tests.downstream.raw_client import Json, modern
from tests.faults.gateway_stage import Process, gateway_process
from tests.faults.load import Answer, raw_post
from tests.governance.stage import Governed, governing, wire_to
from tests.polling import PATIENCE

ALLOWED: Final = '[[permissions]]\ntool = "*"\naction = "allow"\n'
PLACE: Final = b'"@"'


def numbers() -> Iterator[str]:
    for sign in ("", "-"):
        yield from (
            f"{sign}{bad}" for bad in ("01", "012", "00", ".5", ".5e1", "1.", "1.e1", "0.e1", "1e", "1e+", "1e-")
        )
        yield from (
            f"{sign}{bad}" for bad in ("1E", "1.0e", "1.0e+", "1ee1", "1eE2", "0x1", "0x42", "1_000", "1 000", "1a")
        )
        yield from (
            f"{sign}{bad}" for bad in ("NaN", "nan", "Infinity", "Inf", "inf", "infinity", "0.1.2", "1e1.5", "1e1e1")
        )
    yield from (
        "+1",
        "++1",
        "--1",
        "-",
        "+",
        "- 1",
        "-foo",
        "-a",
        "\uff11",
        "1\uff11",
        "\u0661",
        "1+2",
        "1-2",
        "0b1",
        "0o7",
    )
    yield from ("1L", "1f", "1,5", "$1", "1%", "1\u200b", "1\x00")


def strings() -> Iterator[bytes]:
    yield from (b'"' + bytes([control]) + b'"' for control in range(32))
    for escape in (
        "a",
        "x41",
        "'",
        "0",
        "U0041",
        "v",
        "e",
        "u",
        "u1",
        "u12",
        "u123",
        "u{41}",
        "u 041",
        "uD8G0",
        "u00g0",
        "\n",
    ):
        yield f'"\\{escape}"'.encode()
    yield from ('"\\é"'.encode(), '"\\\U0001f300"'.encode(), b'"\\\xe5"', b'"\\u\xe5"', b'"\\u00\xe5"', b'"\\')
    # Surrogates that are alone, in every order.
    pairs = ("\\ud800", "\\udc00", "\\ud800\\ud800", "\\udc00\\ud800", "\\ud800x", "\\ud800\\n", "\\uDBFF\\u0041")
    yield from (f'"{each}"'.encode() for each in pairs)
    yield from (b'"a', b'a"', b"'a'", b"\"a'", b"`a`", b"a", b'"a" "b"', b'"a""b"', b'\\"a\\"', b'"\\""a', b'"')
    bad = (
        "80",
        "bf",
        "c0af",
        "c080",
        "c1bf",
        "e0809f",
        "e080af",
        "eda080",
        "edbfbf",
        "f08080af",
        "f4908080",
        "f5808080",
    )
    yield from (
        b'"' + bytes.fromhex(each) + b'"' for each in (*bad, "f888808080", "ff", "fe", "c3", "e282", "f09f98", "e9")
    )


def arrays() -> Iterator[str]:
    yield from (
        "[1,]",
        "[,1]",
        "[,]",
        "[1,,2]",
        "[1,,]",
        "[,",
        "[1",
        "[1,",
        "[",
        "]",
        "[]]",
        "[1]]",
        '["a"',
        '["a",',
        "[1 2]",
    )
    yield from (
        '["a" "b"]',
        "[1:2]",
        '["a": 1]',
        "[*]",
        "[x",
        "[1x]",
        "[1;2]",
        "[a, b]",
        "[[[]]",
        "[1}",
        "[1)",
        "(1)",
        "<1>",
    )
    yield from (
        '["',
        '["a\\',
        "[\n1\n,1",
        "[1,\n",
        "[-",
        "[fals]",
        "[nul]",
        "[tru]",
        "[True]",
        "[NULL]",
        "[undefined]",
        "[1]x",
    )


def objects() -> Iterator[str]:
    yield from (
        "{",
        "}",
        '{"a"',
        '{"a":',
        '{"a":1',
        '{"a":1,',
        '{"a"}',
        '{"a":}',
        "{:1}",
        "{1:1}",
        "{a:1}",
        "{'a':1}",
        "{,}",
    )
    yield from (
        '{"a":1,}',
        '{"a":1,,"b":2}',
        '{,"a":1}',
        '{"a" 1}',
        '{"a","b"}',
        '{"a"::1}',
        '{"a":1 "b":2}',
        '{"a":1;"b":2}',
    )
    yield from (
        '{"a":1}}',
        '{"a":1]',
        '["a":1}',
        "{null:null}",
        "{true:1}",
        '{["a"]:1}',
        '{"a":"b"}#',
        '{"a":"b"}//',
        '{"a"=1}',
    )
    yield from (
        '{"a":1/**/}',
        '{"a":/*c*/1}',
        '{"a":1}/**/',
        '{"a":1}/',
        '{"a":1}\\',
        '{"a" : a}',
        "{\"a': 1}",
        "{\U0001f1e8}",
        '{"a":1,"a":2}',
    )
    yield from (
        '{"a":1,"\\u0061":1}',
        '{"x":{"a":1,"b":2,"a":1}}',
        '{"":1,"":1}',
        "{}}",
        "{{}}",
        "{[]}",
        '{"a":{}',
        "{*}",
    )


def structures() -> Iterator[bytes]:
    yield from (
        b"",
        b" ",
        b"\xef\xbb\xbf",
        b"\xef\xbb\xbf1",
        b"nul",
        b"nulll",
        b"tru",
        b"truth",
        b"fals",
        b"True",
        b"TRUE",
        b"None",
    )
    yield from (
        b"undefined",
        b"*",
        b"<null>",
        b"@",
        b"1 1",
        b"1,",
        b"1;",
        b"#1",
        b"// c",
        b"/* c */ 1",
        b"1 // c",
        b"1 # c",
    )
    yield from (
        "1\u00a0".encode(),
        "\u20601".encode(),
        "\u20281".encode(),
        "\ufeff1".encode(),
        b"\x0c1",
        b"1\x0b",
        b"1\x00",
    )
    yield from (b"\xe5", b"\x80", b"\xff\xfe1\x00", b"\xc3", "\u00e5".encode("latin-1"), b"\\u0031", b"&quot;a&quot;")
    yield from (b"[" * 100_000, b'[{"":' * 50_000, b'{"a":' * 50_000, b"[" * 1000 + b"1" + b"]" * 1000)


def must_reject() -> list[bytes]:
    """Values that must be refused wherever they stand."""
    found = [text.encode() for generate in (numbers, arrays, objects) for text in generate()]
    return list(dict.fromkeys([*found, *strings(), *structures()]))


def bodies() -> list[bytes]:
    """Each of them as a whole message, and at four places of a call that is allowed otherwise."""
    params = modern({"name": "a__get", "arguments": {}})
    call: Json = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    deep = {**params, "arguments": {"x": [{"y": "@"}]}}
    places = (
        {**call, "params": {**params, "arguments": {"path": "@"}}},
        {**call, "params": deep},
        {**call, "params": {**params, "unknown": "@"}},
        {**call, "unknown": "@"},
    )
    spelled = [json.dumps(place).encode() for place in places]
    wholes = [
        *must_reject(),
        *(json.dumps(call).encode() + rest for rest in (b"}", b"x", b" {}", b"\x00", b",", b"[]", b"//")),
    ]
    wide = [
        json.dumps(call).encode(code) for code in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-7")
    ]
    inside = [place.replace(PLACE, value) for value in must_reject() for place in spelled]
    return [*wholes, *wide[:-1], b"\xef\xbb\xbf" + json.dumps(call).encode(), *inside]


GOOD: Final = {"jsonrpc": "2.0", "id": "good", "method": "tools/call"}


def good() -> bytes:
    return json.dumps({**GOOD, "params": modern({"name": "a__get", "arguments": {"good": True}})}).encode()


def only_the_good_one_arrived(folder: Governed) -> bool:
    params = [cast(Json, each["params"]) for each in folder.received("a")]
    decisions = folder.rows("decision")
    return [each["arguments"] for each in params] == [{"good": True}] and len(decisions) == 1


def rejected(folder: Governed) -> int:
    """How many messages were rejected by the log: a row each, and the number of those that came too fast for that."""
    rows = folder.rows("reject")
    assert {row.verdict for row in rows} <= {"parse_error", "invalid_request"}, rows
    return sum(1 + cast(int, row.body.get("suppressed", 0)) for row in rows)


async def post(gateway: Process, given: list[bytes]) -> list[Answer]:
    """The answers to messages that are posted as calls of the allowed tool."""
    headers = standard("tools/call", {"name": "a__get"})
    answers: list[Answer] = []
    wire = await wire_to(gateway)
    for body in given:
        if not wire.is_open:
            wire = await wire_to(gateway)
        answers.append(await wire.ask(raw_post(body, headers)))
    wire.close()
    return answers


@pytest.mark.timeout(300)
async def test_t1_nothing_that_is_no_json_reaches_a_server_over_http(tmp_path: Path) -> None:
    folder = Governed(tmp_path, {"a": ()}, ALLOWED)
    try:
        async with governing(folder) as gateway:
            given = bodies()
            assert len(must_reject()) >= 188
            answers = await post(gateway, given)
            for body, answer in zip(given, answers, strict=True):
                assert answer.status in (400, 413), (body[:300], answer)
            (answer,) = await post(gateway, [good()])
            assert answer.text == "recorded"
            assert await gateway.stopped() == 0
        assert rejected(folder) == sum(answer.status == 400 for answer in answers)
        assert only_the_good_one_arrived(folder)
    finally:
        folder.remove()


@pytest.mark.timeout(300)
async def test_t1_nothing_that_is_no_json_reaches_a_server_over_stdio(tmp_path: Path) -> None:
    folder = Governed(tmp_path, {"a": ()}, ALLOWED)
    try:
        async with gateway_process(folder, stdio=True) as gateway:
            pipe, answers = gateway.process.stdin, gateway.process.stdout
            assert pipe is not None and answers is not None
            await gateway.ready("a")

            async def write() -> None:
                # A byte order mark is allowed as the first bytes of a stream, so a line that is none comes first.
                for body in [b"none", *bodies(), good()]:
                    pipe.write(body + b"\n")
                    await pipe.drain()

            async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
                group.create_task(write())
                while b'"good"' not in (line := await answers.readline()):
                    assert line and b"result" not in json.loads(line), line
            assert b"recorded" in line
            assert await gateway.stopped() == 0
        assert rejected(folder) > len(must_reject())
        assert only_the_good_one_arrived(folder)
    finally:
        folder.remove()
