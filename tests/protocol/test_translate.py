"""Translation between the eras: what must change does, all else stays, and bytes fare as values do."""

import copy
import json
from random import Random
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import ErrorObject, InputRefused, UpstreamProtocolError
from sluicegate.protocol.input_required import Question
from sluicegate.protocol.message import Notification, Params, Reply, Response, Result, encode, read_tool_text
from sluicegate.protocol.modern_era import ACKNOWLEDGED, SERVER_INFO_KEY, SUBSCRIPTION_KEY, tagged
from sluicegate.protocol.translate.questions import (
    answer_for_session,
    answer_from_session,
    question_for_session,
    question_from_session,
)
from sluicegate.protocol.translate.results import (
    notification_for_session,
    params_for_session,
    reply_for_session,
    reply_from_session,
)
from sluicegate.protocol.versions import REVISIONS, SESSION_VERSIONS, V2026_07_28

V24, V03, V06, V11 = SESSION_VERSIONS
R24, R03, R06, R11 = (REVISIONS[version] for version in SESSION_VERSIONS)
R26 = REVISIONS[V2026_07_28]

DONE: Params = {"isError": False}

session_versions = pytest.mark.parametrize("version", SESSION_VERSIONS)


def on_the_wire(reply: Reply) -> Params:
    assert isinstance(reply, Result)
    return json.loads(encode(Response(1, reply)))["result"]


def as_bytes(value: Params) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value, indent=1, ensure_ascii=False).encode())


def for_session(method: str, value: Params, version: str) -> Params:
    """The value as a client of that revision gets it, which is the same whether it was opened or bytes before."""
    before = copy.deepcopy(value)
    plain = reply_for_session(method, {}, Result(value), REVISIONS[version])
    raw = reply_for_session(method, {}, Result(as_bytes(value)), REVISIONS[version])
    assert value == before, "the reply that came in was changed"
    assert on_the_wire(plain) == on_the_wire(raw)
    return on_the_wire(raw)


def from_session(method: str, value: Params) -> Params:
    before = copy.deepcopy(value)
    plain = reply_from_session(method, {}, Result(value))
    raw = reply_from_session(method, {}, Result(as_bytes(value)))
    assert value == before, "the reply that came in was changed"
    assert on_the_wire(plain) == on_the_wire(raw)
    return on_the_wire(raw)


def first(value: Params, field: str) -> Params:
    return cast(list[Params], value[field])[0]


def text(block: str) -> Params:
    return {"type": "text", "text": block}


# --- Results for older clients ----------------------------------------------------------------------------------------


@session_versions
def test_modern_fields_are_dropped_and_unknown_ones_survive(version: str) -> None:
    value: Params = {
        "resultType": "complete",
        "ttlMs": 5,
        "cacheScope": "public",
        "_meta": {SERVER_INFO_KEY: {"name": "s", "version": "1"}, "example.com/kept": 1},
        "contents": [{"uri": "a:b", "text": "x", "unheardOf": [1]}],
        "unheardOf": {"deep": None},
    }
    assert for_session("resources/read", value, version) == {
        "_meta": {"example.com/kept": 1},
        "contents": [{"uri": "a:b", "text": "x", "unheardOf": [1]}],
        "unheardOf": {"deep": None},
    }


@session_versions
def test_meta_with_nothing_left_in_it_is_dropped(version: str) -> None:
    value: Params = {"resultType": "complete", "_meta": {SERVER_INFO_KEY: {}, SUBSCRIPTION_KEY: 1}, "content": []}
    assert for_session("tools/call", value, version) == {"content": [], **DONE}


@session_versions
@pytest.mark.parametrize("method", ["tools/call", "resources/read", "completion/complete", "x/unknown"])
def test_reply_that_needs_no_change_is_the_very_same_object(method: str, version: str) -> None:
    done = msgspec.Raw(b'{ "content" : [{"type":"text","text":"x"}], "isError": false, "n": 1.50 }')
    for value in ({"content": [text("x")], **DONE}, done):
        reply = Result(value)
        assert reply_for_session(method, {}, reply, REVISIONS[version]) is reply


@session_versions
def test_results_of_tools_always_say_whether_they_are_errors(version: str) -> None:
    plain = msgspec.Raw(b'{"resultType":"complete","content":[{"type":"text","text":"x"}]}')
    read = read_tool_text(plain)
    assert read is not None
    for value in (plain, read):
        said = on_the_wire(reply_for_session("tools/call", {}, Result(value), REVISIONS[version]))
        assert said == {"content": [text("x")], "isError": False}
    assert for_session("tools/call", {"content": [], "isError": True}, version)["isError"] is True
    assert for_session("tools/call", {"task": {"taskId": "1"}}, version) == {"task": {"taskId": "1"}}
    assert for_session("prompts/get", {"messages": []}, version) == {"messages": []}


def test_client_of_the_inner_revision_gets_the_reply_as_it_is() -> None:
    for reply in (Result({"resultType": "complete"}), ErrorObject(-32021, "m", {})):
        assert reply_for_session("tools/call", {}, reply, R26) is reply


def test_unread_numbers_keep_their_digits() -> None:
    raw = msgspec.Raw(
        b'{"resultType":"complete","content":[],"structuredContent":{"n":1.10,"big":1E400},"isError":false}'
    )
    reply = reply_for_session("tools/call", {}, Result(raw), R11)
    assert isinstance(reply, Result)
    assert reply.value == msgspec.Raw(b'{"content":[],"structuredContent":{"n":1.10,"big":1E400},"isError":false}')


