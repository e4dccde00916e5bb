"""A link to a server of either era, whatever the server does."""

import asyncio
import json
import logging
from typing import cast

import pytest

import sluicegate
from sluicegate.errors import ErrorObject
from sluicegate.exchange import Caller
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Result, opened
from sluicegate.upstream.server_messages import UNTAKEN
from tests.upstream.raw_server import (
    DISCOVERED,
    Bench,
    Json,
    RawServer,
    Recorder,
    bench,
    exchange,
    modern_bench,
    session_bench,
)

# ------------------------------------------------------------------------------------------------- finding out the era


async def test_a_discover_result_with_a_known_version_makes_it_modern() -> None:
    async with bench() as (table, ready):
        request = await table.server.answer("server/discover", DISCOVERED)
        await ready
        assert table.link.era == "modern" and table.link.discovery.version == "2026-07-28"
        meta = cast(Json, cast(Json, request["params"])["_meta"])
        assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert meta["io.modelcontextprotocol/clientCapabilities"] == {}


@pytest.mark.parametrize("code", [-32601, -32602, -32600, -32000, 0, -32002])
async def test_any_other_error_to_the_probe_leads_to_initialize(code: int) -> None:
    async with bench() as (table, ready):
        await table.server.refuse("server/discover", code)
        await table.server.welcome()
        await ready
        assert table.link.era == "session"


@pytest.mark.parametrize(
    "result", [{}, {"supportedVersions": []}, {"supportedVersions": ["2025-11-25"]}, {"supportedVersions": "x"}]
)
async def test_a_discover_result_without_a_modern_version_leads_to_initialize(result: Json) -> None:
    async with bench() as (table, ready):
        await table.server.answer("server/discover", result)
        await table.server.welcome()
        await ready
        assert table.link.era == "session"


async def test_an_error_under_a_null_id_answers_the_probe_too() -> None:
    async with bench() as (table, ready):
        await table.server.next("server/discover")
        table.server.send(id=None, error={"code": -32600, "message": "expected initialize"})
        await table.server.welcome()
        await ready


async def test_a_refused_version_that_names_ours_is_tried_again_without_initialize() -> None:
    async with bench() as (table, ready):
        data = {"supported": ["2026-07-28"], "requested": "x"}
        await table.server.refuse("server/discover", -32022, data=data)
        await table.server.answer("server/discover", DISCOVERED)
        await ready
        assert table.link.era == "modern"


async def test_a_refused_version_that_names_old_ones_leads_to_initialize() -> None:
    async with bench() as (table, ready):
        await table.server.refuse("server/discover", -32022, data={"supported": ["2025-06-18"], "requested": "x"})
        await table.server.welcome("2025-06-18")
        await ready
        assert table.link.discovery.version == "2025-06-18"


async def test_nothing_in_common_is_reported_with_both_lists() -> None:
    async with bench() as (table, ready):
        await table.server.refuse("server/discover", -32022, data={"supported": ["2031-01-01"], "requested": "x"})
        with pytest.raises(sluicegate.UpstreamUnavailable, match="2031-01-01.*2026-07-28"):
            await ready


async def test_silence_leads_to_initialize_and_a_late_probe_answer_is_dropped() -> None:
    async with bench(probe_timeout=0.01) as (table, ready):
        probe = await table.server.next("server/discover")
        await table.server.welcome()
        table.server.send(id=probe["id"], result=DISCOVERED)
        await ready
        assert table.link.era == "session"
        outcome = table.start(exchange())
        await table.server.answer("tools/call", {"content": []})
        assert isinstance(await outcome, Result)


@pytest.mark.parametrize("is_one_piece", [True, False])
async def test_a_server_that_reads_late_what_it_was_asked_is_of_the_era_it_answers_first(is_one_piece: bool) -> None:
    async with bench(probe_timeout=0.01) as (table, ready):
        probe, initialize = [await table.server.next(method) for method in ("server/discover", "initialize")]
        welcome: Json = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "both"}}
        answers: list[Json] = [
            {"jsonrpc": "2.0", "id": probe["id"], "result": DISCOVERED},
            {"jsonrpc": "2.0", "id": initialize["id"], "result": welcome},
        ]
        pieces = [json.dumps(answer).encode() for answer in answers]
        for piece in [b"\n".join(pieces)] if is_one_piece else pieces:
            table.server.send_bytes(piece)
        await ready
        assert table.link.era == "modern"
        outcome = table.start(exchange())
        await table.server.answer("tools/call", {"resultType": "complete", "content": []})  # and nothing before it
        assert isinstance(await outcome, Result)


async def test_a_server_that_says_late_that_it_speaks_nothing_of_ours_is_not_waited_for() -> None:
    async with bench(probe_timeout=0.01) as (table, ready):
        probe = await table.server.next("server/discover")
        await table.server.next("initialize")
        data: Json = {"supported": ["2031-01-01"], "requested": "2026-07-28"}
        table.server.send(id=probe["id"], error={"code": -32022, "message": "Unsupported", "data": data})
        with pytest.raises(sluicegate.UpstreamUnavailable, match="2031-01-01.*2026-07-28"):
            await ready


async def test_a_server_that_refuses_late_what_it_does_not_know_is_met_in_the_older_way() -> None:
    async with bench(probe_timeout=0.01) as (table, ready):
        probe, initialize = [await table.server.next(method) for method in ("server/discover", "initialize")]
        table.server.send(id=probe["id"], error={"code": -32601, "message": "What?"})
        welcome: Json = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "old"}}
        table.server.send(id=initialize["id"], result=welcome)
        await table.server.next("notifications/initialized")
        await ready
        assert table.link.era == "session"


