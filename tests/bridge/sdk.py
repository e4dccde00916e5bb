"""The official SDKs on both sides of the gateway: their clients with our servers and theirs, ours with theirs.

Each does less than the clients of our own hand do, for it does not let everything be seen; but it judges what it gets.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.bridge.clients import PATIENCE, Client
from tests.bridge.http_servers import over_http
from tests.bridge.matrix import Cell
from tests.bridge.servers import REVISIONS
from tests.bridge.stage import ROOT, SIDES, Stage, opened_stage

Json = dict[str, Any]

STRANGERS: Final = ROOT / ".strangers"
PEERS: Final = ROOT / "tests" / "strangers" / "peers"
LONGEST_VISITS: Final = 150.0


class Server(NamedTuple):
    """A server that SDK clients visit, or an SDK's."""

    name: str
    revision: str
    title: str
    sdk: str = ""

    @property
    def asks(self) -> bool:
        """Whether it can show a form."""
        return self.revision >= "2025-06-18"


class SdkClient(NamedTuple):
    """A client of an SDK, made to speak one revision."""

    sdk: str
    mode: str
    revision: str
    over: str

    @property
    def title(self) -> str:
        return f"{_VERSIONS[self.sdk]} {self.revision} {_TRANSPORTS[self.over]}"


_VERSIONS: Final = {"mcp1": "SDK 1.x", "mcp2": "SDK 2.x"}
_TRANSPORTS: Final = {"/mcp": "HTTP", "/sse": "HTTP+SSE", "stdio": "stdio"}

OURS: Final = [Server(f"own-{revision}", revision, f"{revision} by hand") for revision in REVISIONS]
THEIRS: Final = [
    Server("mcp1-stdio", "2025-11-25", "SDK 1.x 2025-11-25 stdio", "mcp1"),
    Server("mcp1-http", "2025-11-25", "SDK 1.x 2025-11-25 HTTP", "mcp1"),
    Server("mcp1-sse", "2025-11-25", "SDK 1.x 2025-11-25 HTTP+SSE", "mcp1"),
    Server("mcp2-session", "2025-11-25", "SDK 2.x 2025-11-25 stdio", "mcp2"),
    Server("mcp2-stdio", "2026-07-28", "SDK 2.x 2026-07-28 stdio", "mcp2"),
    Server("mcp2-http", "2026-07-28", "SDK 2.x 2026-07-28 HTTP", "mcp2"),
]
CLIENTS: Final = [
    SdkClient("mcp1", "", "2025-11-25", "/mcp"),
    *(SdkClient("mcp2", revision, revision, "/mcp") for revision in REVISIONS),
    SdkClient("mcp2", "2024-11-05", "2024-11-05", "/sse"),
    SdkClient("mcp1", "", "2025-11-25", "stdio"),
    SdkClient("mcp2", "2026-07-28", "2026-07-28", "stdio"),
]

SdkMatrix = dict[tuple[str, str], Cell]


def missing() -> list[str]:
    """The SDKs that are not installed."""
    return [name for name in ("mcp1", "mcp2") if not (STRANGERS / f"{name}.lock").exists()]


async def run_sdks(folder: Path) -> SdkMatrix:
    """What comes of all pairs with an SDK in them."""
    cells: SdkMatrix = {}
    async with AsyncExitStack() as stack:
        entries: dict[str, Json] = await _own_entries(stack)
        for server in THEIRS:
            entries[server.name] = await _their_entry(stack, server)
        (folder / "sluicegate.toml").write_text('[servers.mcp2-session]\nera = "session"\n')
        ready = await stack.enter_async_context(opened_stage(folder, entries))
        # One at a time: a line of a server's log says nothing of the call that it belongs to.
        for side in SIDES:
            await ready.enter(side)
            for server in THEIRS:
                cell = cells[f"by hand {side.revision} {side.transport}", server.title] = Cell()
                with cell.noting("visit"):
                    saw = await raw_visit(ready.clients[side], server, f"{side.name}")
                    cell.marks = compared(saw, side.revision, server, "42")
        for sdk in ("mcp1", "mcp2"):
            clients = [client for client in CLIENTS if client.sdk == sdk]
            places = [await _place(stack, folder, client, ready) for client in clients]
            reports = await _visits(sdk, [_work(client, *place) for client, place in zip(clients, places, strict=True)])
            for client, (_, servers), report in zip(clients, places, reports, strict=True):
                for server in servers:
                    cell = cells[client.title, server.title] = Cell()
                    with cell.noting("visit"):
                        _judge(report, client, server, cell)
    return cells


