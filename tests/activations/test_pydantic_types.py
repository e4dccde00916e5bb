"""Tools written with pydantic: models as arguments and results, limits and defaults of `Field`."""

import dataclasses
import subprocess
import sys
from datetime import date
from typing import Annotated, Any

import annotated_types
import jsonschema_rs
import msgspec
import pydantic
import pytest
from pydantic import AnyUrl, BaseModel, BeforeValidator, Field, PositiveInt, RootModel, field_validator

from sluicegate.activations.call import Call
from sluicegate.server import Server
from tests.activations.helpers import Recorder, ask, call, failure, text


class Line(BaseModel):
    item: str = Field(description="what is bought")
    count: Annotated[int, Field(ge=1)] = 1


class Order(BaseModel):
    lines: list[Line]
    day: date | None = None
    page: AnyUrl | None = None

    @field_validator("lines")
    @classmethod
    def _not_empty(cls, lines: list[Line]) -> list[Line]:
        if not lines:
            raise ValueError("an order has lines")
        return lines


class Strict(BaseModel, strict=True):
    day: date


class Numbers(RootModel[list[int]]):
    pass


class Renamed(BaseModel):
    size: int = Field(serialization_alias="itemSize")


@dataclasses.dataclass
class WithFields:
    size: int = Field(2, le=9)


@pydantic.dataclasses.dataclass
class Checked:
    size: int = Field(2, le=9)


class Struct(msgspec.Struct):
    size: int


@pytest.fixture
def server() -> Server:
    return Server("demo")


async def test_models_are_arguments_and_results(server: Server) -> None:
    @server.tool
    def place(order: Order, note: str = "none") -> Order:
        """Place an order.

        Args:
            order: what to buy.
        """
        assert isinstance(order, Order) and isinstance(order.lines[0], Line) and note == "none"
        return order

    (definition,) = (await ask(server, "tools/list"))["tools"]
    schema = definition["inputSchema"]
    assert schema["required"] == ["order"]
    assert schema["properties"]["order"]["description"] == "what to buy."
    assert schema["properties"]["note"] == {"type": "string", "default": "none"}
    assert schema["$defs"]["Line"]["properties"]["count"] == {"type": "integer", "minimum": 1, "default": 1}
    sent: dict[str, Any] = {"lines": [{"item": "ink"}], "day": "2026-07-28", "page": "https://example.org/"}
    result = await call(server, "place", {"order": sent})
    assert result["structuredContent"] == sent | {"lines": [{"item": "ink", "count": 1}]}
    jsonschema_rs.validate(definition["outputSchema"], result["structuredContent"])


async def test_wrong_models_are_named_as_other_wrong_arguments_are(server: Server) -> None:
    @server.tool
    def place(order: Order) -> str:
        return "done"

    async def refusal(order: object) -> str:
        return failure(await call(server, "place", {"order": order}))

    assert "argument 'order.lines[0].count' should be >= 1" in await refusal({"lines": [{"item": "a", "count": 0}]})
    assert "unknown argument 'order.colour'" in await refusal({"lines": [{"item": "a"}], "colour": 1})
    assert "argument 'order.lines' is not valid: Value error, an order has lines" in await refusal({"lines": []})
    assert "argument 'order.day' is not valid" in await refusal({"lines": [{"item": "a"}], "day": "soon"})


async def test_limits_descriptions_and_defaults_of_fields_hold(server: Server) -> None:
    @server.tool
    def search(
        text: Annotated[str, Field(min_length=2, description="what to find")],
        limit: int = Field(3, le=10, description="how many"),
        offset: Annotated[int, Field(ge=0)] = 0,
        tags: list[str] = Field(default_factory=list),  # noqa: B008 - as pydantic's users write it
        page: Annotated[PositiveInt, Field(default=1)] = 1,
        depth: Annotated[int, annotated_types.Lt(5)] = 4,
        words: Annotated[list[str], BeforeValidator(lambda value: [*value, "more"])] = ["none"],  # noqa: B006
    ) -> dict[str, Any]:
        return {"limit": limit, "offset": offset, "tags": tags, "page": page, "depth": depth, "words": words}

    (definition,) = (await ask(server, "tools/list"))["tools"]
    schema = definition["inputSchema"]
    assert schema["required"] == ["text"]
    properties = schema["properties"]
    assert properties["text"] == {"type": "string", "minLength": 2, "description": "what to find"}
    assert properties["limit"] == {"type": "integer", "maximum": 10, "default": 3, "description": "how many"}
    assert properties["depth"] == {"type": "integer", "exclusiveMaximum": 5, "default": 4}
    values = {"limit": 3, "offset": 0, "tags": [], "page": 1, "depth": 4, "words": ["none"]}
    assert (await call(server, "search", {"text": "ab"}))["structuredContent"] == values
    given = await call(server, "search", {"text": "ab", "limit": 4.0, "words": ["a"]})
    assert given["structuredContent"] == values | {"limit": 4, "words": ["a", "more"]}
    for wrong in ({"text": "a"}, {"limit": 11}, {"offset": -1}, {"page": 0}, {"depth": 5}, {"limit": "3"}):
        assert "should" in failure(await call(server, "search", {"text": "ab"} | wrong))


