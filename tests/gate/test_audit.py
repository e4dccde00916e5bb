"""The audit step: what is on record of a call before it leaves, and before its answer does."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import cast

import msgspec
import pytest

from sluicegate.errors import (
    AuditUnavailable,
    ErrorObject,
    Refused,
    SluicegateError,
    UpstreamTimeout,
    error_object,
)
from sluicegate.exchange import NOBODY, Caller, Exchange, Target, Verdict
from sluicegate.gate.audit import REFUSAL, Audit, RequestIds
from sluicegate.protocol.message import Reply, Result, ToolText, read_tool_text
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.store.audit_log import Sync, open_audit_log
from sluicegate.store.base import Row
from sluicegate.store.chain import StoredRow
from sluicegate.store.memory import MemoryAudit
from tests.store.stage import rows_in

CANARY = "canary-5f2a-XyZ"
TOOL = Target("files", "tool", "read", definition="ab" * 32)


def exchange(arguments: object = None, **members: object) -> Exchange:
    params: dict[str, object] = {"name": "files__read", **({"arguments": arguments} if arguments is not None else {})}
    made = Exchange("tools/call", params, NOBODY, caller=Caller("ada"), target=TOOL, verdict=Verdict("allow"))
    for name, value in members.items():
        setattr(made, name, value)
    return made


def body_of(row: StoredRow) -> dict[str, object]:
    return msgspec.json.decode(row.body)


def answering(reply: Reply | BaseException) -> Callable[[Exchange], Awaitable[Reply]]:
    async def answer(exchange: Exchange) -> Reply:
        if isinstance(reply, BaseException):
            raise reply
        return reply

    return answer


OK = Result({"content": []})


# ---------------------------------------------------------------------------------------------------------- decisions


async def test_a1_the_decision_is_on_record_before_the_call_leaves() -> None:
    log = MemoryAudit()
    seen: list[list[str]] = []

    async def answer(exchange: Exchange) -> Reply:
        seen.append([row.kind for row in log.rows])
        return OK

    asked = exchange({"path": "/srv/a"}, verdict=Verdict("ask", rule="sluicegate.toml:3"))
    asked.profile = ClientProfile(client_info={"name": "claude", "version": "2.1"})
    asked.params["_meta"] = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    await Audit(log)(asked, answer)
    assert seen == [["decision"]] and asked.request_id
    decision, outcome = log.rows
    assert decision[2:8] == ("decision", asked.request_id, "ada", "files", "read", "ask")
    body = body_of(decision)
    assert len(str(body.pop("digest"))) == 32
    assert body == {
        "method": "tools/call",
        "client": "claude 2.1",
        "rule": "sluicegate.toml:3",
        "arguments": ["path"],
        "bytes": len('{"path":"/srv/a"}'),
        "definition": "ab" * 32,
        "trace": "0af7651916cd43dd8448eb211c80319c",
    }
    assert outcome.request == decision.request


async def test_equal_arguments_have_the_same_digest_whatever_their_order() -> None:
    log = MemoryAudit()
    for arguments in ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, {"a": 1.0, "b": [2]}, {"a": True, "b": [2]}):
        await Audit(log)(exchange(arguments), answering(OK))
    digests = [body_of(row)["digest"] for row in log.rows if row.kind == "decision"]
    assert digests[0] == digests[1] and len(set(digests)) == 3


async def test_what_a_client_says_of_itself_is_cut_to_size() -> None:
    log = MemoryAudit()
    asked = exchange({f"{number}{'x' * 1000}": 1 for number in range(100)})
    asked.profile = ClientProfile(client_info={"name": "n" * 100_000})
    asked.params["_meta"] = {"traceparent": "x" * 1000}
    await Audit(log)(asked, answering(OK))
    assert len(log.rows[0].body) < 10_000 and "trace" not in body_of(log.rows[0])


async def test_an_exchange_without_a_target_is_recorded_too() -> None:
    log = MemoryAudit()
    await Audit(log)(Exchange("completion/complete", {}, NOBODY), answering(OK))
    assert [(row.kind, row.server, row.verdict) for row in log.rows] == [
        ("decision", "", "allow"),
        ("outcome", "", "ok"),
    ]


# ----------------------------------------------------------------------------------------------------------- outcomes


def tool_text(**members: object) -> Result:
    text = read_tool_text(msgspec.Raw(msgspec.json.encode({"content": [{"type": "text", "text": "abc"}], **members})))
    assert isinstance(text, ToolText)
    return Result(text)


def raw(value: object) -> Result:
    return Result(msgspec.Raw(msgspec.json.encode(value)))


@pytest.mark.parametrize(
    ("reply", "verdict", "size"),
    [
        (tool_text(), "ok", 5),
        (tool_text(isError=True), "tool_error", 5),
        (tool_text(structuredContent={"a": 1}), "ok", 12),
        (raw({"content": []}), "ok", 14),
        (raw({"content": [], "isError": True}), "tool_error", 29),
        (raw({"content": [{"isError": True}]}), "ok", 30),
        (Result(msgspec.Raw(b'{"is\\u0045rror":true}')), "tool_error", 21),
        (Result(msgspec.Raw(b'{"isError":')), "ok", 11),
        (raw({"resultType": "input_required"}), "input_required", 31),
        (Result({"isError": True, "content": []}), "tool_error", 29),
        (Result({"content": []}), "ok", 14),
    ],
)
async def test_the_outcome_of_a_result(reply: Result, verdict: str, size: int) -> None:
    log = MemoryAudit()
    assert await Audit(log)(exchange(), answering(reply)) is reply
    row = log.rows[-1]
    assert (row.kind, row.verdict, row.server, row.name, row.caller) == ("outcome", verdict, "files", "read", "ada")
    body = body_of(row)
    assert body["bytes"] == size and cast(float, body["ms"]) >= 0


async def test_an_error_of_ours_carries_the_id_of_the_request_and_is_recorded_with_its_reason() -> None:
    log = MemoryAudit()
    asked = exchange()
    with pytest.raises(UpstreamTimeout) as raised:
        await Audit(log)(asked, answering(UpstreamTimeout(f"files did not answer {CANARY}", details=CANARY)))
    data = cast(Mapping[str, object], error_object(raised.value).data)
    assert data["request"] == asked.request_id and data["reason"] == "backend_timeout"
    row = log.rows[-1]
    body = body_of(row)
    del body["ms"]
    assert row.verdict == "error" and body == {"reason": "backend_timeout", "code": -32603, "delivered": "unknown"}


async def test_an_error_of_a_server_passes_as_it_is() -> None:
    log = MemoryAudit()
    error = ErrorObject(-32000, CANARY, {"their": "data"})
    assert await Audit(log)(exchange(), answering(error)) is error
    assert body_of(log.rows[-1])["code"] == -32000 and CANARY.encode() not in log.rows[-1].body


async def test_an_error_that_a_part_of_ours_answers_with_gets_the_id_too() -> None:
    asked = exchange()
    error = error_object(SluicegateError("no"))
    reply = await Audit(MemoryAudit())(asked, answering(error))
    assert isinstance(reply, ErrorObject) and cast(dict[str, object], reply.data)["request"] == asked.request_id


async def test_an_exception_of_a_bug_is_an_outcome_and_travels_on() -> None:
    log = MemoryAudit()
    with pytest.raises(ZeroDivisionError):
        await Audit(log)(exchange(), answering(ZeroDivisionError(CANARY)))
    assert log.rows[-1].verdict == "error" and body_of(log.rows[-1])["reason"] == "internal"


async def test_r20_a_cancelled_call_is_recorded_as_cancelled() -> None:
    log = MemoryAudit()
    began = asyncio.Event()

    async def wait(exchange: Exchange) -> Reply:
        began.set()
        await asyncio.Event().wait()
        return OK

    async with asyncio.timeout(5):
        async with asyncio.TaskGroup() as tasks:
            call = tasks.create_task(Audit(log)(exchange(), wait))
            await began.wait()
            call.cancel()
    assert [row.verdict for row in log.rows] == ["allow", "cancelled"]


@pytest.mark.parametrize("sync", ["normal", "full"])
async def test_a3_a_call_that_is_cancelled_while_its_decision_is_written_has_an_outcome_and_is_not_sent(
    tmp_path: Path, sync: Sync
) -> None:
    async def never(exchange: Exchange) -> Reply:
        raise AssertionError("it was sent")

    async with open_audit_log(str(tmp_path), sync=sync) as log:
        call = asyncio.ensure_future(Audit(log)(exchange(), never))
        await asyncio.sleep(0)  # It has begun: the decision is handed to the log, which commits it in a later turn.
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    rows = [row for row in rows_in(tmp_path) if row.request]
    assert [(row.kind, row.verdict) for row in rows] == [("decision", "allow"), ("outcome", "cancelled")]
    assert rows[1].body["delivered"] == "no" and rows[0].request == rows[1].request


# ----------------------------------------------------------------------------------------------------- when it fails


class Failing(MemoryAudit):
    """A log that fails from a certain row on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after

    async def append(self, row: Row) -> None:
        if self._left == 0:
            raise AuditUnavailable("The audit log cannot be written.")
        self._left -= 1
        self.note(row)


