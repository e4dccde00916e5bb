"""MCP Apps behind the gateway: pages of a server call its tools by the names that the server gave them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, cast

import msgspec
import pytest

import sluicegate
from sluicegate.config.model import GatewayConfig, PythonFile, ServerConfig
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.downstream.http_guard import HostPolicy
from sluicegate.downstream.http_response import HttpRequest
from sluicegate.errors import UnknownTarget
from sluicegate.exchange import NOBODY, Exchange, Upstream
from sluicegate.gate.rules import Permission, PolicyConfig, Rule
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.governance import Stores
from sluicegate.http1 import serve
from sluicegate.protocol.message import Params, Result, opened
from sluicegate.store.memory import MemoryAudit
from sluicegate.store.memory_decisions import MemoryDecisions
from sluicegate.testing import MemoryUpstream
from tests.web.browser import chromium

PAGE: Final = "ui://clock/page.html"

# Speaks to its host as the extension defines it: JSON-RPC by postMessage.
APP: Final = """<!doctype html><script>
let number = 0;
const ask = (method, params) => new Promise(done => {
    const id = ++number;
    addEventListener("message", ({data}) => data.id === id && done(data.result));
    parent.postMessage({jsonrpc: "2.0", id, method, params}, "*");
});
(async () => {
    await ask("ui/initialize", {appInfo: {name: "clock", version: "1"}, appCapabilities: {}});
    parent.postMessage({jsonrpc: "2.0", method: "ui/notifications/initialized"}, "*");
    const time = await ask("tools/call", {name: "get_time", arguments: {zone: "UTC"}});
    ask("ui/message", {role: "user", content: time.content});
})();
</script>"""

# A host: shows the page of the first tool that has one, forwards its calls, and returns what the page says in the end.
HOST: Final = """<!doctype html><script>
async function show(url) {
    const version = "2026-07-28", key = "io.modelcontextprotocol/";
    const meta = {[key + "protocolVersion"]: version, [key + "clientCapabilities"]: {}};
    const send = async (method, params, name) => {
        const headers = {"Content-Type": "application/json", Accept: "application/json, text/event-stream"};
        Object.assign(headers, {"MCP-Protocol-Version": version, "Mcp-Method": method}, name && {"Mcp-Name": name});
        const body = JSON.stringify({jsonrpc: "2.0", id: 1, method, params: {...params, _meta: meta}});
        return (await (await fetch(url, {method: "POST", headers, body})).json()).result;
    };
    const {tools} = await send("tools/list", {});
    const uri = tools.find(tool => tool._meta?.ui)._meta.ui.resourceUri;
    const {contents} = await send("resources/read", {uri}, uri);
    const frame = document.createElement("iframe");
    frame.sandbox = "allow-scripts";
    frame.srcdoc = contents[0].text;
    return await new Promise(done => {
        addEventListener("message", async ({data: {id, method, params}}) => {
            if (method === "ui/message") done(JSON.stringify([contents[0].mimeType, params.content[0].text]));
            if (id === undefined) return;
            const result = method === "tools/call" ? await send(method, params, params.name) : {};
            frame.contentWindow.postMessage({jsonrpc: "2.0", id, result}, "*");
        });
        document.body.append(frame);
    });
}
</script><body>"""


def server_of(name: str) -> Upstream:
    """A server with the tool `get_time`. Those called `clock` have a page that calls it."""
    server = sluicegate.Server(name)

    @server.tool
    async def get_time(zone: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return f"{name} says noon in {zone}"

    if name.startswith("clock"):
        server.add_tool(lambda: "shown", name="show", meta={"ui": {"resourceUri": PAGE}})
        server.add_resource(PAGE, lambda: APP, name="page", mime_type="text/html;profile=mcp-app")
    return MemoryUpstream(server)


@asynccontextmanager
async def gateway_of(
    *servers: str, rules: Sequence[Mapping[str, object]] = ()
) -> AsyncGenerator[tuple[Gateway, MemoryAudit]]:
    made = {name: ServerConfig(name=name, key=name, source=PythonFile(file=name)) for name in servers}
    written = tuple(Rule(msgspec.convert(rule, Permission), "rules", line) for line, rule in enumerate(rules, 1))
    policy = PolicyConfig(written, "allow", has_default=True)
    audit = MemoryAudit()
    stores = Stores(audit, MemoryDecisions(), is_recorded=True)
    gateway = Gateway(GatewayConfig(root="/", servers=made, policy=policy), load_file=server_of, stores=stores)
    async with asyncio.timeout(50), gateway:
        await gateway.hub.settled()
        await gateway.hub.wait_reviewed()
        yield gateway, audit


async def called(gateway: Gateway, name: str) -> Params:
    exchange = Exchange("tools/call", {"name": name, "arguments": {"zone": "UTC"}}, NOBODY)
    reply = await gateway.handler()(exchange)
    assert isinstance(reply, Result)
    return opened(reply)


def decided(audit: MemoryAudit) -> list[tuple[str, str, str]]:
    return [(row.server, row.name, row.verdict) for row in audit.rows if row.kind == "decision"]


async def test_the_name_that_a_page_uses_is_that_of_the_server_with_the_page() -> None:
    async with gateway_of("other", "clock") as (gateway, audit):
        result = await called(gateway, "get_time")
        assert cast(list[Params], result["content"])[0]["text"] == "clock says noon in UTC"
        assert decided(audit) == [("clock", "get_time", "allow")]


async def test_a_rule_about_a_tool_applies_to_the_name_that_pages_use() -> None:
    rule = {"tool": "mcp__clock__get_time", "args": {"zone": "UTC"}, "action": "deny"}
    async with gateway_of("other", "clock", rules=[rule]) as (gateway, audit):
        assert (await called(gateway, "get_time"))["isError"] is True
        assert decided(audit) == [("clock", "get_time", "deny")]


@pytest.mark.parametrize("servers", [("clock", "clock-2"), ("other",), ("other", "another")])
async def test_a_name_that_no_page_or_more_than_one_may_mean_is_unknown(servers: Sequence[str]) -> None:
    async with gateway_of(*servers) as (gateway, audit):
        with pytest.raises(UnknownTarget):
            await called(gateway, "get_time")
        assert decided(audit) == []


async def test_a_tool_that_rules_hide_is_unknown_to_pages() -> None:
    rule = {"tool": "mcp__clock__get_time", "action": "deny"}
    async with gateway_of("other", "clock", rules=[rule]) as (gateway, audit):
        with pytest.raises(UnknownTarget):
            await called(gateway, "get_time")
        assert all(verdict != "allow" for _, _, verdict in decided(audit))


@pytest.mark.parametrize("tool", ["mcp__clock__get_time", "mcp__clock"])
async def test_T22_a_page_whose_tool_is_hidden_does_not_reach_another_server(tool: str) -> None:
    rule = {"tool": tool, "action": "deny"}
    async with gateway_of("clock", "clock-2", rules=[rule]) as (gateway, audit):
        with pytest.raises(UnknownTarget, match="Unknown tool: get_time$"):
            await called(gateway, "get_time")
        assert decided(audit) == []
        assert [row.verdict for row in audit.rows if row.kind == "reject"] == ["invalid_params"]


async def test_an_app_in_a_browser_calls_its_own_server_through_the_gateway(tmp_path: Path) -> None:
    def host(request: HttpRequest) -> None:
        request.respond(200, (("Content-Type", "text/html"),), HOST.encode())

    async with gateway_of("other", "clock") as (gateway, audit), serve(host, port=0) as pages:
        origin = f"http://127.0.0.1:{pages.addresses[0][1]}"
        hosts = HostPolicy(origins=frozenset({origin}))
        async with HttpEndpoint(gateway.handler(), hosts=hosts) as endpoint, serve(endpoint, port=0) as listener:
            url = json.dumps(f"http://127.0.0.1:{listener.addresses[0][1]}/mcp")
            async with chromium(tmp_path) as tab:
                await tab.open(origin)
                answer = await tab.send("Runtime.evaluate", expression=f"show({url})", awaitPromise=True)
        said = json.loads(str(cast(Params, answer["result"])["value"]))
        assert said == ["text/html;profile=mcp-app", "clock says noon in UTC"]
        assert ("clock", "get_time", "allow") in decided(audit)
