"""A configuration and the next one: what a reload touches, and that it is done whole or not at all."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import sluicegate
from sluicegate.config.load import Loaded, load
from sluicegate.config.model import (
    CatalogConfig,
    GatewayConfig,
    LimitsConfig,
    ProfileConfig,
    PythonFile,
    ServerConfig,
    ServerSettings,
)
from sluicegate.config.paths import Places
from sluicegate.errors import ConfigError
from sluicegate.exchange import Upstream
from sluicegate.gateway.gateway import Gateway
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.serve.process import Running
from sluicegate.testing import MemoryUpstream
from tests.polling import until

release: asyncio.Event


def server_of(file: str) -> Upstream:
    """A server that says which file it is of, and can be held in the middle of a call."""
    if file == "broken.py":
        raise ConfigError("broken.py cannot be loaded.")
    server = sluicegate.Server("who")
    server.add_tool(lambda: file, name="who")

    @server.tool
    async def hold() -> str:  # pyright: ignore[reportUnusedFunction]
        await release.wait()
        return f"held by {file}"

    return MemoryUpstream(server)


def server(name: str, file: str, prefix: str | None = None, *, disabled: str = "") -> ServerConfig:
    settings = ServerSettings(prefix=prefix)
    return ServerConfig(name=name, key=name, source=PythonFile(file=file), settings=settings, disabled=disabled)


def config(*servers: ServerConfig, **rest: object) -> GatewayConfig:
    return GatewayConfig(root="/", servers={server.name: server for server in servers}, **rest)  # pyright: ignore[reportArgumentType]


@asynccontextmanager
async def running(first: GatewayConfig) -> AsyncGenerator[tuple[Gateway, sluicegate.Client]]:
    global release
    release = asyncio.Event()
    gateway = Gateway(first, load_file=server_of)
    async with asyncio.timeout(10), gateway:
        await gateway.hub.settled()
        async with sluicegate.connect(MemoryUpstream(gateway.hub)) as client:
            yield gateway, client


async def who(client: sluicegate.Client) -> dict[str, str]:
    """Each tool that says who it is, and what it says."""
    names = [tool.name for tool in await client.tools() if tool.name.endswith("who")]
    return {name: (await client.call(name)).text for name in names}


async def test_two_servers_change_prefixes_in_one_reload() -> None:
    async with running(config(server("a", "a.py", "x"), server("b", "b.py", "y"))) as (gateway, client):
        assert await who(client) == {"x__who": "a.py", "y__who": "b.py"}
        before = gateway.hub.mounts
        gateway.apply(config(server("a", "a.py", "y"), server("b", "b.py", "x")))
        assert await who(client) == {"y__who": "a.py", "x__who": "b.py"}
        assert gateway.hub.mounts == before  # Nobody was connected anew for it.


async def test_a_new_server_gets_the_prefix_that_another_gives_up() -> None:
    async with running(config(server("a", "a.py", "x"))) as (gateway, client):
        gateway.apply(config(server("a", "a.py", "z"), server("b", "b.py", "x")))
        await gateway.hub.settled()
        assert await who(client) == {"z__who": "a.py", "x__who": "b.py"}
        gateway.apply(config(server("a", "a.py", "z", disabled="It is switched off."), server("b", "other.py", "z")))
        await gateway.hub.settled()
        assert await who(client) == {"z__who": "other.py"}


async def test_two_servers_with_one_prefix_change_nothing() -> None:
    first = config(server("a", "a.py"), server("b", "b.py"))
    async with running(first) as (gateway, client):
        with pytest.raises(ConfigError, match="c and a both have the prefix 'a'"):
            gateway.apply(config(server("a", "other.py"), server("c", "c.py", "a")))
        assert gateway.config is first
        assert await who(client) == {"a__who": "a.py", "b__who": "b.py"}


async def test_names_pages_and_limits_change_while_it_runs() -> None:
    async with running(config(server("a", "a.py"), server("b", "b.py"))) as (gateway, client):
        before = gateway.hub.mounts
        second = config(
            *gateway.config.servers.values(),
            naming="claude",
            catalog=CatalogConfig(page_size=1, debounce=2.0),
            limits=LimitsConfig(tools_per_server=7),
            profiles={"one": ProfileConfig(servers=("b",))},
        )
        gateway.apply(second)
        assert await who(client) == {"mcp__a__who": "a.py", "mcp__b__who": "b.py"}
        assert gateway.hub.mounts == before
        assert [(mount.settings.debounce, mount.settings.offers.entries) for mount in before] == [(2.0, 7)] * 2
        async with sluicegate.connect(MemoryUpstream(gateway.handler("one"))) as part:
            assert await who(part) == {"mcp__b__who": "b.py"}


async def test_hidden_tools_are_not_counted() -> None:
    def hiding(**settings: Sequence[str]) -> ServerConfig:
        own = ServerSettings(prefix="a", **settings)  # pyright: ignore[reportArgumentType]
        return ServerConfig(name="a", key="a", source=PythonFile(file="a.py"), settings=own)

    async with running(config(hiding(hide=("hold",)), server("b", "b.py"))) as (gateway, client):
        assert [(one.name, one.tools) for one in gateway.status()] == [("a", 1), ("b", 2)]
        assert len(await client.tools()) == 3
        for settings, tools in (({"tools": ("wh*",)}, 1), ({"tools": ()}, 0), ({}, 2)):
            gateway.apply(config(hiding(**settings), server("b", "b.py")))
            await gateway.hub.wait_reviewed()
            assert [(one.name, one.tools) for one in gateway.status()] == [("a", tools), ("b", 2)]
            assert len(await client.tools()) == tools + 2


async def test_a_call_in_progress_finishes_on_the_old_server_while_the_new_one_answers() -> None:
    async with running(config(server("a", "old.py"))) as (gateway, client), TaskScope() as tasks:
        held: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        old = gateway.hub.mounts[0]

        async def hold() -> None:
            held.set_result((await client.call("a__hold")).text)

        tasks.start(hold())
        await until(lambda: old.in_flight)
        gateway.apply(config(server("a", "new.py"), server("b", "b.py")))
        await gateway.hub.settled()
        assert await who(client) == {"a__who": "new.py", "b__who": "b.py"}
        assert not held.done()
        release.set()
        assert await held == "held by old.py"
        await old.gone()


async def test_a_server_that_cannot_be_built_is_removed_and_returns_later() -> None:
    async with running(config(server("a", "a.py"), server("b", "b.py"))) as (gateway, client):
        gateway.apply(config(server("a", "broken.py"), server("b", "b.py")))
        assert await who(client) == {"b__who": "b.py"}
        assert [(one.name, one.state) for one in gateway.status()] == [("a", "failed"), ("b", "ready")]
        gateway.apply(config(server("a", "a.py"), server("b", "b.py")))
        await gateway.hub.settled()
        assert await who(client) == {"a__who": "a.py", "b__who": "b.py"}


async def test_a_profile_that_is_taken_away_shows_nothing_and_all_again_when_it_is_back() -> None:
    first = config(server("a", "a.py"), server("b", "b.py"), profiles={"one": ProfileConfig(servers=("b",))})
    async with running(first) as (gateway, _):
        async with sluicegate.connect(MemoryUpstream(gateway.handler("one"))) as part:
            async with part.listen(tools=True) as changes:
                gateway.apply(config(*first.servers.values()))
                await anext(changes)
                assert await who(part) == {}
                with pytest.raises(ConfigError, match="There is no profile 'one'"):
                    gateway.handler("one")
                gateway.apply(first)
                await anext(changes)
                assert await who(part) == {"b__who": "b.py"}


async def test_a_reload_that_goes_wrong_leaves_all_as_it_was_and_the_next_one_is_taken(tmp_path: Path) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    failed = asyncio.Event()

    def adjust(loaded: Loaded) -> Loaded:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a fault of ours")
        return loaded

    places = Places(root=str(tmp_path), home=str(tmp_path / "home"), environ={})
    gateway = Gateway(config(server("a", "one.py")), load_file=server_of)
    files = Running(gateway, places, said.put_nowait, adjust).follow_files()
    async with asyncio.timeout(20), gateway, TaskScope() as tasks:
        tasks.start(files)
        await asyncio.sleep(0)  # Let it see the folder as it is.
        (tmp_path / ".mcp.json").write_text('{"mcpServers": {}}')
        await failed.wait()
        assert list(gateway.config.servers) == ["a"]
        (tmp_path / ".mcp.json").write_text('{"mcpServers": {"b": {"command": "x", "disabled": true}}}')
        while "b does not run" not in await said.get():
            pass
        assert list(gateway.config.servers) == ["b"]
        tasks.cancel_all()


@pytest.mark.parametrize(
    "args", [["--token", "s3cr3t-canary"], ["--token=${CANARY}"], ["https://me:s3cr3t-canary@host/"]]
)
async def test_a_secret_among_the_arguments_is_shown_nowhere(tmp_path: Path, args: list[str]) -> None:
    script = tmp_path / "server.py"
    script.write_text("import sys\nsys.exit('bad token: s3cr3t-canary in ' + ' '.join(sys.argv))\n")
    entry = {"command": sys.executable, "args": [str(script), *args]}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"demo": entry}}))
    environ = {"CANARY": "s3cr3t-canary", "PATH": os.defpath}
    loaded = load(Places(root=str(tmp_path), home=str(tmp_path / "home"), environ=environ))
    assert loaded.config is not None
    gateway = Gateway(loaded.config)
    async with asyncio.timeout(20), gateway:
        await gateway.hub.settled()
        seen = f"{gateway.status()} {gateway.logs('demo')}"
    assert "bad token: ***" in seen
    assert "s3cr3t" not in seen
