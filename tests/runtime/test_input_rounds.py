"""Rounds of asking, where nobody can be shown a result that asks."""

import pytest

from sluicegate.errors import ErrorObject, InputRefused, UpstreamProtocolError
from sluicegate.exchange import Exchange
from sluicegate.protocol.input_required import Answers, Question, Questions, input_required
from sluicegate.protocol.message import Params, Reply, Result
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.runtime import input_rounds as asking
from sluicegate.runtime.input_rounds import MAX_ROUNDS, CapabilityMissing, check_capabilities, settle
from tests.upstream.raw_server import Recorder

DONE = Result({"resultType": "complete", "content": []})
ROOTS = {"where": Question("roots/list", {})}
ABLE = ClientProfile(capabilities={"roots": {}})


class Asker:
    """A handler that answers with these replies, one after the other, and keeps what it was sent."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.received: list[Params] = []

    async def __call__(self, exchange: Exchange) -> Reply:
        self.received.append(exchange.params)
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


def call(sink: Recorder | None = None, method: str = "tools/call", profile: ClientProfile = ABLE) -> Exchange:
    return Exchange(method, {"name": "t"}, sink or Recorder({"roots": []}), profile)


async def test_answers_and_state_go_along_with_the_same_request() -> None:
    handler = Asker(input_required(ROOTS, "verbatim"), DONE)
    assert await settle(handler, call()) is DONE
    assert handler.received == [
        {"name": "t"},
        {"name": "t", "inputResponses": {"where": {"roots": []}}, "requestState": "verbatim"},
    ]


async def test_a_state_that_was_not_given_is_not_sent() -> None:
    handler = Asker(input_required(ROOTS, None), DONE)
    await settle(handler, call())
    assert "requestState" not in handler.received[1]


async def test_a_state_alone_means_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_PAUSES", (0,))
    handler = Asker(input_required({}, "later"), DONE)
    assert await settle(handler, call()) is DONE
    assert handler.received[1] == {"name": "t", "requestState": "later"}


async def test_a_client_is_not_asked_without_the_capability() -> None:
    sink = Recorder()
    with pytest.raises(UpstreamProtocolError, match="did not declare") as problem:
        await settle(Asker(input_required(ROOTS, None)), call(sink, profile=ClientProfile()))
    assert problem.value.data == {"requiredCapabilities": {"roots": {}}}
    assert sink.questions == []


@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
async def test_a_refusal_ends_the_request_in_a_way_its_method_has(method: str) -> None:
    class Refusing(Recorder):
        async def ask(self, questions: Questions) -> Answers:
            raise InputRefused("Not today.")

    reply = await settle(Asker(input_required(ROOTS, None)), call(Refusing(), method))
    if method == "tools/call":
        assert isinstance(reply, Result) and "Not today." in str(reply.value)
    else:
        assert reply == ErrorObject(-32603, "Not today.")


async def test_a_server_that_never_has_enough_is_given_up() -> None:
    answers: list[Params] = [{"roots": []} for _ in range(MAX_ROUNDS)]
    sink = Recorder(*answers)
    with pytest.raises(UpstreamProtocolError, match="more than 10 times"):
        await settle(Asker(input_required(ROOTS, None)), call(sink))
    assert len(sink.questions) == MAX_ROUNDS


@pytest.mark.parametrize(
    ("capabilities", "method", "params", "code"),
    [
        ({}, "roots/list", {}, -32601),
        ({"roots": {}}, "sampling/createMessage", {"messages": [], "maxTokens": 1}, -32601),
        ({"sampling": {}}, "sampling/createMessage", {"messages": [], "maxTokens": 1, "tools": []}, -32602),
        ({"elicitation": {}}, "elicitation/create", {"mode": "url", "message": "go", "url": "https://x"}, -32602),
    ],
)
def test_a_question_needs_the_capability_for_it(capabilities: Params, method: str, params: Params, code: int) -> None:
    with pytest.raises(CapabilityMissing, match="did not declare that it can be asked") as problem:
        check_capabilities({"q": Question(method, params)}, capabilities)
    assert problem.value.error is not None and problem.value.error.code == code
