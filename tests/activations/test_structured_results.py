"""Structured results: all fields of a value, and values that are no objects under `result`."""

import dataclasses
import enum
from typing import Any, ClassVar, Literal

import jsonschema_rs
import msgspec
import pytest

from sluicegate.activations.call import Call
from sluicegate.activations.values import Error, Image
from sluicegate.server import Server
from tests.activations.helpers import Recorder, ask, call, failure, text


@dataclasses.dataclass
class Size:
    width: int = 3
    unit: str = "cm"


@dataclasses.dataclass(frozen=True)
class Box:
    name: str
    size: Size
    others: list[Size]
    by_name: dict[str, Size]
    weight: int = 1


class Shelf(msgspec.Struct):
    box: Box
    label: str = "none"


class Colour(enum.Enum):
    RED = "red"


WHOLE = {"width": 3, "unit": "cm"}
SENT: dict[str, Any] = {"name": "a", "size": {}, "others": [{"width": 5}], "by_name": {"b": {}}}
GOT = {"name": "a", "size": WHOLE, "others": [{"width": 5, "unit": "cm"}], "by_name": {"b": WHOLE}, "weight": 1}


@pytest.fixture
def server() -> Server:
    return Server("demo")


async def test_dataclass_argument_that_is_returned_keeps_its_default_values(server: Server) -> None:
    @server.tool
    def echo(box: Box) -> Box:
        return box

    @server.tool
    def shelve(box: Box, shelf: Shelf) -> list[Box]:
        return [box, shelf.box]

    assert (await call(server, "echo", {"box": SENT}))["structuredContent"] == GOT
    # 5.0 is a valid integer, and takes the second way of conversion.
    sent = SENT | {"others": [{"width": 5.0}]}
    assert (await call(server, "echo", {"box": sent}))["structuredContent"] == GOT
    result = await call(server, "shelve", {"box": SENT, "shelf": {"box": SENT}})
    assert result["structuredContent"] == {"result": [GOT, GOT]}


async def test_dataclass_that_a_tool_makes_with_msgspec_keeps_its_default_values(server: Server) -> None:
    @server.tool
    def several() -> dict[str, list[Box]]:
        return {"boxes": [msgspec.convert(SENT, Box)]}

    server.add_tool(lambda: msgspec.json.decode(msgspec.json.encode(SENT), type=Box), name="one")
    assert (await call(server, "several"))["structuredContent"] == {"boxes": [GOT]}
    assert (await call(server, "one"))["structuredContent"] == GOT


async def test_only_fields_of_a_dataclass_are_in_the_result(server: Server) -> None:
    @dataclasses.dataclass
    class Base:
        first: int = 1

    @dataclasses.dataclass(slots=True)
    class Slotted(Base):
        kind: ClassVar[str] = "slotted"
        start: dataclasses.InitVar[int] = 2
        second: int = 2
        late: int = dataclasses.field(init=False)

    server.add_tool(lambda: Slotted(), name="tool")
    result = await call(server, "tool")
    assert (text(result), result["structuredContent"]) == ('{"first":1,"second":2}', {"first": 1, "second": 2})


async def test_answered_form_keeps_its_default_values(server: Server) -> None:
    @server.tool
    async def measure(call: Call) -> Size | None:
        return (await call.elicit("How large?", Size)).content

    sink = Recorder(lambda questions: {key: {"action": "accept", "content": {"width": 4}} for key in questions})
    result = await call(server, "measure", sink=sink)
    assert result["structuredContent"] == {"result": {"width": 4, "unit": "cm"}}


@pytest.mark.parametrize(
    ("annotation", "value", "plain", "shown"),
    [
        (int, 3, 3, "3"),
        (bool, True, True, "true"),
        (float | None, None, None, "null"),
        (list[int], [1, 2], [1, 2], "[1,2]"),
        (list[Size], [Size()], [WHOLE], '[{"width":3,"unit":"cm"}]'),
        (tuple[int, str], (1, "a"), [1, "a"], '[1,"a"]'),
        (Size | str, "none", "none", "none"),
        (Size | None, Size(), WHOLE, '{"width":3,"unit":"cm"}'),
        (Literal["a", "b"], "a", "a", "a"),
        (Colour, Colour.RED, "red", "red"),
        (dict[str, int] | int, {"a": 1}, {"a": 1}, '{"a":1}'),
    ],
)
async def test_value_that_is_no_object_is_structured_under_result(
    server: Server, annotation: Any, value: object, plain: object, shown: str
) -> None:
    def tool() -> Any:
        return value

    tool.__annotations__["return"] = annotation
    server.add_tool(tool)
    (definition,) = (await ask(server, "tools/list"))["tools"]
    result = await call(server, "tool")
    assert (result["structuredContent"], text(result)) == ({"result": plain}, shown)
    assert definition["outputSchema"]["required"] == ["result"]
    jsonschema_rs.validate(definition["outputSchema"], result["structuredContent"])


async def test_value_that_breaks_the_promise_is_a_failure(server: Server) -> None:
    @server.tool
    def number() -> int:
        return "three"  # type: ignore[return-value] # pyright: ignore[reportReturnType]

    @server.tool
    def failing() -> int:
        return Error("No number today.")  # type: ignore[return-value] # pyright: ignore[reportReturnType]

    assert "does not match its output schema" in failure(await call(server, "number"))
    assert failure(await call(server, "failing")) == "No number today."


async def test_text_and_content_have_no_output_schema(server: Server) -> None:
    @server.tool
    def words() -> str:
        return "a"

    @server.tool
    def pictures() -> list[Image | str]:
        return [Image(b"", "image/png"), "b"]

    tools = (await ask(server, "tools/list"))["tools"]
    assert not any("outputSchema" in tool for tool in tools)
    for name in ("words", "pictures"):
        assert "structuredContent" not in await call(server, name)


def test_return_type_without_a_schema_is_refused_at_the_definition(server: Server) -> None:
    def tool() -> complex:
        return 1j

    with pytest.raises(TypeError, match="return type complex cannot be described"):
        server.tool(tool)
