"""What a revision cannot express is counted as a loss, and nothing else is."""

import msgspec
import pytest

from sluicegate.errors import MISSING_CAPABILITY, ErrorObject
from sluicegate.hub.call_sink import (
    EXTENSIONS,
    LINKS,
    SOUNDS,
    STRUCTURED,
    SWITCHES,
    UNASKED,
    losses_in,
)
from sluicegate.hub.calls import revision_of
from sluicegate.protocol.input_required import Question, input_required
from sluicegate.protocol.message import Params, Result
from sluicegate.protocol.modern_era import complete

ALL: Params = {
    "content": [
        {"type": "text", "text": "words"},
        {"type": "audio", "data": "", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "note://one", "name": "one"},
    ],
    "structuredContent": {"total": 3},
}


def losses(version: str, value: Params, method: str = "tools/call") -> set[str]:
    """The losses in a result, whether it came as bytes or not."""
    revision = revision_of(version)
    plain = list(losses_in(method, Result(complete(value)), revision))
    raw = list(losses_in(method, Result(msgspec.Raw(msgspec.json.encode(complete(value)))), revision))
    assert plain == raw and len(set(raw)) == len(raw)
    return set(raw)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2024-11-05", {STRUCTURED, LINKS, SOUNDS}),
        ("2025-03-26", {STRUCTURED, LINKS}),
        ("2025-06-18", set[str]()),
        ("2025-11-25", set[str]()),
        ("2026-07-28", set[str]()),
        ("2031-01-01", set[str]()),
    ],
)
def test_each_revision_loses_what_it_does_not_have(version: str, expected: set[str]) -> None:
    assert losses(version, ALL) == expected


@pytest.mark.parametrize("structured", [[1, 2], 7, None, "words"])
def test_only_the_newest_revision_holds_what_is_no_object(structured: object) -> None:
    value: Params = {"content": [], "structuredContent": structured}
    assert losses("2025-11-25", value) == {STRUCTURED}
    assert losses("2026-07-28", value) == set()


def test_blocks_of_a_prompt_are_looked_at_too() -> None:
    link = {"type": "resource_link", "uri": "note://one", "name": "one"}
    for content in (link, [link]):
        value: Params = {"messages": [{"role": "user", "content": content}]}
        assert losses("2025-03-26", value, "prompts/get") == {LINKS}


@pytest.mark.parametrize(
    "value", [{"content": [{"type": "text", "text": "audio, a resource_link, structuredContent"}]}]
)
def test_words_that_only_sound_like_it_are_no_loss(value: Params) -> None:
    assert losses("2024-11-05", value) == set()


def test_choices_in_a_question_that_comes_as_a_result() -> None:
    schema = {"type": "object", "properties": {"toppings": {"type": "array", "items": {"enum": ["ham"]}}}}
    question = Question("elicitation/create", {"mode": "form", "message": "?", "requestedSchema": schema})
    reply = input_required({"k": question}, "state")
    assert list(losses_in("tools/call", reply, revision_of("2025-06-18"))) == [SWITCHES]
    assert list(losses_in("tools/call", reply, revision_of("2025-11-25"))) == []


def test_a_question_that_a_server_could_not_even_ask_is_counted_unless_it_was_when_we_refused_it() -> None:
    revision = revision_of("2025-03-26")
    theirs = ErrorObject(MISSING_CAPABILITY, "no", {"requiredCapabilities": {"elicitation": {}}})
    ours = ErrorObject(MISSING_CAPABILITY, "no", {"requiredCapabilities": {}, "upstream": {"code": 1}})
    assert list(losses_in("tools/call", theirs, revision)) == [UNASKED]
    assert list(losses_in("tools/call", ours, revision)) == []
    assert list(losses_in("tools/call", ErrorObject(-32603, "no"), revision)) == []


@pytest.mark.parametrize("version", ["2025-03-26", "2026-07-28"])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}, [EXTENSIONS]),
        ({"requiredCapabilities": {"extensions": {}, "sampling": {}}}, [EXTENSIONS, UNASKED]),
        ({"requiredCapabilities": {"sampling": {}}}, [UNASKED]),
        ({"requiredCapabilities": {}}, [UNASKED]),
        ({"requiredCapabilities": "sampling"}, [UNASKED]),
        (None, [UNASKED]),
    ],
)
def test_an_extension_that_a_server_insists_on_is_no_question(data: object, expected: list[str], version: str) -> None:
    reply = ErrorObject(MISSING_CAPABILITY, "It takes a task.", data)
    assert list(losses_in("tools/call", reply, revision_of(version))) == expected


@pytest.mark.parametrize(
    "raw", [b'{"structuredContent":[1e999],"content":[]}', b'{"content":[{"type":"audio","n":1e999}]}']
)
def test_what_cannot_be_read_is_for_others_to_complain_of(raw: bytes) -> None:
    list(losses_in("tools/call", Result(msgspec.Raw(raw)), revision_of("2024-11-05")))