async def test_a_server_that_never_answers_the_handshake_is_unavailable_in_time() -> None:
    async with bench(probe_timeout=0.01, open_timeout=0.02) as (_, ready):
        with pytest.raises(sluicegate.UpstreamUnavailable, match="raw did not answer the handshake"):
            await ready


async def test_an_unknown_version_in_the_welcome_is_refused() -> None:
    async with bench(era="session") as (table, ready):
        await table.server.answer("initialize", {"protocolVersion": "1999-01-01", "capabilities": {}})
        with pytest.raises(sluicegate.UpstreamProtocolError, match="1999-01-01"):
            await ready


async def test_a_refused_initialize_that_names_an_older_version_is_tried_again_with_it() -> None:
    async with bench(era="session") as (table, ready):
        await table.server.refuse("initialize", -32602, data={"supported": ["2024-11-05"]})
        again = await table.server.welcome("2024-11-05")
        await ready
        assert cast(Json, again["params"])["protocolVersion"] == "2024-11-05"


async def test_a_modern_server_that_was_slow_to_answer_the_probe_is_found_out_by_its_refusal() -> None:
    async with bench(probe_timeout=0.01) as (table, ready):
        await table.server.next("server/discover")
        await table.server.refuse("initialize", -32022, data={"supported": ["2026-07-28"], "requested": "2025-11-25"})
        await table.server.answer("server/discover", DISCOVERED)
        await ready
        assert table.link.era == "modern"


# ---------------------------------------------------------------------------------------------------------- answers


async def test_answers_out_of_order_reach_their_own_callers() -> None:
    async with modern_bench() as table:
        first, second = (table.start(exchange(params={"name": name})) for name in "ab")
        ids: Json = {}
        for _ in range(2):
            request = await table.server.next("tools/call")
            ids[cast(str, cast(Json, request["params"])["name"])] = request["id"]
        table.server.send(id=ids["b"], result={"n": "b"})
        table.server.send(id=ids["a"], result={"n": "a"})
        assert opened(cast(Result, await first)) == {"n": "a"}
        assert opened(cast(Result, await second)) == {"n": "b"}


async def test_foreign_repeated_and_late_answers_are_dropped() -> None:
    async with modern_bench() as table:
        outcome = table.start(exchange())
        request = await table.server.next("tools/call")
        for id in (999, "x", -1):
            table.server.send(id=id, result={"n": "foreign"})
        table.server.send(id=request["id"], result={"n": "right"})
        table.server.send(id=request["id"], result={"n": "again"})
        assert opened(cast(Result, await outcome)) == {"n": "right"}


async def test_our_id_as_a_string_is_still_ours() -> None:
    async with modern_bench() as table:
        outcome = table.start(exchange())
        request = await table.server.next("tools/call")
        table.server.send(id=str(request["id"]), result={"n": 1})
        assert opened(cast(Result, await outcome)) == {"n": 1}


async def test_an_error_is_an_answer_and_passes_as_it_is() -> None:
    async with modern_bench() as table:
        outcome = table.start(exchange())
        await table.server.refuse("tools/call", -32602, "Unknown tool", data={"x": 1})
        assert await outcome == ErrorObject(-32602, "Unknown tool", {"x": 1})


@pytest.mark.parametrize(
    "garbage",
    [
        b"Server is running on port 3000",
        b"\xff\xfe\x00 binary",
        b"{",
        b"",
        b"[]",
        b"null",
        b'{"jsonrpc":"2.0"}',
        b'{"jsonrpc":"1.0","id":77,"result":{}}',
        b'{"jsonrpc":"2.0","method":5}',
        b"[1,2,3]",
        b"{" * 100_000,
    ],
)
async def test_a_line_that_is_no_message_is_skipped_and_calls_go_on(garbage: bytes) -> None:
    async with modern_bench() as table:
        outcome = table.start(exchange())
        request = await table.server.next("tools/call")
        table.server.send_bytes(garbage)
        table.server.send(id=request["id"], result={"n": 1})
        assert opened(cast(Result, await outcome)) == {"n": 1}


@pytest.mark.parametrize(
    "result", [b"NaN", b'"\\ud800"', b"[]", b"5", b'{"a":' * 50_000 + b"1" + b"}" * 50_000, b'{"a":"\xff"}']
)
async def test_an_unreadable_answer_fails_its_own_call_at_once(result: bytes) -> None:
    async with modern_bench() as table:
        outcome, other = table.start(exchange()), table.start(exchange())
        first, second = [await table.server.next("tools/call") for _ in range(2)]
        table.server.send_bytes(b'{"jsonrpc":"2.0","id":%d,"result":%s}' % (first["id"], result))
        with pytest.raises(sluicegate.UpstreamProtocolError):
            await outcome
        table.server.send(id=second["id"], result={"n": 2})
        assert opened(cast(Result, await other)) == {"n": 2}


async def test_an_answer_over_the_ceiling_fails_its_own_call_and_the_next_is_read() -> None:
    async with modern_bench() as table:
        outcome, other = table.start(exchange()), table.start(exchange())
        first, second = [await table.server.next("tools/call") for _ in range(2)]
        for piece in (b'{"jsonrpc":"2.0","id":%d,"result":{"x":"' % first["id"], *[b"x" * (1 << 20)] * 17, b'"}}\n'):
            table.server.wire.write(piece)
            await table.server.wire.drain()
        with pytest.raises(sluicegate.UpstreamProtocolError, match="too long"):
            await outcome
        table.server.send(id=second["id"], result={"n": 2})
        assert opened(cast(Result, await other)) == {"n": 2}


async def test_a_server_that_floods_us_with_rubbish_counts_as_broken() -> None:
    async with modern_bench() as table:
        outcome = table.start(exchange())
        await table.server.next("tools/call")
        table.server.wire.write(b"rubbish\n" * 1500)
        with pytest.raises(sluicegate.UpstreamClosed, match="unreadable lines"):
            await outcome


