"""Rules and calls may use any name of a server and of a tool. Each test looks at the rows of decisions."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

import sluicegate
from sluicegate.config.merge import key_of
from sluicegate.config.model import CatalogConfig, GatewayConfig, PythonFile, ServerConfig, ServerSettings
from sluicegate.errors import SluicegateError
from sluicegate.exchange import NOBODY, Exchange, Upstream
from sluicegate.gate.rules import Action, Permission, PolicyConfig, Rule
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.governance import Stores
from sluicegate.gateway.loading import FoundActivation, as_activation
from sluicegate.hub.naming import Naming
from sluicegate.protocol.message import Result, opened
from sluicegate.store.memory import MemoryAudit
from sluicegate.store.memory_decisions import MemoryDecisions
from sluicegate.testing import MemoryUpstream

REWRITTEN = ["my_server", "My Server", "my.server", "my__server", "7zip", "Größe", "x" * 40, "GitHub"]
"""Names that no tool can have in front, so that the server gets another key."""


class Governed:
    """A gateway in this process, and what it records."""

    def __init__(self, gateway: Gateway, audit: MemoryAudit) -> None:
        self.gateway = gateway
        self._audit = audit

    async def call(self, name: str, **arguments: object) -> tuple[str, str, str]:
        """Server, name and verdict of the last row about a call; the verdict of one that found no tool is `unknown`."""
        before = len(self._audit.rows)
        try:
            await self.gateway.handler()(Exchange("tools/call", {"name": name, "arguments": arguments}, NOBODY))
        except SluicegateError:
            pass
        rows = [row for row in self._audit.rows[before:] if row.kind in ("decision", "reject")]
        assert len(rows) == 1
        verdict = rows[0].verdict if rows[0].kind == "decision" else "unknown"
        return rows[0].server, rows[0].name or str(json.loads(rows[0].body).get("name")), verdict

    async def listed(self) -> list[str]:
        reply = await self.gateway.handler()(Exchange("tools/list", {}, NOBODY))
        assert isinstance(reply, Result)
        return [tool["name"] for tool in msgspec.json.decode(msgspec.json.encode(opened(reply)["tools"]))]


def echo(text: str = "") -> str:
    return text


def plain(file: str) -> Upstream:
    server = sluicegate.Server("plain")
    server.add_tool(echo)
    server.add_tool(echo, name="delete")
    server.add_resource("note://one", lambda: "1", name="one")
    return MemoryUpstream(server)


@asynccontextmanager
async def governed(
    servers: Sequence[str],
    rules: Sequence[Mapping[str, object]] = (),
    default: Action = "allow",
    *,
    naming: Naming = "prefix",
    prefixes: Mapping[str, str] | None = None,
    resource_tools: bool = False,
    activation: object = None,
) -> AsyncGenerator[Governed]:
    made: dict[str, ServerConfig] = {}
    for name in servers:
        key = key_of(name)
        key = key if all(other.key != key for other in made.values()) else f"{key}-2"
        settings = ServerSettings(prefix=(prefixes or {}).get(name))
        made[name] = ServerConfig(name=name, key=key, source=PythonFile(file=name), settings=settings)
    written = [Rule(msgspec.convert(rule, Permission), "rules", line) for line, rule in enumerate(rules, 1)]
    config = GatewayConfig(
        root="/",
        servers=made,
        naming=naming,
        policy=PolicyConfig(tuple(written), default, has_default=True),
        catalog=CatalogConfig(resource_tools=resource_tools),
    )

    def load(file: str) -> Upstream | FoundActivation:
        found = None if activation is None else as_activation(activation, file)
        return found or plain(file)

    audit = MemoryAudit()
    stores = Stores(audit, MemoryDecisions(), is_recorded=True)
    gateway = Gateway(config, load_file=load, stores=stores)
    async with asyncio.timeout(20), gateway:
        await gateway.hub.settled()
        await gateway.hub.wait_reviewed()
        yield Governed(gateway, audit)


# -------------------------------------------------------------------------------------------- names that were rewritten


@pytest.mark.parametrize("name", REWRITTEN)
async def test_a_rule_may_use_the_name_of_a_server_that_had_to_be_rewritten(name: str) -> None:
    key = key_of(name)
    assert key != name
    for spelled in (name, key):
        rules = [{"tool": f"mcp__{spelled}__delete", "args": {"text": "no"}, "action": "deny"}]
        rules.append({"tool": f"mcp__{spelled}", "action": "allow"})
        async with governed([name], rules, "ask") as stage:
            for called in (name, key, f"mcp__{name}", f"mcp__{key}"):
                assert await stage.call(f"{called}__delete", text="no") == (key, "delete", "deny")
                assert await stage.call(f"{called}__delete", text="yes") == (key, "delete", "allow")


@pytest.mark.parametrize("name", REWRITTEN)
async def test_t33_a_server_that_is_denied_by_its_name_is_not_listed(name: str) -> None:
    async with governed([name, "other"], [{"tool": f"mcp__{name}", "action": "deny"}]) as stage:
        assert await stage.listed() == ["other__echo", "other__delete"]
        for called in (name, key_of(name)):
            assert (await stage.call(f"{called}__delete"))[2] == "unknown"


async def test_t15_where_two_servers_could_be_meant_a_rule_that_allows_is_for_the_key_and_others_are_for_both() -> None:
    """The second server is called `a-b`, which is the key of the first one."""
    servers = ["a_b", "a-b"]
    async with governed(servers, [{"tool": "mcp__a-b__echo", "action": "allow"}], "deny") as stage:
        assert await stage.listed() == ["a-b__echo"]
        assert await stage.call("a-b__echo") == ("a-b", "echo", "allow")
    async with governed(servers, [{"tool": "mcp__a-b__echo", "action": "deny"}]) as stage:
        assert await stage.listed() == ["a-b__delete", "a-b-2__delete"]


async def test_t15_a_name_with_two_underscores_is_read_in_both_ways_by_rules_that_deny_and_in_one_by_others() -> None:
    """`mcp__a__b__echo` is the tool `b__echo` of `a`, or the tool `echo` of `a__b`."""
    async with governed(["a", "a__b"], [{"tool": "mcp__a__b__echo", "action": "deny"}]) as stage:
        assert "a-b__echo" not in await stage.listed()
    async with governed(["a", "a__b"], [{"tool": "mcp__a__b__echo", "action": "allow"}], "deny") as stage:
        assert await stage.listed() == []
    async with governed(["a__b"], [{"tool": "mcp__a__b__echo", "action": "allow"}], "deny") as stage:
        assert await stage.listed() == ["a-b__echo"]


async def test_a_rule_may_use_the_prefix() -> None:
    rules = [{"tool": "mcp__s__delete", "action": "deny"}]
    async with governed(["short"], rules, prefixes={"short": "s"}) as stage:
        assert await stage.listed() == ["s__echo"]
        assert await stage.call("mcp__short__echo") == ("short", "echo", "allow")


async def test_a_name_that_two_servers_could_have_is_unknown() -> None:
    """`b__echo` is a tool of the server with the prefix `b` and, by its name, of another."""
    async with governed(["b", "c"], prefixes={"b": "x", "c": "b"}) as stage:
        assert await stage.call("b__echo") == ("c", "echo", "allow")
        assert await stage.call("mcp__b__echo") == ("", "mcp__b__echo", "unknown")


@pytest.mark.parametrize("spelled", ["my_server", "my-server"])
async def test_the_management_tools_know_a_server_by_all_its_names(spelled: str) -> None:
    rules = [{"resource": "mcp__my_server__note://secret", "action": "deny"}]
    async with governed(["my_server"], rules, resource_tools=True) as stage:
        for uri, is_error in (("note://one", False), ("note://secret", True)):
            params: dict[str, object] = {"name": "ReadMcpResource", "arguments": {"server": spelled, "uri": uri}}
            reply = await stage.gateway.handler()(Exchange("tools/call", params, NOBODY))
            assert isinstance(reply, Result) and (opened(reply).get("isError") is True) == is_error


# ------------------------------------------------------------------------------------------------- the management tools

SIX = (
    *("ListMcpResources", "ReadMcpResource", "SubscribeMcpResource", "UnsubscribeMcpResource"),
    *("SubscribePolling", "UnsubscribePolling"),
)


@pytest.mark.parametrize("action", ["deny", "ask"])
@pytest.mark.parametrize("general", ["mcp__*", "*", "mcp__*__*", "mcp__s*"])
async def test_rules_about_all_servers_are_not_about_the_management_tools(general: str, action: str) -> None:
    rules = [{"tool": general, "args": {"path": "/etc/**"}, "action": action}, {"tool": general, "action": action}]
    async with governed(["files", "sun"], rules, "deny", resource_tools=True) as stage:
        assert set(SIX) <= set(await stage.listed())
        for name in SIX:
            assert await stage.call(name) == ("sluicegate", name, "allow")
        refused = {"deny": "unknown", "ask": "ask"}[action]
        assert (await stage.call("sun__echo"))[2] == refused


@pytest.mark.parametrize(
    "named",
    [
        "mcp__sluicegate__ReadMcpResource",
        "mcp__*__ReadMcpResource",
        "mcp__*__Read*",
        "mcp__sluicegate",
        "mcp__sluicegate__*",
    ],
)
async def test_a_rule_that_names_a_management_tool_applies_to_it(named: str) -> None:
    rules: list[dict[str, object]] = [{"tool": "mcp__*", "action": "ask"}, {"tool": named, "action": "deny"}]
    async with governed(["files"], rules, resource_tools=True) as stage:
        assert "ReadMcpResource" not in await stage.listed()
        assert (await stage.call("ReadMcpResource"))[2] == "unknown"
    rules[1] |= {"args": {"uri": "note://x"}}
    async with governed(["files"], rules, resource_tools=True) as stage:
        arguments = {"server": "files", "uri": "note://x"}
        assert await stage.call("ReadMcpResource", **arguments) == ("sluicegate", "ReadMcpResource", "deny")


async def test_what_a_management_tool_reads_is_judged_by_rules_about_all_servers() -> None:
    async with governed(["files"], [{"tool": "mcp__*", "action": "deny"}], resource_tools=True) as stage:
        params: dict[str, object] = {"name": "ReadMcpResource", "arguments": {"server": "files", "uri": "note://one"}}
        reply = await stage.gateway.handler()(Exchange("tools/call", params, NOBODY))
        assert isinstance(reply, Result) and opened(reply)["isError"] is True


# ------------------------------------------------------------------------------------- arguments that are spelled oddly


@pytest.mark.parametrize(
    ("glob", "texts"),
    [
        ("/etc/**", (" /etc/passwd", "/etc/passwd ", "etc/passwd", "passwd", "~/passwd", "/etc/./passwd")),
        (
            "https://example.com/**",
            (
                *("https:/example.com/x", " https://example.com/x", "https://example.com./x", "https://example.com"),
                *("https://example.com:443/x", "HTTPS://EXAMPLE.com/x", "example.com/x", "https://example.com/x\n"),
            ),
        ),
    ],
)
async def test_t15_a_doubtful_argument_is_recorded_as_denied_or_asked_and_does_not_run(
    glob: str, texts: Sequence[str]
) -> None:
    for action in ("deny", "ask"):
        rules = [{"tool": "mcp__files__echo", "args": {"text": glob}, "action": action}]
        async with governed(["files"], rules) as stage:
            for text in texts:
                assert await stage.call("files__echo", text=text) == ("files", "echo", action), text
            assert await stage.call("files__echo", text="https://other.example/etc" if ":" in glob else "/srv") == (
                *("files", "echo", "allow"),
            )
    rules = [{"tool": "mcp__files__echo", "args": {"text": glob}, "action": "allow"}]
    async with governed(["files"], rules, "deny") as stage:
        for text in texts:
            assert await stage.call("files__echo", text=text) == ("files", "echo", "deny"), text