async def test_field_without_a_default_is_required(server: Server) -> None:
    @server.tool
    def double(number: int = Field(ge=1)) -> int:
        return 2 * number

    assert "missing required argument 'number'" in failure(await call(server, "double"))
    assert (await call(server, "double", {"number": 2}))["structuredContent"] == {"result": 4}


async def test_strict_models_root_models_and_dataclasses_work(server: Server) -> None:
    @server.tool
    def everything(strict: Strict, fields: WithFields, checked: Checked) -> dict[str, Any]:
        return {"day": strict.day, "fields": fields, "checked": checked, "models": [strict]}

    @server.tool
    def numbers() -> Numbers:
        return Numbers([1, 2])

    @server.tool
    def renamed() -> Renamed:
        return Renamed(size=1)

    arguments: dict[str, Any] = {"strict": {"day": "2026-07-28"}, "fields": {}, "checked": {"size": 3}}
    result = await call(server, "everything", arguments)
    day = {"day": "2026-07-28"}
    assert result["structuredContent"] == day | {"fields": {"size": 2}, "checked": {"size": 3}, "models": [day]}
    assert "should be <= 9" in failure(await call(server, "everything", arguments | {"fields": {"size": 10}}))
    assert (await call(server, "numbers"))["structuredContent"] == {"result": [1, 2]}
    assert (await call(server, "renamed"))["structuredContent"] == {"itemSize": 1}


async def test_models_are_results_without_a_return_annotation(server: Server) -> None:
    server.add_tool(lambda: {"line": Line(item="a")}, name="tool")
    result = await call(server, "tool")
    assert result["structuredContent"] == {"line": {"item": "a", "count": 1}}
    assert text(result) == '{"line":{"item":"a","count":1}}'


def aliased(number: int = Field(alias="n")) -> None: ...
def mixed(order: Order, size: Struct) -> None: ...
def two_kinds_of_limits(order: Order, size: Annotated[int, msgspec.Meta(ge=1)]) -> None: ...
def marked(number: Annotated[int, object()]) -> None: ...


@pytest.mark.parametrize("function", [aliased, mixed, two_kinds_of_limits, marked])
def test_unsupported_types_are_refused_at_the_definition(server: Server, function: Any) -> None:
    with pytest.raises(TypeError, match=function.__name__):
        server.tool(function)


class Wish(BaseModel):
    name: Annotated[str, Field(min_length=2, description="what to buy")]
    count: int = Field(1, ge=1)
    note: str | None

    @field_validator("name")
    @classmethod
    def _no_noise(cls, name: str) -> str:
        if name == "noise":
            raise ValueError("no noise, please")
        return name


class Nested(BaseModel):
    wish: Wish


async def test_models_are_forms(server: Server) -> None:
    contents: list[dict[str, Any]] = [{"name": "ink"}, {"name": "noise"}, {"name": "x"}]

    @server.tool
    async def shop(call: Call) -> Wish | None:
        return (await call.elicit("What?", Wish)).content

    @server.tool
    async def nested(call: Call) -> str:
        return str(await call.elicit("What?", Nested))

    sink = Recorder(lambda questions: {key: {"action": "accept", "content": contents.pop(0)} for key in questions})
    result = await call(server, "shop", sink=sink)
    assert result["structuredContent"] == {"result": {"name": "ink", "count": 1, "note": None}}
    (question,) = sink.asked[0].values()
    schema: Any = question.params["requestedSchema"]
    assert schema["required"] == ["name"]
    assert schema["properties"]["name"] == {"type": "string", "minLength": 2, "description": "what to buy"}
    assert schema["properties"]["count"] == {"type": "integer", "minimum": 1, "default": 1}
    assert schema["properties"]["note"]["type"] == "string"
    for sentence in ("no noise, please", "at least 2 characters"):
        assert sentence in str(await call(server, "shop", sink=sink))
    assert "failed" in failure(await call(server, "nested", sink=sink))


def test_prompts_and_resources_refuse_pydantic(server: Server) -> None:
    def ask_for(topic: str = Field(description="what about")) -> str:
        return topic

    with pytest.raises(TypeError, match="ask_for: pydantic is supported in tools only"):
        server.prompt(ask_for)


def test_pydantic_is_not_imported_for_servers_without_it() -> None:
    code = """
import sys, sluicegate
server = sluicegate.Server("demo")
@server.tool
def add(a: int, b: int) -> int: return a + b
sys.exit(any(name.startswith("pydantic") and "sluicegate" not in name for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