async def test_unsolicited_answers_count_as_garbage_and_the_first_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with modern_bench() as table:
        outcome = table.start(exchange())
        await table.server.next("tools/call")
        with caplog.at_level(logging.WARNING, "sluicegate"):
            table.server.wire.write(b'{"jsonrpc":"2.0","id":"foreign","result":{"secret":1}}\n' * 1500)
            with pytest.raises(sluicegate.UpstreamClosed, match="unexpected answers"):
                await outcome
        assert 0 < len(caplog.records) < 10
        assert "foreign" in caplog.text and "secret" not in caplog.text


SAMPLING = b'{"jsonrpc":"2.0","id":"mine","method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}\n'
PING = b'{"jsonrpc":"2.0","id":"mine","method":"ping"}\n'


@pytest.mark.parametrize("request_", [SAMPLING, PING], ids=["sampling", "ping"])
@pytest.mark.parametrize("era", ["modern", "session"])
async def test_requests_that_no_call_caused_count_like_rubbish(era: str, request_: bytes) -> None:
    """T24."""
    async with modern_bench() if era == "modern" else session_bench() as table:
        table.server.wire.write(request_ * 1500)
        await table.link.wait_closed()
        with pytest.raises(sluicegate.UpstreamClosed, match="requests that no call caused"):
            await table.link(exchange())


async def test_requests_during_a_call_never_make_a_server_count_as_broken() -> None:
    async with session_bench() as table:
        outcome = table.start(exchange())
        request = await table.server.next("tools/call")
        table.server.wire.write(PING * 1500)
        assert [(await table.server.next())["id"] for _ in range(1500)] == ["mine"] * 1500
        table.server.send(id=request["id"], result={"n": 1})
        assert opened(cast(Result, await outcome))["n"] == 1


async def test_late_answers_to_withdrawn_calls_never_make_a_server_count_as_broken() -> None:
    async with modern_bench() as table:
        for _ in range(1500):
            outcome = table.start(exchange(), key="mine")
            request = await table.server.next("tools/call")
            table.tasks.cancel("mine")
            await table.server.next("notifications/cancelled")
            assert outcome.cancelled()
            table.server.send(id=request["id"], result={})
        outcome = table.start(exchange())
        await table.server.answer("tools/call", {"n": 1})
        assert isinstance(await outcome, Result)


async def test_when_the_server_goes_every_caller_gets_one_error_and_later_ones_too() -> None:
    async with modern_bench() as table:
        outcomes = [table.start(exchange()) for _ in range(50)]
        for _ in outcomes:
            await table.server.next("tools/call")
        table.server.hang_up()
        for outcome in outcomes:
            with pytest.raises(sluicegate.UpstreamClosed) as problem:
                await outcome
            assert problem.value.delivered == "unknown"
        with pytest.raises(sluicegate.UpstreamClosed) as problem:
            await table.link(exchange())
        assert problem.value.delivered == "no"


async def test_a_cancelled_exchange_is_withdrawn_once_and_its_late_answer_dropped() -> None:
    async with modern_bench() as table:
        outcome = table.start(exchange(), key="mine")
        request = await table.server.next("tools/call")
        table.tasks.cancel("mine")
        with pytest.raises(asyncio.CancelledError):
            await outcome
        withdrawal = await table.server.next("notifications/cancelled")
        assert cast(Json, withdrawal["params"])["requestId"] == request["id"]
        table.server.send(id=request["id"], result={"n": "late"})
        other = table.start(exchange())
        await table.server.answer("tools/call", {"n": "other"})
        assert opened(cast(Result, await other)) == {"n": "other"}


@pytest.mark.parametrize("blank", [b"", b" ", b"\t  "])
async def test_a_batch_of_a_server_of_2025_03_26_is_read(blank: bytes) -> None:
    async with session_bench("2025-03-26") as table:
        first, second = table.start(exchange()), table.start(exchange())
        ids = [(await table.server.next("tools/call"))["id"] for _ in range(2)]
        batch: list[Json] = [{"jsonrpc": "2.0", "id": id, "result": {"content": [], "n": id}} for id in ids]
        table.server.send_bytes(blank + json.dumps(batch).encode())
        assert [opened(cast(Result, await outcome))["n"] for outcome in (first, second)] == ids


async def test_no_message_of_a_batch_that_is_too_long_is_read() -> None:
    async with session_bench("2025-03-26") as table:
        ping = b'{"jsonrpc":"2.0","id":"p","method":"ping"}'
        table.server.send_bytes(b"[" + b",".join([ping] * 1001) + b"]")
        table.server.send(id="single", method="ping")
        assert (await table.server.next())["id"] == "single"
        table.start(exchange())  # Without a call, a thousand requests would be a flood.
        await table.server.next("tools/call")
        table.server.send_bytes(b"[" + b",".join([ping] * 1000) + b"]")
        assert [(await table.server.next())["id"] for _ in range(1000)] == ["p"] * 1000


async def test_an_argument_that_json_cannot_express_is_an_error_and_nothing_is_sent() -> None:
    async with modern_bench() as table:
        with pytest.raises(sluicegate.ProtocolError, match="JSON"):
            await table.link(exchange(params={"name": "t", "arguments": {"x": object()}}))
        outcome = table.start(exchange())
        await table.server.answer("tools/call", {"n": 1})
        assert isinstance(await outcome, Result)


# --------------------------------------------------------------------------------------------------------- notices


