"""One pipe: every message gets its due, whatever came before it: batches, cancellations, questions, garbage."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    OVERLOADED,
    PARSE_ERROR,
    ErrorObject,
)
from sluicegate.protocol.framing import encode_line
from sluicegate.protocol.json_limits import JsonLimits
from sluicegate.protocol.message import MAX_BATCH, Params, Request, RequestId, Result
from sluicegate.protocol.parse_request import decode_strict, parse_strict
from sluicegate.protocol.server_connection import (
    MAX_IN_PROGRESS,
    Answered,
    Asked,
    Event,
    LogLevelSet,
    Outgoing,
    ServerConversation,
    Withdrawn,
    WithoutId,
)
from sluicegate.protocol.versions import SESSION_VERSIONS, V2025_03_26
from tests.protocol.strategies import (
    Json,
    batch,
    cancelled,
    chunks,
    initialize,
    json_objects,
    line,
    modern,
    mutated,
    notification,
    operating,
    read,
    refused,
    request,
    request_ids,
    said,
)

PING = request("probe", "ping")
PONG: Json = {"jsonrpc": "2.0", "id": "probe", "result": {}}
DONE = Result({"done": True})


def asked(events: list[Event]) -> list[tuple[RequestId, str]]:
    """The id and the method of every request that is to be answered; there must be nothing else."""
    return [(event.id, event.method) for event in events if isinstance(event, Asked) or pytest.fail(str(event))]


def in_batch(data: bytes | None) -> list[tuple[RequestId | None, object]]:
    """The id of every response in an array, and its error code or its result."""
    return [(one["id"], one["error"]["code"] if "error" in one else one["result"]) for one in read(data)]


# --- Requests, notifications, broken messages -------------------------------------------------------------------------


@given(request_ids, json_objects)
def test_a_request_is_handed_on_as_it_is_and_answered_under_its_own_id(request_id: RequestId, params: Params) -> None:
    conversation = operating()
    (event,) = conversation.receive(request(request_id, "tools/call", {"name": "x", "arguments": params}))
    assert isinstance(event, Asked)
    assert (event.method, event.params, event.modern) == ("tools/call", {"name": "x", "arguments": params}, False)
    answer = read(conversation.respond(event.id, DONE))
    assert repr(answer["id"]) == repr(request_id)
    assert answer == {"jsonrpc": "2.0", "id": request_id, "result": {"done": True}}
    assert conversation.in_progress == 0


def test_an_answer_is_one_line_once_it_is_framed_whatever_its_payload_looks_like() -> None:
    conversation = operating()
    conversation.receive(request(1, "tools/list"))
    raw = msgspec.Raw(b'{\r\n  "tools": [\n  ],\n "x": "\xe2\x80\xa8"}')
    message = conversation.respond(1, Result(raw))
    assert message is not None
    assert encode_line(message) == b'{"jsonrpc":"2.0","id":1,"result":{    "tools": [   ],  "x": "\\u2028"}}\n'


def test_an_error_is_an_answer_too() -> None:
    conversation = operating()
    conversation.receive(request("1", "tools/call"))
    answer = read(conversation.respond("1", ErrorObject(-32602, "Unknown tool: x", {"a": 1})))
    assert answer["error"] == {"code": -32602, "message": "Unknown tool: x", "data": {"a": 1}}


def test_an_answer_without_a_waiting_request_is_dropped() -> None:
    conversation = operating()
    conversation.receive(request(1, "tools/list"))
    assert conversation.respond("1", DONE) is None
    assert conversation.respond(2, DONE) is None
    assert conversation.respond(1, DONE) is not None
    assert conversation.respond(1, DONE) is None


@pytest.mark.parametrize("value", [{"x": object()}, {"x": "\ud800"}, {1.5j: 1}])
def test_an_answer_that_json_cannot_express_becomes_an_error(value: Any) -> None:
    conversation = operating(V2025_03_26)
    conversation.receive(request(1, "tools/list"))
    answer = read(conversation.respond(1, Result(value)))
    assert (answer["id"], answer["error"]["code"]) == (1, INTERNAL_ERROR)
    conversation.receive(batch(request(2, "tools/list"), request(3, "tools/list")))
    assert conversation.respond(2, Result(value)) is None
    assert in_batch(conversation.respond(3, DONE)) == [(2, INTERNAL_ERROR), (3, {"done": True})]


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_notifications_are_never_answered(version: str) -> None:
    conversation = operating(version)
    for data in (
        notification("notifications/roots/list_changed"),
        notification("notifications/unknown", {"x": 1}),
        notification("notifications/progress", {"progressToken": 5, "progress": 1}),
        notification("ping"),
        notification("initialize", {"protocolVersion": "2025-11-25"}),
        notification("logging/setLevel", {"level": "debug"}),
        line(method="notifications/cancelled", params=[1]),
        line(method="notifications/cancelled", params=None),
        notification("x", {"Name": 1}),
        notification("x", {"_meta": 5}),
        notification("x", {"_meta": {"progresstoken": 1}}),
    ):
        assert conversation.receive(data) == []
    # It is recorded, and not answered either.
    assert conversation.receive(notification("tools/call", {"name": "x"})) == [WithoutId("tools/call", {"name": "x"})]
    assert conversation.session.profile.log_level == "info"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"Hello?\n", (None, PARSE_ERROR)),
        (b"{\n", (None, PARSE_ERROR)),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"} x\n', (1, PARSE_ERROR)),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":NaN}}\n', (1, PARSE_ERROR)),
        (b"\xff\xfe{\x00}\x00\n", (None, PARSE_ERROR)),
        (b"5\n", (None, INVALID_REQUEST)),
        (b'{"id":1,"method":"ping"}\n', (1, INVALID_REQUEST)),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n', (None, INVALID_REQUEST)),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"ping"}\n', (1, INVALID_REQUEST)),
        (b'{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"Name":"x"}}\n', ("1", INVALID_REQUEST)),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}\n', (1, INVALID_PARAMS)),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":[]}}\n', (1, INVALID_PARAMS)),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":{}}}}\n',
            (1, INVALID_PARAMS),
        ),
        (b'{"jsonrpc":"2.0","id":1,"method":"no-such"}\n', (1, METHOD_NOT_FOUND)),
        (b'{"jsonrpc":"2.0","id":1,"method":""}\n', (1, METHOD_NOT_FOUND)),
        (b'{"jsonrpc":"2.0","id":1,"method":"notifications/initialized"}\n', (1, METHOD_NOT_FOUND)),
        (b'{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage"}\n', (1, METHOD_NOT_FOUND)),
        (b'{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"loud"}}\n', (1, INVALID_PARAMS)),
    ],
)
def test_a_broken_message_is_refused_and_the_next_is_served(data: bytes, expected: tuple[object, int]) -> None:
    conversation = operating()
    assert refused(conversation.receive(data)) == [expected]
    assert said(conversation.receive(PING)) == [PONG]
    assert conversation.in_progress == 0


def test_our_refusals_say_that_they_are_ours() -> None:
    (refusal,) = said(operating().receive(request(1, "no-such")))
    assert refusal["error"]["data"] == {
        "source": "sluicegate",
        "reason": "method_not_found",
        "delivered": "no",
        "retryable": False,
    }


def test_blank_lines_carriage_returns_and_a_bom_in_front_are_no_messages() -> None:
    conversation = ServerConversation()
    events = conversation.receive(b"\xef\xbb\xbf\n\r\n  \t \n" + PING.replace(b"\n", b"\r\n") + b"\n")
    assert said(events) == [PONG]
    assert refused(conversation.receive(b"\xef\xbb\xbf" + PING)) == [(None, PARSE_ERROR)]


def test_a_last_message_without_a_newline_is_heard_at_the_end() -> None:
    conversation = ServerConversation()
    assert conversation.receive(PING[:-1]) == []
    assert said(conversation.finish()) == [PONG]


def test_a_message_over_the_ceiling_is_refused_under_its_id_and_the_next_is_served() -> None:
    conversation = ServerConversation(ceiling=100)
    long = request(7, "tools/call", {"text": "x" * 10_000})
    events = [event for part in (long[:50], long[50:500], long[500:]) for event in conversation.receive(part)]
    assert refused(events) == [(7, INVALID_REQUEST)]
    inside = b'{"method":"x","params":{"a":' + b" " * 4061 + b',"id":9}' + b"x" * 5000 + b"\n"
    assert refused(conversation.receive(inside)) == [(None, INVALID_REQUEST)]
    assert said(conversation.receive(PING)) == [PONG]


def test_configured_limits_apply() -> None:
    conversation = ServerConversation(limits=JsonLimits(depth=2))
    assert refused(conversation.receive(request(1, "ping", {"a": []}))) == [(1, INVALID_REQUEST)]
    assert said(conversation.receive(PING)) == [PONG]


def test_after_the_end_nothing_is_heard() -> None:
    conversation = operating()
    conversation.session.close()
    assert conversation.receive(PING + b"garbage\n" + request(1, "tools/list")) == []


# --- The same id twice ------------------------------------------------------------------------------------------------


def test_a_second_request_under_an_id_in_flight_is_refused_and_the_first_unaffected() -> None:
    conversation = operating()
    assert asked(conversation.receive(request(1, "tools/list"))) == [(1, "tools/list")]
    for again in (request(1, "tools/call"), modern(1, "tools/list"), request(1, "ping"), initialize(1)):
        assert refused(conversation.receive(again)) == [(1, INVALID_REQUEST)]
    assert read(conversation.respond(1, DONE))["result"] == {"done": True}
    assert asked(conversation.receive(request(1, "tools/call"))) == [(1, "tools/call")]


def test_a_hundred_requests_under_one_id_at_once_are_one_request_and_refusals() -> None:
    conversation = operating()
    first, *others = conversation.receive(request("a", "tools/list") * 100)
    assert isinstance(first, Asked)
    assert refused(others) == [("a", INVALID_REQUEST)] * 99
    assert conversation.in_progress == 1


def test_ids_of_different_types_are_different_requests() -> None:
    conversation = operating()
    events = conversation.receive(request(1, "tools/list") + request("1", "tools/call"))
    assert asked(events) == [(1, "tools/list"), ("1", "tools/call")]
    assert read(conversation.respond("1", DONE))["id"] == "1"
    assert read(conversation.respond(1, DONE))["id"] == 1


def test_concurrent_requests_are_limited_and_the_next_may_come_later() -> None:
    conversation = operating()
    assert len(asked(conversation.receive(b"".join(request(n, "tools/list") for n in range(MAX_IN_PROGRESS))))) == 1000
    for late in (request("late", "tools/list"), modern("late", "tools/list")):
        (refusal,) = said(conversation.receive(late))
        assert (refusal["id"], refusal["error"]["code"]) == ("late", OVERLOADED)
        assert refusal["error"]["data"]["reason"] == "overloaded" and refusal["error"]["data"]["retryable"]
    assert said(conversation.receive(PING)) == [PONG]
    conversation.respond(5, DONE)
    assert asked(conversation.receive(request("late", "tools/list"))) == [("late", "tools/list")]


# --- Cancellation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_id", [0, 1, "1", "", "a"])
def test_a_cancelled_request_is_withdrawn_and_never_answered(request_id: RequestId) -> None:
    conversation = operating()
    conversation.receive(request(request_id, "tools/call"))
    assert conversation.receive(cancelled(request_id)) == [Withdrawn(request_id)]
    assert conversation.respond(request_id, DONE) is None
    assert conversation.receive(cancelled(request_id)) == []


@pytest.mark.parametrize("request_id", ["1", 2, 1.0, True, None, [1], {"id": 1}, "01"])
def test_a_cancellation_means_exactly_one_id(request_id: object) -> None:
    conversation = operating()
    conversation.receive(request(1, "tools/call"))
    assert conversation.receive(cancelled(request_id)) == []
    assert conversation.in_progress == 1


def test_a_cancellation_of_nothing_is_ignored() -> None:
    conversation = operating()
    conversation.receive(request(1, "tools/call"))
    conversation.respond(1, DONE)
    for data in (cancelled(1), cancelled(5), cancelled("handshake"), notification("notifications/cancelled", {})):
        assert conversation.receive(data) == []


def test_a_request_of_either_era_can_be_cancelled_and_its_id_used_again_in_the_same_breath() -> None:
    conversation = operating()
    for ask in (request(1, "tools/list"), modern(1, "tools/list")):
        first, withdrawn, second = conversation.receive(ask + cancelled(1) + ask)
        assert isinstance(first, Asked) and isinstance(second, Asked)
        assert withdrawn == Withdrawn(1)
        conversation.respond(1, DONE)


# --- Batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blank", [b"", b" ", b"\t ", b" \t  "])
def test_an_array_is_a_batch_where_2025_03_26_was_negotiated(blank: bytes) -> None:
    conversation = operating(V2025_03_26)
    events = conversation.receive(blank + batch(request(1, "tools/list"), request("1", "tools/call")))
    assert asked(events) == [(1, "tools/list"), ("1", "tools/call")]
    assert conversation.respond("1", DONE) is None
    data = conversation.respond(1, Result({}))
    assert in_batch(data) == [("1", {"done": True}), (1, {})]
    assert conversation.in_progress == 0


@pytest.mark.parametrize("version", [version for version in SESSION_VERSIONS if version != V2025_03_26])
def test_an_array_is_refused_where_another_revision_was_negotiated(version: str) -> None:
    conversation = operating(version)
    for data in (batch(PING), batch(), b"  []\n", batch(notification("x")), batch(modern(1, "tools/list"))):
        assert refused(conversation.receive(data)) == [(None, INVALID_REQUEST)]
    assert said(conversation.receive(PING)) == [PONG]


def test_an_array_is_refused_before_the_handshake_is_done() -> None:
    conversation = ServerConversation()
    assert refused(conversation.receive(batch(PING))) == [(None, INVALID_REQUEST)]
    conversation.receive(initialize(0, V2025_03_26))
    assert refused(conversation.receive(batch(PING))) == [(None, INVALID_REQUEST)]


@pytest.mark.parametrize(
    "data",
    [
        b"[]\n",
        b" [ ] \n",
        batch(initialize("b", V2025_03_26)),
        batch(PING, initialize("b", V2025_03_26)),
        batch(PING, notification("initialize")),
        batch(*[PING] * (MAX_BATCH + 1)),
    ],
)
def test_a_batch_that_is_empty_endless_or_holds_initialize_is_refused_as_a_whole(data: bytes) -> None:
    conversation = operating(V2025_03_26)
    assert refused(conversation.receive(data)) == [(None, INVALID_REQUEST)]


def test_the_longest_batch_is_served() -> None:
    events = operating(V2025_03_26).receive(batch(*(request(n, "ping") for n in range(MAX_BATCH))))
    assert [len(answers) for answers in said(events)] == [MAX_BATCH]


def test_each_message_of_a_batch_is_judged_singly() -> None:
    conversation = operating(V2025_03_26)
    waiting, level, answers = conversation.receive(
        batch(
            b"1",
            b"[]",
            PING,
            request(1, "tools/list"),
            request(1, "tools/call"),
            request(2, "no-such"),
            line(id=3, method="tools/call", params=[]),
            line(id=None, method="ping"),
            modern(4, "tools/list"),
            request(5, "logging/setLevel", {"level": "debug"}),
            request(6, "logging/setLevel", {"level": "loud"}),
            notification("notifications/unknown"),
            line(method="notifications/unknown", params=[]),
            line(id=9, result={}),
            line(id=9, result=5),
            cancelled(77),
        )
    ) + [Outgoing(conversation.respond(1, DONE) or b"")]
    assert isinstance(waiting, Asked) and isinstance(answers, Outgoing)
    assert level == LogLevelSet("debug")  # Of the second only: "loud" is no level.
    assert in_batch(answers.data) == [
        (None, INVALID_REQUEST),
        (None, INVALID_REQUEST),
        ("probe", {}),
        (1, INVALID_REQUEST),
        (2, METHOD_NOT_FOUND),
        (3, INVALID_PARAMS),
        (None, INVALID_REQUEST),
        (4, INVALID_REQUEST),
        (5, {}),
        (6, INVALID_PARAMS),
        (None, INVALID_REQUEST),
        (1, {"done": True}),
    ]
    assert conversation.session.profile.log_level == "debug"


def test_a_batch_that_is_answered_at_once_is_one_array() -> None:
    assert said(operating(V2025_03_26).receive(batch(PING, notification("x")))) == [[PONG]]


@pytest.mark.parametrize(
    "data",
    [
        batch(notification("notifications/initialized")),
        batch(notification("x"), line(method="y", params=[1]), cancelled(1)),
        batch(line(id=1, result={}), line(id=2, error={"code": 1, "message": ""})),
    ],
)
def test_a_batch_of_notifications_or_responses_is_answered_by_nothing(data: bytes) -> None:
    assert operating(V2025_03_26).receive(data) == []


def test_the_answer_to_a_batch_waits_for_all_that_are_not_withdrawn() -> None:
    conversation = operating(V2025_03_26)
    conversation.receive(batch(*(request(n, "tools/call") for n in range(3))))
    assert conversation.respond(1, DONE) is None
    assert conversation.receive(cancelled(0)) == [Withdrawn(0)]
    withdrawn, answers = conversation.receive(cancelled(2))
    assert withdrawn == Withdrawn(2) and isinstance(answers, Outgoing)
    assert in_batch(answers.data) == [(1, {"done": True})]


def test_a_batch_of_which_all_is_withdrawn_is_answered_by_nothing() -> None:
    conversation = operating(V2025_03_26)
    conversation.receive(batch(request(1, "tools/call"), request(2, "tools/call")))
    assert conversation.receive(cancelled(1) + cancelled(2)) == [Withdrawn(1), Withdrawn(2)]


def test_a_request_can_be_withdrawn_in_the_batch_it_came_in() -> None:
    conversation = operating(V2025_03_26)
    events = conversation.receive(batch(request(1, "tools/call"), cancelled(1), request(2, "ping")))
    assert events[1] == Withdrawn(1)
    assert in_batch(events[2].data if isinstance(events[2], Outgoing) else None) == [(2, {})]


def test_batches_and_single_requests_do_not_wait_for_each_other() -> None:
    conversation = operating(V2025_03_26)
    conversation.receive(batch(request(1, "tools/call"), request(2, "tools/call")) + request(3, "tools/call"))
    conversation.receive(batch(request(4, "tools/call")))
    assert read(conversation.respond(3, DONE))["id"] == 3
    assert conversation.respond(1, DONE) is None
    assert in_batch(conversation.respond(4, DONE)) == [(4, {"done": True})]
    assert in_batch(conversation.respond(2, DONE)) == [(1, {"done": True}), (2, {"done": True})]


@given(st.lists(st.sampled_from(["answer", "withdraw"]), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_in_any_order_a_batch_is_answered_once_and_at_the_last(outcomes: list[str], random: Any) -> None:
    conversation = operating(V2025_03_26)
    conversation.receive(batch(*(request(n, "tools/call") for n in range(len(outcomes)))))
    order = list(range(len(outcomes)))
    random.shuffle(order)
    said_so_far: list[bytes] = []
    for n in order:
        assert said_so_far == []
        if outcomes[n] == "answer":
            said_so_far += [data for data in [conversation.respond(n, DONE)] if data is not None]
        else:
            said_so_far += [event.data for event in conversation.receive(cancelled(n)) if isinstance(event, Outgoing)]
    answered = [n for n in order if outcomes[n] == "answer"]
    assert [[one["id"] for one in json.loads(data)] for data in said_so_far] == ([answered] if answered else [])


# --- Our own questions ------------------------------------------------------------------------------------------------


def test_the_reply_to_a_question_is_handed_on_once() -> None:
    conversation = operating()
    question, data = conversation.ask("roots/list", {"a": 1})
    assert decode_strict(data) == Request(question, "roots/list", {"a": 1})
    assert conversation.receive(line(id=question, result={"roots": []})) == [Answered(question, Result({"roots": []}))]
    assert conversation.receive(line(id=question, result={"roots": []})) == []


def test_a_question_may_be_refused_by_the_client() -> None:
    conversation = operating()
    question, _ = conversation.ask("elicitation/create", {})
    events = conversation.receive(line(id=question, error={"code": -1, "message": "No."}))
    assert events == [Answered(question, ErrorObject(-1, "No."))]


def test_a_reply_to_nothing_we_asked_is_ignored() -> None:
    conversation = operating()
    conversation.receive(request(7, "tools/call"))
    conversation.ask("roots/list", {})
    for data in (
        line(id=7, result={}),
        line(id="x", error={"code": 1, "message": ""}),
        line(id=None, error={"code": 1, "message": ""}),
        line(error={"code": 1, "message": ""}),
    ):
        assert conversation.receive(data) == []
    assert conversation.in_progress == 1


BROKEN_REPLIES = [
    line(id=1, result=5),
    line(id=1, result=[]),
    line(id="1", result=[]),
    line(id=1, result=None),
    line(id=1, result={}, error={"code": 1, "message": ""}),
    line(id=1, error={"code": "x"}),
    b'{"id":1,"result":{}}\n',
    b'{"jsonrpc":"2.0","id":1,"result":{"a":1,"a":2}}\n',
    b'{"jsonrpc":"2.0","id":1,"result":{"a":NaN}}\n',
    b'{"result":{"a":"\xff"},"jsonrpc":"2.0","id":1}\n',
]


def test_a_broken_reply_is_not_refused_under_an_id_of_ours() -> None:
    # The client may have a request of its own under the same number, and would take our refusal for its answer.
    conversation = operating()
    conversation.receive(request(1, "tools/call"))
    for data in BROKEN_REPLIES:
        (code,) = {code for request_id, code in refused(conversation.receive(data)) if request_id is None}
        assert code in (INVALID_REQUEST, PARSE_ERROR)
    assert conversation.in_progress == 1


@pytest.mark.parametrize("data", BROKEN_REPLIES)
def test_a_broken_reply_to_our_question_ends_it_and_nothing_is_sent(data: bytes) -> None:
    conversation = operating()
    question, _ = conversation.ask("roots/list", {})
    assert question == 1
    (event,) = conversation.receive(data)
    assert isinstance(event, Answered) and event.id == 1
    assert isinstance(event.reply, ErrorObject) and event.reply.code == INVALID_REQUEST
    assert conversation.receive(line(id=1, result={})) == []


def test_a_broken_reply_in_a_batch_ends_its_question_too() -> None:
    conversation = operating(V2025_03_26)
    conversation.ask("roots/list", {})
    answered, *said_back = conversation.receive(batch(line(id=1, result=[]), PING))
    assert isinstance(answered, Answered) and isinstance(answered.reply, ErrorObject)
    assert said(said_back) == [[PONG]]


def test_a_question_that_is_taken_back_waits_for_no_reply() -> None:
    conversation = operating()
    question, _ = conversation.ask("roots/list", {})
    assert read(conversation.forget_question(question, "too late")) == {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": question, "reason": "too late"},
    }
    assert conversation.receive(line(id=question, result={})) == []


# --- Whatever comes ---------------------------------------------------------------------------------------------------

few_ids = st.sampled_from([0, 1, 2, "1", "a"])
lines = st.one_of(
    st.builds(request, few_ids, st.sampled_from(["ping", "tools/list", "no-such", "logging/setLevel"])),
    st.builds(modern, few_ids, st.sampled_from(["ping", "tools/list", "server/discover"])),
    st.builds(modern, few_ids, st.just("tools/list"), st.sampled_from(["2027-01-01", 5])),
    st.builds(initialize, few_ids, st.sampled_from(["2025-03-26", "2025-11-25", 5])),
    st.builds(cancelled, few_ids | st.none()),
    st.builds(notification, st.sampled_from(["notifications/initialized", "x"])),
    st.builds(line, id=few_ids, result=st.just({})),
    st.just(b"\n"),
    st.just(b"[]\n"),
    st.lists(st.builds(request, few_ids, st.sampled_from(["ping", "tools/list"])), max_size=3).map(
        lambda all: batch(*all)
    ),
)
broken = st.one_of(
    mutated(lines),
    st.binary(max_size=40),
    st.text(max_size=20).map(str.encode),
    json_objects.map(lambda value: json.dumps(value).encode()),
)


def started(version: str | None) -> ServerConversation:
    return ServerConversation() if version is None else operating(version)


@given(st.sampled_from([None, *SESSION_VERSIONS]), st.lists(lines | broken, max_size=8), st.data())
@settings(max_examples=150)
def test_how_the_bytes_are_cut_is_never_seen(version: str | None, sent: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(sent)
    whole = started(version)
    expected = whole.receive(stream) + whole.finish()
    cut = started(version)
    events: list[Event] = []
    for chunk in data.draw(chunks(stream)):
        events += cut.receive(chunk)
    assert events + cut.finish() == expected
    assert cut.in_progress == whole.in_progress


@given(st.sampled_from([None, *SESSION_VERSIONS]), st.lists(broken, max_size=6))
@settings(max_examples=300)
def test_no_bytes_whatever_stop_the_conversation(version: str | None, garbage: list[bytes]) -> None:
    conversation = started(version)
    for data in garbage:
        said(conversation.receive(data + b"\n"))  # which reads everything back
    assert said(conversation.receive(PING)) == [PONG]


@given(st.binary(max_size=200), st.integers(1, 60))
def test_no_bytes_whatever_stop_a_conversation_with_a_low_ceiling(garbage: bytes, ceiling: int) -> None:
    conversation = ServerConversation(ceiling=ceiling)
    said(conversation.receive(garbage + b"\n" + PING))
    assert len(said(conversation.receive(PING))) == 1


@given(st.sampled_from([None, *SESSION_VERSIONS]), st.lists(lines.filter(bytes.strip), max_size=8))
def test_a_message_that_is_brought_whole_means_what_its_line_does(version: str | None, sent: list[bytes]) -> None:
    by_lines, whole = started(version), started(version)
    for data in sent:
        assert whole.take(parse_strict(data)) == by_lines.receive(data)
    assert whole.in_progress == by_lines.in_progress
