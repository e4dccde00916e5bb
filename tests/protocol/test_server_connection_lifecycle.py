"""From the first byte on: what is served at which stage, in which order, and both eras on one pipe.

The last part drives a conversation against a model of it that knows no bytes: stages, ids, batches, what waits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import initialize as at_the_start

from sluicegate.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NOT_INITIALIZED,
    OVERLOADED,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
    ErrorObject,
    LocalProtocolError,
)
from sluicegate.protocol.message import Params, RequestId, Result, as_array
from sluicegate.protocol.modern_era import CAPABILITIES_KEY, VERSION_KEY
from sluicegate.protocol.server_connection import (
    MAX_BACKLOG,
    Answered,
    Asked,
    Called,
    Event,
    LogLevelSet,
    Opened,
    Opening,
    Outgoing,
    ServerConversation,
    Withdrawn,
    WithoutId,
)
from sluicegate.protocol.session_era import Stage
from sluicegate.protocol.versions import SESSION_VERSIONS, SUPPORTED_VERSIONS, V2025_03_26
from tests.protocol.strategies import (
    OFFER,
    batch,
    cancelled,
    initialize,
    line,
    modern,
    modern_meta,
    notification,
    operating,
    read,
    refused,
    request,
    said,
)

INITIALIZED = notification("notifications/initialized")
NO = ErrorObject(-32603, "Not today.")


def opening(request_id: RequestId = 0) -> ServerConversation:
    """A conversation that waits for our welcome."""
    conversation = ServerConversation()
    assert conversation.receive(initialize(request_id)) == [Opening(request_id)]
    return conversation


# --- Before, during and after the handshake ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["tools/list", "tools/call", "logging/setLevel", "server/discover", "no-such"])
def test_a_request_before_initialize_is_refused_and_the_pipe_stays_open(method: str) -> None:
    conversation = ServerConversation()
    assert refused(conversation.receive(request("a", method))) == [("a", NOT_INITIALIZED)]
    assert conversation.receive(initialize(1)) == [Opening(1)]


@pytest.mark.parametrize("params", ["[1]", "[]", '"x"', "null"])
def test_params_that_are_no_object_matter_only_after_initialize(params: str) -> None:
    def codes(conversation: ServerConversation, method: str) -> list[tuple[RequestId | None, int]]:
        message = f'{{"jsonrpc":"2.0","id":"a","method":"{method}","params":{params}}}'
        return refused(conversation.receive(message.encode() + b"\n"))

    assert codes(ServerConversation(), "tools/list") == [("a", NOT_INITIALIZED)]
    assert codes(ServerConversation(), "initialize") == [("a", INVALID_PARAMS)]
    assert codes(operating(), "tools/list") == [("a", INVALID_PARAMS)]


@pytest.mark.parametrize("make", [ServerConversation, opening, operating])
def test_ping_is_answered_at_every_stage(make: Callable[[], ServerConversation]) -> None:
    conversation = make()
    for request_id in (7, "7"):
        assert said(conversation.receive(request(request_id, "ping"))) == [
            {"jsonrpc": "2.0", "id": request_id, "result": {}}
        ]


@pytest.mark.parametrize("make", [ServerConversation, opening])
def test_notifications_before_the_handshake_is_done_are_heard_and_not_answered(
    make: Callable[[], ServerConversation],
) -> None:
    conversation = make()
    (called,) = conversation.receive(INITIALIZED + notification("tools/call") + cancelled(5) + notification("x"))
    assert called == WithoutId("tools/call", {}), "it is recorded"


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_the_version_asked_for_is_echoed(version: str) -> None:
    conversation = ServerConversation()
    conversation.receive(initialize("i", version))
    (welcome,) = said(conversation.welcome("i", OFFER))
    assert (welcome["id"], welcome["result"]["protocolVersion"]) == ("i", version)


@pytest.mark.parametrize("version", ["2026-07-28", "2030-01-01", "x"])
def test_a_version_that_no_handshake_gives_is_answered_with_2025_11_25(version: str) -> None:
    conversation = ServerConversation()
    conversation.receive(initialize(0, version))
    (welcome,) = said(conversation.welcome(0, OFFER))
    assert welcome["result"]["protocolVersion"] == "2025-11-25"


@pytest.mark.parametrize("params", [{"version": None}, {"capabilities": []}, {"clientInfo": 5}])
def test_an_initialize_with_bad_params_is_refused_and_can_be_sent_again(params: dict[str, object]) -> None:
    conversation = ServerConversation()
    assert refused(conversation.receive(initialize(0, **params))) == [(0, INVALID_PARAMS)]
    assert conversation.receive(initialize(0)) == [Opening(0)]


def test_a_second_initialize_is_refused_at_every_stage() -> None:
    conversation = opening(0)
    assert refused(conversation.receive(initialize(0) + initialize(1))) == [(0, INVALID_REQUEST), (1, INVALID_REQUEST)]
    conversation.welcome(0, OFFER)
    assert refused(conversation.receive(initialize(2))) == [(2, INVALID_REQUEST)]
    conversation.receive(INITIALIZED)
    assert refused(conversation.receive(initialize(0))) == [(0, INVALID_REQUEST)]
    assert conversation.session.stage is Stage.OPERATING


def test_initialize_cannot_be_cancelled_but_a_later_request_under_its_id_can() -> None:
    conversation = opening(0)
    assert conversation.receive(cancelled(0)) == []
    assert len(said(conversation.welcome(0, OFFER))) == 1
    conversation.receive(request(0, "tools/list"))
    assert conversation.receive(cancelled(0)) == [Withdrawn(0)]


def test_requests_behind_the_handshake_wait_and_are_served_in_order() -> None:
    conversation = ServerConversation()
    events = conversation.receive(
        initialize(0, "2025-06-18")
        + request(1, "tools/call", {"name": "x"})
        + request(2, "ping")
        + request(3, "logging/setLevel", {"level": "debug"})
        + request("1", "tools/list")
        + request(4, "tools/call", {"_meta": {"progressToken": []}})
        + request(5, "no-such")
    )
    assert events[0] == Opening(0)
    # What needs no session is answered without waiting for it.
    assert [(one["id"], one.get("error", {}).get("code")) for one in said(events[1:])] == [
        (2, None),
        (5, METHOD_NOT_FOUND),
    ]
    welcome, first, level, known, second, bad = conversation.welcome(0, OFFER)
    assert known == LogLevelSet("debug")
    assert [one["id"] for one in said([welcome, level])] == [0, 3]
    assert isinstance(first, Asked) and (first.id, first.params) == (1, {"name": "x"})
    assert isinstance(second, Asked) and (second.id, second.profile.log_level) == ("1", "debug")
    assert refused([bad]) == [(4, INVALID_PARAMS)]
    assert (first.profile.version, first.modern, conversation.in_progress) == ("2025-06-18", False, 2)


def test_a_request_behind_the_handshake_can_be_cancelled() -> None:
    conversation = opening()
    data = request(1, "tools/list") + request("1", "tools/list") + cancelled(1)
    assert conversation.receive(data) == [Withdrawn(1)]  # for a transport where it holds a response open
    _, event = conversation.welcome(0, OFFER)
    assert isinstance(event, Asked) and event.id == "1"


@pytest.mark.parametrize(
    "again", [request(1, "tools/call"), modern(1, "tools/list"), request(1, "ping"), initialize(1)]
)
def test_an_id_that_waits_behind_the_handshake_is_in_flight(again: bytes) -> None:
    conversation = opening()
    assert conversation.receive(request(1, "tools/list")) == []
    assert refused(conversation.receive(again)) == [(1, INVALID_REQUEST)]
    _, event = conversation.welcome(0, OFFER)
    assert isinstance(event, Asked) and event.method == "tools/list"


def test_an_id_in_flight_cannot_wait_behind_the_handshake() -> None:
    conversation = opening()
    conversation.receive(modern(1, "tools/list"))
    assert refused(conversation.receive(request(1, "tools/call"))) == [(1, INVALID_REQUEST)]
    assert len(conversation.welcome(0, OFFER)) == 1


def test_only_so_many_requests_wait_behind_the_handshake() -> None:
    conversation = opening("i")
    assert conversation.receive(b"".join(request(n, "tools/list") for n in range(MAX_BACKLOG))) == []
    assert refused(conversation.receive(request("late", "tools/list"))) == [("late", OVERLOADED)]
    assert len(conversation.welcome("i", OFFER)) == 1 + MAX_BACKLOG


def test_we_speak_unasked_once_the_client_has_heard_our_welcome() -> None:
    conversation = opening()
    conversation.welcome(0, OFFER)
    assert not conversation.session.ready_for_pushes
    assert conversation.receive(INITIALIZED) == [Opened()]
    assert conversation.session.ready_for_pushes
    assert conversation.receive(INITIALIZED) == []


def test_requests_are_served_though_initialized_never_comes() -> None:
    conversation = opening()
    conversation.welcome(0, OFFER)
    (event,) = conversation.receive(request(1, "tools/list"))
    assert isinstance(event, Asked)


def test_an_early_initialized_counts_as_soon_as_the_welcome_is_sent() -> None:
    conversation = opening()
    assert conversation.receive(INITIALIZED + request(1, "tools/list")) == []
    welcome, opened, event = conversation.welcome(0, OFFER)
    assert isinstance(welcome, Outgoing) and opened == Opened() and isinstance(event, Asked)
    assert conversation.session.ready_for_pushes
    assert conversation.receive(INITIALIZED) == []


def test_initialized_before_initialize_is_of_no_session() -> None:
    conversation = ServerConversation()
    conversation.receive(INITIALIZED + initialize(0))
    assert len(conversation.welcome(0, OFFER)) == 1
    assert conversation.receive(INITIALIZED) == [Opened()]


def test_a_refused_handshake_refuses_what_waits_behind_it_and_can_be_tried_again() -> None:
    conversation = opening()
    conversation.receive(INITIALIZED + request(1, "tools/list") + request("1", "logging/setLevel"))
    assert refused(conversation.refuse_opening(0, NO)) == [(0, -32603), (1, NOT_INITIALIZED), ("1", NOT_INITIALIZED)]
    assert conversation.receive(initialize(0)) == [Opening(0)]
    assert len(conversation.welcome(0, OFFER)) == 1  # what was said before belonged to the other try
    assert not conversation.session.ready_for_pushes


def test_an_unsolicited_handshake_cannot_be_answered() -> None:
    with pytest.raises(LocalProtocolError):
        ServerConversation().welcome(0, OFFER)
    assert ServerConversation().refuse_opening(0, NO) == []


# --- Both eras on one pipe --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [ServerConversation, opening, operating, lambda: operating(V2025_03_26)])
def test_a_modern_request_needs_no_handshake_and_minds_none(make: Callable[[], ServerConversation]) -> None:
    conversation = make()
    stage = conversation.session.stage
    meta: Params = {VERSION_KEY: "2026-07-28", CAPABILITIES_KEY: {"roots": {}}, "progressToken": "p"}
    (event,) = conversation.receive(request("m", "tools/call", {"name": "x", "_meta": meta}))
    assert isinstance(event, Asked)
    assert (event.id, event.method, event.params, event.modern) == ("m", "tools/call", {"name": "x"}, True)
    assert (event.profile.version, event.profile.capabilities) == ("2026-07-28", {"roots": {}})
    assert event.profile.progress_token == "p"
    assert read(conversation.respond("m", Result({})))["id"] == "m"
    assert conversation.session.stage is stage


def test_a_client_whose_probe_was_answered_or_not_may_still_shake_hands() -> None:
    conversation = ServerConversation()
    (probe,) = conversation.receive(modern(0, "server/discover"))
    assert isinstance(probe, Asked) and probe.modern
    assert conversation.receive(initialize(1)) == [Opening(1)]
    conversation.welcome(1, OFFER)
    session_event, modern_event = conversation.receive(request(2, "tools/list") + modern(3, "tools/list"))
    assert isinstance(session_event, Asked) and not session_event.modern
    assert isinstance(modern_event, Asked) and modern_event.modern
    assert [read(conversation.respond(n, Result({})))["id"] for n in (3, 0, 2)] == [3, 0, 2]


def test_initialize_is_a_handshake_whatever_its_meta_says() -> None:
    conversation = ServerConversation()
    assert conversation.receive(initialize(0, _meta=modern_meta())) == [Opening(0)]


@pytest.mark.parametrize("make", [ServerConversation, opening, operating])
@pytest.mark.parametrize(
    "method",
    [
        *("ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "roots/list", "no-such"),
        *("notifications/initialized", "sampling/createMessage"),
    ],
)
def test_a_method_that_2026_07_28_removed_is_not_found_by_a_modern_request(
    method: str, make: Callable[[], ServerConversation]
) -> None:
    assert refused(make().receive(modern(5, method))) == [(5, METHOD_NOT_FOUND)]


@pytest.mark.parametrize("version", ["2027-01-01", "2025-11-25", ""])
def test_a_modern_revision_we_do_not_speak_is_refused_with_what_we_do(version: str) -> None:
    (refusal,) = said(ServerConversation().receive(modern("a", "tools/list", version)))
    assert (refusal["id"], refusal["error"]["code"]) == ("a", UNSUPPORTED_VERSION)
    assert refusal["error"]["data"]["supported"] == list(SUPPORTED_VERSIONS)
    assert refusal["error"]["data"]["requested"] == version


@pytest.mark.parametrize(
    "meta",
    [{VERSION_KEY: "2026-07-28"}, {VERSION_KEY: 5, CAPABILITIES_KEY: {}}, {VERSION_KEY: "x", CAPABILITIES_KEY: 1}],
)
def test_a_modern_request_with_an_incomplete_meta_is_bad_params(meta: dict[str, object]) -> None:
    assert refused(operating().receive(request(1, "tools/list", {"_meta": meta}))) == [(1, INVALID_PARAMS)]


def test_the_log_level_of_the_session_is_not_that_of_a_modern_request() -> None:
    conversation = operating()
    conversation.receive(request(1, "logging/setLevel", {"level": "debug"}))
    session_event, modern_event = conversation.receive(request(2, "tools/list") + modern(3, "tools/list"))
    assert isinstance(session_event, Asked) and session_event.profile.log_level == "debug"
    assert isinstance(modern_event, Asked) and modern_event.profile.log_level is None


# --- Against a model --------------------------------------------------------------------------------------------------

Outcome = tuple[Any, ...]


@dataclass
class Array:
    """A batch in the model: which requests are still open, and what is known of the answer."""

    open: set[RequestId] = field(default_factory=set[RequestId])
    answers: list[Outcome] = field(default_factory=list[Outcome])
    reading: bool = True

    def said(self) -> list[Outcome]:
        return [("array", tuple(self.answers))] if not self.reading and not self.open and self.answers else []


@dataclass
class Model:
    """What a conversation is to do, said as simply as can be."""

    stage: str = "created"
    version: str = ""
    opening: RequestId | None = None
    heard_early: bool = False
    ready: bool = False
    in_flight: dict[RequestId, Array | None] = field(default_factory=dict[RequestId, Array | None])
    waiting: list[tuple[RequestId, str]] = field(default_factory=list[tuple[RequestId, str]])
    questions: set[int] = field(default_factory=set[int])

    def busy(self, request_id: RequestId) -> bool:
        return request_id in self.in_flight or request_id in [one for one, _ in self.waiting]

    def take(self, request_id: RequestId, method: str, era: str, array: Array | None) -> Outcome | None:
        """What becomes of a request; None if it waits."""
        known = {"tools/list", "logging/setLevel"} if era == "session" else {"tools/list", "server/discover"}
        if self.busy(request_id):
            return ("said", request_id, INVALID_REQUEST)
        if era != "session":
            if array is not None:
                return ("said", request_id, INVALID_REQUEST)
            problem = {"incomplete": INVALID_PARAMS, "unknown": UNSUPPORTED_VERSION}.get(era)
            if problem is not None or method not in known:
                return ("said", request_id, problem or METHOD_NOT_FOUND)
        elif method == "ping":
            return ("said", request_id, "result")
        elif self.stage == "created":
            return ("said", request_id, NOT_INITIALIZED)
        elif method not in known:
            return ("said", request_id, METHOD_NOT_FOUND)
        elif self.stage == "initializing":
            self.waiting.append((request_id, method))
            return None
        return self.serve(request_id, method, era, array)

    def serve(self, request_id: RequestId, method: str, era: str, array: Array | None) -> Outcome:
        if era == "session" and method == "logging/setLevel":
            return ("said", request_id, "result")
        self.in_flight[request_id] = array
        if array is not None:
            array.open.add(request_id)
        return ("asked", request_id, method, era != "session")

    def end_opening(self, answer: object) -> list[Outcome]:
        assert self.opening is not None
        outcomes: list[Outcome] = [("said", self.opening, answer)]
        del self.in_flight[self.opening]
        if self.heard_early and self.stage == "operating":
            self.ready = True
            outcomes.append(("opened",))
        waiting, self.waiting = self.waiting, []
        for request_id, method in waiting:
            outcomes.append(
                self.serve(request_id, method, "session", None)
                if self.stage == "operating"
                else ("said", request_id, NOT_INITIALIZED)
            )
        self.heard_early, self.opening = False, None
        return outcomes

    def end(self, request_id: RequestId, answer: Outcome | None) -> list[Outcome]:
        """What is said when a request is answered, or withdrawn."""
        array = self.in_flight.pop(request_id)
        if array is None:
            return [answer] if answer is not None else []
        array.open.discard(request_id)
        if answer is not None:
            array.answers.append(answer)
        return array.said()


def outcomes(events: Sequence[Event]) -> list[Outcome]:
    """Events in the words of the model, which knows of no levels and no native requests."""
    return [outcome(event) for event in events if not isinstance(event, LogLevelSet | Called | WithoutId)]


def outcome(event: Asked | Opening | Opened | Withdrawn | Answered | Outgoing) -> Outcome:
    """An event, said in the words of the model."""
    match event:
        case Outgoing(data):
            message = read(data)
            array = as_array(message)
            return answer(message) if array is None else ("array", tuple(map(answer, array)))
        case Asked(request_id, method, _, _, modern_era):
            return ("asked", request_id, method, modern_era)
        case Opening(request_id):
            return ("opening", request_id)
        case Opened():
            return ("opened",)
        case Withdrawn(request_id):
            return ("withdrawn", request_id)
        case Answered(request_id, reply):
            return ("answered", request_id, isinstance(reply, Result))


def answer(message: Any) -> Outcome:
    return ("said", message["id"], message["error"]["code"] if "error" in message else "result")


ids = st.sampled_from([0, 1, 2, 3, "1", "2", ""])
methods = st.sampled_from(["ping", "tools/list", "logging/setLevel", "server/discover", "no-such"])
eras = st.sampled_from(["session", "session", "modern", "incomplete", "unknown"])
elements = st.one_of(
    st.tuples(st.just("request"), ids, methods, eras),
    st.tuples(st.just("notification")),
    st.tuples(st.just("garbage")),
    st.tuples(st.just("cancel"), ids),
)


def written(request_id: RequestId, method: str, era: str) -> bytes:
    match era:
        case "session":
            return request(request_id, method, {"level": "info"} if method == "logging/setLevel" else {})
        case "incomplete":
            return request(request_id, method, {"_meta": {VERSION_KEY: "2026-07-28"}})
        case _:
            return modern(request_id, method, "2026-07-28" if era == "modern" else "2027-01-01")


class LifecycleMachine(RuleBasedStateMachine):
    """A conversation and its model hear the same and are answered the same; they must agree on everything."""

    @at_the_start()
    def start(self) -> None:
        self.conversation = ServerConversation()
        self.model = Model()

    def hears(self, data: bytes, *expected: Outcome) -> None:
        assert outcomes(self.conversation.receive(data)) == list(expected)

    @rule(request_id=ids, version=st.sampled_from([*SESSION_VERSIONS, V2025_03_26, "2026-07-28", None]))
    def initialize(self, request_id: RequestId, version: str | None) -> None:
        model = self.model
        if model.busy(request_id) or model.stage != "created":
            self.hears(initialize(request_id, version), ("said", request_id, INVALID_REQUEST))
        elif version is None:
            self.hears(initialize(request_id, version), ("said", request_id, INVALID_PARAMS))
        else:
            self.hears(initialize(request_id, version), ("opening", request_id))
            model.stage, model.opening = "initializing", request_id
            model.version = version if version in SESSION_VERSIONS else "2025-11-25"
            model.in_flight[request_id] = None

    @precondition(lambda self: self.model.stage == "initializing")
    @rule()
    def welcome(self) -> None:
        assert self.model.opening is not None
        events = self.conversation.welcome(self.model.opening, OFFER)
        self.model.stage = "operating"
        assert said(events[:1])[0]["result"]["protocolVersion"] == self.model.version
        assert outcomes(events) == self.model.end_opening("result")

    @precondition(lambda self: self.model.stage == "initializing")
    @rule()
    def refuse(self) -> None:
        assert self.model.opening is not None
        events = self.conversation.refuse_opening(self.model.opening, NO)
        self.model.stage = "created"
        assert outcomes(events) == self.model.end_opening(NO.code)

    @rule(request_id=ids, method=methods, era=eras)
    def request(self, request_id: RequestId, method: str, era: str) -> None:
        expected = self.model.take(request_id, method, era, None)
        self.hears(written(request_id, method, era), *([] if expected is None else [expected]))

    @rule()
    def initialized(self) -> None:
        expected: list[Outcome] = []
        if self.model.stage == "initializing":
            self.model.heard_early = True
        elif self.model.stage == "operating" and not self.model.ready:
            self.model.ready = True
            expected.append(("opened",))
        self.hears(INITIALIZED, *expected)

    def cancel_in_model(self, request_id: RequestId) -> list[Outcome]:
        model = self.model
        waiting = [one for one in model.waiting if one[0] != request_id]
        if waiting != model.waiting:
            model.waiting = waiting
            return [("withdrawn", request_id)]
        if request_id not in model.in_flight or request_id == model.opening:
            return []
        return [("withdrawn", request_id), *model.end(request_id, None)]

    @rule(request_id=ids)
    def cancel(self, request_id: RequestId) -> None:
        self.hears(cancelled(request_id), *self.cancel_in_model(request_id))

    @precondition(lambda self: self.model.in_flight.keys() - {self.model.opening})
    @rule(data=st.data(), fails=st.booleans())
    def respond(self, data: st.DataObject, fails: bool) -> None:
        open_ids = [one for one in self.model.in_flight if one != self.model.opening]
        request_id = data.draw(st.sampled_from(open_ids))
        said_now = self.conversation.respond(request_id, NO if fails else Result({}))
        expected = self.model.end(request_id, ("said", request_id, NO.code if fails else "result"))
        assert [outcome(Outgoing(one)) for one in [said_now] if one is not None] == expected

    @rule(request_id=ids)
    def respond_to_nobody(self, request_id: RequestId) -> None:
        if request_id not in self.model.in_flight:
            assert self.conversation.respond(request_id, Result({})) is None

    @rule(inside=st.lists(elements, max_size=5))
    def batch(self, inside: list[Any]) -> None:
        lines: list[bytes] = []
        for element in inside:
            match element:
                case ("request", request_id, method, era):
                    lines.append(written(request_id, method, era))
                case ("cancel", request_id):
                    lines.append(cancelled(request_id))
                case ("notification",):
                    lines.append(line(method="x", params=[1]))
                case _:
                    lines.append(b"5")
        if self.model.stage != "operating" or self.model.version != V2025_03_26 or not inside:
            self.hears(batch(*lines), ("said", None, INVALID_REQUEST))
            return
        array, expected = Array(), list[Outcome]()
        for element in inside:
            match element:
                case ("request", request_id, method, era):
                    one = self.model.take(request_id, method, era, array)
                    assert one is not None
                    (array.answers if one[0] == "said" else expected).append(one)
                case ("cancel", request_id):
                    expected += self.cancel_in_model(request_id)
                case ("garbage",):
                    array.answers.append(("said", None, INVALID_REQUEST))
                case _:
                    pass
        array.reading = False
        self.hears(batch(*lines), *expected, *array.said())

    @rule()
    def ask(self) -> None:
        question, _ = self.conversation.ask("roots/list", {})
        assert question not in self.model.questions
        self.model.questions.add(question)

    @rule(question=st.integers(0, 5), fails=st.booleans())
    def reply(self, question: int, fails: bool) -> None:
        expected = [("answered", question, not fails)] if question in self.model.questions else []
        self.model.questions.discard(question)
        reply: Params = {"error": {"code": 1, "message": ""}} if fails else {"result": {}}
        self.hears(line(id=question, **reply), *expected)

    @rule(
        data=st.sampled_from(
            [b"x\n", b"{}\n", b"\n", b"\xff\n", b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n', b"NaN\n"]
        )
    )
    def garbage(self, data: bytes) -> None:
        code = INVALID_REQUEST if data.startswith(b"{") else PARSE_ERROR
        self.hears(data, *([("said", None, code)] if data.strip() else []))

    @invariant()
    def the_books_agree(self) -> None:
        assert self.conversation.in_progress == len(self.model.in_flight)
        assert self.conversation.session.stage.value == self.model.stage
        assert self.conversation.session.ready_for_pushes == self.model.ready


LifecycleMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
TestLifecycleAgainstAModel = LifecycleMachine.TestCase


def test_nothing_is_taken_after_the_end() -> None:
    conversation = ServerConversation()
    conversation.session.close()
    assert conversation.take({"jsonrpc": "2.0", "id": 1, "method": "ping"}) == []