@pytest.mark.parametrize("token", [0, "mine", 7])
async def test_progress_comes_back_under_the_callers_own_token_in_order(token: object) -> None:
    async with modern_bench() as table:
        sink = Recorder()
        outcome = table.start(exchange(sink=sink, progress_token=token))
        request = await table.server.next("tools/call")
        theirs = cast(Json, cast(Json, request["params"])["_meta"])["progressToken"]
        for n in range(3000):
            table.server.send(method="notifications/progress", params={"progressToken": theirs, "progress": n})
        table.server.send(id=request["id"], result={})
        await outcome
        assert [notice.params["progress"] for notice in sink.notices] == list(range(3000))
        assert {notice.params["progressToken"] for notice in sink.notices} == {token}


class Stuck(Recorder):
    """A client that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def emit(self, notification: Notification) -> None:
        await self.go.wait()
        await super().emit(notification)


async def send_long_progress(table: Bench, token: object) -> None:
    """4 MiB of progress, from a server that lets the client read in between."""
    for n in range(64):
        params: Json = {"progressToken": token, "progress": n, "message": "x" * 65536}
        table.server.send(method="notifications/progress", params=params)
        await asyncio.sleep(0)


async def test_a_server_waits_for_a_slow_client_before_its_long_notices_fill_the_memory() -> None:
    async with modern_bench() as table:
        sink = Stuck()
        outcome = table.start(exchange(sink=sink, progress_token="t"))
        request = await table.server.next("tools/call")
        (inbox,) = table.link.pending
        await send_long_progress(table, request["id"])
        assert len(inbox.items) in (15, 16)
        table.server.send(id=request["id"], result={})
        sink.go.set()
        await outcome
        assert [notice.params["progress"] for notice in sink.notices] == list(range(64))


async def test_a_caller_that_takes_nothing_holds_up_the_calls_of_others_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluicegate.upstream.inbox.MAX_READ_STOP", 0.01)
    lost: list[str] = []
    async with modern_bench() as table:
        monkeypatch.setattr(table.link.host, "on_loss", lost.append)
        sink = Stuck()
        slow = table.start(exchange(sink=sink, progress_token="t"))
        pouring = await table.server.next("tools/call")
        params: Json = {"progressToken": pouring["id"], "message": "x" * 65536}
        for n in range(64):
            table.server.send(method="notifications/progress", params={**params, "progress": n})
            await asyncio.sleep(0)
        other = table.start(exchange())
        asked = await table.server.next("tools/call")
        table.server.send(id=asked["id"], result={"n": "other"})
        assert opened(cast(Result, await other)) == {"n": "other"}
        assert not slow.done() and lost == [UNTAKEN] * len(lost) and len(lost) > 40
        sink.go.set()
        while len(sink.notices) + len(lost) < 64:
            sink.heard.clear()
            await sink.heard.wait()
        # It has room again: nothing more is lost to it.
        table.server.send(method="notifications/progress", params={**params, "progress": 64})
        table.server.send(id=pouring["id"], result={})
        await slow
        assert len(sink.notices) + len(lost) == 65 and sink.notices[-1].params["progress"] == 64


async def test_twenty_callers_that_take_nothing_delay_others_hardly_longer_than_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R24: one after the other, they would need more time than the test has."""
    monkeypatch.setattr("sluicegate.upstream.inbox.MAX_READ_STOP", 0.6)
    async with modern_bench() as table:
        pouring: list[Json] = []
        for _ in range(20):
            table.start(exchange(sink=Stuck(), progress_token="t"))
            pouring.append(await table.server.next("tools/call"))
        other = table.start(exchange())
        asked = await table.server.next("tools/call")
        for request in pouring:
            params: Json = {"progressToken": request["id"], "progress": 1, "message": "x" * 65536}
            for _ in range(32):
                table.server.send(method="notifications/progress", params=params)
                await table.server.wire.drain()
        table.server.send(id=asked["id"], result={"n": "other"})
        assert opened(cast(Result, await other)) == {"n": "other"}


async def test_a_caller_whose_answer_is_here_already_holds_up_others_no_longer_than_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluicegate.upstream.inbox.MAX_READ_STOP", 0.01)
    async with modern_bench() as table:
        sink = Stuck()
        slow = table.start(exchange(sink=sink, progress_token="t"))
        pouring = await table.server.next("tools/call")
        params: Json = {"progressToken": pouring["id"], "message": "x" * 65536}
        said: list[Json] = [
            {"method": "notifications/progress", "params": {**params, "progress": n}} for n in range(32)
        ]
        said.append({"id": pouring["id"], "result": {}})
        table.server.send_bytes(b"\n".join(json.dumps({"jsonrpc": "2.0", **each}).encode() for each in said))
        other = table.start(exchange())
        asked = await table.server.next("tools/call")
        table.server.send(id=asked["id"], result={"n": "other"})
        assert opened(cast(Result, await other)) == {"n": "other"}
        sink.go.set()
        await slow
        assert len(sink.notices) == 32


async def test_a_caller_that_is_full_for_a_moment_now_and_then_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slower(Recorder):
        async def emit(self, notification: Notification) -> None:
            await super().emit(notification)
            await asyncio.sleep(0)

    lost: list[str] = []
    monkeypatch.setattr("sluicegate.upstream.inbox.MAX_ITEMS", 8)
    monkeypatch.setattr("sluicegate.upstream.inbox.MAX_READ_STOP", 0.05)
    async with modern_bench() as table:
        monkeypatch.setattr(table.link.host, "on_loss", lost.append)
        other, sink = table.start(exchange()), Slower()
        waiting = await table.server.next("tools/call")
        outcome = table.start(exchange(sink=sink, progress_token="t"))
        request = await table.server.next("tools/call")
        until = asyncio.get_running_loop().time() + 0.2  # so that it is looked at several times
        told = 0
        while asyncio.get_running_loop().time() < until:
            for _ in range(16):
                told += 1
                params: Json = {"progressToken": request["id"], "progress": told}
                table.server.send(method="notifications/progress", params=params)
            while len(sink.notices) < told:
                sink.heard.clear()
                await sink.heard.wait()
        table.server.send(id=request["id"], result={})
        await outcome
        assert (len(sink.notices), lost) == (told, [])
        table.server.send(id=waiting["id"], result={})
        await other