async def test_r26_a_call_that_cannot_be_recorded_does_not_leave() -> None:
    left: list[Exchange] = []

    async def leave(exchange: Exchange) -> Reply:
        left.append(exchange)
        return OK

    with pytest.raises(AuditUnavailable) as raised:
        await Audit(Failing(0))(exchange(), leave)
    assert not left and raised.value.delivered == "no" and raised.value.data["request"]


async def test_a2_an_answer_whose_outcome_cannot_be_recorded_is_withheld() -> None:
    with pytest.raises(AuditUnavailable) as raised:
        await Audit(Failing(1))(exchange(), answering(OK))
    data = cast(dict[str, object], error_object(raised.value).data)
    assert data["delivered"] == "yes" and data["retryable"] is False, "the call has run"


@pytest.mark.parametrize(
    ("reply", "delivered"),
    [
        (Refused("No."), "no"),
        (UpstreamTimeout("It is late."), "unknown"),
        (KeyError("a bug"), "unknown"),
        (error_object(Refused("No.")), "no"),
        (ErrorObject(-32602, "The server does not like it."), "yes"),
        (Result({"content": [], "isError": True, "_meta": {REFUSAL: "approval_declined"}}), "no"),
        (Result({"content": [], "isError": True}), "yes"),
    ],
)
async def test_a2_a_withheld_answer_says_whether_the_call_may_have_run(
    reply: Reply | BaseException, delivered: str
) -> None:
    with pytest.raises(AuditUnavailable) as raised:
        await Audit(Failing(1))(exchange(), answering(reply))
    assert raised.value.delivered == delivered


