"""Each API's shapes: definitions of tools, calls in replies, and the messages that answer them."""

import base64
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sluicegate.protocol.message import Params, as_array
from sluicegate.protocol.types import (
    AudioContent,
    Content,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
    Tool,
    ToolResult,
    UnknownContent,
)
from sluicegate.schemas.apis.messages import MAX_IMAGE, ModelCall
from sluicegate.toolbox.definitions import APIS, answers, define, news, read_calls, tokens, tool_list
from tests.schemas.acceptance import breaches, is_object
from tests.schemas.corpus import recorded

Json = Any
SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = Tool(name="mcp__sky__weather", description="The weather.", input_schema=SCHEMA)
CALL = ModelCall("call_1", "mcp__sky__weather", {"city": "Bern"})


def attributes(value: Json) -> Json:
    """The same as an SDK has it: objects, but arguments are a dict."""
    entries = as_array(value)
    if entries is not None:
        return [attributes(entry) for entry in entries]
    if not is_object(value):
        return value
    plain = ("input", "args")
    return SimpleNamespace(**{name: entry if name in plain else attributes(entry) for name, entry in value.items()})


def unchanged(value: Json) -> Json:
    return value


def result(*content: Content, is_error: bool = False, **members: Json) -> ToolResult:
    return ToolResult(content=list(content), is_error=is_error, **members)


def answered(api: str, made: ToolResult) -> Json:
    return answers(api, [(CALL, made)])


# ------------------------------------------------------------------------------------------------------- definitions


def test_definitions_have_the_shape_of_their_api() -> None:
    made: Json = {api: define([TOOL], api)["mcp__sky__weather"].definition for api in [*APIS, "mcp"]}
    about = {"name": "mcp__sky__weather", "description": "The weather."}
    assert made == {
        "anthropic": {**about, "input_schema": SCHEMA},
        "openai": {"type": "function", **about, "parameters": SCHEMA, "strict": False},
        "openai-chat": {"type": "function", "function": {**about, "parameters": SCHEMA, "strict": False}},
        "gemini": {**about, "parametersJsonSchema": SCHEMA},
        "mcp": {**about, "inputSchema": SCHEMA},
    }


def test_definitions_have_strict_where_the_api_has_it() -> None:
    assert define([TOOL], "openai", strict=True)[TOOL.name].definition["strict"] is True
    assert "strict" not in define([TOOL], "anthropic", strict=True)[TOOL.name].definition


def test_an_unknown_api_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no API 'palm'; there are anthropic, openai, openai-chat, gemini, mcp"):
        define([TOOL], "palm")
    with pytest.raises(ValueError, match="definitions only; the APIs of models are anthropic, openai"):
        news("mcp", {}, {})


@pytest.mark.parametrize("api", APIS)
def test_names_are_accepted_and_stay_different(api: str) -> None:
    names = ["a.b", "a b", "a_b", "é", "-x", "9", "x" * 65, "x" * 66, "mcp__a__b"]
    defined = define([Tool(name=name, input_schema={}) for name in names], api)
    assert len(defined) == len(names)
    assert not [reason for entry in defined.values() for reason in breaches(api, entry.definition)]
    assert defined["mcp__a__b"].tool.name == "mcp__a__b" and defined["a_b"].tool.name == "a_b"
    # A name does not depend on the others.
    (alone,) = define([Tool(name="a.b", input_schema={})], api)
    assert defined[alone].tool.name == "a.b"


def test_a_name_that_imitates_a_shortened_one_does_not_take_it() -> None:
    (imitated,) = define([Tool(name="a.b")], "anthropic")
    both = define([Tool(name="a.b"), Tool(name=imitated)], "anthropic")
    assert [entry.tool.name for entry in both.values()] == ["a.b", imitated]
    assert both[imitated].tool.name == imitated


def test_a_tool_without_description_has_one_where_it_must() -> None:
    (made,) = define([Tool(name="x")], "gemini").values()
    assert made.definition["description"] == "x"
    (made,) = define([Tool(name="x", title="An X")], "anthropic").values()
    assert made.definition["description"] == "An X"
    (made,) = define([Tool(name="x")], "openai").values()
    assert "description" not in made.definition