async def test_a_caller_that_reads_nothing_loses_nothing_while_no_other_caller_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluicegate.upstream.inbox.MAX_READ_STOP", 0.001)
    async with modern_bench() as table:
        sink = Stuck()
        outcome = table.start(exchange(sink=sink, progress_token="t"))
        request = await table.server.next("tools/call")
        (inbox,) = table.link.pending
        await send_long_progress(table, request["id"])
        assert inbox.is_pausing
        looked = asyncio.Event()  # Set behind some looks: timers ring in the order of their time.
        asyncio.get_running_loop().call_later(0.01, looked.set)
        await looked.wait()
        assert inbox.is_pausing and not inbox.is_dropping
        sink.go.set()
        table.server.send(id=request["id"], result={})
        await outcome
        assert [notice.params["progress"] for notice in sink.notices] == list(range(64))


async def test_long_notices_without_a_caller_are_dropped_before_they_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with modern_bench() as table:
        sink = Stuck()
        monkeypatch.setattr(table.link.host, "sink", sink)
        for _ in range(64):
            table.server.send(method="notifications/message", params={"level": "info", "data": "x" * 65536})
        table.server.send(id="p", method="ping")
        assert (await table.server.next())["id"] == "p"
        sink.go.set()
        while len(sink.notices) < 15:
            sink.heard.clear()
            await sink.heard.wait()
        for _ in range(200):  # as many turns as all of them would take
            await asyncio.sleep(0)
        assert len(sink.notices) <= 17


async def test_unsolicited_progress_is_dropped() -> None:
    async with modern_bench() as table:
        sink = Recorder()
        outcome = table.start(exchange(sink=sink))
        request = await table.server.next("tools/call")
        for token in (request["id"], "invented", 99, None, 1.5):
            table.server.send(method="notifications/progress", params={"progressToken": token, "progress": 1})
        table.server.send(id=request["id"], result={})
        await outcome
        assert sink.notices == []


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":99,"progress":1}}',
        b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"debug","data":1}}',
        b'{"jsonrpc":"2.0","id":7,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":99,"result":{}}',
        b"50 % done",
    ],
    ids=["late progress", "unwanted log", "question", "late answer", "text"],
)
async def test_all_that_a_server_sends_is_a_sign_of_life(line: bytes) -> None:
    async with session_bench() as table:
        signs = asyncio.Event()
        table.link.host.on_sign_of_life = signs.set
        table.start(exchange())
        await table.server.next("tools/call")
        table.server.send_bytes(line)
        await signs.wait()


async def test_a_log_line_goes_to_the_only_caller_that_wants_its_level() -> None:
    async with modern_bench() as table:
        sink = Recorder()
        outcome = table.start(exchange(sink=sink, log_level="warning"))
        request = await table.server.next("tools/call")
        for level in ("info", "error"):
            table.server.send(method="notifications/message", params={"level": level, "data": level})
        table.server.send(id=request["id"], result={})
        await outcome
        assert [notice.params["data"] for notice in sink.notices] == ["error"]


async def test_a_log_line_that_could_be_of_two_calls_is_given_to_neither() -> None:
    async with modern_bench() as table:
        sinks = [Recorder(), Recorder()]
        outcomes = [table.start(exchange(sink=sink, log_level="info")) for sink in sinks]
        requests = [await table.server.next("tools/call") for _ in sinks]
        table.server.send(method="notifications/message", params={"level": "info", "data": "whose?"})
        for request in requests:
            table.server.send(id=request["id"], result={})
        await asyncio.gather(*outcomes)
        assert [sink.notices for sink in sinks] == [[], []]
        await table.idle.heard.wait()
        assert table.idle.notices[0].params["data"] == "whose?"


@pytest.mark.parametrize(("other", "heard_by"), [("alice", "alice"), ("bob", "host")])
async def test_a_session_servers_log_line_never_reaches_a_caller_while_it_could_be_of_anothers_call(
    other: str, heard_by: str
) -> None:
    # The level is set for all callers at once: the server also logs for callers that did not ask for it.
    async with session_bench() as table:
        sinks = {"alice": Recorder(), "other": Recorder(), "host": table.idle}
        alices, others = exchange(sink=sinks["alice"], log_level="info"), exchange(sink=sinks["other"])
        alices.caller, others.caller = Caller("alice"), Caller(other)
        first = table.start(alices)
        await table.server.answer("logging/setLevel", {})
        requests = [await table.server.next("tools/call")]
        second = table.start(others)
        requests.append(await table.server.next("tools/call"))
        table.server.send(method="notifications/message", params={"level": "error", "data": "whose?"})
        for request in requests:
            table.server.send(id=request["id"], result={"content": []})
        await asyncio.gather(first, second)
        await sinks[heard_by].heard.wait()
        assert [name for name, sink in sinks.items() if sink.notices] == [heard_by]


async def test_a_log_line_during_a_call_that_wants_none_is_counted_and_dropped() -> None:
    async with session_bench() as table:
        lost: list[str] = []
        table.link.host.on_loss, table.link.host.is_shared = lost.append, True
        line: Json = {"level": "error", "data": "whose?"}
        outcome = table.start(exchange())
        request = await table.server.next("tools/call")
        table.server.send(method="notifications/message", params=line)
        table.server.send(id=request["id"], result={"content": []})
        await outcome
        assert lost == ["log messages that belong to no call"] and table.idle.notices == []
        table.server.send(method="notifications/message", params=line)
        await table.idle.heard.wait()
        assert len(lost) == len(table.idle.notices) == 1