def test_member_that_is_written_with_escapes_is_recognised() -> None:
    raw = Result(msgspec.Raw(rb'{"content":[],"result\u0054ype":"input_required"}'))
    assert on_the_wire(reply_for_session("tools/call", {}, raw, R11)) == {"content": [], **DONE}
    inner = reply_from_session("tools/call", {}, raw)
    assert isinstance(inner, Result) and isinstance(inner.value, msgspec.Raw)
    assert bytes(inner.value).count(b"resultType") == 1
    assert on_the_wire(inner) == {"content": [], "resultType": "complete"}


@pytest.mark.parametrize("data", [b"[]", b"3", b"{", b"", b'{"resultType":"complete","content":[}'])
def test_bytes_that_are_no_object_are_the_servers_fault(data: bytes) -> None:
    with pytest.raises(UpstreamProtocolError):
        reply_for_session("tools/call", {}, Result(msgspec.Raw(data)), R11)
    with pytest.raises(UpstreamProtocolError):
        reply_from_session("tools/call", {}, Result(msgspec.Raw(data)))


def test_schema_nested_without_end_is_the_servers_fault() -> None:
    deep = b'{"items":' * 5000 + b'{"x-mcp-header":"A"}' + b"}" * 5000
    raw = msgspec.Raw(b'{"tools":[{"name":"t","inputSchema":%s}]}' % deep)
    with pytest.raises(UpstreamProtocolError):
        reply_from_session("tools/list", {}, Result(raw))


# --- Structured content -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V06, V11])
def test_structured_object_is_kept_where_the_revision_has_it(version: str) -> None:
    value: Params = {"content": [], "structuredContent": {"a": 1}, "isError": True}
    assert for_session("tools/call", value, version) == value


@pytest.mark.parametrize("version", [V24, V03])
def test_structured_object_becomes_text_where_the_revision_lacks_it(version: str) -> None:
    value: Params = {"content": [text("hello")], "structuredContent": {"a": [1, "x y"]}, "isError": False}
    assert for_session("tools/call", value, version) == {
        "content": [text("hello"), text('{"a":[1,"x y"]}')],
        "isError": False,
    }


@session_versions
@pytest.mark.parametrize("structured", [None, 0, "", False, [], [1, {"a": 2}], 1.5, "text"])
def test_structured_value_that_is_no_object_becomes_text(structured: object, version: str) -> None:
    value: Params = {"content": [], "structuredContent": structured}
    said = json.dumps(structured, separators=(",", ":"))
    assert for_session("tools/call", value, version) == {"content": [text(said)], **DONE}


@pytest.mark.parametrize(("value", "said"), [(3, "3"), (["a"], '["a"]'), ("a b", "a b"), ({"b": 1}, '{"b": 1}')])
def test_text_of_a_value_under_result_is_not_repeated(value: object, said: str) -> None:
    result: Params = {"content": [text(said)], "structuredContent": {"result": value}}
    assert for_session("tools/call", result, V03) == {"content": [text(said)], **DONE}


@pytest.mark.parametrize("version", [V24, V03])
def test_text_that_says_the_same_already_is_not_repeated(version: str) -> None:
    value: Params = {"content": [text("intro"), text('{ "b": 2,\n "a": 1 }')], "structuredContent": {"a": 1, "b": 2}}
    assert for_session("tools/call", value, version) == {"content": value["content"], **DONE}


@pytest.mark.parametrize("said", ['{"a": true}', '{"a": 1.0}', '{"a": "1"}', '{"a": 1, "b": 2}', "{", "[1]"])
def test_text_that_says_nearly_the_same_does_not_count(said: str) -> None:
    value: Params = {"content": [text(said)], "structuredContent": {"a": 1}}
    assert for_session("tools/call", value, V03)["content"] == [text(said), text('{"a":1}')]


def test_content_is_made_where_a_server_forgot_it() -> None:
    assert for_session("tools/call", {"structuredContent": [1]}, V11) == {"content": [text("[1]")], **DONE}


# --- Content blocks ---------------------------------------------------------------------------------------------------

