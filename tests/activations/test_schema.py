import dataclasses
import datetime
import decimal
import enum
import functools
import inspect
import json
import math
import pathlib
import socket
import subprocess
import sys
import time
import types
import typing
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import jsonschema_rs
import msgspec
import pytest
from hypothesis import assume, event, example, given, settings
from hypothesis import strategies as st
from msgspec import Meta

from sluicegate.activations.schema import ArgumentReader, ExplicitSchema, Parameters, output_schema_of
from sluicegate.activations.signatures import injected_parameters, return_annotation
from sluicegate.schemas.validate import InvalidArguments


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    HIGH = 3
    LOW = 1


@dataclasses.dataclass
class Filter:
    field: str
    op: Literal["is", "contains"] = "is"
    limit: int = 10


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Options(TypedDict):
    name: str
    size: NotRequired[Annotated[int, Meta(ge=1)]]


class Node(msgspec.Struct):
    value: int
    children: list["Node"] = []


class Sealed(msgspec.Struct, forbid_unknown_fields=True):
    a: int
    b: bool = False


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    tricks: list[str]


class Call:
    """Stands for what run.py injects."""


def refusal(function: Callable[..., object], **arguments: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        Parameters.of(function).convert(arguments)
    return str(caught.value)


def of_annotations(annotations: dict[str, object], defaults: frozenset[str] = frozenset()) -> Parameters:
    """The parameters of a function with these annotations; those in `defaults` are optional."""

    def tool() -> None: ...

    keyword = inspect.Parameter.KEYWORD_ONLY
    tool.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
        [
            inspect.Parameter(
                name, keyword, annotation=annotation, default=None if name in defaults else inspect.Parameter.empty
            )
            for name, annotation in annotations.items()
        ]
    )
    return Parameters.of(tool)


# The key property.

leaves: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(int, float, bool, str, type(None), Any, object, decimal.Decimal, list, dict, set[int], frozenset[str]),
        *(Colour, Level, Filter, Point, Options, Node, Sealed, Cat | Dog, Literal["a", "b"], Literal[1, 3, None]),
        Annotated[int, Meta(ge=0, lt=5)],
        Annotated[int, Meta(multiple_of=3)],
        Annotated[float, Meta(gt=-1.5, le=2)],
        Annotated[str, Meta(min_length=1, max_length=2)],
        Annotated[str, Meta(pattern="^[a-z]+$")],
        Annotated[list[int], Meta(min_length=1, max_length=2)],
        Annotated[set[int], Meta(min_length=2)],
        dict[Annotated[str, Meta(max_length=1)], int],
    ]
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda item: list[item]),
        inner.map(lambda item: dict[str, item]),
        inner.map(lambda item: tuple[item, ...]),
        st.tuples(inner, inner).map(lambda pair: tuple[pair[0], pair[1]]),
        st.tuples(inner, inner).map(lambda pair: typing.Union[pair[0], pair[1]]),  # noqa: UP007
        inner.map(lambda item: typing.Optional[item]),  # noqa: UP045
    )


# Small pools, so that valid values are not rare.
words = st.sampled_from(["", "a", "b", "x", "red", "is", "cat", "dog", "abc", "1.5", "1\n"]) | st.text(max_size=3)
names = st.sampled_from(
    ["field", "op", "limit", "name", "size", "value", "children", "a", "b", "type", "lives", "tricks"]
)
scalars = (
    st.none() | st.booleans() | st.integers(-3, 6) | st.integers() | st.integers(-3, 6).map(float) | words
) | st.floats(-(2.0**53), 2.0**53)  # Beyond, jsonschema_rs rounds where it looks for multiples.
shapes: st.SearchStrategy[Any] = st.sampled_from(
    [
        *({"field": "a"}, {"field": "a", "op": "no"}, {"name": "x", "size": 1.0}, {"name": "x", "size": 0}, {"a": 1}),
        *({"value": 1, "children": [{"value": 2}]}, {"value": 1, "children": [{}]}, {"type": "cat", "lives": 9.0}),
        *(
            {"type": "dog", "tricks": ["sit"]},
            {"type": "eel"},
            {"a": 1, "b": 0},
            {"a": 1, "c": 2},
            [1, 1],
            [1, 1.0],
            [0.5],
        ),
    ]
)
json_values: st.SearchStrategy[Any] = st.recursive(
    scalars | shapes,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | words, inner, max_size=3),
    max_leaves=6,
)


