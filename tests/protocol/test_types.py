"""What servers send, as Python values: nothing is lost, little is refused, and nothing is read as what it is not."""

import msgspec
import pytest
from msgspec import UNSET

from sluicegate.protocol import read_types
from sluicegate.protocol.message import Notification
from sluicegate.protocol.read_types import (
    read_change,
    read_completion,
    read_content,
    read_log,
    read_progress,
    read_prompt,
    read_prompt_result,
    read_read_result,
    read_resource,
    read_resource_template,
    read_tool,
    read_tool_result,
)
from sluicegate.protocol.types import (
    AudioContent,
    EmbeddedResource,
    Icon,
    ImageContent,
    LogEvent,
    OwnEvent,
    ProgressEvent,
    PromptArgument,
    PromptRef,
    PromptsChanged,
    ResourceLink,
    ResourceRef,
    ResourcesChanged,
    ResourceUpdated,
    TextContent,
    ToolsChanged,
    UnknownContent,
)

# --- Tools, resources, prompts ----------------------------------------------------------------------------------------


def test_tool_has_everything_under_python_names() -> None:
    entry: dict[str, object] = {
        "name": "push",
        "title": "Push",
        "description": "Send it away.",
        "inputSchema": {"type": "object", "properties": {"force": {"type": "boolean"}}},
        "outputSchema": {"type": "array"},
        "annotations": {"readOnlyHint": True, "title": "Old title"},
        "icons": [{"src": "https://x.example/i.png", "sizes": ["48x48"]}],
        "_meta": {"dev.x/y": 1},
    }
    tool = read_tool(entry)
    assert (tool.name, tool.title, tool.description) == ("push", "Push", "Send it away.")
    assert tool.input_schema == entry["inputSchema"]
    assert tool.output_schema == {"type": "array"}
    assert tool.annotations is not None and tool.annotations.read_only_hint
    assert tool.icons == [Icon("https://x.example/i.png", sizes=["48x48"])]
    assert tool.meta == {"dev.x/y": 1}


def test_hints_that_are_not_given_have_the_defaults_of_the_specification() -> None:
    hints = read_tool({"name": "x", "inputSchema": {}, "annotations": {}}).annotations
    assert hints is not None
    assert (hints.read_only_hint, hints.destructive_hint) == (False, True)
    assert (hints.idempotent_hint, hints.open_world_hint) == (False, True)


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        ({"name": "n", "title": "t", "annotations": {"title": "a"}}, "t"),
        ({"name": "n", "annotations": {"title": "a"}}, "a"),
        ({"name": "n"}, "n"),
    ],
)
def test_display_name_is_the_title_then_the_older_title_then_the_name(entry: object, shown: str) -> None:
    assert read_tool(entry).display_name == shown


def test_unknown_members_stay_in_raw_even_one_called_raw() -> None:
    entry = {"name": "x", "inputSchema": {}, "execution": {"taskSupport": "optional"}, "raw": 3}
    assert read_tool(entry).raw == entry


def test_raw_is_not_printed_a_second_time() -> None:
    assert "secret" not in repr(read_tool({"name": "x", "inputSchema": {}, "unknown": "secret"}))


def test_member_that_only_describes_is_left_out_when_its_type_is_wrong() -> None:
    entry = {"name": "x", "inputSchema": {}, "description": 5, "icons": "none", "annotations": {"readOnlyHint": "yes"}}
    tool = read_tool(entry)
    assert (tool.description, tool.icons, tool.annotations) == (None, None, None)
    assert tool.raw == entry


def test_null_is_read_as_absent() -> None:
    entry = {"name": "x", "inputSchema": None, "annotations": {"readOnlyHint": True, "destructiveHint": None}}
    tool = read_tool(entry)
    assert tool.input_schema == {"type": "object"}
    assert tool.annotations is not None and tool.annotations.read_only_hint and tool.annotations.destructive_hint
    prompt = read_prompt({"name": "p", "arguments": [{"name": "a", "required": None}]})
    assert prompt.arguments == [PromptArgument("a")]