AUDIO: Params = {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav", "annotations": {"priority": 1}}
LINK: Params = {
    "type": "resource_link",
    "name": "readme",
    "uri": "file:///README.md",
    "mimeType": "text/markdown",
    "description": "Read it first.",
    "annotations": {"audience": ["user"], "lastModified": "2026-01-01"},
    "icons": [{"src": "https://e.example/i.png"}],
    "_meta": {"m": 1},
}


def block_for(block: Params, version: str) -> Params:
    """A block by way of a tool's result; a prompt's message must fare alike."""
    by_tool = first(for_session("tools/call", {"content": [block]}, version), "content")
    message = first(for_session("prompts/get", {"messages": [{"role": "user", "content": block}]}, version), "messages")
    assert message == {"role": "user", "content": by_tool}
    return by_tool


@session_versions
def test_audio_becomes_a_resource_only_where_there_is_no_audio(version: str) -> None:
    block = block_for(AUDIO, version)
    if version != V24:
        assert block == AUDIO
        return
    resource = cast(Params, block.pop("resource"))
    assert block == {"type": "resource", "annotations": {"priority": 1}}
    assert resource == {"uri": resource["uri"], "blob": "UklGRg==", "mimeType": "audio/wav"}
    other = block_for({**AUDIO, "data": "AAAA"}, version)
    assert cast(Params, other["resource"])["uri"] != resource["uri"]


@session_versions
def test_link_becomes_text_only_where_there_are_no_links(version: str) -> None:
    block = block_for(LINK, version)
    if version in (V24, V03):
        said = "readme: file:///README.md (text/markdown)\nRead it first."
        assert block == {"type": "text", "text": said, "annotations": {"audience": ["user"]}}
    else:
        assert block == {k: v for k, v in LINK.items() if k != "icons" or version == V11}


def test_link_as_text_says_what_there_is() -> None:
    assert block_for({"type": "resource_link", "name": "n", "uri": "a:b"}, V03) == text("n: a:b")
    assert block_for({"type": "resource_link", "name": "n", "title": "T", "uri": "a:b"}, V03) == text("T: a:b")


@session_versions
def test_late_members_of_blocks_are_dropped_where_they_are_unknown(version: str) -> None:
    block: Params = {
        "type": "resource",
        "resource": {"uri": "a:b", "text": "t", "_meta": {"x": 1}, "unheardOf": 1},
        "annotations": {"lastModified": "2026-01-01"},
        "_meta": {"y": 1},
        "title": "not ours to drop",
    }
    if version in (V24, V03):
        resource = {"uri": "a:b", "text": "t", "unheardOf": 1}
        assert block_for(block, version) == {"type": "resource", "resource": resource, "title": "not ours to drop"}
    else:
        assert block_for(block, version) == block


@session_versions
def test_unknown_blocks_and_values_that_are_no_blocks_pass(version: str) -> None:
    value: Params = {"content": [{"type": "hologram", "x": 1}, 7, None, {"type": 3}, "text"]}
    assert for_session("tools/call", value, version) == {**value, **DONE}
    for odd in (7, "x", {"a": 1}, None):
        assert for_session("tools/call", {"content": odd}, version) == {"content": odd, **DONE}


# --- Definitions ------------------------------------------------------------------------------------------------------

TOOL: Params = {
    "name": "t",
    "title": "The Tool",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "string"}}},
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
    "icons": [{"src": "https://e.example/i.png"}],
    "execution": {"taskSupport": "optional"},
    "_meta": {"m": 1},
    "unheardOf": 1,
}


def tool_for(tool: Params, version: str) -> Params:
    return first(for_session("tools/list", {"tools": [tool]}, version), "tools")


def test_tools_have_what_each_revision_knows() -> None:
    always = {"name", "inputSchema", "unheardOf"}
    assert tool_for(TOOL, V24).keys() == always
    assert tool_for(TOOL, V03).keys() == always | {"annotations"}
    assert tool_for(TOOL, V06).keys() == always | {"annotations", "title", "outputSchema", "_meta"}
    assert tool_for(TOOL, V11).keys() == TOOL.keys() - {"execution"}


def test_the_title_of_a_tool_moves_into_annotations_where_only_annotations_have_one() -> None:
    assert tool_for(TOOL, V03)["annotations"] == {"readOnlyHint": True, "title": "The Tool"}
    assert tool_for({"name": "t", "title": "T"}, V03) == {"name": "t", "annotations": {"title": "T"}}
    assert tool_for(TOOL, V06)["annotations"] == {"readOnlyHint": True}


@session_versions
@pytest.mark.parametrize("schema", [{}, {"type": "array"}, {"type": ["object"]}, {"$ref": "#/$defs/x"}, True, None])
def test_output_schema_whose_root_is_no_object_is_dropped(schema: object, version: str) -> None:
    assert "outputSchema" not in tool_for({**TOOL, "outputSchema": schema}, version)


@session_versions
def test_boolean_schemas_of_properties_become_objects(version: str) -> None:
    properties = {"any": True, "none": False, "deep": {"properties": {"stays": True}}, "plain": {"type": "string"}}
    schema: Params = {"type": "object", "properties": properties, "additionalProperties": False}
    expected: Params = {**schema, "properties": {**properties, "any": {}, "none": {"not": {}}}}
    tool = tool_for({"name": "t", "inputSchema": schema, "outputSchema": schema}, version)
    assert tool.pop("outputSchema", expected) == expected
    assert tool == {"name": "t", "inputSchema": expected}


@session_versions
def test_header_marks_stay_in_schemas_for_older_clients(version: str) -> None:
    schema: Params = {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "A"}}}
    assert tool_for({"name": "t", "inputSchema": schema}, version)["inputSchema"] == schema


@session_versions
def test_prompts_and_their_arguments_lose_what_is_unknown(version: str) -> None:
    extras: Params = {"title": "T", "icons": [], "_meta": {}}
    prompt: Params = {"name": "p", **extras, "arguments": [{"name": "a", "title": "A", "required": True}]}
    known = {V24: set[str](), V03: set[str](), V06: {"title", "_meta"}, V11: set(extras)}[version]
    argument = {"name": "a", "required": True} | ({"title": "A"} if "title" in known else {})
    expected = {"name": "p", "arguments": [argument], **{k: v for k, v in extras.items() if k in known}}
    assert for_session("prompts/list", {"prompts": [prompt]}, version) == {"prompts": [expected]}


@session_versions
@pytest.mark.parametrize(
    "method, field", [("resources/list", "resources"), ("resources/templates/list", "resourceTemplates")]
)
def test_resources_and_templates_lose_what_is_unknown(method: str, field: str, version: str) -> None:
    extras: Params = {"title": "T", "icons": [], "_meta": {}}
    item: Params = {"name": "r", "size": 3, **extras, "annotations": {"priority": 0.5, "lastModified": "2026-01-01"}}
    known = {V24: set[str](), V03: set[str](), V06: {"title", "_meta"}, V11: set(extras)}[version]
    annotations = item["annotations"] if known else {"priority": 0.5}
    expected = {"name": "r", "size": 3, "annotations": annotations, **{k: v for k, v in extras.items() if k in known}}
    value: Params = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "nextCursor": "", field: [item]}
    assert for_session(method, value, version) == {field: [expected], "nextCursor": ""}


