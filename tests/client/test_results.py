"""Results of calls as values of the types that the caller names."""

from dataclasses import dataclass, field
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from sluicegate.activations.values import Structured
from sluicegate.client import connect
from sluicegate.errors import ToolError, UpstreamProtocolError
from sluicegate.server import Server
from sluicegate.testing import MemoryUpstream


@dataclass
class Total:
    total: int
    terms: list[int] = field(default_factory=list[int])


class Kept(msgspec.Struct):
    result: int


class Row(TypedDict):
    name: str


class Model(pydantic.BaseModel):
    total: int = pydantic.Field(ge=0)


@dataclass
class Named:
    name: str = ""


server = Server("demo")


@server.tool
def total() -> Total:
    return Total(3)


@server.tool
def number() -> int:
    return 7


@server.tool
def names() -> list[str]:
    return ["a", "b"]


@server.tool
def rows() -> list[Row]:
    return [{"name": "a"}]


@server.tool
def counts() -> dict[str, int]:
    return {"result": 1}


@server.tool
def either() -> Named | None:
    return Named("x")


@server.tool
def negative() -> Structured:
    return Structured({"total": -1})


@server.tool
def text() -> str:
    return "plain"


@server.tool
def fail() -> int:
    raise ToolError("No luck.")


@pytest.mark.parametrize(
    ("tool", "returns", "value"),
    [
        ("total", Total, Total(3, [])),
        ("total", Model, Model(total=3)),
        ("total", dict[str, object], {"total": 3, "terms": []}),
        ("number", int, 7),
        ("number", float, 7.0),
        ("number", Kept, Kept(7)),
        ("names", list[str], ["a", "b"]),
        ("names", set[str], {"a", "b"}),
        ("rows", list[Named], [Named("a")]),
        ("rows", list[Row], [{"name": "a"}]),
        ("counts", dict[str, int], {"result": 1}),
        ("either", Named, Named("x")),
        ("either", Named | None, Named("x")),
        ("text", str, "plain"),
    ],
)
async def test_a_result_is_converted_and_unwrapped_if_it_is_no_object(tool: str, returns: Any, value: object) -> None:
    async with connect(MemoryUpstream(server)) as client:
        result = await client.call(tool, returns=returns)
    assert result == value and type(result) is type(value)


@pytest.mark.parametrize(
    ("tool", "returns", "sentence"),
    [
        ("total", Kept, r"Kept: object missing required field `result`\."),
        ("number", str, r"str: expected `str`, got `int`\."),
        (
            "names",
            list[int],
            r"list\[int\]: expected `int`, got `str` - at `\$\[0\]`\.",
        ),
        (
            "negative",
            Model,
            r"Model: input should be greater than .* 0 - at `\$\.total`\.",
        ),
        ("text", Total, r"Total: it has no structured content\."),
    ],
)
async def test_a_result_that_does_not_fit_is_an_error_that_says_where(tool: str, returns: Any, sentence: str) -> None:
    async with connect(MemoryUpstream(server)) as client:
        with pytest.raises(UpstreamProtocolError, match=f"^The result of '{tool}' of demo does not fit {sentence}$"):
            await client.call(tool, returns=returns)


async def test_a_failed_tool_with_a_typed_result_is_an_exception() -> None:
    async with connect(MemoryUpstream(server)) as client:
        with pytest.raises(ToolError, match=r"^No luck\.$"):
            await client.call("fail", returns=int)