def fitting(annotation: Any) -> st.SearchStrategy[Any]:
    """JSON that fits the annotation, apart from its constraints; now and then any other JSON."""
    inner = [fitting(a) for a in typing.get_args(annotation) if isinstance(a, type) or typing.get_origin(a) or a is Any]
    match typing.get_origin(annotation):
        case _ if annotation in (Any, object, list, dict):
            return json_values
        case typing.Annotated:
            return inner[0]
        case typing.Union | types.UnionType:
            return st.one_of(inner)
        case origin if origin is tuple and Ellipsis not in typing.get_args(annotation):
            return st.tuples(*inner).map(list) | json_values
        case origin if origin is dict:
            return st.dictionaries(names | words, inner[1], max_size=3) | json_values
        case origin if origin in (list, set, frozenset, tuple):
            return st.lists(inner[0], max_size=3) | json_values
        case _:
            return st.from_type(annotation).map(functools.partial(msgspec.to_builtins, str_keys=True)) | json_values


def is_json(value: object) -> bool:
    try:
        return bool(json.dumps(value, allow_nan=False))
    except ValueError:
        return False


@settings(max_examples=300)
@given(
    annotations=st.lists(st.recursive(leaves, nested, max_leaves=3), min_size=1, max_size=3),
    optional=st.frozensets(st.sampled_from(["p0", "p1", "p2"])),
    absent=st.sampled_from(["", "", "", "p0", "p1"]),
    unknown=st.sampled_from([{}, {}, {}, {"q": 1}]),
    data=st.data(),
)
def test_schema_and_conversion_never_disagree(
    annotations: list[Any], optional: frozenset[str], absent: str, unknown: dict[str, object], data: st.DataObject
) -> None:
    named = {f"p{n}": annotation for n, annotation in enumerate(annotations)}
    try:
        parameters = of_annotations(named, optional)
    except TypeError:
        assume(False)  # A union msgspec cannot tell apart.
        raise
    arguments = {name: data.draw(fitting(annotation)) for name, annotation in named.items() if name != absent}
    arguments |= unknown
    assume(is_json(arguments))
    allowed = jsonschema_rs.is_valid(parameters.schema, arguments, validate_formats=False)
    try:
        converted = parameters.convert(arguments)
    except InvalidArguments as refused:
        # A schema cannot look into the text of a decimal.
        assert not allowed or "decimal" in str(refused)
        assert 0 < len(str(refused)) < 4000
    else:
        assert allowed
        assert converted.keys() == arguments.keys()
    event("allowed" if allowed else "refused")


@given(annotation=leaves, value=json_values)
@example(annotation=int, value=1.0)
@example(annotation=Level, value=3.0)
@example(annotation=set[int], value=[1, 1])
def test_schema_and_conversion_agree_on_every_single_type(annotation: Any, value: object) -> None:
    parameters = of_annotations({"x": annotation})
    allowed = jsonschema_rs.is_valid(parameters.schema, {"x": value}, validate_formats=False)
    try:
        parameters.convert({"x": value})
    except InvalidArguments as refused:
        assert not allowed or "decimal" in str(refused)
    else:
        assert allowed


@given(annotations=st.lists(st.recursive(leaves, nested, max_leaves=3), max_size=3))
def test_every_schema_is_one_and_comes_out_the_same_twice(annotations: list[Any]) -> None:
    named = {f"p{n}": annotation for n, annotation in enumerate(annotations)}
    try:
        schema = of_annotations(named).schema
    except TypeError:
        assume(False)
        raise
    jsonschema_rs.meta.validate(schema)
    assert msgspec.json.encode(schema) == msgspec.json.encode(of_annotations(named).schema)
    assert list(schema["properties"]) == list(named)


# The schema.