# --- Errors for older clients -----------------------------------------------------------------------------------------


def error_for(error: ErrorObject, method: str = "tools/call", params: Params | None = None) -> ErrorObject:
    reply = reply_for_session(method, params or {}, error, R11)
    assert isinstance(reply, ErrorObject)
    return reply


def test_missing_resource_has_its_own_code() -> None:
    error = ErrorObject(-32602, "gone", {"uri": "a:b", "more": 1})
    assert error_for(error, "resources/read", {"uri": "a:b"}) == ErrorObject(-32002, "gone", error.data)
    assert error_for(error, "resources/read", {"uri": "a:c"}) is error
    assert error_for(error, "tools/call", {"uri": "a:b"}) is error
    nameless: list[object] = [msgspec.UNSET, None, "a:b", {}]
    for data in nameless:
        other = ErrorObject(-32602, "bad params", data)
        assert error_for(other, "resources/read", {"uri": "a:b"}) is other


def test_missing_capability_is_named() -> None:
    data: Params = {"requiredCapabilities": {"elicitation": {"url": {}}, "sampling": {}}}
    error = error_for(ErrorObject(-32021, "Missing required client capability", data))
    assert error.code == -32603 and error.data == data
    assert "elicitation.url, sampling" in error.message
    assert error_for(ErrorObject(-32021, "m")).code == -32603


def test_errors_of_the_newer_era_alone_are_internal_ones() -> None:
    data = {"supported": ["2026-07-28"], "requested": "2027-01-01"}
    assert error_for(ErrorObject(-32022, "Unsupported", data)) == ErrorObject(-32603, "Unsupported", data)
    assert error_for(ErrorObject(-32020, "Mismatch")) == ErrorObject(-32603, "Mismatch")


@pytest.mark.parametrize("code", [-32020, -32021, -32022])
def test_a_newer_error_code_of_an_older_server_becomes_an_internal_error(code: int) -> None:
    assert error_for(error_from(ErrorObject(code, "m"))).code == -32603


@pytest.mark.parametrize("code", [-32700, -32600, -32601, -32602, -32603, -32042, 1001, 0, -1])
def test_other_errors_stay(code: int) -> None:
    error = ErrorObject(code, "m", {"x": 1})
    assert error_for(error) is error


# --- Notifications and params -----------------------------------------------------------------------------------------


@session_versions
def test_progress_loses_its_message_where_there_is_none(version: str) -> None:
    progress = Notification("notifications/progress", {"progressToken": 0, "progress": 1.5, "message": "half"})
    there = notification_for_session(progress, REVISIONS[version])
    assert there is not None and there.params.keys() ^ progress.params.keys() == (
        {"message"} if version == V24 else set()
    )


def test_notifications_that_a_revision_does_not_have_are_dropped() -> None:
    acknowledged = Notification(ACKNOWLEDGED, {"notifications": {}})
    finished = Notification("notifications/elicitation/complete", {"elicitationId": "1"})
    assert [notification_for_session(acknowledged, revision) for revision in (R24, R03, R06, R11)] == [None] * 4
    assert [notification_for_session(finished, r) for r in (R24, R06, R11, R26)] == [None, None, finished, None]
    assert notification_for_session(acknowledged, R26) is acknowledged


@session_versions
def test_subscription_mark_is_taken_off(version: str) -> None:
    updated = Notification("notifications/resources/updated", {"uri": "a:b", "_meta": {"kept": 1}})
    assert notification_for_session(tagged(updated, 7), REVISIONS[version]) == updated
    bare = Notification("notifications/tools/list_changed", {})
    assert notification_for_session(tagged(bare, "7"), REVISIONS[version]) == bare
    assert notification_for_session(tagged(bare, "7"), R26) == tagged(bare, "7")


def test_unknown_notification_passes() -> None:
    unknown = Notification("notifications/unheardOf", {"x": 1})
    assert notification_for_session(unknown, R24) == unknown


@session_versions
def test_params_lose_what_only_other_revisions_know(version: str) -> None:
    params: Params = {"name": "t", "inputResponses": {}, "requestState": "s", "task": {}, "context": 1}
    kept: Params = {"task": {}} if version == V11 else {}
    assert params_for_session("tools/call", params, REVISIONS[version]) == {"name": "t", "context": 1, **kept}
    assert params_for_session("prompts/get", params, REVISIONS[version]) == {"name": "t", "context": 1}
    assert len(params) == 5
    plain: Params = {"name": "t"}
    assert params_for_session("tools/call", plain, REVISIONS[version]) is plain


@session_versions
def test_completion_context_is_sent_only_to_revisions_that_have_it(version: str) -> None:
    params: Params = {"ref": {}, "argument": {}, "context": {"arguments": {}}}
    sent = params_for_session("completion/complete", params, REVISIONS[version])
    assert ("context" in sent) == (version in (V06, V11))


# --- Replies of session-era servers -----------------------------------------------------------------------------------


def test_result_of_a_session_era_server_is_complete() -> None:
    value: Params = {"content": [text("x")], "structuredContent": {"resultType": "mine", "ttlMs": 1}, "unheardOf": 1}
    assert from_session("tools/call", value) == {"resultType": "complete", **value}
    assert from_session("completion/complete", {}) == {"resultType": "complete"}


