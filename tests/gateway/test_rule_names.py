"""Rules and calls may use any name of a server and of a tool. Each test looks at the rows of decisions."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import sluicegate
from sluicegate import questions
from sluicegate.config.merge import key_of
from sluicegate.config.model import (
    CatalogConfig,
    GatewayConfig,
    ProfileConfig,
    PythonFile,
    ServerConfig,
    ServerSettings,
)
from sluicegate.downstream.native.tools import NativeTools, ToolCall, Value
from sluicegate.errors import SluicegateError
from sluicegate.exchange import NOBODY, Caller, Exchange, Upstream
from sluicegate.gate.rules import Action, Permission, PolicyConfig, Rule
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.governance import Stores
from sluicegate.gateway.loading import FoundActivation, as_activation, load_server
from sluicegate.hub.naming import Naming
from sluicegate.protocol.message import Result, opened
from sluicegate.protocol.types import METHOD_KEY
from sluicegate.store.memory import MemoryAudit
from sluicegate.store.memory_decisions import MemoryDecisions
from sluicegate.testing import MemoryUpstream
from tests.downstream.raw_client import modern, raw_client, result_of

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
    server: sluicegate.Server | None = None,
    hide: Sequence[str] = (),
    profile: ProfileConfig | None = None,
) -> AsyncGenerator[Governed]:
    made: dict[str, ServerConfig] = {}
    for name in servers:
        key = key_of(name)
        key = key if all(other.key != key for other in made.values()) else f"{key}-2"
        settings = ServerSettings(prefix=(prefixes or {}).get(name), hide=tuple(hide))
        made[name] = ServerConfig(name=name, key=key, source=PythonFile(file=name), settings=settings)
    written = [Rule(msgspec.convert(rule, Permission), "rules", line) for line, rule in enumerate(rules, 1)]
    config = GatewayConfig(
        root="/",
        servers=made,
        naming=naming,
        policy=PolicyConfig(tuple(written), default, has_default=True),
        catalog=CatalogConfig(resource_tools=resource_tools),
        profiles={} if profile is None else {"some": profile},
    )

    def load(file: str) -> Upstream | FoundActivation:
        found = None if activation is None else as_activation(activation, file)
        return found or (plain(file) if server is None else MemoryUpstream(server))

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


# ----------------------------------------------------------------------------------------------- tools of activations


class Deep:
    """A namespace inside."""

    def now(self) -> str:
        """What time it is."""
        return "noon"


@sluicegate.activation("clock")
class Ticker:
    """Tools with names that have dots."""

    def watch(self, text: str = "") -> str:
        """Watch it."""
        return text

    def children(self) -> list[str]:
        return ["deep"]

    def child(self, name: str) -> Deep:
        return Deep()


NAMINGS: tuple[Naming, ...] = ("prefix", "collide", "claude")


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize(
    ("name", "prefix", "listed"),
    [
        ("ticker", None, ["ticker__deep__now", "ticker__watch"]),
        ("my_ticker", None, ["my-ticker__deep__now", "my-ticker__watch"]),
        ("ticker", "tk", ["tk__deep__now", "tk__watch"]),
        ("ticker", "", ["ticker__deep__now", "ticker__watch"]),
    ],
)
async def test_clients_see_tools_of_activations_without_dots_and_may_call_them_by_all_names(
    naming: Naming, name: str, prefix: str | None, listed: list[str]
) -> None:
    prefixes = {} if prefix is None else {name: prefix}
    async with governed([name], naming=naming, prefixes=prefixes, activation=Ticker()) as stage:
        assert sorted(await stage.listed()) == listed
        key, shown = key_of(name), prefix or key_of(name)
        for server in {name, key, shown}:
            for called in (f"{server}__watch", f"{server}.watch", f"mcp__{server}__watch"):
                assert await stage.call(called) == (key, f"{shown}.watch", "allow"), called
            for called in (f"{server}__deep__now", f"{server}.deep.now", f"mcp__{server}__deep__now"):
                assert await stage.call(called) == (key, f"{shown}.deep.now", "allow"), called


async def test_collisions_of_names_are_logged_once_and_shown_by_status(caplog: pytest.LogCaptureFixture) -> None:
    async with governed(["first", "second"], naming="collide") as stage:
        assert await stage.listed() == ["echo", "delete", "second__echo", "second__delete"]
        sentences = [
            f"second: its tool {tool!r} is called second__{tool}, since first has a tool of that name."
            for tool in ("echo", "delete")
        ]
        found = stage.gateway.findings()
        assert [sentence for sentence in found if sentence.startswith(tuple(sentences))] == found and len(found) == 2
        stage.gateway.apply(stage.gateway.config)
        await stage.gateway.hub.wait_reviewed()
    for sentence in sentences:
        assert caplog.text.count(sentence) == 1
    async with governed(["first", "second"]) as stage:
        assert stage.gateway.findings() == []


@pytest.mark.parametrize(
    "rule",
    [
        *("ticker.watch", "mcp__ticker__watch", "mcp__ticker__ticker.watch", "my_ticker.watch"),
        *("mcp__my_ticker__watch", "mcp__my-ticker__w*", "my-ticker.*"),
    ],
)
async def test_rules_name_tools_of_activations_in_all_spellings(rule: str) -> None:
    name = "ticker" if rule.startswith(("ticker", "mcp__ticker")) else "my_ticker"
    for action in ("deny", "allow"):
        rules = [{"tool": rule, "args": {"text": "x"}, "action": action}]
        async with governed([name], rules, "ask", activation=Ticker()) as stage:
            key = key_of(name)
            assert await stage.call(f"{key}__watch", text="x") == (key, f"{key}.watch", action)


async def test_rules_name_tools_inside_of_activations_in_all_spellings() -> None:
    for rule in ("ticker.deep.now", "mcp__ticker__deep.now", "mcp__ticker__deep__now", "mcp__ticker__ticker.deep.now"):
        for action, expected in (("deny", "unknown"), ("allow", "allow")):
            async with governed(["ticker"], [{"tool": rule, "action": action}], "ask", activation=Ticker()) as stage:
                assert (await stage.call("ticker__deep__now"))[2] == expected, rule


async def test_a_tool_of_a_server_with_dots_in_its_name_is_listed_without() -> None:
    """Model APIs refuse the whole request for one such name. Only rules that deny take it for another."""
    dotted = sluicegate.Server("dotted")
    dotted.add_tool(echo, name="a.b")
    dotted.add_tool(echo, name="a__b")
    for action, left in (("deny", []), ("allow", ["a__b"])):
        rules = [{"tool": "mcp__files__a__b", "action": action}]
        default: Action = "allow" if action == "deny" else "deny"
        async with governed(["files"], rules, default, server=dotted) as stage:
            entries = stage.gateway.hub.router("").view(Caller()).catalog.tools
            assert [entry.own for entry in entries.values()] == left
            assert not any("." in name for name in stage.gateway.hub.catalog.tools)


async def test_native_clients_call_the_same_tools_by_their_names_with_dots() -> None:
    async with governed(["ticker"], activation=Ticker()) as stage:
        native = NativeTools(stage.gateway.handler())
        for method, name in (("ticker.watch", "ticker__watch"), ("ticker.deep.now", "ticker__deep__now")):
            plan = await native.plan(Caller(), method, {})
            assert isinstance(plan, ToolCall) and plan.params["name"] == name
        schema = await native.plan(Caller(), "ticker.schema", {})
        assert isinstance(schema, Value)
        found = msgspec.convert(schema.value, dict[str, Any])
        assert [each["name"] for each in found["methods"]] == ["watch"]
        assert [each["namespace"] for each in found["children"]] == ["ticker.deep"]


async def test_t22_a_server_cannot_give_its_tool_a_native_name() -> None:
    server = sluicegate.Server("evil")
    server.add_tool(echo, meta={METHOD_KEY: "bash.execute"})
    async with governed(["evil"], server=server) as stage:
        with pytest.raises(SluicegateError):
            await NativeTools(stage.gateway.handler()).plan(Caller(), "bash.execute", {})


async def test_settings_name_tools_of_activations_in_all_spellings() -> None:
    for glob in ("watch", "ticker.watch", "ticker__watch"):
        async with governed(["ticker"], hide=[glob], activation=Ticker()) as stage:
            assert await stage.listed() == ["ticker__deep__now"]
        async with governed(["ticker"], profile=ProfileConfig(tools=(glob,)), activation=Ticker()) as stage:
            assert list(stage.gateway.hub.router("some").catalog.tools) == ["ticker__watch"]


async def test_an_activation_that_is_served_alone_lists_its_tools_without_dots(tmp_path: Path) -> None:
    code = "import sluicegate\n@sluicegate.activation('ticker')\nclass Ticker:\n    def watch(self) -> str:\n"
    (tmp_path / "ticker.py").write_text(f"{code}        return 'seen'\n")
    server = load_server(str(tmp_path / "ticker.py"))
    assert isinstance(server, sluicegate.Server)
    async with sluicegate.connect(server) as client:
        assert [tool.name for tool in await client.tools()] == ["ticker__watch"]
        for name in ("ticker__watch", "ticker.watch"):
            assert (await client.call(name)).text == "seen"
    plan = await NativeTools(server).plan(Caller(), "ticker.watch", {})
    assert isinstance(plan, ToolCall)


async def confirm(call: sluicegate.Call) -> str:
    return (await call.ask_all({"k": questions.form_by_schema("Sure?", {"type": "object", "properties": {}})}))[
        "k"
    ].action


@pytest.mark.parametrize("name", ["files__confirm", "files.confirm", "mcp__files__confirm"])
async def test_a_call_in_any_spelling_can_be_continued(name: str) -> None:
    server = sluicegate.Server("asks")
    server.add_tool(confirm)
    hub = sluicegate.Hub()
    hub.mount("files", server)
    params = modern({"name": name, "arguments": {}}, capabilities={"elicitation": {}})
    async with asyncio.timeout(20), hub, raw_client(hub) as client:
        await hub.settled()
        asked = result_of(await client.request(1, "tools/call", params))
        answers = dict.fromkeys(msgspec.convert(asked["inputRequests"], dict[str, Any]), {"action": "decline"})
        params |= {"requestState": asked["requestState"], "inputResponses": answers}
        answer = result_of(await client.request(2, "tools/call", params))
        assert "decline" in json.dumps(answer["content"])