def test_root_is_a_closed_object_in_the_order_of_the_signature() -> None:
    def move(z: int, a: str = "x", *, m: bool) -> None: ...

    assert Parameters.of(move).schema == {
        "type": "object",
        "properties": {"z": {"type": "integer"}, "a": {"type": "string", "default": "x"}, "m": {"type": "boolean"}},
        "required": ["z", "m"],
        "additionalProperties": False,
    }
    assert list(Parameters.of(move).schema["properties"]) == ["z", "a", "m"]


def test_function_without_parameters_takes_no_arguments() -> None:
    def ping() -> None: ...

    parameters = Parameters.of(ping)
    assert parameters.schema == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert parameters.convert({}) == {}
    assert refusal(ping, a=1) == "unknown argument 'a'"


def test_nested_types_are_definitions_and_keep_their_order() -> None:
    def search(filters: list[Filter], at: Point | None = None, colour: Colour = Colour.GREEN) -> None: ...

    schema = Parameters.of(search).schema
    assert schema["properties"] == {
        "filters": {"type": "array", "items": {"$ref": "#/$defs/Filter"}},
        "at": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}], "default": None},
        "colour": {"$ref": "#/$defs/Colour", "default": "green"},
    }
    assert schema["$defs"]["Colour"]["enum"] == ["red", "green"]
    assert schema["$defs"]["Filter"]["properties"]["op"] == {"enum": ["is", "contains"], "default": "is"}
    assert schema["$defs"]["Filter"]["required"] == ["field"]


def test_types_may_contain_themselves() -> None:
    def grow(tree: Node) -> None: ...

    parameters = Parameters.of(grow)
    assert parameters.schema["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    tree = parameters.convert({"tree": {"value": 1, "children": [{"value": 2.0}]}})["tree"]
    assert tree == Node(1, [Node(2)])
    assert refusal(grow, tree={"value": 1, "children": [{}]}) == "missing required argument 'tree.children[0].value'"


def test_constraints_come_from_meta() -> None:
    def count(to: Annotated[int, Meta(ge=1, le=10)]) -> None: ...

    assert Parameters.of(count).schema["properties"]["to"] == {"type": "integer", "minimum": 1, "maximum": 10}
    assert refusal(count, to=11) == "argument 'to' should be <= 10"


def test_descriptions_come_from_annotation_meta_and_docstring_in_this_order() -> None:
    def tool(a: Annotated[int, "from text"], b: Annotated[int, Meta(description="from meta")], c: int, d: int) -> None:
        """Do it.

        Args:
            a: not seen
            b: not seen
            c: from docstring
        """

    properties = Parameters.of(tool).schema["properties"]
    assert [p.get("description") for p in properties.values()] == ["from text", "from meta", "from docstring", None]
    assert Parameters.of(tool).description == "Do it."


def test_defaults_that_are_no_json_of_that_type_are_left_out() -> None:
    def tool(
        a: int = None,  # type: ignore[assignment] # pyright: ignore
        b: float = math.inf,
        c: Any = Call(),  # noqa: B008
        d: Filter = Filter("x"),  # noqa: B008
        e: list[int] = [1],  # noqa: B006
        f: datetime.date = datetime.date(2026, 7, 28),
    ) -> None: ...

    parameters = Parameters.of(tool)
    defaults = {name: p["default"] for name, p in parameters.schema["properties"].items() if "default" in p}
    assert defaults == {"d": {"field": "x", "op": "is", "limit": 10}, "e": [1], "f": "2026-07-28"}
    assert parameters.schema["required"] == []
    assert parameters.convert({}) == {}


def test_unannotated_parameter_and_object_take_any_value() -> None:
    def tool(a, b: object, c: dict[str, object]) -> None: ...  # pyright: ignore

    parameters = Parameters.of(tool)  # pyright: ignore[reportUnknownArgumentType]
    assert list(parameters.schema["properties"].values()) == [{}, {}, {"type": "object", "additionalProperties": {}}]
    arguments = {"a": [1.0, None], "b": {"x": [True]}, "c": {"y": 2.5}}
    assert parameters.convert(arguments) == arguments


# Signatures.


def test_injected_parameters_are_no_arguments() -> None:
    def tool(call: Call, to: int) -> None: ...

    parameters = Parameters.of(tool, skip=[Call])
    assert parameters.injected == {"call": Call} == injected_parameters(tool, {Call})
    assert list(parameters.schema["properties"]) == ["to"]
    assert parameters.convert({"to": 1}) == {"to": 1}


def test_bound_methods_callable_objects_and_wrapped_functions_are_read() -> None:
    class Notes:
        def add(self, text: str) -> None: ...

        def __call__(self, n: "int") -> None: ...

    @functools.wraps(Notes.add)
    def wrapped(*args: object, **kwargs: object) -> None: ...

    assert list(Parameters.of(Notes().add).schema["properties"]) == ["text"]
    assert Parameters.of(Notes()).schema["properties"] == {"n": {"type": "integer"}}
    assert "text" in Parameters.of(wrapped).schema["properties"]


def test_annotations_may_be_strings(tmp_path: pathlib.Path) -> None:
    source = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "def tool(to: int, node: Later | None = None, all: list[Later] = []) -> Later: ...\n"
        "@dataclass\nclass Later:\n    x: int\n"
    )
    module: dict[str, Any] = {"__name__": "written_later"}
    sys.modules["written_later"] = type(sys)("written_later")
    sys.modules["written_later"].__dict__.update(module)
    exec(source, module := sys.modules["written_later"].__dict__)
    try:
        parameters = Parameters.of(module["tool"])
        assert parameters.convert({"to": 1, "all": [{"x": 1}]})["all"] == [module["Later"](1)]
        output = output_schema_of(return_annotation(module["tool"]))
        assert output and output["required"] == ["x"]
    finally:
        del sys.modules["written_later"]


