"""Tools that a server does not list: only a server without a prefix is called by such names."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import pytest

from sluicegate.errors import SluicegateError, UnknownTarget
from sluicegate.exchange import NOBODY, Exchange
from sluicegate.hub.catalog import Patterns, Subset
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.protocol.message import Reply, Result
from sluicegate.protocol.modern_era import complete
from tests.hub.scripted import Scripted, tools
from tests.hub.test_governed_hub import Judge


class Secretive(Scripted):
    """A server that lists one tool and answers to every name; it notes the names."""

    def __init__(self) -> None:
        super().__init__(self._reply, {"tools": {}})
        self.called: list[object] = []

    async def _reply(self, exchange: Exchange) -> Reply:
        if exchange.method == "tools/list":
            return tools("one")
        self.called.append(exchange.params["name"])
        return Result(complete({"content": []}))


@asynccontextmanager
async def hub_of(servers: Mapping[str, Scripted], **settings: MountSettings) -> AsyncGenerator[Hub]:
    hub = Hub()
    for name, server in servers.items():
        hub.mount(name, server, settings.get(name) or MountSettings(prefix=name))
    async with asyncio.timeout(10), hub:
        await hub.settled()
        yield hub


def call(name: str) -> Exchange:
    return Exchange("tools/call", {"name": name, "arguments": {}}, NOBODY)


async def test_an_unlisted_name_goes_to_the_server_without_a_prefix_and_to_no_other() -> None:
    bare, other = Secretive(), Secretive()
    async with hub_of({"bare": bare, "other": other}, bare=MountSettings(prefix="")) as hub:
        assert isinstance(await hub(call("secret")), Result)
        for name in ("other__secret", "OTHER__secret"):
            with pytest.raises(UnknownTarget):
                await hub(call(name))
    assert bare.called == ["secret"] and not other.called


async def test_without_a_server_without_a_prefix_an_unlisted_name_is_unknown() -> None:
    server = Secretive()
    async with hub_of({"s": server}) as hub:
        for name in ("secret", "s__secret"):
            with pytest.raises(UnknownTarget):
                await hub(call(name))
    assert not server.called


async def test_t16_what_is_hidden_stays_hidden_whether_or_not_it_is_listed() -> None:
    server = Secretive()
    hidden = MountSettings(prefix="", tools=Patterns(hide=("one", "secret*")))
    async with hub_of({"s": server}, s=hidden) as hub:
        for name in ("one", "secret_too"):
            with pytest.raises(UnknownTarget):
                await hub(call(name))
        narrow = hub.router("narrow", Subset(tools=Patterns(hide=("s__other",))))
        with pytest.raises(UnknownTarget):
            await narrow(call("other"))
        assert isinstance(await hub(call("other")), Result)
    assert server.called == ["other"]


async def test_t16_rules_decide_on_unlisted_tools_and_quarantine_holds() -> None:
    server, judge = Secretive(), Judge()
    judge.hidden, judge.quarantined = {"local": {"secret"}}, {"one": "It is new."}
    async with hub_of({"s": server}, s=MountSettings(prefix="")) as hub:
        hub.govern(judge)
        for name in ("secret", "one", "forbidden"):
            with pytest.raises(SluicegateError):
                await hub(call(name))
        assert not server.called
        assert isinstance(await hub(call("other")), Result)
    assert [(target.kind, target.name) for _, target in judge.passed] == [("tool", "forbidden"), ("tool", "other")]