@pytest.mark.parametrize(
    "method",
    ["tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read", "server/discover"],
)
def test_cacheable_result_says_that_it_must_not_be_cached(method: str) -> None:
    assert from_session(method, {}) == {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    hints: Params = {"ttlMs": 7, "cacheScope": "public"}
    assert from_session(method, hints) == {"resultType": "complete", **hints}
    for nonsense in ({"ttlMs": -1, "cacheScope": "ours"}, {"ttlMs": True, "cacheScope": None}, {"ttlMs": "5"}):
        assert from_session(method, dict(nonsense)) == {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


@pytest.mark.parametrize("claimed", ["input_required", "task", 3, None])
def test_session_era_server_cannot_ask_by_its_result(claimed: object) -> None:
    assert from_session("tools/call", {"resultType": claimed, "content": []}) == {
        "resultType": "complete",
        "content": [],
    }


def test_reply_that_is_in_the_inner_shape_already_is_the_very_same_object() -> None:
    for value in ({"resultType": "complete"}, msgspec.Raw(b'{"resultType": "complete", "content": [], "n": 1.50}')):
        reply = Result(value)
        assert reply_from_session("tools/call", {}, reply) is reply


@pytest.mark.parametrize("data", [b" {} ", b"{ }", b'\n{"content" : [ ]}', b'{"content":[],"content":[1]}'])
def test_layout_of_the_bytes_does_not_matter(data: bytes) -> None:
    reply = reply_from_session("tools/call", {}, Result(msgspec.Raw(data)))
    assert on_the_wire(reply) == {"resultType": "complete", **json.loads(data)}


def tools_from(schema: Params) -> object:
    tool: Params = {"name": "t", "inputSchema": schema, "execution": {"taskSupport": "required"}, "unheardOf": 1}
    translated = first(from_session("tools/list", {"tools": [tool, 3]}), "tools")
    assert translated == {**tool, "inputSchema": translated["inputSchema"]}
    return translated["inputSchema"]


def test_valid_header_marks_are_kept() -> None:
    schema: Params = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "x-mcp-header": "Region"},
            "b": {"type": "integer", "x-mcp-header": "X-Size!"},
            "c": {"type": "object", "properties": {"d": {"x-mcp-header": "Flag", "type": "boolean"}}},
            "x-mcp-header": {"type": "number"},
        },
        "examples": [{"x-mcp-header": ""}],
    }
    assert tools_from(schema) == schema


@pytest.mark.parametrize(
    "path, marked",
    [
        (["properties", "a"], {"type": "string", "x-mcp-header": ""}),
        (["properties", "a"], {"type": "string", "x-mcp-header": "a b"}),
        (["properties", "a"], {"type": "string", "x-mcp-header": "a\n"}),
        (["properties", "a"], {"type": "string", "x-mcp-header": "é"}),
        (["properties", "a"], {"type": "string", "x-mcp-header": 3}),
        (["properties", "a"], {"type": "number", "x-mcp-header": "A"}),
        (["properties", "a"], {"type": ["string", "null"], "x-mcp-header": "A"}),
        (["properties", "a"], {"x-mcp-header": "A"}),
        (["properties", "a", "items"], {"type": "string", "x-mcp-header": "A"}),
        (["properties", "a", "anyOf"], {"type": "string", "x-mcp-header": "A"}),
        (["properties", "a", "items", "properties", "b"], {"type": "string", "x-mcp-header": "A"}),
        (["$defs", "a"], {"type": "string", "x-mcp-header": "A"}),
        (["additionalProperties"], {"type": "string", "x-mcp-header": "A"}),
        ([], {"type": "object", "x-mcp-header": "A"}),
    ],
)
def test_invalid_header_marks_are_stripped(path: list[str], marked: Params) -> None:
    def schema(inner: Params) -> Params:
        for key in reversed(path):
            inner = {key: [inner, True]} if key == "anyOf" else {key: inner}
        return inner

    assert tools_from(schema(marked)) == schema({k: v for k, v in marked.items() if k != "x-mcp-header"})


def test_header_mark_that_stands_twice_is_kept_once() -> None:
    properties: Params = {name: {"type": "string", "x-mcp-header": name} for name in ("Tenant", "TENANT")}
    assert tools_from({"properties": properties}) == {
        "properties": {"Tenant": {"type": "string", "x-mcp-header": "Tenant"}, "TENANT": {"type": "string"}}
    }


def error_from(error: ErrorObject, method: str = "tools/call", params: Params | None = None) -> ErrorObject:
    reply = reply_from_session(method, params or {}, error)
    assert isinstance(reply, ErrorObject)
    return reply


def test_missing_resource_of_a_session_era_server_names_its_uri() -> None:
    params: Params = {"uri": "a:b"}
    for data, expected in (
        (msgspec.UNSET, {"uri": "a:b"}),
        ({"uri": "other", "x": 1}, {"uri": "a:b", "x": 1}),
        ("why", {"uri": "a:b", "upstream": "why"}),
    ):
        error = error_from(ErrorObject(-32002, "gone", data), "resources/read", params)
        assert error == ErrorObject(-32602, "gone", expected)


@pytest.mark.parametrize("code", [-32000, -32001, -32002, -32019, -32020, -32021, -32022, -32023, -32099, 0])
def test_private_codes_become_internal_errors_that_hold_the_original(code: int) -> None:
    assert error_from(ErrorObject(code, "m", [1])) == ErrorObject(
        -32603, "m", {"upstream": {"code": code, "message": "m", "data": [1]}}
    )
    assert error_from(ErrorObject(code, "m")).data == {"upstream": {"code": code, "message": "m"}}


