"""Pages of lists are kept encoded, and only their cursors differ between callers."""

import pytest

from sluicegate.errors import InvalidParams
from sluicegate.exchange import NOBODY, Caller, Exchange
from sluicegate.hub import catalog
from sluicegate.hub.hub import Hub
from sluicegate.protocol.message import Params, Reply, Result, opened
from sluicegate.protocol.modern_era import ClientProfile, complete
from sluicegate.protocol.translate import results as translate
from tests.hub.scripted import Scripted, tools


async def server(exchange: Exchange) -> Reply:
    return tools(*(f"t{number}" for number in range(25)))


async def listed(hub: Hub, caller: str, version: str) -> list[Params]:
    pages: list[Params] = []
    params: Params = {}
    while True:
        reply = await hub(Exchange("tools/list", params, NOBODY, ClientProfile(version), Caller(caller)))
        assert isinstance(reply, Result)
        pages.append(opened(reply))
        if "nextCursor" not in pages[-1]:
            return pages
        params = {"cursor": pages[-1]["nextCursor"]}


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_all_callers_get_the_same_pages_with_cursors_of_their_own(version: str) -> None:
    hub = Hub(page_size=10)
    hub.mount("s", Scripted(server, {"tools": {}}))
    async with hub:
        await hub.settled()
        alice, bob = await listed(hub, "alice", version), await listed(hub, "bob", version)
        cursors = [{page.pop("nextCursor", None) for page in pages} for pages in (alice, bob)]
        assert alice == bob and len(alice) == 3
        assert cursors[0] & cursors[1] == {None}
        assert ("resultType" in alice[0]) == (version == "2026-07-28")
        cursor = next(cursor for cursor in cursors[0] if cursor is not None)
        with pytest.raises(InvalidParams, match="start again without it"):
            await hub(Exchange("tools/list", {"cursor": cursor}, NOBODY, ClientProfile(version), Caller("bob")))


async def test_a_page_is_encoded_and_translated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(page_size=10)
    hub.mount("s", Scripted(server, {"tools": {}}))
    async with hub:
        await hub.settled()
        first = await listed(hub, "alice", "2025-11-25")
        monkeypatch.setattr(translate, "_result_for_session", None)
        assert len(await listed(hub, "bob", "2025-11-25")) == len(first)


@pytest.mark.parametrize("method", ["tools/list", "prompts/list", "resources/list", "resources/templates/list"])
async def test_the_lists_of_a_profile_are_private(method: str) -> None:
    """T11: a shared cache must not show them to clients of another profile."""

    async def public(exchange: Exchange) -> Reply:
        member = {"resources/templates/list": "resourceTemplates"}.get(exchange.method, exchange.method.split("/")[0])
        return Result(complete({member: []}, ttl_ms=5000, scope="public"))

    hub = Hub()
    hub.mount("s", Scripted(public, {"tools": {}, "prompts": {}, "resources": {}}))
    async with hub:
        await hub.settled()
        part = hub.router("part", catalog.Subset(servers=("s",)))
        for handler, scope in ((hub, "public"), (part, "private")):
            reply = await handler(Exchange(method, {}, NOBODY))
            assert isinstance(reply, Result) and opened(reply)["cacheScope"] == scope