# --------------------------------------------------------------------------------------------- the session era's ways


async def test_a_session_servers_answers_come_in_the_inner_shape() -> None:
    async with session_bench() as table:
        outcome = table.start(exchange("tools/list", {}))
        request = await table.server.answer("tools/list", {"tools": []})
        assert request.get("params", {}) == {}
        assert opened(cast(Result, await outcome)) == {
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
            "tools": [],
        }


async def test_a_missing_resource_of_a_session_server_is_invalid_params_inside() -> None:
    async with session_bench() as table:
        outcome = table.start(exchange("resources/read", {"uri": "x://y"}))
        await table.server.refuse("resources/read", -32002, "gone")
        error = await outcome
        assert isinstance(error, ErrorObject) and error.code == -32602
        assert cast(Json, error.data)["uri"] == "x://y"


async def test_a_question_of_a_session_server_goes_to_the_caller_whose_call_runs() -> None:
    async with session_bench() as table:
        sink = Recorder({"action": "accept", "content": {"name": "Ada"}})
        outcome = table.start(exchange(sink=sink, capabilities={"elicitation": {}}))
        request = await table.server.next("tools/call")
        params: Json = {"message": "name?", "requestedSchema": {"type": "object", "properties": {}}}
        table.server.send(id="q", method="elicitation/create", params=params)
        answer = await table.server.next()
        assert answer["id"] == "q"
        assert answer["result"] == {"action": "accept", "content": {"name": "Ada"}}
        table.server.send(id=request["id"], result={"content": []})
        await outcome
        assert len(sink.questions) == 1 and table.idle.questions == []


async def test_a_question_outside_of_any_call_goes_to_the_host() -> None:
    async with bench(era="session", capabilities={"roots": {}}) as (table, ready):
        await table.server.welcome()
        await ready
        table.server.send(id=5, method="roots/list")
        assert (await table.server.next())["result"] == {"roots": []}


async def test_a_question_during_a_method_of_an_extension_goes_to_its_caller() -> None:
    async with session_bench() as table:
        sink = Recorder({"roots": []})
        outcome = table.start(exchange("acme/dig", {}, sink, capabilities={"roots": {}}))
        request = await table.server.next("acme/dig")
        table.server.send(id="q", method="roots/list")
        assert (await table.server.next())["result"] == {"roots": []}
        table.server.send(id=request["id"], result={})
        await outcome
        assert len(sink.questions) == 1 and table.idle.questions == []


@pytest.mark.parametrize("in_a_call", [True, False])
async def test_a_question_that_is_nested_too_deeply_is_refused_and_nothing_behind_it_is_lost(in_a_call: bool) -> None:
    async with session_bench() as table:
        sink = Recorder()
        outcome = table.start(exchange(sink=sink, capabilities={"sampling": {"tools": {}}}))
        request = await table.server.next("tools/call")
        deep = json.loads("[" * 600 + "]" * 600)
        tool: Json = {"name": "a", "inputSchema": {"properties": {"x": {"x-mcp-header": "a"}, "y": deep}}}
        asked: Json = {"messages": [], "maxTokens": 1, "tools": [tool]}
        question: Json = {"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage", "params": asked}
        answer: Json = {"jsonrpc": "2.0", "id": request["id"], "result": {"content": []}}
        behind = [question, answer] if in_a_call else [answer, question]
        table.server.wire.write(b"".join(json.dumps(message).encode() + b"\n" for message in behind))
        assert isinstance(await outcome, Result)
        refused = await table.server.next()
        assert refused["id"] == "q" and cast(Json, refused["error"])["code"] == -32602
        assert sink.questions == table.idle.questions == []


async def test_a_question_that_is_nested_as_deeply_as_may_be_is_asked() -> None:
    async with session_bench() as table:
        said: Json = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "x"}}
        sink = Recorder(said)
        table.start(exchange(sink=sink, capabilities={"sampling": {}}))
        await table.server.next("tools/call")
        deep = json.loads("[" * 97 + "]" * 97)  # In the message, the params and `metadata`.
        asked: Json = {"messages": [], "maxTokens": 1, "metadata": {"deep": deep}}
        table.server.send(id="q", method="sampling/createMessage", params=asked)
        assert (await table.server.next())["result"] == said


@pytest.mark.parametrize(("version", "times"), [("2024-11-05", 1), ("2025-06-18", 1), ("2025-11-25", 0)])
async def test_blocks_of_a_models_answer_that_are_made_one_text_are_counted(version: str, times: int) -> None:
    async with session_bench(version) as table:
        lost: list[str] = []
        table.link.host.on_loss = lost.append
        one, two = ({"type": "text", "text": text} for text in ("4", "2"))
        said: Json = {"role": "assistant", "model": "m"}
        sink = Recorder({**said, "content": one}, {**said, "content": [one]}, {**said, "content": [one, two]})
        table.start(exchange(sink=sink, capabilities={"sampling": {}}))
        await table.server.next("tools/call")
        for number in range(3):
            asked: Json = {"messages": [], "maxTokens": 1}
            table.server.send(id=number, method="sampling/createMessage", params=asked)
            assert "result" in await table.server.next()
        assert lost == ["blocks of a model's answer joined into one text"] * times


async def test_context_that_a_question_is_not_given_is_counted() -> None:
    async with session_bench() as table:
        lost: list[str] = []
        table.link.host.on_loss = lost.append
        said: Json = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "x"}}
        sink = Recorder(said, said)
        table.start(exchange(sink=sink, capabilities={"sampling": {}}))
        await table.server.next("tools/call")
        for wanted in ("none", "thisServer"):
            asked: Json = {"messages": [], "maxTokens": 1, "includeContext": wanted}
            table.server.send(id=wanted, method="sampling/createMessage", params=asked)
            assert (await table.server.next())["result"] == said
        assert lost == ["context that a server wanted its question to have"]
        assert [question.params["includeContext"] for asked in sink.questions for question in asked.values()] == [
            "none",
            "none",
        ]