def test_a_malformed_schema_spoils_only_its_own_tool() -> None:
    broken: Json = {"type": "object", "properties": {"a": {"$ref": "https://example.com/"}}}
    defined = define([Tool(name="x", input_schema=broken), TOOL], "anthropic")
    assert defined["x"].findings and not defined[TOOL.name].findings


@pytest.mark.parametrize("api", [*APIS, "mcp"])
def test_definitions_are_the_same_bytes_each_time(api: str) -> None:
    tools = recorded()

    def encoded() -> str:
        copies = [Tool(name=t.name, description=t.description, input_schema=t.input_schema) for t in tools]
        return json.dumps([entry.definition for entry in define(copies, api).values()])

    assert encoded() == encoded()


# ----------------------------------------------------------------------------------------------- deferred and changed


OTHER = Tool(name="now", description="The time.", input_schema={"type": "object"})


@pytest.mark.parametrize(
    ("api", "search"),
    [
        ("anthropic", {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}),
        ("openai", {"type": "tool_search"}),
    ],
)
def test_deferred_tools_are_marked_beside_the_search_of_the_api(api: str, search: Json) -> None:
    defined = define([TOOL, OTHER], api)
    plain = [entry.definition for entry in defined.values()]
    assert tool_list(api, defined) == plain
    assert tool_list(api, defined, {"now"}) == [search, plain[0], {**plain[1], "defer_loading": True}]


@pytest.mark.parametrize("api", ["openai-chat", "gemini", "mcp"])
def test_deferred_tools_are_left_out_where_the_api_has_no_search(api: str) -> None:
    defined = define([TOOL, OTHER], api)
    assert tool_list(api, defined, {"now"}) == [defined[TOOL.name].definition]


def test_news_for_anthropic_are_blocks() -> None:
    before, after = define([TOOL], "anthropic"), define([OTHER], "anthropic")
    assert news("anthropic", before, after) == [
        {
            "role": "system",
            "content": [
                {"type": "tool_removal", "tool": {"type": "tool_reference", "name": TOOL.name}},
                {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": after["now"].definition}},
            ],
        }
    ]


@pytest.mark.parametrize("api", ["openai", "openai-chat", "gemini"])
def test_news_for_others_are_words(api: str) -> None:
    (message,) = news(api, define([TOOL], api), define([OTHER], api))
    text = (
        "These tools are no longer available: mcp__sky__weather.\nThese tools are new:\n- now\n  The time.\n"
        '  Arguments (JSON Schema): {"type":"object","properties":{}}'
    )
    assert message == {"role": "user", **({"parts": [{"text": text}]} if api == "gemini" else {"content": text})}


def test_news_about_very_many_new_tools_has_only_their_names() -> None:
    schema: Params = {"type": "object"}
    many = [Tool(name=f"now{number}", description="x" * 100, input_schema=schema) for number in range(300)]
    (message,) = news("openai", define([TOOL], "openai"), define([TOOL, *many], "openai"))
    text = str(message["content"])
    assert text.startswith("These tools are new; they are too many to describe: now0, now1,")
    assert text.endswith("now299.") and len(text) < 3000


@pytest.mark.parametrize("api", APIS)
def test_a_changed_tool_is_news_and_an_unchanged_one_is_not(api: str) -> None:
    before = define([TOOL, OTHER], api)
    changed = Tool(name=TOOL.name, description="The weather, today.", input_schema=SCHEMA)
    assert news(api, before, define([TOOL, OTHER], api)) == []
    text = json.dumps(news(api, before, define([changed, OTHER], api)))
    assert "today" in text and "now" not in text
    assert ("These tools have changed:" in text and "no longer" not in text) or api == "anthropic"


def test_tokens_are_estimated() -> None:
    definitions = [entry.definition for entry in define([TOOL, OTHER], "anthropic").values()]
    assert 30 < tokens(definitions) < 100 and tokens([]) == 0


# ------------------------------------------------------------------------------------------------------------- calls


ARGUMENTS = '{"city": "Bern"}'
REPLIES: dict[str, list[Json]] = {
    "anthropic": [
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "call_1", "name": "mcp__sky__weather", "input": {"city": "Bern"}},
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                {"type": "tool_use", "id": "call_2", "name": "now", "input": {}},
            ],
        },
    ],
    "openai": [
        {
            "output": [
                {"type": "reasoning", "summary": []},
                {"type": "function_call", "call_id": "call_1", "name": "mcp__sky__weather", "arguments": ARGUMENTS},
                {"type": "function_call", "call_id": "call_2", "name": "now", "arguments": ""},
            ]
        },
    ],
    "openai-chat": [
        {
            "choices": [
                {
                    "message": {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {
                                "id": "call_1",
                                "type": "function",
                                "function": {"name": "mcp__sky__weather", "arguments": ARGUMENTS},
                            },
                            {"id": "c", "type": "custom", "custom": {"name": "x", "input": ""}},
                            {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
                        ],
                    }
                }
            ]
        },
    ],
    "gemini": [
        {
            "candidates": [
                {
                    "content": {
                        "role": "model",
                        "parts": [
                            {"text": "Let me see."},
                            {
                                "functionCall": {
                                    "id": "call_1",
                                    "name": "mcp__sky__weather",
                                    "args": {"city": "Bern"},
                                }
                            },
                            {"function_call": {"id": "call_2", "name": "now", "args": None}},
                        ],
                    }
                }
            ]
        },
    ],
}
# What is appended to the messages of the conversation is read, too.
REPLIES["anthropic"].append(REPLIES["anthropic"][0]["content"])
REPLIES["openai"].append(REPLIES["openai"][0]["output"])
REPLIES["openai-chat"].append(REPLIES["openai-chat"][0]["choices"][0]["message"])
REPLIES["gemini"].append(REPLIES["gemini"][0]["candidates"][0]["content"])