def test_null_inside_a_schema_keeps_its_meaning() -> None:
    schema = {"type": "object", "properties": {"a": {"default": None, "enum": [None, 1]}}}
    assert read_tool({"name": "x", "inputSchema": schema, "title": 1}).input_schema == schema


@pytest.mark.parametrize(
    "entry",
    [None, "push", [], {}, {"name": None}, {"name": ""}, {"name": 7}, {"name": "x", "inputSchema": "object"}],
)
def test_tool_without_a_name_or_with_a_broken_schema_is_malformed(entry: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        read_tool(entry)


def test_integers_stay_exact() -> None:
    assert read_resource({"uri": "a:b", "name": "b", "size": 2**53 + 1}).size == 2**53 + 1
    result = read_tool_result(msgspec.json.decode(b'{"content":[],"structuredContent":{"n":123456789012345678901}}'))
    assert result.structured_content == {"n": 123456789012345678901}
    assert read_progress({"progress": 2**60 + 1}).progress == 2**60 + 1


def test_resource_and_template_are_read() -> None:
    resource = read_resource(
        {"uri": "file:///a", "name": "a", "mimeType": "text/plain", "annotations": {"priority": 1}}
    )
    assert (resource.uri, resource.mime_type) == ("file:///a", "text/plain")
    assert resource.annotations is not None and resource.annotations.priority == 1
    assert read_resource_template({"uriTemplate": "file:///{p}", "name": "p"}).uri_template == "file:///{p}"


def test_a_prompt_with_an_unnamed_argument_is_malformed() -> None:
    with pytest.raises(msgspec.ValidationError):
        read_prompt({"name": "p", "arguments": [{"required": True}]})


# --- Content ----------------------------------------------------------------------------------------------------------


def test_each_kind_of_block_is_read() -> None:
    assert read_content({"type": "text", "text": "hi"}) == TextContent("hi")
    assert read_content({"type": "image", "data": "aGk=", "mimeType": "image/png"}) == ImageContent(b"hi", "image/png")
    assert read_content({"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}) == AudioContent(b"hi", "audio/wav")
    link = read_content({"type": "resource_link", "uri": "file:///a", "name": "a", "size": 3})
    assert link == ResourceLink(uri="file:///a", name="a", size=3)
    inner = {"uri": "file:///a", "text": "hi", "unknown": 1}
    embedded = read_content({"type": "resource", "resource": inner})
    assert isinstance(embedded, EmbeddedResource)
    assert (embedded.resource.text, embedded.resource.raw) == ("hi", inner)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "hologram", "depth": 3},
        {"type": ["text"], "text": "hi"},
        {"type": "text"},
        {"type": "image", "data": "not base64!", "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "file:///a"}},
        {"text": "hi"},
        "hi",
        None,
    ],
)
def test_block_that_cannot_be_read_is_kept_as_it_came(block: object) -> None:
    result = read_tool_result(
        {"content": [{"type": "text", "text": "before"}, block, {"type": "text", "text": "after"}]}
    )
    assert result.content[1] == UnknownContent(block)
    assert result.text == "before\nafter"


def test_block_is_written_as_the_wire_has_it() -> None:
    assert msgspec.json.encode(TextContent("hi")) == b'{"type":"text","text":"hi"}'
    assert msgspec.to_builtins(PromptRef("p")) == {"type": "ref/prompt", "name": "p"}
    assert msgspec.to_builtins(ResourceRef("a://{b}")) == {"type": "ref/resource", "uri": "a://{b}"}


# --- Results ----------------------------------------------------------------------------------------------------------


def test_text_of_a_result_is_its_text_blocks_joined_by_newlines() -> None:
    image = {"type": "image", "data": "", "mimeType": "image/png"}
    result = read_tool_result({"content": [{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}]})
    assert result.text == str(result) == "a\nb"
    assert not result.is_error


def test_structured_content_that_is_null_is_not_the_same_as_none_at_all() -> None:
    assert read_tool_result({"content": [], "structuredContent": None}).structured_content is None
    assert read_tool_result({"content": []}).structured_content is UNSET


def test_a_result_keeps_unknown_members() -> None:
    value = {"content": [], "_meta": {"a": 1}, "resultType": "complete", "unknown": [1]}
    result = read_tool_result(value)
    assert (result.meta, result.raw) == ({"a": 1}, value)


def test_result_may_have_structured_content_alone() -> None:
    assert read_tool_result({"structuredContent": 1}).content == []


@pytest.mark.parametrize("value", [None, [], {"content": "hi"}, {"content": [], "isError": "yes"}, {"isError": 1}])
def test_tool_result_that_cannot_be_trusted_is_malformed(value: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        read_tool_result(value)


def test_is_error_that_is_null_is_no_error() -> None:
    assert not read_tool_result({"content": [], "isError": None}).is_error


def test_resource_is_text_or_bytes() -> None:
    text = {"uri": "file:///a", "text": "grün"}
    blob = {"uri": "file:///b", "blob": "AAE=", "mimeType": "x/y"}
    result = read_read_result({"contents": [text, blob]})
    assert result.text == str(result) == "grün"
    assert [part.data for part in result.contents] == ["grün".encode(), b"\0\1"]
    assert result.contents[1].text is None


@pytest.mark.parametrize("part", [None, {"uri": "a:b"}, {"text": "x"}, {"uri": "a:b", "blob": "%"}])
def test_part_of_a_resource_that_holds_nothing_readable_is_malformed(part: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        read_read_result({"contents": [part]})


def test_prompt_message_has_a_list_of_blocks_even_where_one_came() -> None:
    one = {"role": "user", "content": {"type": "text", "text": "a"}}
    two = {"role": "assistant", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]}
    result = read_prompt_result({"description": "d", "messages": [one, two]})
    assert [(message.role, message.text) for message in result.messages] == [("user", "a"), ("assistant", "b\nc")]
    assert (result.description, result.text) == ("d", "a\nb\nc")


def test_completion_is_read_and_keeps_the_whole_result() -> None:
    value = {"completion": {"values": ["a"], "total": 3, "hasMore": True}, "_meta": {"x": 1}}
    completion = read_completion(value)
    assert (completion.values, completion.total, completion.has_more) == (["a"], 3, True)
    assert (completion.meta, completion.raw) == ({"x": 1}, value)
    with pytest.raises(msgspec.ValidationError):
        read_completion({"values": ["a"]})


# --- Events -----------------------------------------------------------------------------------------------------------


def test_progress_and_log_are_read() -> None:
    assert read_progress({"progressToken": 1, "progress": 0.5, "total": 2}) == ProgressEvent(0.5, 2)
    assert read_progress({"progress": 1, "message": 7}) == ProgressEvent(1)
    event = {"type": "seen", "planet": "mars"}
    own = read_progress({"progress": 1, "message": "mars", "_meta": {"dev.sluicegate/event": event}})
    assert own == OwnEvent(1, None, "mars", event)
    assert type(read_progress({"progress": 1, "_meta": {"dev.sluicegate/event": {"no": "type"}}})) is ProgressEvent
    assert read_log({"level": "info", "data": {"a": 1}, "logger": "x"}) == LogEvent("info", {"a": 1}, "x")
    with pytest.raises(msgspec.ValidationError):
        read_progress({"progress": "half"})


def test_changes_are_distinguished_and_other_notices_are_none() -> None:
    assert read_change(Notification("notifications/tools/list_changed", {})) == ToolsChanged()
    assert read_change(Notification("notifications/prompts/list_changed", {})) == PromptsChanged()
    assert read_change(Notification("notifications/resources/list_changed", {"_meta": {}})) == ResourcesChanged()
    assert read_change(Notification("notifications/resources/updated", {"uri": "a:b"})) == ResourceUpdated("a:b")
    assert read_change(Notification("notifications/progress", {"progress": 1})) is None


def test_a_prompts_messages_are_read_as_text_and_need_a_role() -> None:
    result = read_types.read_prompt_result({"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}]})
    assert str(result) == "hi"
    with pytest.raises(msgspec.ValidationError, match="role"):
        read_types.read_message({"content": {"type": "text", "text": "hi"}})