async def test_a_server_may_ping_at_any_time_and_ask_nothing_unknown() -> None:
    async with session_bench() as table:
        table.server.send(id="p", method="ping")
        assert await table.server.next() == {"jsonrpc": "2.0", "id": "p", "result": {}}
        table.server.send(id="u", method="computer/explode")
        assert cast(Json, (await table.server.next())["error"])["code"] == -32601


async def test_a_question_that_the_server_takes_back_is_not_answered() -> None:
    class Slow(Recorder):
        async def ask(self, questions: object) -> dict[str, Json]:
            self.heard.set()
            await asyncio.Event().wait()
            return {}

    async with session_bench() as table:
        sink = Slow()
        outcome = table.start(exchange(sink=sink, capabilities={"sampling": {}}))
        request = await table.server.next("tools/call")
        table.server.send(id="q", method="sampling/createMessage", params={"messages": [], "maxTokens": 1})
        await sink.heard.wait()
        table.server.send(method="notifications/cancelled", params={"requestId": "q"})
        table.server.send(id="p", method="ping")
        assert (await table.server.next())["id"] == "p"
        table.server.send(id=request["id"], result={"content": []})
        await outcome


async def test_the_log_level_is_set_once_before_the_first_call_that_wants_it() -> None:
    async with session_bench() as table:
        for round in range(2):
            outcome = table.start(exchange(log_level="debug"))
            if round == 0:
                level = await table.server.answer("logging/setLevel", {})
                assert level["params"] == {"level": "debug"}
            await table.server.answer("tools/call", {"content": []})
            await outcome


async def test_a_level_that_may_not_have_reached_the_server_is_sent_again() -> None:
    async with session_bench() as table:
        table.start(exchange(log_level="debug"), key="first")
        await table.server.next("logging/setLevel")
        table.tasks.cancel("first")
        await table.server.next("notifications/cancelled")
        outcome = table.start(exchange(log_level="debug"))
        await table.server.answer("logging/setLevel", {})
        await table.server.answer("tools/call", {"content": []})
        assert isinstance(await outcome, Result)


@pytest.mark.parametrize(("second", "is_asked"), [("alice", True), ("bob", False)])
async def test_a_question_of_a_call_that_was_given_up_is_not_put_to_another_caller(second: str, is_asked: bool) -> None:
    """It may have been on its way; or the server does not heed that the call was cancelled (threats T11, T24)."""
    async with session_bench() as table:
        can: Json = {"elicitation": {"form": {}}}
        sink = Recorder({"action": "accept", "content": {}})
        given_up, other = exchange(capabilities=can), exchange(sink=sink, capabilities=can)
        given_up.caller, other.caller = Caller("alice"), Caller(second)
        table.start(given_up, key="alice")
        await table.server.next("tools/call")
        table.tasks.cancel("alice")
        await table.server.next("notifications/cancelled")
        outcome = table.start(other)
        request = await table.server.next("tools/call")
        table.server.send(id="q", method="elicitation/create", params={"message": "Alice?", "requestedSchema": {}})
        answer = await table.server.next()
        assert bool(sink.questions) is is_asked and ("result" in answer) is is_asked
        table.server.send(id=request["id"], result={"content": []})
        assert isinstance(await outcome, Result)


async def test_a_question_ends_with_the_server_that_asked_it() -> None:
    """Who was asked should not be left before an open form."""
    shown, closed = asyncio.Event(), asyncio.Event()

    class Person(Recorder):
        async def ask(self, questions: Questions) -> Answers:
            shown.set()
            try:
                await asyncio.Event().wait()
            finally:
                closed.set()
            return {}

    async with session_bench() as table:
        can: Json = {"elicitation": {"form": {}}}
        outcome = table.start(exchange(sink=Person(), capabilities=can))
        await table.server.next("tools/call")
        table.server.send(id="q", method="elicitation/create", params={"message": "?", "requestedSchema": {}})
        await shown.wait()
        table.server.hang_up()
        with pytest.raises(sluicegate.UpstreamClosed):
            await outcome
        await closed.wait()


async def listening(server: RawServer, uris: list[str]) -> None:
    for uri in uris:
        request = await server.answer("resources/subscribe", {})
        assert request["params"] == {"uri": uri}


async def test_a_listen_exchange_is_served_out_of_a_session_servers_pushes() -> None:
    async with session_bench() as table:
        sink = Recorder()
        wanted = {"toolsListChanged": True, "promptsListChanged": True, "resourceSubscriptions": ["n://a"]}
        outcome = table.start(exchange("subscriptions/listen", {"notifications": wanted}, sink), key="listen")
        await listening(table.server, ["n://a"])
        await sink.heard.wait()
        acknowledged = sink.notices.pop()
        assert acknowledged.method == "notifications/subscriptions/acknowledged"
        assert acknowledged.params["notifications"] == {"toolsListChanged": True, "resourceSubscriptions": ["n://a"]}
        for uri in ("n://b", "n://a", "n://a/part"):
            sink.heard.clear()
            table.server.send(method="notifications/resources/updated", params={"uri": uri})
        table.server.send(method="notifications/tools/list_changed")
        table.server.send(method="notifications/prompts/list_changed")
        while len(sink.notices) < 3:
            sink.heard.clear()
            await sink.heard.wait()
        assert [notice.params.get("uri", notice.method) for notice in sink.notices] == [
            "n://a",
            "n://a/part",
            "notifications/tools/list_changed",
        ]
        table.tasks.cancel("listen")
        with pytest.raises(asyncio.CancelledError):
            await outcome
        assert (await table.server.next("resources/unsubscribe"))["params"] == {"uri": "n://a"}