@pytest.mark.parametrize("form", [unchanged, attributes])
@pytest.mark.parametrize(("api", "reply"), [(api, reply) for api, replies in REPLIES.items() for reply in replies])
def test_calls_are_read_in_order(api: str, reply: Json, form: Callable[[Json], Json]) -> None:
    first, second = read_calls(api, form(reply))
    assert (first.id, first.name, second) == ("call_1", "mcp__sky__weather", ModelCall("call_2", "now"))
    assert first.arguments == {"city": "Bern"}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("reply", [None, {}, [], "text", 7, {"content": "text"}, {"choices": []}, {"output": None}])
def test_a_reply_without_calls_has_none(api: str, reply: Json) -> None:
    assert read_calls(api, reply) == []
    assert answers(api, []) == []


@pytest.mark.parametrize("arguments", ['{"city": ', "nonsense", "[" * 100_000, '{"a": NaN}', "[1]", "7", '"text"'])
def test_arguments_that_are_not_json_become_an_answer_for_the_model(arguments: str) -> None:
    reply = [{"type": "function_call", "call_id": "call_1", "name": "x", "arguments": arguments}]
    (call,) = read_calls("openai", reply)
    assert call.arguments == {}
    (answer,) = answers("openai", [(call, ToolResult(content=[TextContent(text=call.problem)], is_error=True))])
    text = answer["output"]
    assert isinstance(text, str) and text.startswith("Error: The arguments are not ") and "JSON" in text


# ----------------------------------------------------------------------------------------------------------- answers


def test_text_is_answered_as_each_api_wants_it() -> None:
    made = result(TextContent(text="sunny"), TextContent(text=""), TextContent(text="12°"))
    assert {api: answered(api, made) for api in APIS} == {
        "anthropic": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "call_1",
                        "content": [{"type": "text", "text": "sunny"}, {"type": "text", "text": "12°"}],
                    }
                ],
            }
        ],
        "openai": [{"type": "function_call_output", "call_id": "call_1", "output": "sunny\n12°"}],
        "openai-chat": [{"role": "tool", "tool_call_id": "call_1", "content": "sunny\n12°"}],
        "gemini": [
            {
                "role": "user",
                "parts": [
                    {
                        "functionResponse": {
                            "id": "call_1",
                            "name": "mcp__sky__weather",
                            "response": {"output": "sunny\n12°"},
                        }
                    }
                ],
            }
        ],
    }