def _judge(report: Json, client: SdkClient, server: Server, cell: Cell) -> None:
    assert "failed" not in report, report["failed"]
    assert report["version"] == client.revision
    assert report["noise"] == []
    saw = report[server.name]
    assert "failed" not in saw, saw["failed"]
    cell.marks = compared(saw, client.revision, server, "Why? Indeed." if server.sdk else "What is the answer? Indeed.")


async def _own_entries(stack: AsyncExitStack) -> dict[str, Json]:
    entries: dict[str, Json] = {}
    for server in OURS:
        url = await stack.enter_async_context(over_http(server.revision))
        entries[server.name] = {"type": "sse" if url.endswith("/sse") else "http", "url": url}
    return entries


async def _their_entry(stack: AsyncExitStack, server: Server) -> Json:
    program = str(STRANGERS / server.sdk / "bin" / "python")
    if server.name.endswith(("-http", "-sse")):
        transport = "sse" if server.name.endswith("-sse") else "mcp"
        port = await stack.enter_async_context(_http_server(program, server.sdk, transport))
        return {"type": "sse" if transport == "sse" else "http", "url": f"http://127.0.0.1:{port}/{transport}"}
    return {"command": program, "args": [str(PEERS / f"server_{server.sdk}.py")]}


@asynccontextmanager
async def _http_server(program: str, sdk: str, transport: str) -> AsyncGenerator[int]:
    """An SDK's server over HTTP, as a process of its own; its port."""
    process = await asyncio.create_subprocess_exec(
        program,
        str(PEERS / "http_server.py"),
        sdk,
        transport,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=_environment(),
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            port = int(await process.stdout.readline())
        yield port
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(PATIENCE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


async def _place(
    stack: AsyncExitStack, folder: Path, client: SdkClient, ready: Stage
) -> tuple[object, Sequence[Server]]:
    """Where a client finds the gateway, and which servers are behind it: one that it starts itself has ours only."""
    if client.over != "stdio":
        return ready.address.removesuffix("/mcp") + client.over, [*OURS, *THEIRS]
    own = folder / client.title.replace(" ", "-")
    own.mkdir()
    (own / ".mcp.json").write_text(json.dumps({"mcpServers": await _own_entries(stack)}))
    program = str(Path(__file__).with_name("gateway_stdio.py"))
    return [[sys.executable, program, str(own)], {"PYTHONPATH": str(ROOT / "src")}], OURS


def _work(client: SdkClient, place: object, servers: Sequence[Server]) -> Json:
    visited = [{"name": each.name, "own": not each.sdk, "asks": each.asks, "ticket": client.title} for each in servers]
    return {"mode": client.mode, "place": place, "servers": visited}


async def _visits(sdk: str, works: Sequence[Json]) -> list[Json]:
    """What the clients of an SDK saw, one after the other: to start Python with it takes longer than a visit."""
    process = await asyncio.create_subprocess_exec(
        str(STRANGERS / sdk / "bin" / "python"),
        str(Path(__file__).with_name("sdk_client.py")),
        sdk,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(),
    )
    try:
        async with asyncio.timeout(LONGEST_VISITS):
            output, errors = await process.communicate(json.dumps(works).encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode == 0, errors.decode(errors="replace")
    return json.loads(output)


# ------------------------------------------------------------------------------------------- our client with theirs


async def raw_visit(client: Client, server: Server, ticket: str) -> Json:
    """What a client of our own hand sees of an SDK's server; the same as sdk_client.py tells of an SDK's client."""
    client.is_plain = client.by_letter = True

    def tool(name: str) -> str:
        return f"{server.name}__{name}"

    saw: Json = {"echo": (await client.call(tool("echo"), {"text": "hello"})).first}
    saw["structured"] = (await client.call(tool("add"), {"a": 1, "b": 2})).result.get("structuredContent")
    counted = await client.call(tool("count"), {"to": 20}, token=ticket)
    saw["count"] = counted.first
    notices = [notice["params"] for notice in counted.notices if notice["method"] == "notifications/progress"]
    assert all(params["progressToken"] == ticket for params in notices)
    saw["progress"] = [[params["progress"], params["total"], params.get("message")] for params in notices]
    seen = client.count("notifications/message")
    await client.call(tool("mutter"), level="warning")
    # An SDK writes its log and its answers by different ways, so that a line may come after the answer.
    await client.heard("notifications/message", seen + 1)
    line = client.last("notifications/message")["params"]
    saw["log"] = [[line["level"], line["data"]]]
    request = client.message("tools/call", {"name": tool("hang"), "arguments": {"ticket": ticket}}, token="hanging")
    seen = client.count("notifications/progress")
    client.start(request)
    await client.heard("notifications/progress", seen + 1)
    client.cancel(request)
    saw["cancelled"] = (await client.call(tool("ended"), {"ticket": ticket})).first
    form = await client.call(tool("choose"), {"message": "accept"})
    saw["form"] = form.error if "error" in form.reply else form.first
    model = await client.call(tool("ponder"), {"question": "Why?"})
    saw["model"] = model.first
    saw["asked"] = len(form.questions) + len(model.questions)
    (contents,) = (await client.request("resources/read", {"uri": f"{server.name}+text://second"})).result["contents"]
    saw["resource"] = [contents["uri"], contents["text"]]
    assert client.complaints == [], client.complaints
    return saw


# ------------------------------------------------------------------------------------------------ what there is to see


def compared(saw: Mapping[str, Any], revision: str, server: Server, said: str) -> set[str]:
    """Hold what a client of a revision saw of a server against what it should have; what was not carried as it is."""
    marks: set[str] = set()
    own = not server.sdk
    assert saw["echo"] == "hello"
    structured = {"total": 3} if own else {"total": 3, "terms": [1, 2]}
    has_structured = server.revision >= "2025-06-18"
    if revision >= "2025-06-18":
        assert saw["structured"] == (structured if has_structured else None), saw
    else:
        assert saw["structured"] is None
        if has_structured:
            marks.add("a")
            assert not own or saw["last"] == {"type": "text", "text": '{"total":3}'}, saw
    words = revision >= "2025-03-26" <= server.revision
    marks |= {"e"} if revision < "2025-03-26" <= server.revision else set()
    assert saw["progress"] == [[n, 20, f"at {n}" if words else None] for n in range(1, 21)], saw
    assert saw["count"] == ("counted" if own else "counted to 20")
    assert saw["log"] == [["warning", "a line of warning"]], saw
    assert saw["cancelled"] == "ended"
    asked = 1
    if server.asks and revision >= "2025-06-18":
        asked = 2
        if own:
            action, content = json.loads(saw["form"])
            assert action == "accept" and content["colour"] == "green", saw
            assert server.revision == "2025-06-18" or content["toppings"] == ["cheese", "ham"], saw
            marks |= {"f"} if revision == "2025-06-18" < server.revision else set()
        else:
            assert saw["form"] == "accept green 3" or saw["form"] == "accept ? 3", saw
    elif server.asks:
        marks.add("d")
        if isinstance(saw["form"], dict):
            assert saw["form"]["code"] in (-32601, -32603), saw  # This SDK answers with the error that it got itself.
        else:
            assert not saw["form"].startswith("accept"), saw
    assert saw["asked"] == asked, saw
    if own:
        assert json.loads(saw["model"])["text"] == said, saw
    else:
        assert saw["model"].endswith(f": {said}"), saw
    uri, text = ("note://one", "one") if own else ("text://second", "two")
    assert saw["resource"] == [f"{server.name}+{uri}", text], saw
    return marks