def test_local_type_that_cannot_be_resolved_is_named() -> None:
    def tool(to: int, thing: "Local") -> "Nowhere": ...  # pyright: ignore # noqa: F821

    with pytest.raises(TypeError, match=r"tool: the annotation of parameter 'thing' cannot be resolved \(name 'Local'"):
        Parameters.of(tool)  # pyright: ignore[reportUnknownArgumentType]
    with pytest.raises(TypeError, match="tool: the return annotation cannot be resolved"):
        return_annotation(tool)  # pyright: ignore[reportUnknownArgumentType]


def test_unresolvable_return_annotation_does_not_concern_the_parameters() -> None:
    def tool(to: int) -> "Nowhere": ...  # pyright: ignore # noqa: F821

    assert Parameters.of(tool).convert({"to": 1}) == {"to": 1}  # pyright: ignore[reportUnknownArgumentType]


def test_parameters_that_cannot_be_given_by_name_are_refused() -> None:
    def star(*args: int) -> None: ...
    def double(**kwargs: int) -> None: ...
    def slash(a: int, /) -> None: ...
    def injected(call: Call, /) -> None: ...

    with pytest.raises(TypeError, match="star: parameter 'args' takes any number of values"):
        Parameters.of(star)
    with pytest.raises(TypeError, match="double: parameter 'kwargs' takes any number of values"):
        Parameters.of(double)
    with pytest.raises(TypeError, match="slash: parameter 'a' is positional-only"):
        Parameters.of(slash)
    with pytest.raises(TypeError, match="injected: parameter 'call' is positional-only"):
        Parameters.of(injected, skip=[Call])


@pytest.mark.parametrize(
    "annotation",
    [
        complex,
        pathlib.Path,
        Callable[[], int],
        list[Call],
        int | complex,
        dict[int, str],
        list[int] | set[int],
        5,
        Call,
    ],
)
def test_annotations_without_a_schema_are_refused_by_name(annotation: object) -> None:
    with pytest.raises(TypeError, match=r"tool: parameter 'second' cannot be described: .*") as caught:
        of_annotations({"first": int, "second": annotation})
    assert "\n" not in str(caught.value)


def test_dict_keys_other_than_strings_are_refused_inside_classes_too() -> None:
    @dataclasses.dataclass
    class Table:
        rows: dict[int, str]

    with pytest.raises(TypeError, match="parameter 'table' cannot be described: the keys of dict.* must be str"):
        of_annotations({"table": Table})


Slug = typing.NewType("Slug", Annotated[str, Meta(pattern="^[a-z]+$")])  # pyright: ignore


