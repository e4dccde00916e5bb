"""Web pages of allowed origins are clients; pages of all others can neither send nor read anything (T7)."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from sluicegate.downstream.http import HttpEndpoint
from sluicegate.downstream.http_guard import HostPolicy
from sluicegate.downstream.http_response import HttpRequest
from sluicegate.http1 import serve
from sluicegate.runtime.identity import IncomingRequest, Refusal
from tests.downstream.http_client import Answer, Headers, http_client, initialize
from tests.downstream.http_stage import Stage, call, heard
from tests.downstream.raw_client import Json, modern
from tests.web.browser import chromium

APP = "https://app.example"
HOSTS = HostPolicy(origins=frozenset({APP}))
PREFLIGHT: Headers = [("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "x-any")]


def cors(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control")}


@pytest.mark.parametrize("path", ["/mcp", "/sse", "/messages", "/none"])
async def test_a_preflight_of_an_allowed_page_is_answered_without_credentials(path: str) -> None:
    def nobody(request: IncomingRequest) -> Refusal:
        return Refusal(401, "unauthenticated", "Send a token.", (("WWW-Authenticate", "Bearer"),))

    async with http_client(Stage().server, hosts=HOSTS, identify=nobody) as client:
        answer = await client.open("OPTIONS", path, [("Origin", APP), *PREFLIGHT])
        assert (answer.status, answer.headers["vary"]) == (204, "Origin")
        assert cors(answer) == {
            "access-control-allow-origin": APP,
            "access-control-allow-methods": "GET, POST, DELETE",
            "access-control-allow-headers": "*, Authorization",
            "access-control-max-age": "600",
        }
        refused = await client.modern("tools/list", headers=[("Origin", APP)])
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, APP)
        assert "WWW-Authenticate" in refused.headers["access-control-expose-headers"]


async def test_every_answer_to_an_allowed_page_can_be_read_there() -> None:
    page = [("Origin", APP)]
    async with http_client(Stage().server, hosts=HOSTS) as client:
        opened = await client.post(initialize(), page)
        session = [("Mcp-Session-Id", opened.headers["mcp-session-id"]), *page]
        answers = [
            opened,
            await client.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, session),
            await client.open("GET", "/mcp", [("Accept", "text/event-stream"), *session]),
            await client.open("DELETE", "/mcp", session),
            await client.modern("tools/call", modern(heard("count", to=2)), headers=page),
            await client.modern("tools/call", modern(call("none")), headers=page),
            await client.post(b"{", page),
            await client.open("PUT", "/mcp", page),
            await client.open("GET", "/healthz", page),
        ]
        assert [answer.status for answer in answers] == [200, 202, 200, 204, 200, 400, 400, 405, 200]
        for answer in answers:
            assert answer.headers["access-control-allow-origin"] == APP
            assert answer.headers["access-control-expose-headers"] == "Mcp-Session-Id, Retry-After, WWW-Authenticate"
            assert answer.headers["vary"] == "Origin"


async def test_clients_that_are_no_allowed_page_get_no_such_header() -> None:
    async with http_client(Stage().server, hosts=HOSTS) as client:
        for origin in ("https://app.example:444", "http://app.example", "https://app.example.evil", "null"):
            for answer in (
                await client.open("OPTIONS", "/mcp", [("Origin", origin), *PREFLIGHT]),
                await client.modern("tools/list", headers=[("Origin", origin)]),
            ):
                assert (answer.status, cors(answer)) == (403, {})
        for headers in ([], [("Origin", f"http://{client.host}")]):
            answer = await client.modern("tools/list", headers=headers)
            assert (answer.status, cors(answer)) == (200, {})


# ---------------------------------------------------------------------------------------------------- in a browser

SCRIPT = """
async function use(url) {
    const send = async (message, more) => {
        const headers = {
            "Content-Type": "application/json", Accept: "application/json, text/event-stream",
            "MCP-Protocol-Version": "2025-11-25", ...more,
        };
        return await fetch(url, {method: "POST", headers, body: JSON.stringify({jsonrpc: "2.0", ...message})});
    };
    try {
        const params = {protocolVersion: "2025-11-25", capabilities: {}, clientInfo: {name: "page", version: "1"}};
        const opened = await send({id: 1, method: "initialize", params});
        const session = {"Mcp-Session-Id": opened.headers.get("Mcp-Session-Id"), Authorization: "Bearer x"};
        await send({method: "notifications/initialized"}, session);
        const call = {name: "count", arguments: {to: 3}, _meta: {progressToken: "p"}};
        const counted = await send({id: 2, method: "tools/call", params: call}, session);
        const events = (await counted.text()).match(/notifications.progress/g).length;
        const ended = await fetch(url, {method: "DELETE", headers: session});
        const socket = new WebSocket(url.replace("http", "ws").replace("/mcp", "/native"));
        const connected = await new Promise(done => {
            socket.onopen = () => done(true);
            socket.onerror = () => done(false);
        });
        return JSON.stringify([opened.status, events, ended.status, connected]);
    } catch (problem) {
        return problem.name;
    }
}
"""


@asynccontextmanager
async def page_with_script() -> AsyncGenerator[str]:
    """The origin of a web page that has the script."""

    def answer(request: HttpRequest) -> None:
        body = f"<!doctype html><script>{SCRIPT}</script>".encode()
        request.respond(200, (("Content-Type", "text/html"),), body)

    async with serve(answer, host="127.0.0.1", port=0) as listener:
        yield f"http://127.0.0.1:{listener.addresses[0][1]}"


async def test_a_browser_lets_an_allowed_page_use_the_endpoint_and_no_other_page(tmp_path: Path) -> None:
    async with page_with_script() as allowed, page_with_script() as other:
        hosts = HostPolicy(origins=frozenset({allowed}))
        async with HttpEndpoint(Stage().server, hosts=hosts) as endpoint, serve(endpoint, port=0) as listener:
            url = json.dumps(f"http://127.0.0.1:{listener.addresses[0][1]}/mcp")
            async with chromium(tmp_path) as tab:
                found: list[object] = []
                for origin in (allowed, other):
                    await tab.open(origin)
                    answer = await tab.send("Runtime.evaluate", expression=f"use({url})", awaitPromise=True)
                    found.append(cast(Json, answer["result"])["value"])
    assert found == ["[200,3,204,true]", "TypeError"]
