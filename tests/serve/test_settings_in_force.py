"""Every key of sluicegate.toml, changed while a gateway runs, has the effect that the gateway reports."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import msgspec
import pytest

from sluicegate.config.load import load
from sluicegate.config.model import Settings
from sluicegate.config.paths import Places
from sluicegate.errors import (
    InvalidParams,
    LimitExceeded,
    RateLimited,
    UpstreamClosed,
    UpstreamProtocolError,
    UpstreamTimeout,
)
from sluicegate.exchange import NOBODY, Exchange, Host
from sluicegate.gateway.gateway import Gateway
from sluicegate.protocol.message import Params, Reply, Result, as_array, as_object, opened
from sluicegate.protocol.modern_era import complete
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.serve.reload import Reloader, as_loaded
from tests.hub.scripted import Connected, Scripted
from tests.polling import until, until_called

FILES = '[activations.a]\nfile = "a.py"\n'
BIG = {"type": "object", "description": "x" * 3000}
TOOLS: list[Params] = [
    {"name": "plain", "inputSchema": {"type": "object"}},
    {"name": "wordy", "inputSchema": {"type": "object"}, "description": "x" * 3000},
    {"name": "detailed", "inputSchema": BIG},
    {"name": "a_tool_with_quite_a_long_name", "inputSchema": {"type": "object"}},
]


class Server(Scripted):
    """A server with a few tools, whose calls are answered when they are let."""

    def __init__(self) -> None:
        super().__init__(self.answer, {"tools": {}})
        self.release = asyncio.Event()
        self.calls = self.pings = 0
        self.goes_away = False
        self.text = self.description = ""

    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[Connected]:
        async with super().connect(host) as connection:
            connection.discovery = msgspec.structs.replace(connection.discovery, instructions="Handle with care.")
            yield connection

    async def answer(self, exchange: Exchange) -> Reply:
        if exchange.method == "tools/list":
            first = {**TOOLS[0], **({"description": self.description} if self.description else {})}
            return Result(complete({"tools": [first, *TOOLS[1:]]}, ttl_ms=0))
        if exchange.method == "server/discover":
            self.pings += 1
            return Result(complete({}))
        self.calls += 1
        if self.goes_away and self.calls == 1:
            raise UpstreamClosed("It went away.")
        await self.release.wait()
        return Result(complete({"content": [{"type": "text", "text": self.text}] if self.text else []}))


class Stage:
    """A gateway with one such server, and its files."""

    def __init__(self, root: Path) -> None:
        self.server = Server()
        self._settings = root / "sluicegate.toml"
        (root / "a.py").touch()
        (root / "b.py").touch()
        self._settings.write_text(FILES)
        places = Places(root=str(root), home=str(root / "home"), environ={})
        loaded = load(places)
        assert loaded.config is not None
        self.gateway = Gateway(loaded.config, load_file=lambda file: self.server)
        self._reloader = Reloader(self.gateway, places, lambda sentence: None, as_loaded, loaded)

    async def change(self, text: str) -> list[str]:
        """The report after this text is added to the file, or replaces its table of the Python file."""
        self._settings.write_text(text if "[activations.a]" in text else f"{text}\n{FILES}")
        return await self._reloader.reload()

    async def ask(self, method: str, profile: str = "", **params: object) -> Params:
        reply = await self.gateway.handler(profile)(Exchange(method, params, NOBODY))
        assert isinstance(reply, Result)
        return opened(reply)

    async def names(self, profile: str = "") -> list[str]:
        """The names of the tools on the first page of their list."""
        listed = as_array((await self.ask("tools/list", profile))["tools"]) or []
        return [str((as_object(tool) or {})["name"]) for tool in listed]

    async def call(self) -> None:
        """Call a tool, as far as it comes to an answer."""
        assert "content" in await self.ask("tools/call", name="a__plain")

    async def until_names(self, *names: str) -> None:
        """Wait until these are the tools there are, by their names on the server."""
        await until_called(self.names, lambda listed: listed == [f"a__{name}" for name in names])

    @asynccontextmanager
    async def one_under_way(self) -> AsyncGenerator[None]:
        """While a call takes the only place there is."""
        async with TaskScope() as tasks:
            tasks.start(self.call())
            await until(lambda: self.server.calls == 1)
            yield
            self.server.release.set()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncGenerator[Stage]:
    stage = Stage(tmp_path)
    async with asyncio.timeout(20), stage.gateway:
        await stage.gateway.hub.settled()
        assert await stage.names() == [f"a__{tool['name']}" for tool in TOOLS]
        yield stage


async def is_refused(stage: Stage) -> None:
    async with stage.one_under_way():
        with pytest.raises(LimitExceeded):
            await stage.call()


async def is_out_of_time(stage: Stage) -> None:
    with pytest.raises(UpstreamTimeout, match=r"within 0\.05 s"):
        await stage.call()


async def is_pinged(stage: Stage) -> None:
    async with stage.one_under_way():
        await until(lambda: stage.server.pings)


async def is_made_again(stage: Stage) -> None:
    stage.server.goes_away = True
    stage.server.release.set()
    await stage.call()
    assert stage.server.calls == 2


async def is_cut(stage: Stage) -> None:
    assert max(map(len, await stage.names())) == 24


async def is_gone_at_once(stage: Stage) -> None:
    stage.server.way.clear()
    stage.server.connections[0].hang_up()
    await stage.until_names()


def has_names(*names: str, profile: str = "") -> Callable[[Stage], Awaitable[None]]:
    async def check(stage: Stage) -> None:
        assert await stage.names(profile) == list(names)

    return check


def comes_to_have(*names: str) -> Callable[[Stage], Awaitable[None]]:
    return lambda stage: stage.until_names(*names)


def is_told(instructions: str) -> Callable[[Stage], Awaitable[None]]:
    async def check(stage: Stage) -> None:
        told = str((await stage.ask("server/discover")).get("instructions"))
        assert told.endswith(instructions)

    return check


async def is_collected_for_so_long(stage: Stage) -> None:
    (mount,) = stage.gateway.hub.mounts
    assert mount.settings.debounce == 7


async def has_so_long_to_finish(stage: Stage) -> None:
    assert stage.gateway.config.limits.drain == 7  # See test_running for what becomes of it.


async def fetches_nothing(stage: Stage) -> None:
    assert stage.gateway.config.servers["a"].opens_within == 30  # See test_changes for one that does.


async def has_the_globs(stage: Stage) -> None:
    assert stage.gateway.config.servers["a"].settings.env_pass == ("X_*",)  # See test_load for a command.


async def allows_such_messages(stage: Stage) -> None:
    assert stage.gateway.config.limits.message == 65536  # See test_limits_in_effect for servers elsewhere.


async def is_limited(stage: Stage) -> None:
    stage.server.release.set()
    await stage.call()
    with pytest.raises(RateLimited):
        await stage.call()


async def is_too_large(stage: Stage) -> None:
    stage.server.release.set()
    with pytest.raises(InvalidParams, match="max_arguments"):
        await stage.ask("tools/call", name="a__plain", arguments={"text": "x" * 1024})


async def is_larger_than_allowed(stage: Stage) -> None:
    stage.server.release.set()
    stage.server.text = "x" * 1024
    with pytest.raises(UpstreamProtocolError, match="max_result"):
        await stage.call()


async def is_pinned(stage: Stage) -> None:
    stage.server.description = "It does more now."
    connection = stage.gateway.hub.mounts[0]
    connection.restart()
    await until_called(stage.names, lambda listed: "a__plain" not in listed)


async def is_denied(stage: Stage) -> None:
    assert await stage.names() == []


def asks_with(key: str, value: object) -> Callable[[Stage], Awaitable[None]]:
    async def check(stage: Stage) -> None:
        # See tests/gate/test_approvals.py for what becomes of it.
        assert getattr(stage.gateway.governance.approvals.settings, key) == value

    return check


async def can_read_resources(stage: Stage) -> None:
    await until(lambda: "ReadMcpResource" in stage.gateway.hub.catalog.tools)


LIVE: dict[str, tuple[str, Callable[[Stage], Awaitable[None]]]] = {
    "naming": ('naming = "claude"', has_names(*(f"mcp__a__{tool['name']}" for tool in TOOLS))),
    "policy.default": ('[policy]\ndefault = "deny"', is_denied),
    "permissions": ('[[permissions]]\ntool = "mcp__a"\naction = "deny"', is_denied),
    "limits.calls": ('[limits]\ncalls = "1/h"', is_limited),
    "limits.calls_per_tool": ('[limits]\ncalls_per_tool = { "mcp__a__pl*" = "1/h" }', is_limited),
    "servers.calls": ('[servers.a]\ncalls = "1/h"', is_limited),
    "servers.max_arguments": ("[servers.a]\nmax_arguments = 1024", is_too_large),
    "servers.max_result": ("[servers.a]\nmax_result = 1024", is_larger_than_allowed),
    "servers.hang_after": ("[servers.a]\nhang_after = 0.05", is_pinged),
    "catalog.page_size": ("[catalog]\npage_size = 1", has_names("a__plain")),
    "catalog.grace": ("[catalog]\ngrace = 0", is_gone_at_once),
    "catalog.debounce": ("[catalog]\ndebounce = 7", is_collected_for_so_long),
    "catalog.instructions": ("[catalog]\ninstructions = 6", is_told("\n\nHandle")),
    "catalog.resource_tools": ("[catalog]\nresource_tools = true", can_read_resources),
    "catalog.search": ("[catalog]\nsearch = true", has_names("search_tools", "call_tool")),
    "catalog.max_name": ("[catalog]\nmax_name = 24", is_cut),
    "limits.tools_per_server": ("[limits]\ntools_per_server = 2", comes_to_have("plain", "wordy")),
    "limits.description": (
        "[limits]\ndescription = 1024",
        comes_to_have("plain", "detailed", "a_tool_with_quite_a_long_name"),
    ),
    "limits.schema": ("[limits]\nschema = 1024", comes_to_have("plain", "wordy", "a_tool_with_quite_a_long_name")),
    "limits.lists_per_server": ("[limits]\nlists_per_server = 1024", comes_to_have("plain")),
    "limits.message": ("[limits]\nmessage = 65536", allows_such_messages),
    "limits.drain": ("[limits]\ndrain = 7", has_so_long_to_finish),
    "approvals.wait": ("[approvals]\nwait = 7", asks_with("wait", 7)),
    "approvals.hold": ("[approvals]\nhold = 7", asks_with("hold", 7)),
    "approvals.client": ('[approvals]\nclient = "any"', asks_with("client", "any")),
    "approvals.late": ('[approvals]\nlate = "void"', asks_with("late", "void")),
    "profiles.servers": ('[profiles.p]\nservers = ["b"]', has_names(profile="p")),
    "profiles.tools": ('[profiles.p]\ntools = ["a__w*"]', has_names("a__wordy", profile="p")),
    "profiles.hide": ('[profiles.p]\nhide = ["a__[!p]*"]', has_names("a__plain", profile="p")),
    "servers.prefix": ('[servers.a]\nprefix = "z"\ntools = ["plain"]', has_names("z__plain")),
    "servers.tools": ('[servers.a]\ntools = ["plain"]', has_names("a__plain")),
    "servers.hide": ('[servers.a]\nhide = ["[!p]*"]', has_names("a__plain")),
    "servers.concurrency": ("[servers.a]\nconcurrency = 1\nqueue = 0", is_refused),
    "servers.queue": ("[servers.a]\nqueue = 0\nconcurrency = 1", is_refused),
    "servers.queue_wait": ("[servers.a]\nqueue_wait = 0.01\nconcurrency = 1", is_refused),
    "servers.timeout": ("[servers.a]\ntimeout = 0.05", is_out_of_time),
    "servers.longest_call": ("[servers.a]\nlongest_call = 0.05", is_out_of_time),
    "servers.tool_timeouts": ('[servers.a.tool_timeouts]\n"p*" = 0.05', is_out_of_time),
    "servers.install_timeout": ("[servers.a]\ninstall_timeout = 7", fetches_nothing),
    "servers.resend": ('[servers.a]\nresend = ["p*"]', is_made_again),
    "servers.instructions": ("[servers.a]\ninstructions = false", is_told(": SERVER__NAME.")),
    "servers.env_pass": ('[servers.a]\nenv_pass = ["X_*"]', has_the_globs),
    "servers.enabled": ("[servers.a]\nenabled = false", has_names()),
}

RESTARTS = {
    "servers.era": '[servers.a]\nera = "session"',
    "servers.start_timeout": "[servers.a]\nstart_timeout = 7",
    "servers.probe_timeout": "[servers.a]\nprobe_timeout = 7",
    "servers.stop_grace": "[servers.a]\nstop_grace = 7",
    "servers.roots": '[servers.a]\nroots = ["/srv"]',
    "activations.file": '[activations.a]\nfile = "b.py"',
}

NEXT_START = {
    "http.host": '[http]\nhost = "127.0.0.2"',
    "http.port": "[http]\nport = 7",
    "http.path": '[http]\npath = "/other"',
    "http.sse": "[http]\nsse = false",
    "http.allowed_hosts": '[http]\nallowed_hosts = ["h"]',
    "http.allowed_origins": '[http]\nallowed_origins = ["http://h"]',
    "http.anyone_may_connect": "[http]\nanyone_may_connect = true",
    "control.socket": '[control]\nsocket = "s"',
    "control.port": "[control]\nport = 7",
    "approvals.webhook": '[approvals]\nwebhook = "http://127.0.0.1:7/"',
    "catalog.start_wait": "[catalog]\nstart_wait = 7",
    "audit.enabled": "[audit]\nenabled = false",
    "audit.folder": '[audit]\nfolder = "a"',
    "audit.sync": '[audit]\nsync = "full"',
    "audit.on_failure": '[audit]\non_failure = "open"',
    "audit.keep": "[audit]\nkeep = 1",
    "audit.anchors": '[audit]\nanchors = ["a"]',
    "limits.hold": "[limits]\nhold = 7",
    "limits.body": "[limits]\nbody = 1024",
    "limits.in_flight": "[limits]\nin_flight = 7",
    "limits.in_flight_per_caller": "[limits]\nin_flight_per_caller = 7",
    "limits.streams_per_caller": "[limits]\nstreams_per_caller = 7",
    "limits.sessions_per_caller": "[limits]\nsessions_per_caller = 7",
    "limits.session_idle": "[limits]\nsession_idle = 7",
    "limits.session_lifetime": "[limits]\nsession_lifetime = 7",
}


@pytest.mark.parametrize("key", LIVE)
async def test_a_reported_change_is_in_force(stage: Stage, key: str) -> None:
    text, is_in_force = LIVE[key]
    said = await stage.change(text)
    assert said and not any("started the next time" in sentence for sentence in said), said
    await is_in_force(stage)
    assert len(stage.server.connections) == 1


@pytest.mark.parametrize("key", RESTARTS)
async def test_settings_of_a_connection_restart_it(stage: Stage, key: str) -> None:
    assert await stage.change(RESTARTS[key]) == ["a was restarted."]
    await until(lambda: len(stage.server.connections) == 2)


@pytest.mark.parametrize("key", NEXT_START)
async def test_settings_of_the_listeners_wait_for_the_next_start(stage: Stage, key: str) -> None:
    assert await stage.change(NEXT_START[key]) == [f"{key} takes effect when the gateway is started the next time."]


async def test_definitions_of_a_server_are_pinned_if_its_settings_say_so(stage: Stage) -> None:
    await stage.change('[servers.a]\ndefinitions = "pin"')
    await is_pinned(stage)


async def test_a_value_that_was_set_back_waits_for_nothing(stage: Stage) -> None:
    await stage.change("[http]\nport = 4999")
    assert await stage.change("") == ["http.port is again what the gateway was started with."]


async def test_rules_of_profiles_hold_whatever_the_prefix_is(stage: Stage) -> None:
    rules = '[profiles.p]\nservers = ["memory-*"]\nhide = ["memory-store__[!p]*"]\n'
    server = '[activations."Memory Store"]\nfile = "b.py"\n[servers."Memory Store"]\n'
    for prefix, name in (("", "plain"), ("mem", "mem__plain"), ("memory-store", "memory-store__plain")):
        await stage.change(f'{rules}{server}prefix = "{prefix}"')
        await stage.gateway.hub.settled()
        assert await stage.names("p") == [name]


def test_no_key_was_forgotten() -> None:
    keys: set[str] = set()
    for name, kind in get_type_hints(Settings).items():
        table: object = get_args(kind)[1] if get_origin(kind) is dict else kind
        members: tuple[str, ...] = getattr(table, "__struct_fields__", ())
        keys |= {f"{name}.{member}" for member in members} or {name}
    # The first shows only when the server is restarted; the others are tested with activations.
    others = {"servers.definitions", *(f"activations.{key}" for key in ("package", "bundled", "settings"))}
    assert {*LIVE, *RESTARTS, *NEXT_START, *others} == keys
