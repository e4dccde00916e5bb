"""The fields of a form on a terminal: what is printed, and what a typed line means."""

import pytest

from sluicegate.cli.prompt import PromptField
from sluicegate.protocol.message import Params
from sluicegate.schemas.fields import Wrong, whole

HEROES: list[Params] = [{"const": "h1", "title": "Superman"}, {"const": "h2", "title": "Batman, the dark one"}]
ONE: Params = {"type": "string", "oneOf": HEROES}
MANY: Params = {"type": "array", "items": {"anyOf": HEROES}, "minItems": 1, "maxItems": 2}
COLOURS: Params = {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}, "default": ["red"]}
LEGACY: Params = {"type": "string", "enum": ["h1", "h2"], "enumNames": ["Superman", "Batman"]}


def field(schema: Params, *, is_required: bool = True) -> PromptField:
    form: Params = {"properties": {"a": schema}, "required": ["a"] if is_required else []}
    return PromptField(whole(form).members["a"])


@pytest.mark.parametrize(
    ("schema", "lines"),
    [
        (ONE, ["One of: h1 (Superman), h2 (Batman, the dark one)"]),
        (LEGACY, ["One of: h1 (Superman), h2 (Batman)"]),
        (
            MANY,
            ["Any of these, separated by commas (at least 1, at most 2): h1 (Superman), h2 (Batman, the dark one)"],
        ),
        (COLOURS, ["Any of these, separated by commas: red, blue"]),
        ({"type": "array", "items": {"type": "integer"}}, ["Several, separated by commas"]),
        ({"type": "integer", "enum": [1, 2], "description": "How many."}, ["How many.", "One of: 1, 2"]),
        ({"type": "string"}, []),
    ],
)
def test_choices_are_printed_with_their_titles(schema: Params, lines: list[str]) -> None:
    assert field(schema).introduction() == lines


@pytest.mark.parametrize(
    ("schema", "prompt"),
    [
        ({"type": "string"}, "a: "),
        ({"type": "string", "default": ""}, "a: "),
        ({"type": "string", "title": "A\nname", "default": "x\x1b[2J"}, "A name [x\ufffd[2J]: "),
        ({"type": "integer", "default": 3}, "a [3]: "),
        (COLOURS, "a [red]: "),
        ({**COLOURS, "default": ["red", "blue"]}, "a [red, blue]: "),
    ],
)
def test_a_default_is_shown_as_it_would_be_typed(schema: Params, prompt: str) -> None:
    assert field(schema).prompt() == prompt


@pytest.mark.parametrize(
    ("schema", "line", "value"),
    [
        (ONE, "h1", "h1"),
        (ONE, " Superman ", "h1"),
        (ONE, "Batman, the dark one", "h2"),
        ({"oneOf": [{"const": "x", "title": "y"}, {"const": "y", "title": "x"}]}, "y", "y"),
        (LEGACY, "Batman", "h2"),
        (MANY, "h1, h2", ["h1", "h2"]),
        (MANY, "Superman,h2,", ["h1", "h2"]),
        (MANY, "Batman, the dark one", ["h2"]),
        (MANY, '["Superman", "Batman, the dark one"]', ["h1", "h2"]),
        (COLOURS, "", ["red"]),
        (COLOURS, "blue", ["blue"]),
        (COLOURS, "[]", []),
        ({"type": "array", "items": {"type": "integer"}}, "1, 2", [1, 2]),
        ({"type": "integer", "enum": [1, 2]}, "2", 2),
        ({"type": "integer", "default": 3}, "", 3),
        ({"type": "integer", "default": "3"}, "", 3),
        ({"type": "string", "default": ""}, "", ""),
        ({"type": "string", "format": "email"}, "ada@example.org", "ada@example.org"),
        ({"type": "string", "format": "date-time"}, "2026-07-28T12:00:00Z", "2026-07-28T12:00:00Z"),
        ({"$ref": "#/properties/a"}, "as it is", "as it is"),
    ],
)
def test_a_line_is_read_as_the_type_of_its_field(schema: Params, line: str, value: object) -> None:
    assert field(schema).value(line) == value


@pytest.mark.parametrize(
    ("schema", "line", "sentence"),
    [
        (ONE, "h3", "a must be one of h1 (Superman), h2 (Batman, the dark one); not 'h3'."),
        (MANY, "h1, h3", "a accepts only h1 (Superman), h2 (Batman, the dark one); not 'h3'."),
        (MANY, '["h3"]', "a accepts only h1 (Superman), h2 (Batman, the dark one); not 'h3'."),
        (MANY, "[]", "field 'a' should have at least 1 items."),
        (MANY, "h1,h2,h1", "field 'a' should have at most 2 items."),
        (MANY, "[h1", "a is not JSON: Expecting value: line 1 column 2 (char 1)."),
        ({"type": "array", "items": {"enum": ["red", "blue"]}}, "[1]", "field 'a[0]' should be one of 'red', 'blue'."),
        ({"type": "integer"}, "many", "a must be a whole number; 'many' is not."),
        ({"type": "integer", "maximum": 5}, "6", "field 'a' should be <= 5."),
        ({"type": "integer", "maximum": 5, "default": 6}, "", "field 'a' should be <= 5."),
        ({"type": "string"}, "", "a is required."),
        ({"type": "string", "minLength": 3}, "ab", "field 'a' should have at least 3 characters."),
        ({"type": "string", "pattern": "^x"}, "ab", "field 'a' should match the pattern ^x."),
        ({"type": "string", "format": "email"}, "x", "field 'a' should be an e-mail address, as in ada@example.org."),
        ({"type": "string", "format": "uri"}, "x", "field 'a' should be a URI, as in https://example.org."),
        ({"type": "string", "format": "date"}, "2026-02-30", "field 'a' should be a date, as in 2026-07-28."),
        (
            {"type": "string", "format": "date-time"},
            "2026-02-03",
            "field 'a' should be a date and time, as in 2026-07-28T12:00:00Z.",
        ),
        ({"type": "string", "format": "ipv4"}, "x", "field 'a' should be of the format 'ipv4'."),
    ],
)
def test_a_value_that_the_server_would_refuse_is_refused(schema: Params, line: str, sentence: str) -> None:
    with pytest.raises(Wrong) as problem:
        field(schema).value(line)
    assert str(problem.value) == sentence


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "string", "default": ""}, MANY, ONE])
def test_an_optional_field_may_be_left_empty(schema: Params) -> None:
    assert field(schema, is_required=False).value("") is None


def test_a_schema_that_cannot_be_checked_accepts_everything() -> None:
    assert field({"type": "string", "pattern": "("}).value("x") == "x"
