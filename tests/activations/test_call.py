"""Questions of a running tool to its client, and their answers."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, cast

import pytest

from sluicegate.activations import questions
from sluicegate.activations.call import Call
from sluicegate.activations.questions import Root
from sluicegate.activations.values import AssistantMessage, Image, UserMessage
from sluicegate.errors import InputRefused, MissingCapability, error_object
from sluicegate.protocol.input_required import Answers, Question, Questions
from sluicegate.server import Server
from tests.activations.helpers import Recorder, ask, call, failure, text


@dataclasses.dataclass
class Order:
    drink: Literal["tea", "coffee"]
    cups: int = 1


@pytest.fixture
def server() -> Server:
    server = Server("demo")

    @server.tool
    async def order(call: Call) -> str:
        """Take an order."""
        answer = await call.elicit("What may I bring?", Order)
        if not answer.accepted or answer.content is None:
            return answer.action
        return f"{answer.content.cups} {answer.content.drink}"

    return server


def answering(*answers: dict[str, Any]) -> Callable[[Questions], Answers]:
    return lambda questions: dict(zip(questions, answers, strict=True))


async def test_call_is_no_argument_that_clients_see(server: Server) -> None:
    (tool,) = (await ask(server, "tools/list"))["tools"]
    assert tool["inputSchema"]["properties"] == {}


async def test_form_is_asked_for_and_its_answer_is_typed(server: Server) -> None:
    sink = Recorder(answering({"action": "accept", "content": {"drink": "tea", "cups": 2}}))
    assert text(await call(server, "order", sink=sink)) == "2 tea"
    assert sink.asked == [
        {
            "elicitation": Question(
                "elicitation/create",
                {
                    "message": "What may I bring?",
                    "requestedSchema": {
                        "type": "object",
                        "properties": {
                            "drink": {"type": "string", "enum": ["tea", "coffee"]},
                            "cups": {"type": "integer", "default": 1},
                        },
                        "required": ["drink"],
                    },
                },
            )
        }
    ]


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_user_may_say_no(server: Server, action: str) -> None:
    assert text(await call(server, "order", sink=Recorder(answering({"action": action, "content": 7})))) == action


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"action": "accept", "content": {"drink": "wine"}}, "field 'drink' should be one of 'tea', 'coffee'"),
        ({"action": "accept"}, "missing required field 'drink'"),
        ({"action": "accept", "content": []}, "its content is not an object"),
        ({"action": "maybe"}, "its action is not accept, decline or cancel"),
    ],
)
async def test_answer_that_does_not_fit_is_none(server: Server, answer: dict[str, Any], problem: str) -> None:
    assert problem in failure(await call(server, "order", sink=Recorder(answering(answer))))


async def test_refusal_to_answer_is_a_result_that_says_so(server: Server) -> None:
    def refuse(questions: Questions) -> Answers:
        raise InputRefused("The client left without an answer.")

    assert failure(await call(server, "order", sink=Recorder(refuse))) == "The client left without an answer."
    assert "did not answer: elicitation" in failure(await call(server, "order", sink=Recorder(lambda _: {})))


async def test_client_that_cannot_be_asked_gets_an_error_that_names_what_is_missing(server: Server) -> None:
    sink = Recorder()
    with pytest.raises(MissingCapability) as refusal:
        await call(server, "order", sink=sink, capabilities={"sampling": {}})
    error = error_object(refusal.value)
    assert error.code == -32021
    # The tool had begun, and nobody knows what it did before it asked.
    assert cast(dict[str, object], error.data)["delivered"] == "yes"
    assert refusal.value.data == {"requiredCapabilities": {"elicitation": {"form": {}}}}
    assert sink.asked == []


async def test_tool_may_do_without_an_answer(server: Server) -> None:
    @server.tool
    async def guess(call: Call) -> str:
        try:
            return str(await call.roots())
        except MissingCapability:
            return "anywhere"

    assert text(await call(server, "guess", capabilities={})) == "anywhere"


async def test_form_may_be_a_schema(server: Server) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    @server.tool
    async def number(call: Call) -> object:
        return (await call.elicit("Which?", schema)).content

    result = await call(server, "number", sink=Recorder(answering({"action": "accept", "content": {"n": 3}})))
    assert text(result) == '{"n":3}'
    result = await call(server, "number", sink=Recorder(answering({"action": "accept", "content": {"n": "3"}})))
    assert "field 'n' should be integer" in failure(result)


async def test_user_may_be_sent_to_a_page(server: Server) -> None:
    @server.tool
    async def pay(call: Call) -> str:
        return (await call.elicit_url("Pay here.", "https://pay.example/1")).action

    sink = Recorder(answering({"action": "accept"}))
    assert text(await call(server, "pay", sink=sink)) == "accept"
    params: dict[str, object] = {"mode": "url", "message": "Pay here.", "url": "https://pay.example/1"}
    assert sink.asked == [{"elicitation": Question("elicitation/create", params)}]
    with pytest.raises(MissingCapability):
        await call(server, "pay", capabilities={"elicitation": {}})


async def test_model_is_asked_and_its_text_is_at_hand(server: Server) -> None:
    @server.tool
    async def think(call: Call) -> str:
        first = await call.sample("Hello?", max_tokens=5, system_prompt="Be kind.", temperature=0.5)
        second = await call.sample(
            [UserMessage("Look"), AssistantMessage("At?"), ("user", Image(b"", "image/png"))], max_tokens=9
        )
        return f"{first.text}|{first.model}|{first.stop_reason}|{second.text}|{len(second.content)}"

    said: list[dict[str, object]] = [
        {"role": "assistant", "content": {"type": "text", "text": "Hi"}, "model": "m", "stopReason": "endTurn"},
        {"role": "assistant", "content": [{"type": "text", "text": "A"}, {"type": "image"}], "model": "m"},
    ]
    sink = Recorder(lambda _: {"sampling": said.pop(0)})
    assert text(await call(server, "think", sink=sink)) == "Hi|m|endTurn|A|2"
    first, second = (questions["sampling"].params for questions in sink.asked)
    assert first == {
        "messages": [{"role": "user", "content": {"type": "text", "text": "Hello?"}}],
        "maxTokens": 5,
        "systemPrompt": "Be kind.",
        "temperature": 0.5,
    }
    assert isinstance(second["messages"], list)
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]  # pyright: ignore


async def test_roots_are_read_and_nonsense_is_refused(server: Server) -> None:
    found: list[Root] = []

    @server.tool
    async def where(call: Call) -> None:
        found.extend(await call.roots())

    await call(server, "where", sink=Recorder(answering({"roots": [{"uri": "file:///a", "name": "A"}]})))
    assert found == [Root("file:///a", "A")]
    assert "not a list of roots" in failure(await call(server, "where", sink=Recorder(answering({"roots": [1]}))))


async def test_several_questions_go_out_together(server: Server) -> None:
    @server.tool
    async def both(call: Call) -> str:
        answers = await call.ask_all({"a": questions.url("A?", "https://a"), "b": questions.url("B?", "https://b")})
        return f"{answers['a'].action} {answers['b'].action}"

    sink = Recorder(answering({"action": "accept"}, {"action": "cancel"}))
    assert text(await call(server, "both", sink=sink)) == "accept cancel"
    assert [list(asked) for asked in sink.asked] == [["a", "b"]]
    with pytest.raises(MissingCapability, match="elicitation"):
        await call(server, "both", capabilities={"roots": {}})


async def test_unknown_log_level_is_the_authors_mistake(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    @server.tool
    async def shout(call: Call) -> None:
        await call.log("loud", "hey")  # pyright: ignore[reportArgumentType]

    assert failure(await call(server, "shout", capabilities={})) == "The tool 'shout' failed (ValueError)."
    assert "a log level is one of debug, info" in caplog.text
