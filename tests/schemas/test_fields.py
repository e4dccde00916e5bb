"""The fields of input schemas: typed texts become values, and words describe what a tool takes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.protocol.message import Params
from sluicegate.schemas.fields import Choice, Field, Wrong, description_lines, usage, whole

Json = Any


def field(schema: Json) -> Field:
    return whole({"properties": {"a": schema}}).members["a"]


@given(st.text())
def test_every_text_is_a_string_and_stays_as_it_is(text: str) -> None:
    assert field({"type": "string"}).value([text]) == text


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_every_number_is_read(number: float) -> None:
    assert field({"type": "number"}).value([json.dumps(number)]) == number


@given(st.dictionaries(st.text(), st.one_of(st.none(), st.booleans(), st.integers(), st.text())))
def test_every_object_is_read(value: Params) -> None:
    assert field({"type": "object"}).value([json.dumps(value)]) == value


@pytest.mark.parametrize(
    ("schema", "choices"),
    [
        ({"enum": ["a", 2]}, [Choice("a", "a"), Choice(2, "2")]),
        ({"enum": ["a"], "enumNames": ["A"]}, [Choice("a", "A")]),
        ({"enum": ["a"], "enumNames": ["A", "B"]}, [Choice("a", "a")]),
        ({"oneOf": [{"const": "a", "title": "A"}, {"const": "b"}]}, [Choice("a", "A"), Choice("b", "b")]),
        ({"anyOf": [{"const": "a"}, {"type": "null"}]}, []),
        ({"$ref": "#/properties/b"}, [Choice(1, "1")]),
    ],
)
def test_choices_have_a_value_and_a_title(schema: Json, choices: list[Choice]) -> None:
    form = whole({"properties": {"a": schema, "b": {"enum": [1]}}})
    assert form.members["a"].choices == choices


def test_the_error_of_a_value_names_the_field() -> None:
    with pytest.raises(Wrong, match="Size must be a whole number; 'x' is not."):
        field({"type": "integer"}).named("Size").value(["x"])


def test_usage_shows_types_and_optional_arguments() -> None:
    shape: Json = {"properties": {"a": {"$ref": "#/$defs/n"}, "b": {}}, "required": ["a"]}
    for root in (shape, {"$ref": "#/$defs/arguments"}):
        schema: Params = {**root, "$defs": {"n": {"const": 1}, "arguments": shape}}
        assert usage(whole(schema)) == "a=<integer> [b=<value>]"


def test_a_schema_that_branches_into_itself_is_described_within_the_budget() -> None:
    schema: Params = {"properties": {f"p{n}": {"$ref": "#"} for n in range(60)}}
    assert 60 < sum(1 for _ in description_lines(whole(schema))) <= 20_000
