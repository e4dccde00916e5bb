"""A server's request state passes through a client: it is readable, and valid only for its caller."""

import msgspec
import pytest

from sluicegate.errors import ErrorObject, InvalidParams
from sluicegate.exchange import Caller, Exchange
from sluicegate.hub import input_requests as module
from sluicegate.hub.input_requests import RequestStates
from sluicegate.protocol.input_required import Question, input_required
from sluicegate.protocol.message import Params, Result, opened, read_tool_text
from sluicegate.protocol.modern_era import complete
from sluicegate.runtime.process_key import process_key
from tests.upstream.raw_server import Recorder

FORM = Question("elicitation/create", {"mode": "form", "message": "Which?", "requestedSchema": {}})


def exchange(method: str = "tools/call", caller: str = "ada", **params: object) -> Exchange:
    return Exchange(method, {"name": "t", "arguments": {"a": 1}, **params}, Recorder(), caller=Caller(caller))


def asked(states: RequestStates, state: str | None = "theirs") -> Params:
    reply = states.wrapped(exchange(), "files", input_required({"k": FORM}, state), "files")
    assert isinstance(reply, Result)
    return opened(reply)


def test_a_state_comes_back_to_the_server_as_it_gave_it() -> None:
    states = RequestStates()
    needed = asked(states)
    assert needed["requestState"] != "theirs"
    retry = exchange(requestState=needed["requestState"], inputResponses={"k": {}})
    again = msgspec.structs.replace(retry)
    states.unwrap(retry, "files")
    assert retry.is_continued
    assert retry.params["requestState"] == "theirs"
    assert retry.params["inputResponses"] == {"k": {}}
    states.unwrap(again, "files")
    assert not again.is_continued, "a state that is used a second time begins another call"


def test_arguments_that_a_person_changed_are_sent_in_the_next_round_too() -> None:
    states, first = RequestStates(), exchange()
    first.original, first.params = first.params, {**first.params, "arguments": {"a": 2}}
    reply = states.wrapped(first, "files", input_required({"k": FORM}, "theirs"), "files")
    assert isinstance(reply, Result)
    retry = exchange(requestState=opened(reply)["requestState"])  # The client knows its own arguments only.
    states.unwrap(retry, "files")
    assert retry.params["arguments"] == {"a": 2} and retry.is_continued
    assert retry.original is not None and retry.original["arguments"] == {"a": 1}


def test_a_server_that_gave_none_gets_none_back() -> None:
    states = RequestStates()
    retry = exchange(requestState=asked(states, None)["requestState"])
    states.unwrap(retry, "files")
    assert "requestState" not in retry.params


def test_questions_say_which_server_asks() -> None:
    questions = asked(RequestStates())["inputRequests"]
    assert msgspec.to_builtins(questions)["k"]["params"]["message"] == "[files] Which?"


@pytest.mark.parametrize(
    "words",
    [
        '{"resultType":"complete","content":[],"resultType":"input_required",%s}',
        '{"resultType":"input\\u005frequired",%s}',
        '{"result\\u0054ype":"input_required",%s}',
        '{"content":[],"resultType":"input_required",%s}',
    ],
    ids=["said twice", "spelled otherwise", "named otherwise", "said last"],
)
def test_questions_are_found_however_a_server_writes_them(words: str) -> None:
    form = '"inputRequests":{"k":{"method":"elicitation/create","params":{"mode":"form","message":"Your password?"}}}'
    reply = Result(msgspec.Raw((words % f'{form},"requestState":"theirs"').encode()))
    assert read_tool_text(msgspec.Raw(msgspec.json.encode(reply.value))) is None
    wrapped = RequestStates().wrapped(exchange(), "files", reply, "files")
    assert isinstance(wrapped, Result)
    assert "[files] Your password?" in str(opened(wrapped)["inputRequests"])
    assert opened(wrapped)["requestState"] != "theirs"


@pytest.mark.parametrize(
    "retry",
    [
        exchange(caller="eve"),
        exchange(arguments={"a": 2}),
        exchange(name="other"),
        exchange("prompts/get"),
    ],
    ids=["another caller", "other arguments", "another tool", "another method"],
)
def test_a_state_is_of_no_use_for_anything_else(retry: Exchange) -> None:
    states = RequestStates()
    retry.params["requestState"] = asked(states)["requestState"]
    with pytest.raises(InvalidParams, match="requestState is not valid"):
        states.unwrap(retry, "files")


def test_a_state_is_of_no_use_at_another_server_nor_in_another_process() -> None:
    states = RequestStates()
    retry = exchange(requestState=asked(states)["requestState"])
    with pytest.raises(InvalidParams):
        states.unwrap(retry, "mail")
    process_key.cache_clear()
    with pytest.raises(InvalidParams):
        RequestStates().unwrap(retry, "files")


@pytest.mark.parametrize("state", [7, None, "", "theirs", "sg2.", "sg2.AAAA", {"a": 1}])
def test_a_state_that_we_never_gave_is_refused(state: object) -> None:
    with pytest.raises(InvalidParams):
        RequestStates().unwrap(exchange(requestState=state), "files")


def test_a_state_is_good_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    states = RequestStates()
    monkeypatch.setattr(module, "GOOD_FOR", -1.0)
    with pytest.raises(InvalidParams):
        states.unwrap(exchange(requestState=asked(states)["requestState"]), "files")


def test_what_asks_for_nothing_passes_as_it_is() -> None:
    states = RequestStates()
    for reply in (
        Result(complete({"content": []})),
        Result(msgspec.Raw(b'{"content":[{"type":"text","text":"input_required"}]}')),
        ErrorObject(-32603, "no"),
    ):
        assert states.wrapped(exchange(), "files", reply, "files") is reply