def test_errors_are_marked_as_each_api_marks_them() -> None:
    made = result(TextContent(text="no such city"), is_error=True)
    assert answered("anthropic", made)[0]["content"][0]["is_error"] is True
    assert answered("openai", made)[0]["output"] == "Error: no such city"
    assert answered("openai-chat", made)[0]["content"] == "Error: no such city"
    assert answered("gemini", made)[0]["parts"][0]["functionResponse"]["response"] == {"error": "no such city"}
    assert answered("openai", result(TextContent(text="Error 5"), is_error=True))[0]["output"] == "Error 5"


@pytest.mark.parametrize(("api", "messages"), [("anthropic", 1), ("openai", 2), ("openai-chat", 2), ("gemini", 1)])
def test_all_calls_of_a_reply_are_answered_in_order(api: str, messages: int) -> None:
    both = [(CALL, result(TextContent(text="one"))), (ModelCall("call_2", "now"), result(TextContent(text="two")))]
    made = answers(api, both)
    text = json.dumps(made)
    assert len(made) == messages and text.index("one") < text.index("two")


PNG = b"\x89PNG"
ENCODED = base64.b64encode(PNG).decode()


def test_images_go_where_the_api_takes_them() -> None:
    made = result(TextContent(text="a map"), ImageContent(data=PNG, mime_type="image/png"))
    assert answered("anthropic", made)[0]["content"][0]["content"][1] == {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": ENCODED},
    }
    assert answered("openai", made)[0]["output"] == [
        {"type": "input_text", "text": "a map"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{ENCODED}"},
    ]
    assert answered("gemini", made)[0]["parts"][0]["functionResponse"]["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": ENCODED}}
    ]
    chat = answered("openai-chat", made)[0]["content"]
    assert chat == "a map\n[image/png, 4 bytes, which cannot be shown here]"


@pytest.mark.parametrize(
    "block",
    [
        AudioContent(data=b"1234", mime_type="audio/wav"),
        ImageContent(data=b"<svg/>", mime_type="image/svg+xml"),
        ImageContent(data=bytes(MAX_IMAGE), mime_type="image/png"),
        EmbeddedResource(resource=ResourceContents(uri="x:y", blob=b"1234", mime_type="application/zip")),
    ],
)
def test_what_no_api_takes_is_kept_and_named(block: Content) -> None:
    kept: list[str] = []

    def keep(data: bytes, mime_type: str) -> str:
        kept.append(mime_type)
        return f"saved {len(data)} bytes"

    for api in APIS:
        text = json.dumps(answers(api, [(CALL, result(block))], keep))
        assert "saved " in text
    assert len(kept) == len(APIS)


@pytest.mark.parametrize("api", APIS)
def test_an_error_has_no_images(api: str) -> None:
    text = json.dumps(answered(api, result(ImageContent(data=PNG, mime_type="image/png"), is_error=True)))
    assert ENCODED not in text and "image/png" in text


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (result(), "The tool returned nothing."),
        (result(TextContent(text="")), "The tool returned nothing."),
        (result(structured_content={"a": [1]}), '{"a":[1]}'),
        (result(TextContent(text="x"), structured_content={"a": 1}), "x"),
        (result(ResourceLink(uri="file:///a", name="a", description="notes")), "a: file:///a (notes)"),
        (result(EmbeddedResource(resource=ResourceContents(uri="x:y", text="inside"))), "inside"),
        (result(UnknownContent({"type": "video"})), '{"type":"video"}'),
    ],
)
def test_every_result_has_a_text(made: ToolResult, text: str) -> None:
    assert answered("openai-chat", made)[0]["content"] == text
    assert answered("anthropic", made)[0]["content"][0]["content"] == [{"type": "text", "text": text}]
