"""What one server offers: every page, as it came, and no more than fits."""

import logging
from collections.abc import Mapping

import pytest

from sluicegate.errors import METHOD_NOT_FOUND, ErrorObject, UpstreamProtocolError
from sluicegate.exchange import Exchange
from sluicegate.hub.offers import Offer, OfferLimits, changed_lists, fetch_offer
from sluicegate.protocol.discovery import Discovery
from sluicegate.protocol.message import Params, Reply, Result

TOOLS, PROMPTS, RESOURCES = (f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources"))


class Listing:
    """A server that has lists only."""

    def __init__(self, capabilities: Params, **pages: ErrorObject | Mapping[str | None, Params]) -> None:
        self.discovery = Discovery("2026-07-28", capabilities=capabilities)
        self._pages = pages
        self.asked: list[tuple[str, object]] = []

    async def __call__(self, exchange: Exchange) -> Reply:
        cursor = exchange.params.get("cursor")
        self.asked.append((exchange.method, cursor))
        page = self._pages[exchange.method.replace("/", "_")]
        assert cursor is None or isinstance(cursor, str)
        return page if isinstance(page, ErrorObject) else Result(page[cursor])

    async def wait_closed(self) -> None:
        raise NotImplementedError


def tool(name: str, **more: object) -> Params:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


async def test_every_page_is_followed_and_the_shortest_life_of_all_counts() -> None:
    server = Listing(
        {"tools": {}, "prompts": {}},
        tools_list={
            None: {"tools": [tool("a", later=[1])], "nextCursor": "2", "ttlMs": 50, "cacheScope": "public"},
            "2": {"tools": [tool("b")], "ttlMs": 9, "cacheScope": "public"},
        },
        prompts_list={None: {"prompts": [{"name": "p"}], "ttlMs": 70, "cacheScope": "public"}},
    )
    offer = await fetch_offer("s", server, OfferLimits())
    assert offer.tools == (tool("a", later=[1]), tool("b"))
    assert offer.prompts == ({"name": "p"},)
    assert (offer.ttl_ms, offer.is_public) == (9, True)
    assert server.asked == [("tools/list", None), ("tools/list", "2"), ("prompts/list", None)]


async def test_one_private_list_makes_the_offer_private() -> None:
    server = Listing(
        {"tools": {}, "prompts": {}},
        tools_list={None: {"tools": [], "ttlMs": 5, "cacheScope": "public"}},
        prompts_list={None: {"prompts": [], "ttlMs": 5, "cacheScope": "private"}},
    )
    assert not (await fetch_offer("s", server, OfferLimits())).is_public


async def test_a_server_may_have_resources_and_no_templates() -> None:
    server = Listing(
        {"resources": {}},
        resources_list={None: {"resources": [{"uri": "a:b", "name": "n"}]}},
        resources_templates_list=ErrorObject(METHOD_NOT_FOUND, "Method not found"),
    )
    offer = await fetch_offer("s", server, OfferLimits())
    assert offer == Offer(resources=({"uri": "a:b", "name": "n"},))


async def test_a_list_that_was_announced_and_is_refused_is_a_fault() -> None:
    server = Listing({"tools": {}}, tools_list=ErrorObject(-32603, "no"))
    with pytest.raises(UpstreamProtocolError, match="s refuses tools/list: no"):
        await fetch_offer("s", server, OfferLimits())


async def test_what_is_too_large_or_too_much_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    tools = [
        tool("long", description="x" * 11),
        tool("deep", outputSchema={"x": "y" * 100}),
        tool("a"),
        tool("b"),
        tool("c"),
    ]
    server = Listing({"tools": {}}, tools_list={None: {"tools": tools}})
    with caplog.at_level(logging.WARNING, "sluicegate"):
        offer = await fetch_offer("s", server, OfferLimits(entries=4, description=10, schema=60))
    assert [entry["name"] for entry in offer.tools] == ["a", "b"]
    assert "more than 4 entries" in caplog.text
    assert caplog.text.count("too large") == 2


def test_two_offers_differ_in_the_lists_whose_change_a_server_tells_of() -> None:
    before = Offer(tools=(tool("a"),), prompts=({"name": "p"},))
    assert changed_lists(before, before) == set()
    assert changed_lists(None, before) == {TOOLS, PROMPTS}
    assert changed_lists(before, Offer(tools=(tool("a"),))) == {PROMPTS}
    template: Params = {"uriTemplate": "a:{b}", "name": "n"}
    assert changed_lists(before, Offer(before.tools, before.prompts, templates=(template,))) == {RESOURCES}