@pytest.mark.parametrize(
    "annotation",
    [
        list[tuple[int, str] | Annotated[int, Meta(ge=1)]],
        Annotated[str, Meta(pattern="a")] | dict[str, int],
        typing.Union[Slug, list[int]],  # noqa: UP007
    ],
)
def test_union_that_would_crash_the_process_is_refused(annotation: object) -> None:
    with pytest.raises(
        TypeError, match="(a tuple of fixed length|a type with a pattern) is combined with another type"
    ):
        of_annotations({"x": annotation})


@pytest.mark.parametrize("other", [int, float, decimal.Decimal, Literal[9], Level, Annotated[int, Meta(ge=9)]])
def test_union_in_which_limits_would_spread_is_refused(other: Any) -> None:
    with pytest.raises(TypeError, match="a type with limits is combined with another of the same kind"):
        of_annotations({"x": typing.Union[other, Annotated[int, Meta(lt=5)], None]})  # noqa: UP007


def test_types_with_limits_may_stand_beside_other_kinds() -> None:
    parameters = of_annotations({"x": Annotated[int, Meta(ge=1)] | Literal["all"] | list[str]})
    assert [parameters.convert({"x": value})["x"] for value in (1.0, "all", ["a"])] == [1, "all", ["a"]]
    with pytest.raises(InvalidArguments, match="argument 'x' should be >= 1"):
        parameters.convert({"x": 0})


def test_tuples_and_patterns_may_be_optional() -> None:
    assert of_annotations({"x": tuple[int, str] | None}).convert({"x": [1, "a"]}) == {"x": (1, "a")}
    assert of_annotations({"x": int | Slug | None}).convert({"x": "a"}) == {"x": "a"}


def test_classes_of_the_same_name_do_not_get_mixed_up() -> None:
    def make(kind: type) -> type:
        return dataclasses.make_dataclass("Same", [("x", kind)])

    with pytest.raises(TypeError, match="tool: its parameters cannot be described: another class has the same name"):
        of_annotations({"a": make(int), "b": make(str)})
    with pytest.raises(TypeError, match="parameter 'pair' cannot be described: another class has the same name"):
        of_annotations({"pair": tuple[make(int), make(str)]})  # pyright: ignore[reportInvalidTypeArguments]


# Conversion.


def test_values_are_converted_and_absent_ones_left_to_the_function() -> None:
    def tool(colour: Colour, when: datetime.datetime, id: uuid.UUID, raw: bytes, where: Point, n: int = 7) -> None: ...

    identity = uuid.uuid4()
    arguments = {"colour": "red", "when": "2026-07-28T00:00:00Z", "id": str(identity), "raw": "aGk=", "where": [1]}
    assert Parameters.of(tool).convert(arguments) == {
        "colour": Colour.RED,
        "when": datetime.datetime(2026, 7, 28, tzinfo=datetime.UTC),
        "id": identity,
        "raw": b"hi",
        "where": Point(1.0, 0.0),
    }


def test_numbers_follow_json() -> None:
    def tool(i: int, f: float, u: int | str, x: Any) -> None: ...

    convert = Parameters.of(tool).convert
    values = convert({"i": 1.0, "f": 2, "u": 3.0, "x": "a"})
    assert values == {"i": 1, "f": 2.0, "u": 3, "x": "a"}
    assert [type(v) for v in values.values()] == [int, float, int, str]
    huge = 10**40 + 1
    assert convert({"i": huge, "f": 0, "u": -huge, "x": huge}) == {"i": huge, "f": 0.0, "u": -huge, "x": huge}
    assert refusal(tool, i=True, f=0, u=0, x=0) == "argument 'i' should be integer, got boolean"
    assert refusal(tool, i=1.5, f=0, u=0, x=0) == "argument 'i' should be integer, got number"
    assert refusal(tool, i=1, f=10**400, u=0, x=0) == "argument 'f' is not valid: number out of range"