async def test_a_session_server_may_announce_a_resource_in_its_own_spelling() -> None:
    async with session_bench() as table:
        sink, names = Recorder(), ["file:///a b.txt", "n://a"]
        wanted = {"resourceSubscriptions": names}
        table.start(exchange("subscriptions/listen", {"notifications": wanted}, sink))
        await listening(table.server, names)
        await sink.heard.wait()
        for uri in ("file:///a%20b", "file:///a%20b.txt", "n://A/part"):
            table.server.send(method="notifications/resources/updated", params={"uri": uri})
        while len(sink.notices) < 3:
            sink.heard.clear()
            await sink.heard.wait()
        assert [notice.params["uri"] for notice in sink.notices[1:]] == ["file:///a%20b.txt", "n://A/part"]


async def test_two_listeners_share_one_subscription_of_a_session_server() -> None:
    async with session_bench() as table:
        sinks = [Recorder(), Recorder()]
        params: Json = {"notifications": {"resourceSubscriptions": ["n://a"]}}
        table.start(exchange("subscriptions/listen", params, sinks[0]), key="first")
        await listening(table.server, ["n://a"])
        await sinks[0].heard.wait()
        table.start(exchange("subscriptions/listen", params, sinks[1]), key="second")
        await sinks[1].heard.wait()
        table.tasks.cancel("first")
        table.server.send(id="p", method="ping")
        assert (await table.server.next())["id"] == "p"  # nothing was unsubscribed
        table.tasks.cancel("second")
        await table.server.next("resources/unsubscribe")


async def test_two_spellings_of_a_resource_share_one_subscription_until_the_last_listener_has_left() -> None:
    spellings = ["file:///a b", "file:///a%20b"]
    async with session_bench() as table:
        sinks = [Recorder(), Recorder()]
        for uri, sink in zip(spellings, sinks, strict=True):
            params: Json = {"notifications": {"resourceSubscriptions": [uri]}}
            table.start(exchange("subscriptions/listen", params, sink), key=uri)
            if sink is sinks[0]:
                await listening(table.server, [uri])
            await sink.heard.wait()
            assert sink.notices[0].params == params
        table.server.send(method="notifications/resources/updated", params={"uri": spellings[0]})
        for sink in sinks:
            while len(sink.notices) < 2:
                sink.heard.clear()
                await sink.heard.wait()
        table.tasks.cancel(spellings[0])
        table.server.send(id="p", method="ping")
        assert (await table.server.next())["id"] == "p"  # nothing was unsubscribed
        table.tasks.cancel(spellings[1])
        assert (await table.server.next("resources/unsubscribe"))["params"] == {"uri": spellings[0]}


async def test_two_listeners_that_come_at_once_share_one_subscription_until_the_last_has_left() -> None:
    async with session_bench() as table:
        sinks = [Recorder(), Recorder()]
        params: Json = {"notifications": {"resourceSubscriptions": ["n://a"]}}
        for key, sink in enumerate(sinks):
            table.start(exchange("subscriptions/listen", params, sink), key=key)
        request = await table.server.next("resources/subscribe")
        table.server.send(id="p", method="ping")
        assert (await table.server.next())["id"] == "p"  # nothing was subscribed twice
        table.server.send(id=request["id"], result={})
        for sink in sinks:
            await sink.heard.wait()
        table.tasks.cancel(0)
        table.server.send(id="p", method="ping")
        assert (await table.server.next())["id"] == "p"  # nothing was unsubscribed
        table.tasks.cancel(1)
        await table.server.next("resources/unsubscribe")


async def test_a_listener_subscribes_itself_if_the_one_before_it_was_refused_or_has_left() -> None:
    async with session_bench() as table:
        params: Json = {"notifications": {"resourceSubscriptions": ["n://a"]}}
        sinks = [Recorder() for _ in range(3)]
        for key, sink in enumerate(sinks):
            table.start(exchange("subscriptions/listen", params, sink), key=key)
        await table.server.refuse("resources/subscribe", -32603)
        await table.server.next("resources/subscribe")
        table.tasks.cancel(1)
        await table.server.next("notifications/cancelled")
        await table.server.answer("resources/subscribe", {})
        await sinks[2].heard.wait()
        honoured = [sink.notices[0].params["notifications"] if sink.notices else None for sink in sinks]
        assert honoured == [{}, None, {"resourceSubscriptions": ["n://a"]}]


async def test_a_server_that_never_answers_unsubscribe_delays_no_caller_and_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluicegate.upstream.session_subscriptions.UNSUBSCRIBE_TIMEOUT", 0.05)
    async with session_bench() as table:
        sink = Recorder()
        params: Json = {"notifications": {"resourceSubscriptions": ["n://a"]}}
        table.start(exchange("subscriptions/listen", params, sink), key="listen")
        await listening(table.server, ["n://a"])
        await sink.heard.wait()
        table.tasks.cancel("listen")
        await table.server.next("resources/unsubscribe")
        await table.server.next("notifications/cancelled")
        assert len(table.link.pending) == 0


async def test_a_modern_subscription_ends_by_result_or_by_cancelled() -> None:
    async with modern_bench() as table:
        for end in ("result", "cancelled"):
            outcome = table.start(exchange("subscriptions/listen", {"notifications": {}}))
            request = await table.server.next("subscriptions/listen")
            if end == "result":
                table.server.send(id=request["id"], result={"resultType": "complete"})
            else:
                table.server.send(method="notifications/cancelled", params={"requestId": request["id"]})
            assert opened(cast(Result, await outcome))["resultType"] == "complete"
