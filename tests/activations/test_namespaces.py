"""Activations: classes as namespaces, namespaces inside them, and their names behind a hub."""

from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest

from sluicegate.activations.values import Data, Structured
from sluicegate.client.connect import connect
from sluicegate.errors import ConfigError
from sluicegate.hub.hub import Hub
from sluicegate.server import Server, activated, activation
from tests.activations.helpers import ask, call, text


class Seen(msgspec.Struct, tag="seen"):
    planet: str


class Lost(msgspec.Struct, tag="lost"):
    planet: str


class Planet:
    def __init__(self, name: str) -> None:
        self.name = name

    async def info(self) -> str:
        """About one planet."""
        return f"I am {self.name}."

    def plain(self, times: int) -> str:
        return self.name * times


@activation("solar", version="2")
class Solar:
    """The planets."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def watch(self, days: int) -> AsyncIterator[Seen | Lost]:
        """Watch the sky."""
        for _ in range(days):
            yield Seen("mars")
        yield Lost("pluto")

    async def mass(self) -> float:
        return 1.5

    def children(self) -> list[str]:
        return ["earth", "mars"]

    def child(self, name: str) -> Planet:
        self.asked.append(name)
        return Planet(name)

    def _private(self) -> None: ...

    @property
    def size(self) -> int:
        raise AssertionError("a property must not run")


def tools(server: Server) -> Any:
    return ask(server, "tools/list")


async def test_public_methods_are_tools_of_the_namespace() -> None:
    server = activated("solar", Solar())
    listed = {tool["name"]: tool for tool in (await tools(server))["tools"]}
    assert set(listed) == {
        "solar.watch",
        "solar.mass",
        *(f"solar.{planet}.{method}" for planet in ("earth", "mars") for method in ("info", "plain")),
    }
    assert listed["solar.earth.info"]["description"] == "About one planet."
    assert dict(server.discovery.server_info)["description"] == "The planets."


async def test_a_generator_is_marked_as_a_stream_with_the_schema_of_its_events() -> None:
    listed = {tool["name"]: tool for tool in (await tools(activated("solar", Solar())))["tools"]}
    meta = listed["solar.watch"]["_meta"]
    assert meta["dev.sluicegate/streaming"] is True
    events = meta["dev.sluicegate/events"]
    kinds = [events["$defs"][kind["$ref"].split("/")[-1]]["properties"]["type"] for kind in events["anyOf"]]
    assert kinds == [{"enum": ["seen"]}, {"enum": ["lost"]}]
    assert "_meta" not in listed["solar.mass"]


async def test_a_child_is_asked_for_with_each_call() -> None:
    solar = Solar()
    server = activated("solar", solar)
    solar.asked.clear()
    assert text(await call(server, "solar.mars.info")) == "I am mars."
    assert text(await call(server, "solar.mars.plain", {"times": 2})) == "marsmars"
    assert solar.asked == ["mars", "mars"]


async def test_a_hub_offers_them_under_their_own_names() -> None:
    hub = Hub()
    hub.mount("solar", cast(Any, Solar()))
    async with connect(hub) as client:
        assert "solar__watch" in {tool.name for tool in await client.tools()}
        assert (await client.call("solar.mass")).structured_content == {"result": 1.5}


async def test_another_server_cannot_take_a_name_of_the_namespace() -> None:
    imitation = Server("other")

    @imitation.tool(name="solar.mass")
    def mass() -> str:  # pyright: ignore[reportUnusedFunction]
        return "imitated"

    hub = Hub(naming="collide")
    hub.mount("other", imitation)
    hub.mount("solar", cast(Any, Solar()))
    async with connect(hub) as client:
        assert (await client.call("solar.mass")).structured_content == {"result": 1.5}
        assert (await client.call("other__solar.mass")).text == "imitated"


async def test_a_stream_ends_with_its_structured_result() -> None:
    class Shell:
        async def run(self) -> AsyncIterator[object]:
            yield Data("out")
            yield Structured({"exit_code": 0})

    result = await call(activated("sh", Shell()), "sh.run")
    assert (text(result), result["structuredContent"]) == ("out", {"exit_code": 0})


def test_names_that_cannot_be_used_are_refused() -> None:
    class Both:
        def a(self) -> str:
            return ""

        def children(self) -> list[str]:
            return ["a"]

        def child(self, name: str) -> object:
            return Planet(name)

    class Dotted(Both):
        def children(self) -> list[str]:
            return ["x.y"]

    class Endless:
        def children(self) -> list[str]:
            return ["a"]

        def child(self, name: str) -> object:
            return Endless()

    class Hashed:
        def hash(self) -> str:
            return ""

    class Connecting:
        def connect(self) -> str:
            return ""

    class Vague:
        def take(self, what: object.__class__) -> str:  # type: ignore[valid-type]
            return ""

    with pytest.raises(ConfigError, match="Hashed has a method called hash"):
        activated("x", Hashed())
    with pytest.raises(ConfigError, match="Connecting has a method called connect"):
        activation("x")(Connecting)
    with pytest.raises(ConfigError, match="both a method and a namespace called a"):
        activated("x", Both())
    with pytest.raises(ConfigError, match="A namespace has"):
        activated("x", Dotted())
    with pytest.raises(ConfigError, match="inside each other"):
        activated("x", Endless())
    with pytest.raises(ConfigError, match="^x: "):
        activated("x", Vague())
    with pytest.raises(ConfigError, match="A namespace has"):
        activation("a.b")
