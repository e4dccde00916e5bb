"""Words of a command line as arguments of a tool: typed by its schema, or refused with what would be right."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.cli.key_values import json_arguments, typed_arguments
from sluicegate.protocol.message import Params
from sluicegate.schemas.fields import Wrong

SCHEMA: Params = {
    "type": "object",
    "properties": {
        "to": {"type": "integer"},
        "pause": {"type": "number"},
        "loud": {"type": "boolean"},
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "array", "items": {"type": "integer"}},
        "point": {"$ref": "#/$defs/Point"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"type": ["integer", "string"]},
        "colour": {"enum": ["red", "green"]},
        "level": {"enum": [1, 2]},
        "free": {},
    },
    "$defs": {"Point": {"type": "object"}},
}


def typed(*words: str, schema: Params = SCHEMA, **files: str) -> Params:
    def read(name: str) -> str:
        if name not in files:
            raise ValueError(f"{name} cannot be read.")
        return files[name]

    return typed_arguments(words, schema, read)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("to=3", 3),
        ("to=-3", -3),
        ("to=3.0", 3),
        ("pause=3", 3),
        ("pause=0.25", 0.25),
        ("pause=1e-3", 0.001),
        ("loud=true", True),
        ("loud=no", False),
        ("loud=1", True),
        ("name=3", "3"),
        ("name=", ""),
        ("name=a=b", "a=b"),
        ("name=@@home", "@home"),
        ("name=@", "@"),
        ("name=@draft", "text of the draft\n"),
        ("tags=one", ["one"]),
        ('tags=["one", "two"]', ["one", "two"]),
        ("sizes=4", [4]),
        ('point={"x": 1}', {"x": 1}),
        ("maybe=null", None),
        ("maybe=4", 4),
        ("either=4", 4),
        ("either=four", "four"),
        ("colour=red", "red"),
        ("level=2", 2),
        ("free=4", 4),
        ("free=four", "four"),
        ('free={"a": []}', {"a": []}),
    ],
)
def test_a_value_has_the_type_that_the_schema_wants(word: str, value: object) -> None:
    (found,) = typed(word, draft="text of the draft\n").values()
    assert found == value and type(found) is type(value)


NESTED: Params = {
    "type": "object",
    "properties": {
        "at": {"$ref": "#/$defs/Point"},
        "maybe": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Point"}]},
        "free": {"type": "object", "additionalProperties": True},
        "to": {"type": "integer"},
        "a.b": {"type": "string"},
    },
    "required": ["to"],
    "$defs": {
        "Point": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "name": {"type": "string"}, "next": {"$ref": "#/$defs/Point"}},
            "required": ["x"],
        }
    },
}


def test_dots_set_members_of_objects() -> None:
    words = ("to=1", "at.x=1", "at.name=2", "at.next.x=3", "maybe.x=4", "free.any=5", "a.b=6")
    assert typed(*words, schema=NESTED) == {
        "to": 1,
        "at": {"x": 1, "name": "2", "next": {"x": 3}},
        "maybe": {"x": 4},
        "free": {"any": 5},
        "a.b": "6",
    }


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["to=1", "at.y=1"], "in at: the tool has no argument 'y'"),
        (["to=1", "at.name=1"], "in at: x is missing"),
        (["to=1", "at.x=a"], "in at: x must be a whole number"),
        (["to.x=1"], "to is not an object, so it has no 'x'"),
        (["to=1", "at.x=1", "at={}"], "at is given both as a whole and in parts"),
    ],
)
def test_wrong_members_are_named_with_their_object(words: list[str], sentence: str) -> None:
    with pytest.raises(Wrong) as refusal:
        typed(*words, schema=NESTED)
    assert str(refusal.value).startswith(sentence)


def test_members_of_a_map_have_the_type_of_its_values() -> None:
    texts: Params = {"type": "object", "additionalProperties": {"type": "string"}}
    schema: Params = {"type": "object", "properties": {"env": {"anyOf": [texts, {"type": "null"}]}}}
    assert typed("env.PORT=80", "env.DEBUG=true", schema=schema) == {"env": {"PORT": "80", "DEBUG": "true"}}


def test_a_repeated_key_is_a_list() -> None:
    assert typed("tags=one", "tags=two", "sizes=1", "sizes=2") == {"tags": ["one", "two"], "sizes": [1, 2]}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["to=three"], "to must be a whole number; 'three' is not."),
        (["to=3.5"], "to must be a whole number"),
        (["pause=nan"], "pause must be a number"),
        (["pause=inf"], "pause must be a number"),
        (["loud=perhaps"], "loud must be true or false"),
        (["point=x"], "point must be a JSON object"),
        (["point={"], "point is not JSON"),
        (["colour=blue"], "colour must be one of red, green"),
        (["level=3"], "level must be one of 1, 2"),
        (["to=1", "to=2"], "to is given 2 times but is not a list."),
        (["naem=x"], "the tool has no argument 'naem'. Did you mean 'name'?"),
        (["to"], "'to' is not an argument: write key=value."),
        (["=3"], "'=3' is not an argument"),
        (["name=@nowhere"], "name: nowhere cannot be read."),
        (["sizes=x"], "sizes must be a whole number"),
    ],
)
def test_errors_name_the_argument_and_what_it_accepts(words: list[str], sentence: str) -> None:
    with pytest.raises(Wrong) as caught:
        typed(*words)
    assert sentence in str(caught.value)


def test_errors_about_missing_arguments_list_the_arguments() -> None:
    schema: Params = {"properties": {"to": {"type": "integer"}, "by": {"type": "integer"}}, "required": ["to"]}
    with pytest.raises(Wrong, match=r"to is missing. It takes: to=<integer> \[by=<integer>\]"):
        typed("by=2", schema=schema)


def test_a_tool_that_takes_anything_is_given_anything() -> None:
    assert typed("any=thing", schema={"properties": {"to": {}}, "additionalProperties": True}) == {"any": "thing"}
    assert typed("any=thing", schema={"type": "object"}) == {"any": "thing"}


def test_a_schema_that_refers_to_itself_is_read() -> None:
    circle: Params = {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}
    assert typed("a=1", schema=circle) == {"a": 1}
    deep: Params = {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}}
    assert typed("a=1", schema=deep) == {"a": 1}


@given(st.dictionaries(st.text(), st.one_of(st.none(), st.booleans(), st.integers(), st.text())))
def test_a_json_object_is_the_arguments(value: Params) -> None:
    assert json_arguments(json.dumps(value)) == value


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"a"'])
def test_arguments_that_are_no_json_object_are_refused(text: str) -> None:
    with pytest.raises(Wrong):
        json_arguments(text)