@pytest.mark.parametrize(
    ("annotation", "value", "unknown"),
    [
        (Filter, {"field": "a", "new": 1}, "x.new"),
        (list[Filter], [{"field": "a"}, {"field": "a", "limt": 1}], "x[1].limt"),
        (dict[str, Filter] | None, {"k": {"field": "a", "new": 1}}, "x.k.new"),
        (Options, {"name": "a", "colour": "red"}, "x.colour"),
        (Node, {"value": 1, "children": [{"value": 2, "leaf": True}]}, "x.children[0].leaf"),
        (Cat | Dog, {"type": "cat", "lives": 9, "tricks": []}, "x.tricks"),
        (Sealed, {"a": 1, "c": 2}, "x.c"),
    ],
)
def test_members_that_a_nested_object_does_not_know_are_refused_by_name(
    annotation: Any, value: Any, unknown: str
) -> None:
    parameters = of_annotations({"x": annotation})
    with pytest.raises(InvalidArguments) as refused:
        parameters.convert({"x": value})
    assert f"unknown argument '{unknown}'" in str(refused.value)
    definitions = parameters.schema["$defs"].values()
    assert all(definition["additionalProperties"] is False for definition in definitions)


def test_nested_dicts_and_what_is_returned_stay_open() -> None:
    def tool(options: dict[str, int], anything: dict[str, object]) -> Filter: ...

    arguments = {"options": {"a": 1, "b": 2}, "anything": {"c": {"d": 3}}}
    assert Parameters.of(tool).convert(arguments) == arguments
    output = output_schema_of(return_annotation(tool))
    assert output is not None and "additionalProperties" not in output


def test_refusals_name_the_field_and_what_would_be_right() -> None:
    def tool(to: int, colour: Colour = Colour.RED, filters: list[Filter] = [], maybe: int | None = None) -> None: ...  # noqa: B006

    assert refusal(tool, to="3") == "argument 'to' should be integer, got string"
    assert refusal(tool, to=1, colour="blue") == "argument 'colour' should be one of 'red', 'green'"
    assert refusal(tool) == "missing required argument 'to'"
    assert refusal(tool, to=1, filters=[{"field": "a", "op": "no"}]) == (
        "argument 'filters[0].op' should be one of 'is', 'contains'"
    )
    assert refusal(tool, to=1, filters=[{"field": "a"}, {}]) == "missing required argument 'filters[1].field'"
    assert refusal(tool, to=1, maybe="x") == "argument 'maybe' should be integer or null, got string"


def test_all_problems_are_reported_at_once() -> None:
    def tool(to: int, name: str) -> None: ...

    told = refusal(tool, tto=1, name=None).split("; ")
    assert sorted(told) == [
        "argument 'name' should be string, got null",
        "missing required argument 'to'",
        "unknown argument 'tto' (did you mean 'to'?)",
    ]


def test_refusal_within_an_optional_object_names_its_field() -> None:
    def tool(filter: Filter | None, pet: Cat | Dog | None = None) -> None: ...

    assert refusal(tool, filter={"field": 1}) == "argument 'filter.field' should be string, got integer"
    assert refusal(tool, filter=None, pet={"type": "cat", "lives": "9"}) == (
        "argument 'pet.lives' should be integer, got string"
    )


def test_text_that_is_not_what_its_format_says_is_refused() -> None:
    def tool(day: datetime.date, ids: list[uuid.UUID]) -> None: ...

    assert refusal(tool, day="tomorrow", ids=[]) == "argument 'day' is not valid: invalid RFC3339 encoded date"
    assert refusal(tool, day="2026-01-01", ids=["x"]) == "argument 'ids[0]' is not valid: invalid UUID"


def test_pattern_that_only_python_knows_still_refuses_with_a_sentence() -> None:
    def tool(name: Annotated[str, Meta(pattern=r"\Aa\Z")]) -> None: ...

    assert refusal(tool, name="a", other=1) == "unknown argument 'other'"

    assert Parameters.of(tool).convert({"name": "a"}) == {"name": "a"}
    assert refusal(tool, name="b").startswith("argument 'name' should be str matching regex")


def test_refusals_stay_short_and_do_not_repeat_what_was_sent() -> None:
    def tool(to: int) -> None: ...

    many: dict[str, object] = {f"{n:03}" + "k" * 10_000: 0 for n in range(500)}
    assert len(refusal(tool, **many)) < 2000
    assert "secret" not in refusal(tool, to="secret")
    assert refusal(tool, to=[[[["secret"] * 1000]]]) == "argument 'to' should be integer, got array"


