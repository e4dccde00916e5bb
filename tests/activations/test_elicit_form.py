import dataclasses
import datetime
import enum
import uuid
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from sluicegate.activations.elicit_form import form_value, schema_of
from sluicegate.schemas.validate import InvalidArguments


class Size(enum.StrEnum):
    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


@dataclasses.dataclass
class Order:
    name: Annotated[str, "On the cup", Meta(min_length=1, max_length=20)]
    size: Size
    mail: Annotated[str, Meta(extra_json_schema={"format": "email", "title": "E-mail"})]
    day: datetime.date
    at: datetime.datetime
    milk: Literal["oat", "cow"] | None
    extras: list[Literal["sugar", "cinnamon"]] = dataclasses.field(default_factory=list[Any])
    shots: Annotated[int, Meta(ge=1, le=4)] = 2
    tip: float = 0.5
    here: bool = True
    note: str | None = None


def test_form_is_flat_and_says_all_that_is_checked() -> None:
    assert schema_of(Order) == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 20, "description": "On the cup"},
            "size": {"type": "string", "enum": ["small", "medium", "large"]},
            "mail": {"type": "string", "format": "email", "title": "E-mail"},
            "day": {"type": "string", "format": "date"},
            "at": {"type": "string", "format": "date-time"},
            "milk": {"type": "string", "enum": ["oat", "cow"]},
            "extras": {"type": "array", "items": {"type": "string", "enum": ["sugar", "cinnamon"]}},
            "shots": {"type": "integer", "minimum": 1, "maximum": 4, "default": 2},
            "tip": {"type": "number", "default": 0.5},
            "here": {"type": "boolean", "default": True},
            "note": {"type": "string"},
        },
        "required": ["name", "size", "mail", "day", "at"],
    }


def test_content_becomes_an_instance_and_what_was_left_empty_is_none() -> None:
    content = {"name": "Ada", "size": "large", "mail": "a@b", "day": "2026-07-28", "at": "2026-07-28T10:00:00Z"}
    order = form_value(Order, content | {"shots": 3.0, "extras": ["sugar"]})
    assert (order.size, order.day, order.milk, order.shots) == (Size.LARGE, datetime.date(2026, 7, 28), None, 3)
    assert (order.extras, order.note, order.here) == (["sugar"], None, True)


def test_content_that_does_not_fit_is_refused_by_field() -> None:
    class Small(msgspec.Struct):
        size: Size
        shots: Annotated[int, Meta(ge=1)] = 1

    with pytest.raises(InvalidArguments, match="^field 'size' should be one of 'small', 'medium', 'large'$"):
        form_value(Small, {"size": "huge"})
    with pytest.raises(InvalidArguments, match="field 'shots' should be >= 1"):
        form_value(Small, {"shots": 0})


def test_failed_checks_of_the_class_itself_are_reported() -> None:
    with pytest.raises(InvalidArguments, match="the fields: too late"):
        form_value(Checked, {"day": "2026-01-01"})


@dataclasses.dataclass
class Checked:
    day: datetime.date

    def __post_init__(self) -> None:
        raise ValueError("too late")


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        (Order, "it is an object, and forms are flat"),
        (list[str], "a list can only contain choices"),
        (list[Order], "it is an object"),
        (dict[str, str], "forms do not support 'additionalProperties'|it should be str"),
        (int | str, "it should be str, int, float"),
        (Any, "it should be str, int, float"),
        (None, "it should be str, int, float"),
        (Literal[1, 2], "choices must be strings"),
        (uuid.UUID, "not 'uuid'"),
        (Annotated[str, Meta(pattern="^a")], "forms do not support 'pattern'"),
        (Annotated[float, Meta(gt=0)], "forms do not support 'exclusiveMinimum'"),
    ],
)
def test_a_field_that_no_form_can_show_is_refused_by_name(annotation: Any, why: str) -> None:
    form = dataclasses.make_dataclass("Form", [("fine", str), ("odd", annotation)])
    with pytest.raises(TypeError, match=f"^Form: field 'odd' cannot be part of a form: .*({why})"):
        schema_of(form)


def test_a_type_without_fields_is_no_form() -> None:
    with pytest.raises(TypeError, match="int is not a form"):
        schema_of(int)
    with pytest.raises(TypeError, match="Form cannot be a form: .*complex"):
        schema_of(dataclasses.make_dataclass("Form", [("odd", complex)]))
