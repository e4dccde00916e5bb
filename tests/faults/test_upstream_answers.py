"""A server answers, but not with what was asked for, in every transport (threats R14, R17, T4, T9)."""

import asyncio
import gzip
import logging
import zlib
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import lru_cache

import pytest

from sluicegate import UpstreamError, UpstreamProtocolError, UpstreamUnavailable
from sluicegate.errors import ErrorObject
from sluicegate.protocol.message import Result
from sluicegate.runtime.task_scope import TaskScope, forever
from tests.faults.upstreams import POSTED, TEXT, Spoken, Way, connection_to, everything_about, spoken
from tests.upstream.http_server import Asked, message, scripted
from tests.upstream.raw_server import exchange

SECRET = "/home/them/secret"
CANARY = "canary-4711"
HTML = f"<html><title>{SECRET}</title></html>".encode()
MIB = 1 << 20


pytestmark = pytest.mark.usefixtures("no_verdicts")


# -------------------------------------------------------------------------------------------------------- R14: statuses


@pytest.mark.parametrize(
    ("status", "reason", "delivered"),
    [
        (400, "backend_protocol", "unknown"),
        (401, "backend_auth", "no"),
        (403, "backend_auth", "no"),
        (405, "backend_protocol", "unknown"),
        (413, "backend_protocol", "unknown"),
        (418, "backend_protocol", "unknown"),
        (429, "backend_unavailable", "no"),
        (500, "backend_unavailable", "unknown"),
        (502, "backend_unavailable", "unknown"),
        (503, "backend_unavailable", "unknown"),
        (504, "backend_unavailable", "unknown"),
    ],
)
async def test_an_error_status_is_reported_without_the_body(
    way: Way, status: int, reason: str, delivered: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def handle(asked: Asked) -> None:
        asked.status(status, HTML, ("Content-Type", "text/html"), ("WWW-Authenticate", f'Bearer x="{SECRET}"'))

    async with spoken(way, handle, headers={"Authorization": CANARY}) as (connection, _):
        with pytest.raises(UpstreamError) as caught:
            await connection(exchange())
        assert (caught.value.reason, caught.value.delivered) == (reason, delivered)
        assert caught.value.data == {"status": status} and str(status) in caught.value.message
    for text in (everything_about(caught.value), caplog.text):
        assert SECRET not in text and CANARY not in text


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("value", ["7", "date", "date without a clock"])
async def test_the_error_says_when_to_try_again(way: Way, status: int, value: str) -> None:
    now = datetime.now(UTC)
    later = format_datetime(now + timedelta(seconds=7), usegmt=True)
    headers = [("Retry-After", value if value == "7" else later)]
    if value == "date":
        headers = [("Retry-After", "Thu, 01 Jan 2026 00:00:07 GMT"), ("Date", "Thu, 01 Jan 2026 00:00:00 GMT")]

    async with spoken(way, lambda asked: asked.status(status, b"", *headers)) as (connection, _):
        with pytest.raises(UpstreamUnavailable) as caught:
            await connection(exchange())
        assert caught.value.delivered == "no"
        # By our own clock, between the two ends of it.
        assert caught.value.data["retryAfter"] in ([7] if value != "date without a clock" else range(9))


@pytest.mark.parametrize(
    "value",
    [
        "",
        "soon",
        "-1",
        "1.5",
        "9" * 400,
        "Thu, 99 Jan 2026 00:00:07 GMT",
        f"Thu, 01 Jan 2026 00:00:07 +{'9' * 20}",
        "٧",
    ],
)
async def test_a_time_that_makes_no_sense_is_no_time(way: Way, value: str) -> None:
    header = ("Retry-After", value.encode().decode("latin-1"))
    async with spoken(way, lambda asked: asked.status(429, b"", header, ("Date", header[1]))) as (connection, _):
        with pytest.raises(UpstreamUnavailable) as caught:
            await connection(exchange())
        assert caught.value.data.get("retryAfter") in (None, 999_999)


async def test_a_json_rpc_error_is_the_answer_unless_it_says_when_to_come_again() -> None:
    def handle(asked: Asked) -> None:
        more = (("Retry-After", "3"),) if asked.header("mcp-name") == "later" else ()
        body = message(id=asked.id, error={"code": 1004, "message": "full"})
        asked.status(503, body, ("Content-Type", "application/json"), *more)

    async with spoken("modern", handle) as (connection, _):
        assert await connection(exchange()) == ErrorObject(1004, "full")
        with pytest.raises(UpstreamUnavailable) as caught:
            await connection(exchange(params={"name": "later"}))
        assert caught.value.data == {"status": 503, "retryAfter": 3}


@pytest.mark.parametrize("kind", ["text/html", "text/plain", "application/octet-stream", "application/jsonl", ""])
@pytest.mark.parametrize("way", POSTED)
async def test_an_answer_of_another_kind_is_none(way: Way, kind: str) -> None:
    headers = (("Content-Type", kind),) if kind else ()
    async with spoken(way, lambda asked: asked.status(200, HTML, *headers)) as (connection, _):
        with pytest.raises(UpstreamProtocolError) as caught:
            await connection(exchange())
        assert caught.value.delivered == "yes" and SECRET not in everything_about(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        HTML,
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","id":4711,"result":{}}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("way", POSTED)
async def test_json_that_is_no_answer_is_none(way: Way, body: bytes) -> None:
    headers = ("Content-Type", "application/json")
    async with spoken(way, lambda asked: asked.status(200, body, headers)) as (connection, _):
        with pytest.raises(UpstreamProtocolError) as caught:
            await connection(exchange())
        assert caught.value.reason == "backend_protocol" and SECRET not in everything_about(caught.value)


async def test_over_sse_a_lost_session_ends_the_channel_and_another_refusal_only_its_call() -> None:
    def handle(asked: Asked) -> None:
        name = asked.request.body
        if b"fine" in name:
            script.reply(asked)
        else:
            asked.status(404 if b"lost" in name else 400)

    async with spoken("sse", handle) as (connection, script):
        with pytest.raises(UpstreamProtocolError):
            await connection(exchange())
        assert isinstance(await connection(exchange(params={"name": "fine"})), Result)
        with pytest.raises(UpstreamError, match="lost the session"):
            await connection(exchange(params={"name": "lost"}))
        with pytest.raises(UpstreamError, match="lost the session") as caught:
            await connection(exchange(params={"name": "fine"}))
        assert caught.value.delivered == "no"


# --------------------------------------------------------------------------------------------------- R17, T9: redirects


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 305, 307, 308])
async def test_a_call_that_is_sent_elsewhere_does_not_go_and_its_credentials_stay(way: Way, status: int) -> None:
    async with scripted(lambda asked: asked.result(TEXT)) as elsewhere:

        def handle(asked: Asked) -> None:
            asked.status(status, HTML, ("Location", elsewhere.url))

        async with spoken(way, handle, headers={"Authorization": CANARY}) as (connection, _):
            with pytest.raises(UpstreamProtocolError) as caught:
                await connection(exchange())
        assert caught.value.reason == "backend_protocol"
        assert caught.value.delivered == ("no" if status in (307, 308) else "unknown")
        assert elsewhere.asked == [] and CANARY not in everything_about(caught.value)


