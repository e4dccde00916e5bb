"""The official SDKs on both sides of the gateway: their clients with our servers and theirs, ours with theirs.

Each does less than the clients of our own hand do, for it does not let everything be seen; but it judges what it gets.
"""

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from tests.bridge.checks import whole
from tests.bridge.clients import Client
from tests.bridge.matrix import CHANGED, UPDATED, Cell
from tests.bridge.sdk_sides import (
    CLIENTS,
    OURS,
    THEIRS,
    VERSIONS,
    Json,
    SdkClient,
    Server,
    own_entries,
    own_gateway,
    their_entries,
    visits,
    write_eras,
)
from tests.bridge.stage import SIDES, Side, Stage, opened_stage

OFFERED: Final = {"echo", "count", "mutter", "hang", "ended", "ponder"}
"""What every server has, of our own hand or an SDK's."""

SdkMatrix = dict[tuple[str, str], Cell]


async def run_sdks(folder: Path, *, every_pair: bool) -> SdkMatrix:
    """What comes of all pairs with an SDK in them.

    Without `every_pair`, clients over stdio visit no servers over stdio, and their cells are those of the same client
    over HTTP. Each such client has a gateway of its own that would start all those servers again, which takes as long
    as everything else together.
    """
    async with AsyncExitStack() as stack:
        theirs = await their_entries(stack)
        write_eras(folder, theirs)
        ready = await stack.enter_async_context(opened_stage(folder, {**await own_entries(stack), **theirs}))
        versions = {status.name: status.version for status in ready.gateway.status()}
        assert versions == {server.name: server.revision for server in (*OURS, *THEIRS)}
        # Clients over stdio start gateways of their own, which have nothing to do with the one that all others share.
        everyone = [*OURS, *THEIRS]
        visited = everyone if every_pair else [server for server in everyone if server.over != "stdio"]
        names = {server.name for server in visited}
        behind = {name: entry for name, entry in theirs.items() if name in names}
        gateways = {
            client: own_gateway(folder / client.ticket, {**await own_entries(stack), **behind})
            for client in CLIENTS
            if client.over == "stdio"
        }
        origin = ready.address.removesuffix("/mcp")
        others = {client: origin + client.over for client in CLIENTS if client.over != "stdio"}
        (cells, met), over_stdio = await asyncio.gather(
            _in_turn(_by_hand(ready), _met(others, everyone)), _met(gateways, visited)
        )
    for client in gateways:
        (same,) = [other for other in CLIENTS if other == client._replace(over="/mcp")]
        for server in everyone:
            over_stdio.setdefault((client.title, server.title), met[same.title, server.title])
    return cells | met | over_stdio


async def _in_turn(first: Awaitable[SdkMatrix], second: Awaitable[SdkMatrix]) -> tuple[SdkMatrix, SdkMatrix]:
    return await first, await second


async def _met(places: Mapping[SdkClient, object], servers: Sequence[Server]) -> SdkMatrix:
    """What comes of the SDKs' clients with these servers; each client finds the gateway at its place."""
    cells: SdkMatrix = {}
    for sdk in VERSIONS:
        clients = [client for client in places if client.sdk == sdk]
        reports = await visits(sdk, [_work(client, places[client], servers) for client in clients])
        for client, report in zip(clients, reports, strict=True):
            for server in servers:
                cell = cells[client.title, server.title] = Cell()
                with cell.noting("visit"):
                    _judge(report, client, server, cell)
    return cells


def _work(client: SdkClient, place: object, servers: Sequence[Server]) -> Json:
    number = CLIENTS.index(client)
    visits = [
        {"name": each.name, "own": each.sdk is None, "asks": each.asks, "trick": f"{_trick(each)}-{number}"}
        for each in servers
    ]
    over = {"stdio": "stdio", "/sse": "sse"}.get(client.over, "http")
    return {"mode": client.mode, "over": over, "place": place, "servers": visits, "ticket": client.ticket}


def _trick(server: Server) -> str:
    """The name of a tool that a server is to learn; two that are one process learn one each."""
    return f"trick-{server.revision[:4]}"


def _judge(report: Json, client: SdkClient, server: Server, cell: Cell) -> None:
    assert "failed" not in report, report["failed"]
    assert report["version"] == client.revision
    assert report["noise"] == [], report["noise"]
    saw = report[server.name]
    assert "failed" not in saw, saw["failed"]
    said = "What is the answer? Indeed." if server.sdk is None else "Why? Indeed."
    cell.marks = compared(saw, client.revision, server, said)


# ------------------------------------------------------------------------------------------- our client with theirs