@pytest.mark.parametrize("reader", [Parameters, ExplicitSchema])
def test_many_mistakes_take_no_longer_than_one(reader: type) -> None:
    def tool(to: list[int]) -> None: ...

    parameters = Parameters.of(tool)
    convert = parameters.convert if reader is Parameters else ExplicitSchema(parameters.schema).convert
    started = time.process_time()
    with pytest.raises(InvalidArguments, match=r"^argument 'to\[0\]' should be integer, got string$"):
        convert({"to": ["x"] * 200_000})
    assert time.process_time() - started < 1.5  # Several seconds, if each were put into words.


def test_true_is_not_one() -> None:
    def tool(yes: Literal[True], one: Literal[1]) -> None: ...

    assert list(Parameters.of(tool).schema["properties"].values()) == [{"enum": [True]}, {"enum": [1]}]
    assert Parameters.of(tool).schema["properties"]["yes"]["enum"][0] is True
    assert refusal(tool, yes=1, one=1) == "argument 'yes' should be one of True"


# Schemas of the author's own.


def explicit(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [], "additionalProperties": False}


def test_explicit_schema_checks_and_passes_arguments_unchanged() -> None:
    schema = explicit(to={"type": "integer"}, day={"type": "string", "format": "date"})
    reader: ArgumentReader = ExplicitSchema(schema)
    assert reader.convert({"to": 1.0, "day": "no date: formats are hints"}) == {
        "to": 1.0,
        "day": "no date: formats are hints",
    }
    assert reader.schema == schema
    with pytest.raises(InvalidArguments, match=r"^unknown argument 'tto' \(did you mean 'to'\?\)$"):
        reader.convert({"tto": 1})
    with pytest.raises(InvalidArguments, match="^argument 'to' should be integer, got string$"):
        reader.convert({"to": "secret"})


def test_explicit_schema_is_not_the_authors_dict_any_more() -> None:
    schema = explicit(to={"type": "integer"})
    reader = ExplicitSchema(schema)
    schema["properties"]["to"]["type"] = "string"
    assert reader.schema["properties"]["to"]["type"] == "integer"