@pytest.mark.parametrize(
    "location",
    [
        "http://user@{place}/mcp",
        "https://{place}/mcp",
        "//localhost:1/mcp",
        "http://[::1/mcp",
        "/a b",
        None,
    ],
)
async def test_a_place_that_only_looks_like_ours_is_not_ours(location: str | None) -> None:
    script = Spoken("modern", lambda asked: asked.status(307, b"", *headers))
    async with scripted(script) as server:
        place = f"{server.place[0]}:{server.place[1]}"
        headers = () if location is None else (("Location", location.replace("{place}", place)),)
        async with connection_to(server.url, "modern") as connection:
            with pytest.raises(UpstreamProtocolError) as caught:
                await connection(exchange())
            assert caught.value.delivered == "no"
        assert server.methods() == ["server/discover", "tools/call"]


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize(("hops", "arrives"), [(1, True), (3, True), (4, False)])
async def test_three_steps_within_the_origin_are_gone_with_the_whole_request(
    way: Way, status: int, hops: int, arrives: bool
) -> None:
    seen: list[tuple[str, str, str | None, int]] = []

    def handle(asked: Asked) -> None:
        seen.append((asked.method, asked.called, asked.header("authorization"), len(asked.request.body)))
        if len(seen) <= hops:
            asked.status(status, b"", ("Location", f"/step{len(seen)}"))
        else:
            script.reply(asked)

    async with spoken(way, handle, headers={"Authorization": CANARY}) as (connection, script):
        if arrives:
            assert isinstance(await connection(exchange()), Result)
        else:
            with pytest.raises(UpstreamProtocolError) as caught:
                await connection(exchange())
            assert caught.value.delivered == "no"
    assert len(seen) == min(hops, 3) + 1 and len(set(seen)) == 1


# ------------------------------------------------------------------------------------------------------- T4: compressed