@pytest.mark.parametrize("code", [-32042, -32602, -32603, -32100, -31999, -1, 7])
def test_codes_that_mean_the_same_in_both_eras_stay(code: int) -> None:
    error = ErrorObject(code, "m", {"x": 1})
    assert error_from(error) is error


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
codes = st.integers(-32110, -31990) | st.sampled_from([-32603, -32602, -32601])


@given(codes, json_values | st.just(msgspec.UNSET), st.sampled_from(["tools/call", "prompts/get", "tools/list"]))
def test_error_between_peers_of_the_session_era_arrives_as_it_was_sent(code: int, data: object, method: str) -> None:
    error = ErrorObject(code, "m", data)
    back = reply_for_session(method, {}, reply_from_session(method, {}, error), R11)
    if code not in (-32020, -32021, -32022):
        assert back == error


# The words that 2026-07-28 has given a meaning are taken off for older clients, whoever said them.
session_members = st.text(max_size=5).filter(lambda name: name not in ("resultType", "ttlMs", "cacheScope", "_meta"))


@given(st.dictionaries(session_members, json_values, max_size=4), st.sampled_from(["tools/call", "prompts/get", "x/y"]))
def test_result_between_peers_of_the_session_era_arrives_as_it_was_sent(value: Params, method: str) -> None:
    for given_as in (value, msgspec.Raw(msgspec.json.encode(value))):
        inner = reply_from_session(method, {}, Result(given_as))
        assert on_the_wire(inner)["resultType"] == "complete"
        assert on_the_wire(reply_for_session(method, {}, inner, R11)) == value


@given(
    st.sampled_from(sorted(["tools/call", "tools/list", "prompts/get", "resources/read", "prompts/list"])), st.data()
)
def test_no_shape_of_a_result_upsets_the_translation(method: str, data: st.DataObject) -> None:
    fields = "content structuredContent tools messages contents prompts arguments resource annotations inputSchema"
    names = st.sampled_from(
        [*fields.split(), "outputSchema", "_meta", "type", "title", "resultType", "items", "x-mcp-header"]
    )
    kinds = st.sampled_from(["text", "audio", "resource_link", "resource", "object"])
    shapes = st.recursive(
        json_values | kinds,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
        max_leaves=12,
    )
    value: Params = dict(data.draw(st.dictionaries(names, shapes, max_size=4)))
    for version in SESSION_VERSIONS:
        for_session(method, value, version)
    from_session(method, value)


# --- Questions for older clients --------------------------------------------------------------------------------------

FORM = "elicitation/create"


def form_for(properties: Params, version: str = V06, **members: object) -> Params:
    schema: Params = {"$schema": "s", "type": "object", "properties": properties, **members}
    question = Question(FORM, {"mode": "form", "message": "m", "requestedSchema": schema})
    before = copy.deepcopy(question)
    asked = question_for_session(question, REVISIONS[version], "new-id")
    assert question == before and asked.method == FORM
    return asked.params


def fields_for(properties: Params) -> Params:
    params = form_for(properties)
    assert params.keys() == {"message", "requestedSchema"}
    schema = cast(Params, params["requestedSchema"])
    assert schema.keys() == {"type", "properties"}
    return cast(Params, schema["properties"])


def test_forms_pass_unchanged_where_modes_are_known() -> None:
    params = form_for({"a": {"type": "array", "items": {"enum": ["x"]}}}, V11)
    assert params["mode"] == "form" and "elicitationId" not in params
    assert cast(Params, params["requestedSchema"])["$schema"] == "s"


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_url_gets_an_id_of_its_own(version: str) -> None:
    question = Question(FORM, {"mode": "url", "message": "m", "url": "https://e.example"})
    asked = question_for_session(question, REVISIONS[version], "new-id")
    assert asked.params == {**question.params, "elicitationId": "new-id"}
    assert question_for_session(question, R26, "new-id") is question


def test_defaults_are_dropped_except_for_booleans() -> None:
    fields: Params = {
        "s": {"type": "string", "default": "x", "format": "email"},
        "n": {"type": "integer", "default": 3, "minimum": 0},
        "e": {"type": "string", "enum": ["a"], "default": "a"},
        "b": {"type": "boolean", "default": True},
    }
    assert fields_for(fields) == {
        "s": {"type": "string", "format": "email"},
        "n": {"type": "integer", "minimum": 0},
        "e": {"type": "string", "enum": ["a"]},
        "b": {"type": "boolean", "default": True},
    }


def test_titled_choices_are_named_beside_the_values() -> None:
    choices = [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]
    field: Params = {"type": "string", "title": "Colour", "oneOf": choices, "default": "r"}
    assert fields_for({"c": field}) == {
        "c": {"type": "string", "title": "Colour", "enum": ["r", "g"], "enumNames": ["Red", "Green"]}
    }


COLOURS: Params = {
    "type": "array",
    "title": "Colours",
    "description": "Of the house.",
    "items": {
        "anyOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}, {"const": "b", "title": "Blue"}]
    },
    "default": ["g"],
    "minItems": 1,
    "maxItems": 2,
}


def test_choice_of_several_becomes_a_switch_for_each() -> None:
    hint = "Of the house. Choose at least 1 and at most 2."
    assert fields_for({"c": COLOURS}) == {
        "c: Red": {"type": "boolean", "title": "Colours: Red", "description": hint, "default": False},
        "c: Green": {"type": "boolean", "title": "Colours: Green", "description": hint, "default": True},
        "c: Blue": {"type": "boolean", "title": "Colours: Blue", "description": hint, "default": False},
    }
    assert fields_for({"c": {"type": "array", "items": {"type": "string", "enum": ["x"]}}}) == {
        "c: x": {"type": "boolean", "title": "c: x"}
    }