async def _by_hand(ready: Stage) -> SdkMatrix:
    """What comes of the clients of our own hand with the SDKs' servers."""
    await asyncio.gather(*(ready.enter(side) for side in SIDES))
    meetings = {(side, server): _Meeting(ready.clients[side]) for side in SIDES for server in THEIRS}
    # In each round every client has a server for itself: a line of a server's log does not say whose call it is of.
    for turn in range(len(THEIRS)):
        pairs = [(side, THEIRS[(number + turn) % len(THEIRS)]) for number, side in enumerate(SIDES)]
        await asyncio.gather(*(meetings[side, server].visit(server, side.name) for side, server in pairs))
    listed = await _learned(ready)
    for (side, server), meeting in meetings.items():
        meeting.judge(side.revision, server, listed[side])
    return {(by_hand(side), server.title): meeting.cell for (side, server), meeting in meetings.items()}


def by_hand(side: Side) -> str:
    """What a client of our own hand is called."""
    return f"by hand {side.revision} {side.transport}"


class _Meeting:
    """A client of our own hand with an SDK's server: what it saw, and what is to be said of that."""

    def __init__(self, client: Client) -> None:
        self.cell = Cell()
        self._client = client
        self._saw: Json = {}

    async def visit(self, server: Server, ticket: str) -> None:
        with self.cell.noting("visit"):
            self._saw = await raw_visit(self._client, server, ticket)
            assert self._client.complaints == [], self._client.complaints

    def judge(self, revision: str, server: Server, names: Sequence[str]) -> None:
        if self.cell.failures:
            return
        with self.cell.noting("visit"):
            updates = [notice["params"]["uri"] for notice in self._client.notices if notice["method"] == UPDATED]
            self._saw["updates"] = sum(uri.startswith(f"{server.name}+") for uri in updates)
            self._saw["learned"] = _trick(server)
            prefix = f"{server.name}__"
            self._saw["listed"] = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
            assert self._client.complaints == [], self._client.complaints
            self.cell.marks = compared(self._saw, revision, server, "42")


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
    saw["resource"] = await _read(client, f"{server.name}+text://second")
    uri = f"{server.name}+text://{ticket}"
    seen = client.count(UPDATED)
    listening = await client.subscribe(uri)
    # The first is nobody's business here; if it were told of, it would come first.
    await client.call(tool("rewrite"), {"name": "unheard", "value": "whatever"})
    await client.call(tool("rewrite"), {"name": ticket, "value": "new"})
    await client.heard(UPDATED, seen + 1)
    saw["updated"] = client.last(UPDATED)["params"]["uri"].endswith(f"+text://{ticket}")
    saw["rewritten"] = await _read(client, uri)
    await client.unsubscribe(uri, listening)
    await client.call(tool("rewrite"), {"name": ticket, "value": "newer"})
    return saw


async def _read(client: Client, uri: str) -> list[str]:
    (contents,) = (await client.request("resources/read", {"uri": uri})).result["contents"]
    return [contents["uri"], contents["text"]]


async def _learned(ready: Stage) -> Mapping[Side, list[str]]:
    """What each client lists when it was told that the list changed, as often as it has to be told.

    All servers change at once: a client is told of changes of one kind once a second at most.
    """
    for client in ready.clients.values():
        if client.is_modern:
            await client.listen({"toolsListChanged": True})
    told = {side: client.count(CHANGED) for side, client in ready.clients.items()}
    someone = ready.clients[SIDES[0]]
    for server in THEIRS:
        assert (await someone.call(f"{server.name}__learn", {"name": _trick(server)})).first == "learned"
    wanted = {f"{server.name}__{_trick(server)}" for server in THEIRS}
    found = await asyncio.gather(*(_list_with(client, wanted, told[side]) for side, client in ready.clients.items()))
    return dict(zip(ready.clients, found, strict=True))


async def _list_with(client: Client, wanted: set[str], told: int) -> list[str]:
    """The names of all tools once these are among them, or when nothing more is told."""
    names: list[str] = []
    try:
        while not wanted <= set(names):
            await client.heard(CHANGED, told + 1)
            told = client.count(CHANGED)
            names = [tool["name"] for tool in await whole(client, "tools/list", "tools")]
    except TimeoutError:
        pass  # What is missing is seen in what there is.
    return names


# ------------------------------------------------------------------------------------------------ what there is to see


def compared(saw: Mapping[str, Any], revision: str, server: Server, said: str) -> set[str]:
    """Hold what a client of a revision saw of a server against what it should have; what was not carried as it is."""
    marks: set[str] = set()
    own = server.sdk is None
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
    # Not every SDK shows its caller all that arrives.
    assert saw.get("seen", []) == saw["progress"][: len(saw.get("seen", []))], saw
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
    assert saw["updated"] is True and saw["updates"] == 1, saw
    assert own or saw["rewritten"][1] == "new", saw
    assert len(saw["listed"]) == len(set(saw["listed"])), saw["listed"]
    assert {*OFFERED, saw["learned"]} <= set(saw["listed"]), saw["listed"]
    return marks