# -------------------------------------------------------------------------------------------------------------- T31


SECRETS: dict[str, object] = {
    "password": CANARY,
    "headers": {"Authorization": f"Bearer {CANARY}", "X-Plain": "kept-1"},
    "url": f"https://u:{CANARY}@example.test/kept-2?key={CANARY}",
    "args": ["--token", CANARY, "kept-3"],
    "text": f"API_KEY={CANARY}",
    "nested": [{"client_secret": CANARY, "n": 4}, {"list": [f"https://x.test/?t={CANARY}"]}],
    "long": CANARY * 1000,
    "path": "kept-5",
}


async def test_t31_without_a_rule_that_says_so_no_value_is_recorded() -> None:
    log = MemoryAudit()
    await Audit(log)(exchange(SECRETS), answering(Result({"content": [{"type": "text", "text": CANARY}]})))
    record = b"".join(row.body for row in log.rows)
    assert CANARY.encode() not in record and b"kept" not in record and not log.recorded_values
    assert b'"password"' in record, "names are recorded"


async def test_values_of_long_arguments_are_not_recorded_and_the_row_says_so() -> None:
    log = MemoryAudit()
    for size in (10, 70_000):
        await Audit(log)(exchange({"text": "x" * size}, verdict=Verdict("allow", records_values=True)), answering(OK))
    short, _, long, _ = map(body_of, log.rows)
    assert len(log.recorded_values) == 1 and "values" in short and "values" not in long
    assert long["values_omitted"] == "more than 65536 bytes" and "digest" in long


async def test_t31_recorded_values_have_their_secrets_masked() -> None:
    log = MemoryAudit()
    await Audit(log)(exchange(SECRETS, verdict=Verdict("allow", records_values=True)), answering(OK))
    values = bytes(log.recorded_values[0].values)
    assert CANARY.encode() not in values and all(f"kept-{n}".encode() in values for n in (1, 2, 3, 5))
    assert json.loads(values)["nested"][0] == {"client_secret": "***", "n": 4}
    assert CANARY.encode() not in b"".join(row.body for row in log.rows)


async def test_t31_a_secret_in_the_address_of_a_resource_is_masked() -> None:
    log = MemoryAudit()
    asked = Exchange("resources/read", {}, NOBODY, target=Target("web", "resource", f"https://x.test/a?key={CANARY}"))
    await Audit(log)(asked, answering(OK))
    assert {row.name for row in log.rows} == {"https://x.test/a?key=***"}


# ---------------------------------------------------------------------------------------------------------------- ids


def test_request_ids_are_unique_and_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = RequestIds()
    made = [ids.next() for _ in range(10_000)]
    monkeypatch.setattr("time.time_ns", lambda: 1)  # The clock is set back.
    made += [ids.next() for _ in range(10)]
    assert sorted(set(made)) == made and not {each.partition("-")[2] for each in made} & {RequestIds().next()[14:]}


async def test_an_exchange_that_is_judged_again_keeps_its_id() -> None:
    log = MemoryAudit()
    asked = exchange(request_id="r1")
    await Audit(log)(asked, answering(OK))
    assert {row.request for row in log.rows} == {"r1"}