def test_choice_of_several_is_no_longer_required_by_name() -> None:
    params = form_for({"c": COLOURS, "s": {"type": "string"}}, required=["c", "s"])
    assert cast(Params, params["requestedSchema"])["required"] == ["s"]


def colours_question(required: bool = True) -> Question:
    properties: Params = {"c": COLOURS, "s": {"type": "string"}}
    schema: Params = {"type": "object", "properties": properties, "required": ["c"] if required else []}
    return Question(FORM, {"mode": "form", "message": "m", "requestedSchema": schema})


def accept(question: Question, content: Params, version: str = V06) -> Params:
    answer: Params = {"action": "accept", "content": content, "_meta": {"x": 1}}
    back = answer_from_session(question, answer, REVISIONS[version])
    assert answer["_meta"] and back.keys() == {"action", "content"} and back["action"] == "accept"
    return cast(Params, back["content"])


def test_switches_are_folded_back() -> None:
    assert accept(colours_question(), {"c: Red": True, "c: Green": False, "c: Blue": True, "s": "x"}) == {
        "c": ["r", "b"],
        "s": "x",
    }
    assert accept(colours_question(), {"c": ["r"], "c: Red": True}, V11) == {"c": ["r"], "c: Red": True}


@pytest.mark.parametrize("content", [{}, {"c: Red": False}, {"c: Red": True, "c: Green": True, "c: Blue": True}])
def test_wrong_number_of_choices_is_refused(content: Params) -> None:
    with pytest.raises(InputRefused, match="at least 1 and at most 2"):
        accept(colours_question(), content)


def test_optional_choice_may_be_left_out() -> None:
    assert accept(colours_question(required=False), {"c: Red": False}) == {}
    unbounded: Params = {"type": "array", "items": {"enum": ["x"]}}
    schema: Params = {"type": "object", "properties": {"c": unbounded}}
    assert accept(Question(FORM, {"requestedSchema": schema}), {}) == {"c": []}


def test_answers_that_decline_are_only_cleaned() -> None:
    for version in (V06, V11):
        answer: Params = {"action": "decline", "content": None, "_meta": {}}
        assert answer_from_session(colours_question(), answer, REVISIONS[version]) == {"action": "decline"}
        answer = {"action": "cancel", "content": {}}
        assert answer_from_session(colours_question(), answer, REVISIONS[version]) == answer


labels = st.sampled_from(["a", "b", "b'", "c: a", "c: b", ""])


@given(
    st.dictionaries(
        st.sampled_from(["c", "d", "c: a", "c: b", "d: b'"]),
        st.lists(st.tuples(labels, labels), min_size=1, max_size=4) | st.none(),
        max_size=4,
    ),
    st.randoms(use_true_random=False),
)
def test_any_choice_comes_back_under_the_name_it_was_asked_by(
    fields: dict[str, list[tuple[str, str]] | None], random: Random
) -> None:
    """However alike fields, values and labels are named, each switch has a name of its own."""
    properties: Params = {}
    expected: Params = {}
    flat: Params = {}
    for name, choices in fields.items():
        if choices is None:
            properties[name] = {"type": "string"}
        else:
            options = [{"const": value, "title": label} for value, label in choices]
            properties[name] = {"type": "array", "items": {"anyOf": options}}
    schema: Params = {"type": "object", "properties": properties}
    question = Question(FORM, {"message": "m", "requestedSchema": schema})
    asked = cast(Params, question_for_session(question, R06, "i").params["requestedSchema"])
    switches = cast(dict[str, Params], asked["properties"])
    assert len(switches) == sum(1 if choices is None else len(choices) for choices in fields.values())
    keys = iter(switches)
    for name, choices in fields.items():
        if choices is None:
            flat[next(keys)] = expected[name] = "typed"
            continue
        chosen: list[str] = []
        for value, _ in choices:
            flat[next(keys)] = on = bool(random.getrandbits(1))
            chosen += [value] * on
        expected[name] = chosen
    assert answer_from_session(question, {"action": "accept", "content": flat}, R06)["content"] == expected


SAMPLING = "sampling/createMessage"


def sampling_for(version: str, *messages: Params, **params: object) -> Params:
    question = Question(SAMPLING, {"maxTokens": 9, "messages": list(messages), **params})
    before = copy.deepcopy(question)
    asked = question_for_session(question, REVISIONS[version], "new-id")
    assert question == before
    return asked.params


@pytest.mark.parametrize("version", [V24, V03, V06])
def test_message_of_several_blocks_becomes_several_messages(version: str) -> None:
    message: Params = {"role": "user", "content": [text("a"), text("b")], "_meta": {"x": 1}}
    assert sampling_for(version, message, {"role": "assistant", "content": text("c")})["messages"] == [
        {"role": "user", "content": text("a")},
        {"role": "user", "content": text("b")},
        {"role": "assistant", "content": text("c")},
    ]


def test_rich_messages_pass_where_they_are_known() -> None:
    messages: list[Params] = [
        {"role": "user", "content": [text("a"), AUDIO], "_meta": {"x": 1}},
        {"role": "assistant", "content": {"type": "tool_use", "id": "1", "name": "t", "input": {}}},
        {"role": "user", "content": "garbled"},
    ]
    params = sampling_for(V11, *messages[:2], tools=[TOOL], toolChoice={"mode": "auto"})
    assert params["messages"] == messages[:2]
    assert first(params, "tools").keys() == TOOL.keys() - {"execution"}
    assert sampling_for(V11, messages[2])["messages"] == [{"role": "user", "content": []}]