@lru_cache
def bomb(coding: str, body: bytes, *, ballast: int) -> bytes:
    """So many MiB more than the body has, in a few KiB."""
    wbits = {"gzip": 31, "deflate": 15, "raw deflate": -15}[coding]
    deflate = zlib.compressobj(1, zlib.DEFLATED, wbits)
    parts = [deflate.compress(body)]
    parts += [deflate.compress(b" " * MIB) for _ in range(ballast)]
    return b"".join([*parts, deflate.flush()])


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw deflate"])
@pytest.mark.parametrize(("ballast", "fits"), [(15, True), (17, False), (100, False)])
@pytest.mark.parametrize("way", POSTED)
async def test_a_body_is_measured_after_it_was_decompressed(way: Way, coding: str, ballast: int, fits: bool) -> None:
    def handle(asked: Asked) -> None:
        body = bomb(coding, message(id=asked.id, result=TEXT), ballast=ballast)
        name = "deflate" if "deflate" in coding else coding
        asked.status(200, body, ("Content-Type", "application/json"), ("Content-Encoding", name))

    async with spoken(way, handle) as (connection, _):
        if fits:
            assert isinstance(await connection(exchange()), Result)
        else:
            with pytest.raises(UpstreamProtocolError, match="larger than"):
                await connection(exchange())


@pytest.mark.parametrize("content", ["comments", "one event"])
@pytest.mark.parametrize("way", POSTED)
async def test_a_bomb_in_a_stream_is_cut_at_the_limit_of_a_body_and_leaves_time_for_others(
    way: Way, content: str
) -> None:
    """T4: without a byte from the network it would go on and on."""
    turns = 0

    def handle(asked: Asked) -> None:
        body = bomb("gzip", b": " if content == "comments" else b"data: ", ballast=200)
        asked.status(200, body, ("Content-Type", "text/event-stream"), ("Content-Encoding", "gzip"))

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with spoken(way, handle) as (connection, _), TaskScope() as tasks:
        tasks.start(count_turns(), key="turns")
        with pytest.raises(UpstreamProtocolError, match="compressed in a way that cannot be read"):
            await connection(exchange())
        tasks.cancel("turns")
    # Once for each quarter of a MiB, and 16 MiB are the limit.
    assert 60 <= turns < 400


@pytest.mark.parametrize("way", POSTED)
async def test_a_long_compressed_stream_of_ordinary_events_is_read(way: Way) -> None:
    def handle(asked: Asked) -> None:
        data = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"%d of many"}}'
        events = b"".join(b"data: %b\n\n" % (data % number) for number in range(170_000))  # 18 MB
        body = gzip.compress(events + b"data: " + message(id=asked.id, result=TEXT) + b"\n\n", 9)
        asked.status(200, body, ("Content-Type", "text/event-stream"), ("Content-Encoding", "gzip"))

    async with spoken(way, handle) as (connection, _):
        assert isinstance(await connection(exchange()), Result)


async def test_a_thousand_gzip_members_of_nothing_are_too_many() -> None:
    body = gzip.compress(b"") * 1000

    def handle(asked: Asked) -> None:
        asked.status(200, body, ("Content-Type", "application/json"), ("Content-Encoding", "gzip"))

    async with spoken("modern", handle) as (connection, _):
        with pytest.raises(UpstreamProtocolError, match="compressed"):
            await connection(exchange())


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "compress"])
async def test_a_compression_that_was_not_requested_is_an_error(coding: str) -> None:
    def handle(asked: Asked) -> None:
        asked.status(200, b"\x1f\x8b", ("Content-Type", "application/json"), ("Content-Encoding", coding))

    async with spoken("modern", handle) as (connection, _):
        with pytest.raises(UpstreamProtocolError):
            await connection(exchange())


# ------------------------------------------------------------------------------------------------ T9: where it all went


async def test_credentials_go_to_their_origin_and_into_no_log_or_error(
    way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    problems: list[UpstreamError] = []
    faults = iter([401, 404, 418, 429, 503, 307, 200])

    async def handle(asked: Asked) -> None:
        if asked.called == "tools/call":
            asked.status(next(faults), HTML, ("Location", f"http://127.0.0.2:1/{CANARY}"))
        else:
            await forever()

    async with spoken(way, handle, headers={"Authorization": CANARY, "X-Key": CANARY}) as (connection, _):
        for _ in range(7):
            with pytest.raises(UpstreamError) as caught:
                await connection(exchange())
            problems.append(caught.value)
    assert CANARY not in caplog.text and not any(CANARY in everything_about(problem) for problem in problems)
