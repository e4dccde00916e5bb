"""Native methods and events, made of what MCP has."""

import pytest

from sluicegate.errors import ErrorObject, RpcError
from sluicegate.protocol.input_required import Question
from sluicegate.protocol.message import Notification, Params, Result, as_object
from sluicegate.protocol.native import Methods, answer_of, arguments_of, event_of, events_of, is_native, question_event


def tool(name: str, **members: object) -> Params:
    return {"name": name, "inputSchema": {"type": "object", "properties": {"a": {}, "b": {}}}, **members}


def progress(**params: object) -> Notification:
    return Notification("notifications/progress", {"progressToken": 1, "progress": 2, **params})


@pytest.mark.parametrize(
    ("notification", "event"),
    [
        (progress(_meta={"dev.sluicegate/data": "x"}, message="x"), {"type": "content", "text": "x"}),
        (progress(_meta={"dev.sluicegate/data": {"n": 1}}), {"type": "data", "data": {"n": 1}}),
        (progress(_meta={"dev.sluicegate/event": {"type": "seen", "p": 1}}), {"type": "seen", "p": 1}),
        (progress(_meta={"dev.sluicegate/event": {"type": 7, "p": 1}}), {"type": 7, "p": 1}),
        (progress(_meta={"dev.sluicegate/event": "no event"}), {"type": "progress", "progress": 2}),
        (progress(total=4, message="half"), {"type": "progress", "progress": 2, "total": 4, "message": "half"}),
        (
            Notification("notifications/message", {"level": "info", "data": [1]}),
            {"type": "log", "level": "info", "data": [1]},
        ),
        (Notification("notifications/tools/list_changed", {}), None),
    ],
)
def test_each_notification_is_one_event(notification: Notification, event: Params | None) -> None:
    assert event_of(notification) == event


def test_the_result_of_a_remote_tool_is_its_blocks_and_an_end() -> None:
    image = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    value: Params = {"content": [{"type": "text", "text": "hi"}, image], "structuredContent": {"exit_code": 0}}
    assert events_of(Result(value)) == [{"type": "content", "text": "hi"}, image, {"type": "complete", "exit_code": 0}]


@pytest.mark.parametrize("kind", ["start", "request", "complete", "error"])
def test_no_tool_can_send_what_only_we_send(kind: str) -> None:
    forged: Params = {"type": kind, "id": 1}
    assert event_of(progress(_meta={"dev.sluicegate/event": forged})) == {"type": "data", "data": forged}
    assert events_of(Result({"content": [forged]})) == [{"type": "data", "data": forged}, {"type": "complete"}]


def test_a_block_whose_type_is_no_text_is_passed_on() -> None:
    block: Params = {"type": ["x"]}
    assert events_of(Result({"content": [block]})) == [block, {"type": "complete"}]


def test_streamed_content_is_not_repeated() -> None:
    blocks = [{"type": "text", "text": text} for text in ("streamed", "new", "streamed too")]
    value: Params = {"content": blocks, "_meta": {"dev.sluicegate/streamed": [0, 2]}}
    assert events_of(Result(value)) == [{"type": "content", "text": "new"}, {"type": "complete"}]


def test_failures_end_a_stream_with_an_error() -> None:
    failed: Params = {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "isError": True}
    assert events_of(Result(failed)) == [{"type": "error", "message": "a\nb"}]
    assert events_of(ErrorObject(-32603, "gone", {"x": 1})) == [
        {"type": "error", "message": "gone", "code": -32603, "data": {"x": 1}}
    ]


def test_a_structured_result_with_a_type_of_its_own_keeps_it() -> None:
    value: Params = {"content": [], "structuredContent": {"type": "mine"}}
    assert events_of(Result(value)) == [{"type": "complete", "result": {"type": "mine"}}]


def test_a_tool_is_found_by_all_its_names_and_by_no_ambiguous_one() -> None:
    methods = Methods([tool("files__read_file"), tool("bash.execute"), tool("bash.a_b"), tool("bash__a.b")])
    for name in ("files__read_file", "files.read_file", "mcp__files__read_file", "files_read_file"):
        assert methods.find(name) is methods.tools["files__read_file"]
    for name in ("bash.execute", "bash_execute", "mcp__bash__execute"):
        assert methods.find(name) is methods.tools["bash.execute"]
    assert methods.find("bash_a_b") is None
    error = methods.unknown("bash.exekute")
    assert error.code == -32601
    assert (as_object(error.data) or {})["did_you_mean"] == ["bash.execute"]


def test_a_method_with_a_slash_is_one_of_mcp_or_an_extension() -> None:
    assert is_native({"method": "files.admin_list"}) and not is_native({"method": "files.admin/list"})


def test_params_come_by_name_or_in_the_order_of_the_schema() -> None:
    assert arguments_of(None, tool("x")) == {}
    assert arguments_of({"b": 1}, tool("x")) == {"b": 1}
    assert arguments_of([1, 2], tool("x")) == {"a": 1, "b": 2}
    for wrong in ([1, 2, 3], "text", 5):
        with pytest.raises(RpcError) as refusal:
            arguments_of(wrong, tool("x"))
        assert refusal.value.error.code == -32602


def test_questions_are_answered_by_their_kind() -> None:
    form = Question("elicitation/create", {"message": "?"})
    assert question_event(7, form) == {
        "type": "request",
        "id": 7,
        "question": {"method": "elicitation/create", "params": {"message": "?"}},
    }
    assert answer_of(form, {"content": {"n": 1}}) == {"action": "accept", "content": {"n": 1}}
    assert answer_of(form, {}) == {"action": "decline"}
    assert answer_of(form, {"action": "cancel"}) == {"action": "cancel"}
    assert answer_of(Question("roots/list", {}), {"content": {"roots": []}}) == {"roots": []}


def solar(**changes: object) -> Methods:
    return Methods([tool("solar.watch", description="w", **changes), tool("solar.earth.info"), tool("other__x")])


def test_a_schema_names_methods_and_children() -> None:
    schema = solar(_meta={"dev.sluicegate/streaming": True}).schema("solar", {"solar": {"version": "2"}})
    assert schema is not None
    (method,) = schema["methods"]  # type: ignore[misc]
    assert (schema["namespace"], schema["version"]) == ("solar", "2")
    assert method["name"] == "watch" and method["streaming"] is True  # type: ignore[index]
    assert [child["namespace"] for child in schema["children"]] == ["solar.earth"]  # type: ignore[attr-defined, index]
    assert solar().schema("other") is not None
    assert solar().schema("nothing") is None


def test_hashes_change_exactly_when_what_they_cover_does() -> None:
    def hashes(methods: Methods, namespace: str = "solar") -> tuple[object, object, object]:
        schema = methods.schema(namespace)
        assert schema is not None
        return schema["self_hash"], schema.get("children_hash"), schema["hash"]

    assert hashes(solar()) == hashes(solar())
    own, children, whole = hashes(solar())
    changed = hashes(solar(outputSchema={"type": "object"}))
    assert (changed[0] != own, changed[1] == children, changed[2] != whole) == (True, True, True)
    deeper = hashes(Methods([*solar().tools.values(), tool("solar.earth.more")]))
    assert (deeper[0] == own, deeper[1] != children, deeper[2] != whole) == (True, True, True)
    assert hashes(solar(title="not covered")) == (own, children, whole)
