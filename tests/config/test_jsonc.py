"""JSON with comments: same values as plain JSON, comments are skipped, nothing raises."""

import json
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.config import jsonc
from sluicegate.config.jsonc import JsonNode, JsonObject, SyntaxFault

letters = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | letters
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(letters, inner, max_size=4), max_leaves=12
)
fillings = st.sampled_from(["", " ", "\n", "\t", "\r\n", '// a " comment , }\n', '/* { [ " */', "/**/"])


def readable(text: str) -> JsonNode:
    node = jsonc.read(text)
    assert isinstance(node, JsonNode), node
    return node


@given(values, st.sampled_from([None, 0, 2, "\t"]), st.booleans())
def test_plain_json_means_what_json_says(value: object, indent: int | str | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert jsonc.plain(readable(text)) == json.loads(text)


@given(values, st.data())
def test_comments_and_trailing_commas_change_nothing(value: object, data: st.DataObject) -> None:
    text = decorated(value, lambda: data.draw(fillings), lambda: data.draw(st.booleans()))
    assert jsonc.plain(readable(text)) == value


@given(st.text(alphabet='{}[]",:/*\\\n tfn01-.e\ud800ü', max_size=40))
def test_no_text_raises(text: str) -> None:
    found = jsonc.read(text)
    if isinstance(found, SyntaxFault):
        assert 0 <= found.offset <= len(text)
        assert found.sentence.endswith(".") or found.sentence.endswith("?")
    else:
        jsonc.plain(found)


@given(values, st.integers(0, 10_000))
def test_a_part_of_an_object_is_never_taken_for_a_whole(value: object, cut: int) -> None:
    text = json.dumps({"mcpServers": value})
    assert isinstance(jsonc.read(text[: cut % len(text)]), SyntaxFault)


@given(st.dictionaries(letters, scalars, min_size=1), st.sampled_from([None, 2]))
def test_each_member_knows_its_place(table: dict[str, object], indent: int | None) -> None:
    text = json.dumps(table, indent=indent)
    document = readable(text)
    assert isinstance(document, JsonObject)
    for member in document.members:
        assert text[member.key_start :].startswith(json.dumps(member.key))
        assert json.loads(text[member.value.start : member.value.end]) == table[member.key]


@pytest.mark.parametrize(
    ("text", "line", "column", "path"),
    [
        ('{\n  "a": {\n    "b": tru\n  }\n}', 3, 10, ("a", "b")),
        ('{\n  "a": 1\n  "b": 2\n}', 2, 9, ("a",)),
        ('{"a": [1, 2', 1, 12, ("a",)),
        ('{"a": "x\n"}', 1, 7, ("a",)),
        ("{'a': 1}", 1, 2, ()),
        ('{"a": 1}}', 1, 9, ()),
        ('{"a": /* never', 1, 7, ("a",)),
        ('{"a": 01}', 1, 7, ("a",)),
        ('{"a": NaN}', 1, 7, ("a",)),
        ('{"a": "\\ud800"}', 1, 7, ("a",)),
        ('{"a": "\\x41"}', 1, 7, ("a",)),
        ('{"a",}', 1, 5, ("a",)),
        ("[,]", 1, 2, ()),
        ("", 1, 1, ()),
    ],
)
def test_a_fault_has_its_place_and_its_key(text: str, line: int, column: int, path: tuple[str, ...]) -> None:
    fault = jsonc.read(text)
    assert isinstance(fault, SyntaxFault)
    assert (*jsonc.line_column(text, fault.offset), fault.path) == (line, column, path)


def test_depth_and_length_of_numbers_are_bounded() -> None:
    assert isinstance(jsonc.read("[" * 100_000), SyntaxFault)
    assert isinstance(jsonc.read("[" * 90 + "]" * 90), JsonNode)
    assert isinstance(jsonc.read("1" * 5000), SyntaxFault)


def test_a_key_that_is_there_twice_is_known_and_the_last_one_counts() -> None:
    document = readable('{"a": 1, "b": 2, "a": 3}')
    assert isinstance(document, JsonObject)
    assert [member.key for member in document.repeated()] == ["a"]
    assert [jsonc.plain(member.value) for member in document.effective()] == [3, 2]


def test_a_byte_order_mark_is_skipped() -> None:
    assert jsonc.plain(readable('\ufeff{"a": 1}')) == {"a": 1}


def decorated(value: object, between: Callable[[], str], trailing: Callable[[], bool]) -> str:
    """The value as text, with something between all of its parts."""
    match value:
        case dict():
            table = cast(dict[str, object], value)
            parts = [
                f"{between()}{json.dumps(key)}{between()}:{between()}{decorated(inner, between, trailing)}{between()}"
                for key, inner in table.items()
            ]
            return "{" + ",".join(parts) + ("," if parts and trailing() else "") + f"{between()}}}"
        case list():
            items = cast(list[object], value)
            parts = [f"{between()}{decorated(inner, between, trailing)}{between()}" for inner in items]
            return "[" + ",".join(parts) + ("," if parts and trailing() else "") + f"{between()}]"
        case _:
            return json.dumps(value)