@pytest.mark.parametrize(
    ("keywords", "value", "sentence"),
    [
        ({"minItems": 2}, [1], "argument 'x' should have at least 2 items"),
        ({"uniqueItems": True}, [1, 1], "argument 'x' should not contain the same item twice"),
        ({"const": 3}, 2, "argument 'x' should be 3"),
        ({"items": False}, [1], "argument 'x[0]' should not be there"),
        ({"pattern": "^a"}, "b", "argument 'x' should match the pattern ^a"),
        ({"not": True}, 1, "argument 'x' does not satisfy 'not'"),
        ({"oneOf": [True, True]}, 1, "argument 'x' matches more than one of the alternatives"),
        ({"anyOf": [{"minimum": 3}, {"const": "a"}]}, 1, "argument 'x' should be >= 3"),
        ({"anyOf": [{"enum": ["a"]}, {"const": "b"}]}, 1, "argument 'x' should be one of 'a' or 'b', got integer"),
        (
            {"propertyNames": {"maxLength": 1}},
            {"ab": 1},
            "argument 'x' has a member with an invalid name: maxLength",
        ),
        ({"required": ["a"]}, {"b": 1}, "missing required argument 'x.a'"),
    ],
)
def test_explicit_schema_says_what_would_be_right(keywords: dict[str, Any], value: Any, sentence: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        ExplicitSchema(explicit(x=keywords)).convert({"x": value})
    assert str(caught.value) == sentence


def test_explicit_schema_honours_its_draft() -> None:
    draft7 = {"$schema": "http://json-schema.org/draft-07/schema#", **explicit(x={"items": [{"type": "string"}]})}
    with pytest.raises(InvalidArguments):
        ExplicitSchema(draft7).convert({"x": [1]})


@pytest.mark.parametrize("schema", [{}, {"type": "array"}, explicit(x={"type": "strin"}), explicit(x={"$ref": "#/no"})])
def test_a_schema_that_is_no_object_is_refused_at_definition(schema: dict[str, Any]) -> None:
    with pytest.raises(TypeError) as caught:
        ExplicitSchema(schema)
    assert "\n" not in str(caught.value)


def test_references_to_the_outside_are_refused_without_a_look_at_it(tmp_path: pathlib.Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json"
        for target in (url, outside.as_uri(), "outside.json"):
            for keyword in ("$ref", "$dynamicRef"):
                with pytest.raises(TypeError, match="it is not a usable JSON Schema"):
                    ExplicitSchema(explicit(x={keyword: target}))
        with pytest.raises(TypeError, match="it is not a usable JSON Schema"):
            ExplicitSchema({"$schema": url, "type": "object"})
        with pytest.raises(TypeError, match="it is not a usable JSON Schema"):
            ExplicitSchema({"$id": url, **explicit(x={"$ref": "other.json"})})
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_text_that_is_no_unicode_is_refused_not_raised() -> None:
    with pytest.raises(InvalidArguments, match="the arguments are not valid JSON"):
        ExplicitSchema(explicit(x={"pattern": "a"})).convert({"x": "\ud800"})


def test_pattern_that_backtracks_ends_in_time() -> None:
    reader = ExplicitSchema(explicit(x={"type": "string", "pattern": r"^(?=a)(a+)+\1$"}))
    with pytest.raises(InvalidArguments, match="argument 'x'"):
        reader.convert({"x": "a" * 40 + "b"})


# Output schemas.


@dataclasses.dataclass
class Report:
    day: datetime.date
    entries: list[Filter]


def test_objects_have_an_output_schema_and_are_encoded() -> None:
    output = output_schema_of(Annotated[Report, "what was found"])
    assert output
    assert output == {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "entries": {"type": "array", "items": {"$ref": "#/$defs/Filter"}},
        },
        "required": ["day", "entries"],
        "$defs": output["$defs"],
    }
    assert list(output["$defs"]) == ["Filter"]
    encoded = msgspec.to_builtins(Report(datetime.date(2026, 7, 28), [Filter("a")]))
    assert encoded == {"day": "2026-07-28", "entries": [{"field": "a", "op": "is", "limit": 10}]}
    jsonschema_rs.validate(output, encoded)


def test_output_may_contain_itself() -> None:
    output = output_schema_of(Node)
    assert output and output["type"] == "object" and list(output["$defs"]) == ["Node"]
    jsonschema_rs.validate(output, msgspec.to_builtins(Node(1, [Node(2)])))


def test_dicts_are_objects() -> None:
    output = output_schema_of(dict[str, int])
    assert output == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert output_schema_of(dict) == {"type": "object"}


@pytest.mark.parametrize(
    "annotation",
    [
        *(str, str | None, None, Any, object, AsyncIterator[Report], Iterator[int], inspect.Signature.empty),
    ],
)
def test_all_else_is_plain_content(annotation: object) -> None:
    assert output_schema_of(annotation) is None


@pytest.mark.parametrize("annotation", [Call, bytes, list[Call], Annotated[int, object()]])
def test_return_type_that_cannot_be_described_is_refused(annotation: object) -> None:
    with pytest.raises(TypeError):
        output_schema_of(annotation)


def test_types_the_caller_skips_have_no_output_schema() -> None:
    assert output_schema_of(Report, skip={Report}) is None


def test_streams_have_no_return_annotation() -> None:
    async def stream(to: int) -> AsyncIterator[Report]:
        yield Report(datetime.date.today(), [])

    async def plain(to: int) -> Report:
        return Report(datetime.date.today(), [])

    assert return_annotation(stream) is inspect.Signature.empty
    assert return_annotation(plain) is Report


def test_output_that_cannot_be_described_is_refused_by_name() -> None:
    @dataclasses.dataclass
    class Where:
        path: pathlib.Path

    with pytest.raises(TypeError, match=r"return type .*Where cannot be described: .*Path.* is not supported"):
        output_schema_of(Where)


def test_validator_is_imported_only_when_it_is_needed() -> None:
    script = (
        "import sys, sluicegate.activations.schema as s\n"
        "def f(a: int): ...\n"
        "p = s.Parameters.of(f); p.convert({'a': 1.0})\n"
        "assert not {'jsonschema_rs', 'difflib'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
