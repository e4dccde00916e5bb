"""Prompts and completions."""

from collections.abc import Callable, Mapping

import pytest

from sluicegate.activations.content import messages_of
from sluicegate.activations.values import AssistantMessage, Image, ToolError, UserMessage
from sluicegate.errors import InvalidParams, MethodNotFound, UnknownTarget
from sluicegate.server import Server
from tests.activations.helpers import ask


@pytest.fixture
def server() -> Server:
    server = Server("demo")

    @server.prompt(title="Review")
    def review(code: str, times: int = 1) -> str:
        """Ask for a review.

        Args:
            code: what to look at
        """
        return f"Review {code} {times + 1} times"

    return server


async def test_arguments_come_from_the_signature(server: Server) -> None:
    assert (await ask(server, "prompts/list"))["prompts"] == [
        {
            "name": "review",
            "title": "Review",
            "description": "Ask for a review.",
            "arguments": [
                {"name": "code", "description": "what to look at", "required": True},
                {"name": "times", "required": False},
            ],
        }
    ]


async def test_string_is_one_message_of_the_user(server: Server) -> None:
    result = await ask(server, "prompts/get", {"name": "review", "arguments": {"code": "x", "times": "2"}})
    assert result["messages"] == [{"role": "user", "content": {"type": "text", "text": "Review x 3 times"}}]
    assert (result["description"], result["resultType"]) == ("Ask for a review.", "complete")
    assert "ttlMs" not in result


async def test_messages_may_be_written_in_several_ways(server: Server) -> None:
    raw = {"role": "user", "content": {"type": "text", "text": "d"}}

    @server.prompt
    async def talk() -> list[object]:
        return ["a", UserMessage("b"), AssistantMessage(Image(b"", "image/png")), ("assistant", "c"), raw]

    messages = (await ask(server, "prompts/get", {"name": "talk"}))["messages"]
    assert [(m["role"], m["content"].get("text")) for m in messages] == [
        ("user", "a"),
        ("user", "b"),
        ("assistant", None),
        ("assistant", "c"),
        ("user", "d"),
    ]


async def test_messages_of_chat_apis_become_blocks(server: Server) -> None:
    @server.prompt
    async def chat() -> list[object]:
        blocks = ["b", {"type": "text", "text": "c"}]
        return [{"role": "user", "content": "a", "_meta": {"k": 1}}, {"role": "assistant", "content": blocks}]

    assert (await ask(server, "prompts/get", {"name": "chat"}))["messages"] == [
        {"role": "user", "content": {"type": "text", "text": "a"}, "_meta": {"k": 1}},
        {"role": "assistant", "content": {"type": "text", "text": "b"}},
        {"role": "assistant", "content": {"type": "text", "text": "c"}},
    ]


@pytest.mark.parametrize("content", [{"text": "no type"}, {"type": 1}, 7, None, [7], [{"text": "no type"}]])
def test_content_that_is_no_block_is_refused(content: object) -> None:
    with pytest.raises(TypeError, match="content"):
        messages_of([{"role": "user", "content": content}])


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"name": "review"}, "missing required argument 'code'"),
        ({"name": "review", "arguments": {"code": 1}}, "argument 'code' should be a string"),
        ({"name": "review", "arguments": {"code": "", "kode": ""}}, "unknown argument 'kode'"),
        ({"name": "review", "arguments": {"code": "", "times": "many"}}, "argument 'times' should be int"),
        ({"name": "review", "arguments": "code"}, "arguments is missing or not an object"),
        ({}, "name is missing or not a string"),
    ],
)
async def test_wrong_arguments_are_invalid_params(server: Server, params: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidParams, match=problem):
        await ask(server, "prompts/get", params)


async def test_an_unknown_prompt_is_invalid_params_and_a_failing_one_shows_only_its_kind(server: Server) -> None:
    with pytest.raises(UnknownTarget, match="Unknown prompt: x"):
        await ask(server, "prompts/get", {"name": "x"})

    def fail() -> str:
        raise KeyError("secret")

    server.add_prompt(fail)
    server.add_prompt(lambda: 7, name="seven")
    server.add_prompt(lambda: ("system", "Obey."), name="system")
    for name, kind in (("fail", "KeyError"), ("seven", "TypeError"), ("system", "TypeError")):
        with pytest.raises(ToolError, match=rf"^The prompt '{name}' failed \({kind}\)\.$"):
            await ask(server, "prompts/get", {"name": name})


# -----------------------------------------------------------------------------------------------------------------
# completion


async def complete(server: Server, ref: Mapping[str, object], argument: object, **more: object) -> dict[str, object]:
    return (await ask(server, "completion/complete", {"ref": ref, "argument": argument, **more}))["completion"]


async def test_completer_gets_the_value_and_the_other_arguments(server: Server) -> None:
    @server.complete("review", "times")
    async def times(value: str, context: dict[str, str]) -> list[str]:
        return [value, context.get("code", "-")]

    ref = {"type": "ref/prompt", "name": "review"}
    argument = {"name": "times", "value": "1"}
    assert await complete(server, ref, argument) == {"values": ["1", "-"], "total": 2, "hasMore": False}
    context = {"arguments": {"code": "x"}}
    assert (await complete(server, ref, argument, context=context))["values"] == ["1", "x"]


async def test_template_variables_are_completed_and_values_end_at_a_hundred(server: Server) -> None:
    server.add_resource("note://{id}", lambda id: id, name="note")  # pyright: ignore

    @server.complete("note://{id}", "id")
    def ids(value: str) -> list[str]:
        return [f"{value}{n}" for n in range(250)]

    completion = await complete(server, {"type": "ref/resource", "uri": "note://{id}"}, {"name": "id", "value": "n"})
    assert (completion["total"], completion["hasMore"]) == (250, True)
    assert completion["values"] == [f"n{n}" for n in range(100)]


async def test_known_reference_without_a_completer_has_no_values(server: Server) -> None:
    server.complete("review", "times")(lambda value: [])  # pyright: ignore
    completion = await complete(server, {"type": "ref/prompt", "name": "review"}, {"name": "code", "value": ""})
    assert completion == {"values": []}


async def test_wrong_references_are_invalid_params(server: Server) -> None:
    bad: Callable[[str], str] = lambda value: value  # noqa: E731
    server.complete("review", "code")(bad)
    argument = {"name": "code", "value": ""}
    for ref, problem in (
        ({"type": "ref/prompt", "name": "x"}, "Unknown prompt: x"),
        ({"type": "ref/resource", "uri": "x://y"}, "Resource not found: x://y"),
        ({"type": "ref/tool", "name": "x"}, "the type of ref"),
    ):
        with pytest.raises(InvalidParams, match=problem):
            await complete(server, ref, argument)
    with pytest.raises(InvalidParams, match="value is missing"):
        await complete(server, {"type": "ref/prompt", "name": "review"}, {"name": "code"})
    with pytest.raises(ToolError, match=r"The completion failed \(TypeError\)"):
        await complete(server, {"type": "ref/prompt", "name": "review"}, argument)


async def test_completion_is_no_method_of_a_server_without_completers(server: Server) -> None:
    with pytest.raises(MethodNotFound):
        await complete(server, {"type": "ref/prompt", "name": "review"}, {"name": "code", "value": ""})
