"""The session era, both roles: who says what at which stage, and what a session remembers."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NOT_INITIALIZED,
    ErrorObject,
    LocalProtocolError,
    RemoteProtocolError,
    UpstreamProtocolError,
)
from sluicegate.protocol.message import Params, Request, Result, opened
from sluicegate.protocol.methods import LOG_LEVELS
from sluicegate.protocol.modern_era import LOG_LEVEL_KEY, Discovery
from sluicegate.protocol.session_era import (
    DEFAULT_LOG_LEVEL,
    ClientSession,
    ServerSession,
    Stage,
    capabilities_for,
    implementation_for,
)
from sluicegate.protocol.versions import LATEST_SESSION_VERSION, REVISIONS, SESSION_VERSIONS, V2024_11_05, V2025_03_26
from tests.protocol.schemas import needs_schemas, problems
from tests.protocol.strategies import OFFER, json_values

CAPABILITIES: Params = {
    "roots": {"listChanged": True},
    "sampling": {"tools": {}},
    "elicitation": {"form": {}, "url": {}},
}


def begun(version: str = LATEST_SESSION_VERSION, **params: object) -> ServerSession:
    session = ServerSession()
    session.begin(Request(1, "initialize", {"protocolVersion": version, "capabilities": {}, **params}))
    return session


def operating(version: str = LATEST_SESSION_VERSION, offer: Discovery = OFFER, **params: object) -> ServerSession:
    session = begun(version, **params)
    session.welcome(offer)
    return session


def refusal(session: ServerSession, request: Request) -> int:
    with pytest.raises(RemoteProtocolError) as caught:
        (session.begin if request.method == "initialize" else session.check)(request)
    assert caught.value.request_id == request.id
    return caught.value.code


# --- What a session keeps ---------------------------------------------------------------------------------------------


def test_a_large_client_info_is_cut_to_its_names() -> None:
    """T4."""
    icons = [{"src": "data:image/png;base64," + "A" * 100_000}]
    session = begun(clientInfo={"name": "n" * 5000, "version": "1", "title": 7, "icons": icons})
    assert session.profile.client_info == {"name": "n" * 256, "version": "1"}
    small: Params = {"name": "n", "version": "1", "icons": [{"src": "https://a.example/i.png"}]}
    assert begun(clientInfo=small).profile.client_info == small


def test_large_capabilities_are_refused_and_the_client_may_try_again() -> None:
    """T4."""
    session = ServerSession()
    params: Params = {"protocolVersion": "2025-11-25", "capabilities": {"experimental": {"x": {"y": "z" * 20_000}}}}
    assert refusal(session, Request(1, "initialize", params)) == INVALID_PARAMS
    session.begin(Request(2, "initialize", {**params, "capabilities": {}}))


def test_an_ended_session_keeps_nothing_of_its_client() -> None:
    session = operating(clientInfo={"name": "n", "version": "1"}, capabilities=CAPABILITIES)
    assert session.profile.capabilities
    session.close()
    assert not session.profile.capabilities and session.profile.client_info is None


# --- The server's role ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_the_version_asked_for_is_echoed_if_we_speak_it(version: str) -> None:
    session = begun(version)
    assert opened(session.welcome(OFFER))["protocolVersion"] == version
    assert session.revision is REVISIONS[version]


@pytest.mark.parametrize("version", ["2026-07-28", "2099-01-01", "", "latest"])
def test_another_version_is_answered_with_our_newest(version: str) -> None:
    assert opened(begun(version).welcome(OFFER))["protocolVersion"] == "2025-11-25"


@pytest.mark.parametrize("version", SESSION_VERSIONS)
@needs_schemas
def test_the_welcome_is_what_the_schema_of_its_revision_says(version: str) -> None:
    info: Params = {"name": "n", "version": "1", "title": "T", "icons": [{"src": "https://x.example/i.png"}]}
    offer = Discovery("2026-07-28", {"tools": {"listChanged": True}, "completions": {}}, info, "Read this.")
    assert problems(version, "InitializeResult", opened(begun(version).welcome(offer))) == []


def test_the_welcome_has_our_info_and_only_members_of_the_revision() -> None:
    offer = Discovery("2026-07-28", {"tools": {}, "completions": {}}, {"name": "n", "title": "T", "x": 1}, "Hello.")
    assert opened(begun(V2024_11_05).welcome(offer)) == {
        "protocolVersion": V2024_11_05,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "n", "version": "0"},
        "instructions": "Hello.",
    }
    assert opened(begun(V2025_03_26).welcome(Discovery("2026-07-28", {"completions": {}}))) == {
        "protocolVersion": V2025_03_26,
        "capabilities": {"completions": {}},
        "serverInfo": {"name": "sluicegate", "version": "0"},
    }


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"protocolVersion": None},
        {"protocolVersion": 20251125},
        {"protocolVersion": "2025-11-25", "capabilities": None},
        {"protocolVersion": "2025-11-25", "capabilities": ["roots"]},
        {"protocolVersion": "2025-11-25", "clientInfo": "me"},
    ],
)
def test_an_initialize_that_lacks_what_it_must_say_can_be_tried_again(params: Params) -> None:
    session = ServerSession()
    assert refusal(session, Request("a", "initialize", params)) == INVALID_PARAMS
    session.begin(Request("b", "initialize", {"protocolVersion": "2025-06-18"}))
    assert (session.stage, session.version) == (Stage.INITIALIZING, "2025-06-18")


def test_client_info_is_remembered_with_the_members_of_the_revision() -> None:
    info: Params = {"name": "c", "version": "1"}
    session = begun("2025-06-18", capabilities=CAPABILITIES, clientInfo=info)
    assert session.profile.client_info == info
    assert session.profile.capabilities == {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {}}


def test_a_second_initialize_is_refused_and_changes_nothing() -> None:
    second = Request(2, "initialize", {"protocolVersion": "2024-11-05", "capabilities": {"roots": {}}})
    for session in (begun(), operating()):
        stage = session.stage
        assert refusal(session, second) == INVALID_REQUEST
        assert (session.stage, session.version, session.profile.capabilities) == (stage, "2025-11-25", {})


def test_a_session_that_was_not_asked_for_anything_is_of_our_newest_version() -> None:
    assert ServerSession().revision is ClientSession().revision is REVISIONS["2025-11-25"]


def test_a_request_before_initialize_is_refused_even_if_no_revision_has_it() -> None:
    for method in ("tools/list", "server/discover", "no-such"):
        assert refusal(ServerSession(), Request("a", method, {})) == NOT_INITIALIZED


@pytest.mark.parametrize("method", ["no-such", "server/discover", "subscriptions/listen", "roots/list", "tasks/get"])
def test_a_method_that_the_revision_lacks_is_not_found(method: str) -> None:
    for session in (begun(), operating()):
        assert refusal(session, Request("a", method, {})) == METHOD_NOT_FOUND


def test_a_method_that_may_be_of_an_extension_is_left_to_the_handler() -> None:
    operating().check(Request("a", "skills/list", {}))


def test_a_refused_handshake_leaves_the_session_as_it_was_made() -> None:
    session = begun()
    session.fail()
    assert session.stage is Stage.CREATED
    session.begin(Request(1, "initialize", {"protocolVersion": "2025-11-25"}))
    session.welcome(OFFER)
    session.fail()
    assert session.stage is Stage.OPERATING


def test_only_a_session_that_was_asked_for_can_be_welcomed() -> None:
    for session in (ServerSession(), operating()):
        with pytest.raises(LocalProtocolError):
            session.welcome(OFFER)


def test_we_may_speak_unasked_after_initialized_and_not_after_the_end() -> None:
    session = begun()
    session.initialized()
    assert not session.ready_for_pushes
    session.welcome(OFFER)
    assert not session.ready_for_pushes
    session.initialized()
    assert session.ready_for_pushes
    session.close()
    assert (session.stage, session.ready_for_pushes) == (Stage.SHUTDOWN, False)


@pytest.mark.parametrize("level", LOG_LEVELS)
def test_a_log_level_holds_for_the_rest_of_the_session(level: str) -> None:
    session = operating()
    assert session.set_level(Request(1, "logging/setLevel", {"level": level})) == Result({})
    assert session.profile_of(Request(2, "tools/list", {}))[0].log_level == level


@pytest.mark.parametrize("params", [{}, {"level": None}, {"level": "loud"}, {"level": "INFO"}, {"level": ["info"]}])
def test_a_log_level_that_is_none_is_bad_params_and_changes_nothing(params: Params) -> None:
    session = operating()
    reply = session.set_level(Request(1, "logging/setLevel", params))
    assert isinstance(reply, ErrorObject) and reply.code == INVALID_PARAMS
    assert session.profile.log_level == DEFAULT_LOG_LEVEL


def test_a_server_that_does_not_log_has_no_levels() -> None:
    session = operating(offer=Discovery("2026-07-28", {"tools": {}}))
    reply = session.set_level(Request(1, "logging/setLevel", {"level": "info"}))
    assert isinstance(reply, ErrorObject) and reply.code == METHOD_NOT_FOUND
    assert session.profile_of(Request(2, "tools/list", {}))[0].log_level is None


def test_a_request_gets_the_profile_of_its_session_and_its_own_progress_token() -> None:
    session = operating("2025-06-18", capabilities={"roots": {}}, clientInfo={"name": "c"})
    params: Params = {"name": "x", "_meta": {"progressToken": 0, "traceparent": "00", LOG_LEVEL_KEY: "debug"}}
    profile, rest = session.profile_of(Request(1, "tools/call", params))
    assert (profile.version, profile.capabilities, profile.client_info) == ("2025-06-18", {"roots": {}}, {"name": "c"})
    assert (profile.log_level, profile.progress_token) == (DEFAULT_LOG_LEVEL, 0)
    assert rest == {"name": "x", "_meta": {"traceparent": "00"}}


@pytest.mark.parametrize("token", [True, 1.5, [], {}])
def test_a_progress_token_that_is_neither_string_nor_integer_is_bad_params(token: object) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        operating().profile_of(Request("a", "tools/call", {"_meta": {"progressToken": token}}))
    assert (caught.value.code, caught.value.request_id) == (INVALID_PARAMS, "a")


# --- The client's role ------------------------------------------------------------------------------------------------


def asking(version: str = LATEST_SESSION_VERSION) -> ClientSession:
    session = ClientSession()
    session.version = version
    session.begin({}, {"name": "c", "version": "1"})
    return session


def welcome(**members: object) -> Result:
    return Result({"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "s"}, **members})


def test_our_initialize_asks_for_the_newest_version_we_speak() -> None:
    session = ClientSession()
    assert session.begin({"roots": {}, "x": {}}, {"name": "c", "version": "1"}) == {
        "protocolVersion": "2025-11-25",
        "capabilities": {"roots": {}},
        "clientInfo": {"name": "c", "version": "1"},
    }
    assert session.stage is Stage.INITIALIZING


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_a_server_may_answer_with_any_session_version(version: str) -> None:
    session = asking()
    reply = welcome(protocolVersion=version, capabilities={"tools": {}}, instructions="Read this.", more=1)
    assert session.accept(reply) == Discovery(version, {"tools": {}}, {"name": "s"}, "Read this.")
    assert (session.stage, session.revision) == (Stage.OPERATING, REVISIONS[version])


@pytest.mark.parametrize("instructions", [None, 5, ["x"]])
def test_instructions_that_are_no_text_are_left_out(instructions: object) -> None:
    assert asking().accept(welcome(instructions=instructions)).instructions is None


def test_a_welcome_is_read_from_bytes_too() -> None:
    raw = msgspec.Raw(b'{"protocolVersion":"2024-11-05"}')
    assert asking().accept(Result(raw)) == Discovery("2024-11-05")


@pytest.mark.parametrize(
    "reply",
    [
        ErrorObject(-32600, "no"),
        welcome(protocolVersion="2026-07-28"),
        welcome(protocolVersion="2023-01-01"),
        welcome(protocolVersion=None),
        welcome(capabilities=[]),
        welcome(serverInfo="me"),
        Result({}),
        Result(msgspec.Raw(b'{"protocolVersion":"2025-06-18","capabilities":{"x":1e999}}')),
    ],
)
def test_a_welcome_that_cannot_be_one_is_the_servers_fault(reply: Result | ErrorObject) -> None:
    session = asking()
    with pytest.raises(UpstreamProtocolError):
        session.accept(reply)
    assert session.stage is Stage.INITIALIZING


def test_the_handshake_goes_one_way_only() -> None:
    session = ClientSession()
    with pytest.raises(LocalProtocolError):
        session.accept(welcome())
    session.begin({}, {})
    with pytest.raises(LocalProtocolError):
        session.begin({}, {})
    session.accept(welcome())
    with pytest.raises(LocalProtocolError):
        session.accept(welcome())
    session.close()
    with pytest.raises(LocalProtocolError):
        session.begin({}, {})
    assert session.stage is Stage.SHUTDOWN


def test_a_refusal_that_names_a_version_we_share_is_worth_another_try() -> None:
    session = asking()
    refused = ErrorObject(-32602, "Unsupported protocol version", {"supported": ["1.0", "2024-11-05", "2025-03-26"]})
    assert session.retry_with(refused)
    assert session.begin({}, {})["protocolVersion"] == "2025-03-26"
    assert not session.retry_with(ErrorObject(-32602, "still no", {"supported": ["2025-03-26"]}))


NOTHING_SHARED: list[object] = [
    *(msgspec.UNSET, None, [], "2025-03-26", {}),
    *({"supported": "2025-03-26"}, {"supported": ["2026-07-28", 5, {}]}),
]


@pytest.mark.parametrize("data", NOTHING_SHARED)
def test_a_refusal_without_a_version_we_share_is_final(data: object) -> None:
    assert not asking().retry_with(ErrorObject(-32602, "no", data))


def test_only_a_refusal_of_what_we_asked_is_worth_another_try() -> None:
    supported = ErrorObject(-32602, "no", {"supported": ["2025-03-26"]})
    assert not ClientSession().retry_with(supported)
    assert not asking().retry_with(welcome())


# --- What a revision has words for ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "declared"),
    [
        ("2024-11-05", {"roots": {"listChanged": True}, "sampling": {}}),
        ("2025-03-26", {"roots": {"listChanged": True}, "sampling": {}}),
        ("2025-06-18", {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {}}),
        ("2025-11-25", CAPABILITIES),
    ],
)
def test_a_client_declares_only_what_the_revision_knows(version: str, declared: Params) -> None:
    more: Params = {"experimental": {"x": {}}, "extensions": {"y": {}}}
    assert capabilities_for(CAPABILITIES, REVISIONS[version]) == declared
    assert capabilities_for({**CAPABILITIES, **more, "tasks": {}}, REVISIONS[version]) == {**declared, **more}


@given(st.dictionaries(st.sampled_from([*CAPABILITIES, "experimental", "extensions"]), json_values))
def test_capabilities_in_another_form_are_left_out(capabilities: Params) -> None:
    declared = capabilities_for(capabilities, REVISIONS["2025-11-25"])
    assert declared == {name: value for name, value in capabilities.items() if isinstance(value, dict)}


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("2024-11-05", {"name", "version"}),
        ("2025-06-18", {"name", "version", "title"}),
        ("2025-11-25", {"name", "version", "title", "icons", "description", "websiteUrl"}),
    ],
)
def test_implementation_info_has_the_fields_of_its_revision(version: str, names: set[str]) -> None:
    info: Params = dict.fromkeys(["name", "version", "title", "icons", "description", "websiteUrl", "more"], "x")
    assert implementation_for(info, REVISIONS[version]).keys() == names