def test_structured_tool_results_in_messages_fit_the_revision() -> None:
    block: Params = {"type": "tool_result", "toolUseId": "1", "content": [], "structuredContent": [1]}
    said = first(sampling_for(V11, {"role": "user", "content": block}), "messages")
    assert said["content"] == {"type": "tool_result", "toolUseId": "1", "content": [text("[1]")]}


@session_versions
def test_sampling_never_reaches_for_other_servers(version: str) -> None:
    assert sampling_for(version, includeContext="allServers")["includeContext"] == "none"
    assert "includeContext" not in sampling_for(version)


@pytest.mark.parametrize("version", [V24, V03, V06])
def test_tools_in_sampling_become_text_where_they_are_unknown(version: str) -> None:
    inner = [text("12"), {"type": "image", "data": "", "mimeType": "image/png"}, LINK, {"type": "odd"}]
    inner.append({"type": "resource", "resource": {"uri": "a:b", "text": "inside"}})
    inner.append({"type": "resource", "resource": {"uri": "a:b", "blob": ""}})
    used: Params = {"role": "assistant", "content": {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 1}}}
    result: Params = {"role": "user", "content": [{"type": "tool_result", "toolUseId": "1", "content": inner}]}
    params = sampling_for(version, used, result, tools=[TOOL], toolChoice={"mode": "auto"})
    assert params.keys() == {"maxTokens", "messages"}
    said = [cast(Params, message["content"]) for message in cast(list[Params], params["messages"])]
    assert [block["type"] for block in said] == ["text", "text"]
    assert said[0]["text"] == '[call of the tool add: {"a":1}]'
    lines = str(said[1]["text"]).splitlines()
    assert lines[:3] == ["[result of a tool]", "12", "[image (image/png), left out]"]
    assert lines[3].startswith("readme: file:///README.md")
    assert lines[-3:] == ["[odd, left out]", "inside", "[resource, left out]"]


def test_audio_in_sampling_becomes_text_where_it_is_unknown() -> None:
    message: Params = {"role": "user", "content": AUDIO}
    assert first(sampling_for(V24, message), "messages")["content"] == text("[audio (audio/wav), left out]")
    for version in (V03, V06, V11):
        assert first(sampling_for(version, message), "messages") == message


@session_versions
def test_question_for_roots_and_its_answer_pass(version: str) -> None:
    question = Question("roots/list", {})
    assert question_for_session(question, REVISIONS[version], "i") == question
    answer: Params = {"roots": [{"uri": "file:///a"}], "_meta": {}}
    assert answer_from_session(question, answer, REVISIONS[version]) == {"roots": [{"uri": "file:///a"}]}


# --- Questions of session-era servers ---------------------------------------------------------------------------------


def test_form_of_a_session_era_server_is_a_form_by_name() -> None:
    params: Params = {"message": "m", "requestedSchema": {}, "_meta": {"progressToken": 1}, "task": {}}
    assert question_from_session(FORM, params).params == {"mode": "form", "message": "m", "requestedSchema": {}}
    assert len(params) == 4


def test_url_of_a_session_era_server_loses_its_id() -> None:
    params: Params = {"mode": "url", "message": "m", "url": "https://e.example", "elicitationId": "1"}
    assert question_from_session(FORM, params).params == {"mode": "url", "message": "m", "url": "https://e.example"}


def test_sampling_of_a_session_era_server_is_cleaned() -> None:
    params: Params = {
        "messages": [],
        "maxTokens": 1,
        "includeContext": "thisServer",
        "tools": [TOOL],
        "_meta": {},
        "task": {},
    }
    asked = question_from_session(SAMPLING, params).params
    assert asked.keys() == {"messages", "maxTokens", "includeContext", "tools"}
    assert asked["includeContext"] == "none"
    assert first(asked, "tools").keys() == TOOL.keys() - {"execution"}
    assert question_from_session("roots/list", {"_meta": {}}) == Question("roots/list", {})


@pytest.mark.parametrize("version", [V24, V03, V06])
def test_answer_of_several_blocks_is_one_block_for_older_servers(version: str) -> None:
    question = Question(SAMPLING, {})

    def answered(content: object) -> object:
        answer: Params = {"role": "assistant", "model": "m", "content": content}
        there = answer_for_session(question, answer, REVISIONS[version])
        assert there.keys() == answer.keys() and answer["content"] is content
        return there["content"]

    assert answered(text("a")) == text("a")
    assert answered([text("a")]) == text("a")
    assert answered([text("a"), text("b")]) == text("a\nb")
    assert answered([]) == text("")
    assert answered([AUDIO]) == (text("[audio (audio/wav), left out]") if version == V24 else AUDIO)


def test_other_answers_pass_as_they_are() -> None:
    for question, revision in (
        (Question(SAMPLING, {}), R11),
        (Question(FORM, {}), R06),
        (Question("roots/list", {}), R24),
    ):
        answer: Params = {"content": [text("a"), text("b")]}
        assert answer_for_session(question, answer, revision) is answer


@pytest.mark.parametrize("upstream", [None, [], {"code": "x"}, {"code": -32602, "message": "public"}])
def test_an_error_that_is_not_private_stays_wrapped(upstream: object) -> None:
    error = ErrorObject(-32603, "m", {"upstream": upstream})
    assert reply_for_session("tools/call", {}, error, R11) is error
