"""From 2026-07-28: requests that carry all they need, results that ask for input, and how a server's era is told."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    ErrorObject,
    RemoteProtocolError,
    UpstreamProtocolError,
)
from sluicegate.protocol.input_required import (
    InputRequired,
    Question,
    input_required,
    lacking_capability,
    missing_capability,
    read_input_required,
    with_answers,
)
from sluicegate.protocol.message import Notification, Params, Reply, Request, RequestId, Result, opened
from sluicegate.protocol.modern_era import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    LOG_LEVEL_KEY,
    SERVER_INFO_KEY,
    SUBSCRIPTION_KEY,
    VERSION_KEY,
    ClientProfile,
    Discovery,
    Incompatible,
    Legacy,
    ProbeAgain,
    Verdict,
    complete,
    is_modern,
    judge_probe,
    marked,
    read_progress_token,
    read_request,
    subscription_of,
    tagged,
    with_profile,
    without_profile,
)
from sluicegate.protocol.versions import SESSION_VERSIONS, SUPPORTED_VERSIONS
from tests.protocol.strategies import json_objects, modern_meta, request_ids

ASK = Question("elicitation/create", {"message": "Sure?"})


def call(meta: object, method: str = "tools/call") -> Request:
    return Request("a", method, {"name": "x", "_meta": meta})


def refusal(request: Request) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        read_request(request)
    assert caught.value.request_id == request.id
    return caught.value


# --- Requests ---------------------------------------------------------------------------------------------------------


def test_a_request_is_of_this_era_if_it_says_its_revision() -> None:
    assert is_modern({"_meta": {VERSION_KEY: "2026-07-28"}})
    assert is_modern({"_meta": {VERSION_KEY: None}})
    assert not any(
        map(is_modern, [{}, {"_meta": {}}, {"_meta": {CAPABILITIES_KEY: {}}}, {"_meta": "x"}, {VERSION_KEY: "x"}])
    )


def test_a_request_brings_its_profile_along() -> None:
    more = {CLIENT_INFO_KEY: {"name": "c"}, LOG_LEVEL_KEY: "debug", "progressToken": 0, "traceparent": "00"}
    profile, params = read_request(call({**modern_meta(**more), CAPABILITIES_KEY: {"roots": {}}}))
    assert profile == ClientProfile("2026-07-28", {"roots": {}}, {"name": "c"}, "debug", 0)
    assert params == {"name": "x", "_meta": {"traceparent": "00"}}


def test_a_request_may_leave_out_the_client_info() -> None:
    profile, params = read_request(call(modern_meta()))
    assert profile == ClientProfile("2026-07-28", {})
    assert params == {"name": "x"}


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {VERSION_KEY: "2026-07-28"},
        {CAPABILITIES_KEY: {}},
        {VERSION_KEY: None, CAPABILITIES_KEY: {}},
        {VERSION_KEY: 20260728, CAPABILITIES_KEY: {}},
        {VERSION_KEY: "2026-07-28", CAPABILITIES_KEY: None},
        {VERSION_KEY: "2026-07-28", CAPABILITIES_KEY: []},
        {VERSION_KEY: "2099-01-01"},
        modern_meta() | {CLIENT_INFO_KEY: "me"},
        modern_meta() | {LOG_LEVEL_KEY: "loud"},
        modern_meta() | {LOG_LEVEL_KEY: ["info"]},
        modern_meta() | {"progressToken": 1.5},
        modern_meta() | {"progressToken": True},
    ],
)
def test_an_incomplete_meta_is_bad_params(meta: Params) -> None:
    assert refusal(call(meta)).code == INVALID_PARAMS


@pytest.mark.parametrize("version", ["2027-01-01", "2025-11-25", "", "2026-07-28 ", "draft"])
def test_an_unsupported_revision_is_refused_with_the_supported_ones(version: str) -> None:
    error = refusal(call(modern_meta(version)))
    assert error.code == UNSUPPORTED_VERSION
    assert error.data == {"supported": list(SUPPORTED_VERSIONS), "requested": version}


def test_an_unknown_revision_is_reported_before_an_unknown_method() -> None:
    assert refusal(call(modern_meta("2027-01-01"), "no-such")).code == UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    "method",
    [
        *("initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"),
        *("roots/list", "sampling/createMessage", "elicitation/create", "notifications/cancelled", "no-such"),
    ],
)
def test_a_method_that_this_revision_removed_or_never_had_is_not_found(method: str) -> None:
    assert refusal(call(modern_meta(), method)).code == METHOD_NOT_FOUND


def test_a_method_that_may_be_of_an_extension_is_left_to_the_handler() -> None:
    assert read_request(call(modern_meta(), "skills/list"))[0].version == "2026-07-28"


@given(json_objects, json_objects, request_ids | st.none(), st.sampled_from(["debug", "error", None]))
def test_a_profile_survives_being_put_into_params_and_taken_out(
    params: Params, meta: Params, token: RequestId | None, level: str | None
) -> None:
    profile = ClientProfile("2026-07-28", {"roots": {}}, {"name": "c"}, level, token)
    plain = {**params, "_meta": meta} if meta else params
    stamped = with_profile(plain, profile, token)
    assert read_request(Request(1, "tools/call", stamped)) == (profile, plain)
    assert without_profile(stamped) == plain
    assert VERSION_KEY not in meta  # what was put in was put into a copy


def test_a_profile_says_only_what_it_knows() -> None:
    stamped = with_profile({"_meta": None}, ClientProfile(), None)
    assert stamped == {"_meta": {VERSION_KEY: "2026-07-28", CAPABILITIES_KEY: {}}}


def test_params_without_a_profile_are_left_alone() -> None:
    untouched: list[Params] = [{}, {"_meta": {}}, {"_meta": {"x": 1}}, {"_meta": 5}, {"a": 1}]
    for params in untouched:
        assert without_profile(params) is params


@pytest.mark.parametrize("token", ["", "a", 0, -1, 2**80])
def test_a_progress_token_keeps_its_value_and_type(token: RequestId) -> None:
    found = read_progress_token(Request(1, "tools/call", {"_meta": {"progressToken": token}}))
    assert found == token and type(found) is type(token)


# --- Subscriptions ----------------------------------------------------------------------------------------------------


@given(request_ids, json_objects, json_objects)
def test_the_mark_of_a_subscription_is_put_on_and_taken_off_with_its_type(
    listener: RequestId, params: Params, meta: Params
) -> None:
    plain = Notification("notifications/resources/updated", {**params, "_meta": meta} if meta else params)
    found, rest = subscription_of(tagged(plain, listener))
    assert found == listener and type(found) is type(listener)
    assert rest == plain
    assert subscription_of(plain) == (None, plain)


@pytest.mark.parametrize("marker", [None, True, 1.5, [], {}])
def test_a_subscription_mark_that_is_no_id_is_removed(marker: object) -> None:
    notification = Notification("m", {"a": 1, "_meta": {SUBSCRIPTION_KEY: marker}})
    assert subscription_of(notification) == (None, Notification("m", {"a": 1}))


def test_a_result_is_marked_beside_what_its_meta_holds() -> None:
    assert marked({"_meta": {"x": 1}}, "a") == {"_meta": {"x": 1, SUBSCRIPTION_KEY: "a"}}


# --- Asking for input -------------------------------------------------------------------------------------------------


def both(value: Params) -> list[Result]:
    """The same result, opened and as bytes."""
    return [Result(value), Result(msgspec.Raw(msgspec.json.encode(value)))]


@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "resources/read"])
def test_questions_and_state_survive_the_way_to_the_client(method: str) -> None:
    asked = InputRequired({"q": ASK, "r": Question("roots/list")}, "state")
    for reply in both(opened(input_required(asked.questions, asked.state))):
        assert read_input_required(method, reply) == asked


def test_a_result_may_ask_with_a_state_alone_or_questions_alone() -> None:
    assert input_required({}, "state").value == {"resultType": "input_required", "requestState": "state"}
    for reply in both({"resultType": "input_required", "requestState": ""}):
        assert read_input_required("tools/call", reply) == InputRequired({}, "")
    for reply in both(opened(input_required({"q": ASK}, None))):
        assert read_input_required("tools/call", reply) == InputRequired({"q": ASK}, None)


def test_a_question_for_roots_needs_no_params() -> None:
    # They are optional in the schema of 2026-07-28, and in no other question.
    reply = Result({"resultType": "input_required", "inputRequests": {"r": {"method": "roots/list"}}})
    assert read_input_required("tools/call", reply) == InputRequired({"r": Question("roots/list", {})})


@pytest.mark.parametrize(
    "value", [{}, {"resultType": "complete"}, {"content": [{"resultType": "input_required"}]}, {"a": '"resultType"'}]
)
def test_a_final_result_asks_nothing(value: Params) -> None:
    for reply in both(value):
        assert read_input_required("tools/list", reply) is None
    assert read_input_required("tools/call", ErrorObject(1, "no")) is None


def test_a_result_type_is_seen_in_every_spelling() -> None:
    raw = msgspec.Raw(rb'{"result\u0054ype":"input_\u0072equired","requestState":"s"}')
    assert read_input_required("tools/call", Result(raw)) == InputRequired({}, "s")


@pytest.mark.parametrize("kind", ["task", "", None, 5, ["complete"], "Complete"])
def test_an_unknown_result_type_is_the_servers_fault(kind: object) -> None:
    for reply in both({"resultType": kind}):
        with pytest.raises(UpstreamProtocolError, match="unknown result type"):
            read_input_required("tools/call", reply)


@pytest.mark.parametrize("method", ["tools/list", "completion/complete", "server/discover", "no-such"])
def test_input_may_not_be_asked_for_on_other_methods(method: str) -> None:
    for reply in both(opened(input_required({"q": ASK}, "s"))):
        with pytest.raises(UpstreamProtocolError, match="no revision allows"):
            read_input_required(method, reply)


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"inputRequests": {}},
        {"inputRequests": []},
        {"inputRequests": None, "requestState": "s"},
        {"inputRequests": {"q": 5}},
        {"inputRequests": {"q": {}}},
        {"inputRequests": {"q": {"method": 5, "params": {}}}},
        {"inputRequests": {"q": {"method": "roots/list", "params": []}}},
        {"inputRequests": {"q": {"method": "tools/call", "params": {}}}},
        {"inputRequests": {"q": {"method": "ping", "params": {}}}},
        {"requestState": 5},
    ],
)
def test_unreadable_questions_are_the_servers_fault(members: Params) -> None:
    for reply in both({"resultType": "input_required", **members}):
        with pytest.raises(UpstreamProtocolError):
            read_input_required("tools/call", reply)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"resultType":"input_required","requestState":"s","x":1e999}',
        b'{"resultType":"input_required"',
        b'["resultType"]',
        b'{"resultType":"input_required","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_result_that_cannot_be_decoded_is_the_servers_fault(raw: bytes) -> None:
    with pytest.raises(UpstreamProtocolError):
        read_input_required("tools/call", Result(msgspec.Raw(raw)))


def test_the_next_round_has_the_same_params_the_answers_and_the_state_as_it_was_given() -> None:
    first: Params = {"name": "x", "inputResponses": {"old": {}}, "requestState": "old"}
    assert with_answers(first, {"q": {"action": "accept"}}, "") == {
        "name": "x",
        "inputResponses": {"q": {"action": "accept"}},
        "requestState": "",
    }
    assert with_answers(first, {}, None) == {"name": "x"}
    assert first["requestState"] == "old"


@pytest.mark.parametrize(
    ("method", "params", "capabilities", "lacking"),
    [
        ("elicitation/create", {}, {"elicitation": {}}, None),
        ("elicitation/create", {"mode": "form"}, {"elicitation": {"form": {}}}, None),
        ("elicitation/create", {}, {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        ("elicitation/create", {"mode": "url"}, {"elicitation": {}}, {"elicitation": {"url": {}}}),
        ("elicitation/create", {"mode": "url"}, {"elicitation": {"form": {}, "url": {}}}, None),
        ("elicitation/create", {"mode": "voice"}, {"elicitation": {}}, {"elicitation": {"voice": {}}}),
        ("elicitation/create", {}, {}, {"elicitation": {"form": {}}}),
        ("elicitation/create", {}, {"elicitation": True}, {"elicitation": {"form": {}}}),
        ("sampling/createMessage", {}, {"sampling": {}}, None),
        ("sampling/createMessage", {}, {}, {"sampling": {}}),
        ("sampling/createMessage", {"tools": []}, {"sampling": {}}, {"sampling": {"tools": {}}}),
        ("sampling/createMessage", {"toolChoice": {}}, {"sampling": {}}, {"sampling": {"tools": {}}}),
        ("sampling/createMessage", {"tools": []}, {"sampling": {"tools": {}}}, None),
        ("roots/list", {}, {"roots": {}}, None),
        ("roots/list", {}, {}, {"roots": {}}),
        ("roots/list", {}, {"roots": None}, {"roots": {}}),
    ],
)
def test_a_client_is_asked_only_what_it_declared(
    method: str, params: Params, capabilities: Params, lacking: Params | None
) -> None:
    assert lacking_capability(Question(method, params), capabilities) == lacking


def test_missing_capabilities_are_reported_as_an_object() -> None:
    error = missing_capability({"sampling": {}, "elicitation": {"url": {}}})
    assert (error.code, error.data) == (
        MISSING_CAPABILITY,
        {"requiredCapabilities": {"sampling": {}, "elicitation": {"url": {}}}},
    )
    assert error.message.endswith("elicitation, sampling")


def test_a_complete_result_says_so_and_for_how_long() -> None:
    assert complete({"tools": []}) == {"resultType": "complete", "tools": []}
    assert complete({}, ttl_ms=0) == {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    assert complete({}, ttl_ms=5, scope="public")["cacheScope"] == "public"


# --- Which era a server is of -----------------------------------------------------------------------------------------


def unsupported(supported: object) -> ErrorObject:
    return ErrorObject(UNSUPPORTED_VERSION, "Unsupported protocol version", {"supported": supported, "requested": "x"})


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (Result({"supportedVersions": ["2026-07-28"]}), Discovery("2026-07-28")),
        (Result({"supportedVersions": ["2099-01-01", "2026-07-28", "2025-11-25"]}), Discovery("2026-07-28")),
        (Result(msgspec.Raw(b'{"supportedVersions":["2026-07-28"]}')), Discovery("2026-07-28")),
        (Result({"supportedVersions": ["2025-11-25"]}), Legacy()),
        (Result({"supportedVersions": ["2099-01-01"]}), Legacy()),
        (Result({"supportedVersions": "2026-07-28"}), Legacy()),
        (Result({}), Legacy()),
        (Result(msgspec.Raw(b'{"supportedVersions":["2026-07-28"],"x":1e999}')), Legacy()),
        (unsupported(["2026-07-28"]), ProbeAgain("2026-07-28")),
        (unsupported(["2025-11-25", "2026-07-28"]), ProbeAgain("2026-07-28")),
        (unsupported(list(SESSION_VERSIONS)), Legacy()),
        (unsupported(["2099-01-01", "2025-11-25"]), Legacy()),
        (unsupported([]), Legacy()),
        (unsupported(None), Legacy()),
        (ErrorObject(UNSUPPORTED_VERSION, "no"), Legacy()),
        (unsupported(["2099-01-01", 5]), Incompatible(["2099-01-01", "5"])),
        (ErrorObject(HEADER_MISMATCH, "no"), ProbeAgain("2026-07-28")),
        (ErrorObject(MISSING_CAPABILITY, "no"), ProbeAgain("2026-07-28")),
        *(
            (ErrorObject(code, "no"), Legacy())
            for code in (-32601, -32602, -32600, -32700, -32002, -32000, -32603, 0, 1)
        ),
    ],
)
def test_the_era_of_a_server_is_judged_by_its_answer_to_the_probe(reply: Reply, verdict: Verdict) -> None:
    assert judge_probe(reply) == verdict


def test_the_offer_of_a_server_is_kept_with_the_verdict() -> None:
    value: Params = {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "instructions": "Read this.",
        "_meta": {SERVER_INFO_KEY: {"name": "s"}},
    }
    assert judge_probe(Result(value)) == Discovery("2026-07-28", {"tools": {}}, {"name": "s"}, "Read this.")
    odd: Params = {
        "supportedVersions": ["2026-07-28"],
        "capabilities": 5,
        "instructions": 5,
        "_meta": {SERVER_INFO_KEY: 5},
    }
    assert judge_probe(Result(odd)) == Discovery("2026-07-28")
