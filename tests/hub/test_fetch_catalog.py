"""What a server offers: all pages, unchanged, up to the limits."""

import asyncio
from collections.abc import Iterable, Mapping

import msgspec
import pytest

from sluicegate.errors import METHOD_NOT_FOUND, ErrorObject, RemoteProtocolError, UpstreamProtocolError
from sluicegate.exchange import Exchange
from sluicegate.hub.catalog import GATEWAY, HOPS, MAX_HOPS, Offer, Offered, OfferLimits
from sluicegate.hub.fetch_catalog import changed_lists, fetch_offer, offered
from sluicegate.protocol.message import Params, Reply, Result
from sluicegate.protocol.modern_era import Discovery
from sluicegate.protocol.pagination import MAX_COMMAS, MAX_MALFORMED

TOOLS, PROMPTS, RESOURCES = (f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources"))


class Listing:
    """A server that has lists only."""

    def __init__(self, capabilities: Params, **pages: ErrorObject | Mapping[str | None, Params | msgspec.Raw]) -> None:
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
        await asyncio.Event().wait()


def tool(name: str, **more: object) -> Params:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def as_clients_see(entries: Iterable[Offered]) -> list[object]:
    return [msgspec.json.decode(msgspec.json.encode(entry.definition)) for entry in entries]


def names(offer: Offer) -> list[str]:
    return [entry.own for entry in offer.tools]


def raw(page: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(page))


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
    assert as_clients_see(offer.tools) == [tool("a", later=[1]), tool("b")]
    assert as_clients_see(offer.prompts) == [{"name": "p"}]
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
    assert offer == Offer(resources=(offered("uri", {"uri": "a:b", "name": "n"}),))


async def test_a_list_that_was_announced_and_is_refused_is_a_fault() -> None:
    server = Listing({"tools": {}}, tools_list=ErrorObject(-32603, "no"))
    with pytest.raises(UpstreamProtocolError, match="s refuses tools/list: no"):
        await fetch_offer("s", server, OfferLimits())


# --------------------------------------------------------------------------------------------------- no more than fits

LARGE = "x" * 100_000


@pytest.mark.parametrize("as_bytes", [True, False])
async def test_entries_beyond_the_limits_are_left_out_and_reported(as_bytes: bool) -> None:
    tools = [
        tool("long", description="x" * 11),
        tool("deep", outputSchema={"x": "y" * 100}),
        tool("titled", title=LARGE),
        tool("marked", later={"x": LARGE}),
        tool("a"),
        tool("b"),
        tool("c"),
    ]
    page: Params = {"tools": tools}
    server = Listing({"tools": {}}, tools_list={None: raw(page) if as_bytes else page})
    offer = await fetch_offer("s", server, OfferLimits(entries=2, description=10, schema=60))
    assert names(offer) == ["a", "b"]
    assert offer.findings == (
        "s: it has more than 2 tools; the rest is left out.",
        "s: left out of its tools, as too large or nested too deeply: 'long', 'deep', 'titled', 'marked'.",
    )


ICONS: list[object] = [{"src": f"data:image/png;base64,{LARGE}"}]


@pytest.mark.parametrize(
    ("members", "kept", "lost"),
    [
        ({"icons": ICONS, "_meta": {"x": 1}}, {"_meta": {"x": 1}}, "icons"),
        ({"icons": [{"src": "data:,"}], "_meta": {"x": LARGE}}, {"icons": [{"src": "data:,"}]}, "_meta"),
        ({"icons": ICONS, "_meta": {"x": LARGE}, "later": 1}, {"later": 1}, "icons, _meta"),
    ],
)
async def test_an_entry_is_not_lost_for_pictures_and_notes_that_are_too_large(
    members: Params, kept: Params, lost: str
) -> None:
    page: Params = {"tools": [tool("t", **members), tool("good"), tool("titled", title=LARGE, icons=ICONS)]}
    offer = await fetch_offer("s", Listing({"tools": {}}, tools_list={None: raw(page)}), OfferLimits())
    assert as_clients_see(offer.tools) == [tool("t", **kept), tool("good")]
    assert offer.findings == (
        "s: left out of its tools, as too large or nested too deeply: 'titled'.",
        f"s: members left out of its tools, as too large: 't' ({lost}).",
    )


async def test_entries_of_a_gateway_count_the_gateways_and_are_left_out_beyond_the_limit() -> None:
    tools = [tool("near"), tool("far", _meta={HOPS: MAX_HOPS - 1}), tool("looping", _meta={HOPS: MAX_HOPS})]
    page: Params = {"tools": tools, "_meta": {GATEWAY: True}}
    offer = await fetch_offer("s", Listing({"tools": {}}, tools_list={None: raw(page)}), OfferLimits())
    assert as_clients_see(offer.tools) == [tool("near", _meta={HOPS: 1}), tool("far", _meta={HOPS: MAX_HOPS})]
    assert offer.is_gateway
    assert "1 left out of its tools: they passed through more than 8 gateways" in offer.findings[0]


async def test_of_many_that_are_too_large_only_some_are_named() -> None:
    page: Params = {"tools": [*(tool(f"t{n}", title="x" * 1_000_000) for n in range(7)), tool("good")]}
    offer = await fetch_offer("s", Listing({"tools": {}}, tools_list={None: raw(page)}), OfferLimits())
    assert names(offer) == ["good"]
    assert offer.findings == (
        "s: left out of its tools, as too large or nested too deeply: 't0', 't1', 't2', 't3', 't4' and 2 more.",
    )


async def test_all_lists_together_have_a_limit_beyond_which_nothing_is_asked_for() -> None:
    def page(first: int, cursor: str | None) -> msgspec.Raw:
        tools = [tool(f"t{n}", inputSchema={"type": "object", "x": LARGE}) for n in range(first, first + 4)]
        return raw({"tools": tools, "nextCursor": cursor})

    pages = {None: page(0, "2"), "2": page(4, "3"), "3": page(8, None)}
    server = Listing({"tools": {}, "prompts": {}}, tools_list=pages, prompts_list={None: {"prompts": []}})
    offer = await fetch_offer("s", server, OfferLimits(whole=600_000))
    assert names(offer) == ["t0", "t1", "t2", "t3", "t4"]
    assert server.asked == [("tools/list", None), ("tools/list", "2")]
    assert offer.findings == (
        "s: its lists are larger than 0.572205 MiB together; the rest, from its tools on, is left out.",
    )


async def test_a_page_of_millions_of_pieces_is_not_opened() -> None:
    page = b'{"tools": [' + b"1," * (MAX_COMMAS + 1) + b"1]}"
    server = Listing({"tools": {}, "prompts": {}}, tools_list={None: msgspec.Raw(page)})
    offer = await fetch_offer("s", server, OfferLimits())
    assert offer.findings == ("s: its lists are larger than 8 MiB together; the rest, from its tools on, is left out.",)


async def test_a_tool_with_a_deeply_nested_schema_is_left_out() -> None:
    schema: Params = {"type": "object"}
    for _ in range(300):
        schema = {"allOf": [schema]}
    page: Params = {"tools": [tool("deep", inputSchema=schema), tool("good")]}
    offer = await fetch_offer("s", Listing({"tools": {}}, tools_list={None: raw(page)}), OfferLimits())
    assert names(offer) == ["good"]
    assert offer.findings == ("s: left out of its tools, as too large or nested too deeply: 'deep'.",)


async def test_malformed_entries_are_skipped() -> None:
    page: Params = {"tools": [1, "x", [], {"name": 1}, tool("good"), None], "_meta": {"x": LARGE}}
    offer = await fetch_offer("s", Listing({"tools": {}}, tools_list={None: raw(page)}), OfferLimits())
    assert names(offer) == ["good"]


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        (b'{"name": "a", "inputSchema": {"type": "object", "maximum": 1e999}}', "a"),
        (b'{"name": 1e999}', "?"),
        (b'{"name": "\xff"}', "?"),
        (b'{"\xff": "a"}', "?"),
    ],
)
async def test_one_entry_that_cannot_be_decoded_does_not_cost_the_others(entry: bytes, name: str) -> None:
    page = msgspec.Raw(b'{"tools": [' + entry + b", " + bytes(raw(tool("good"))) + b"]}")
    offer = await fetch_offer("s", Listing({"tools": {}}, tools_list={None: page}), OfferLimits())
    assert names(offer) == ["good"]
    assert offer.findings == (f"s: left out of its tools, as malformed: {name!r} (it cannot be decoded).",)


async def test_an_entry_that_is_too_large_and_has_no_readable_name_does_not_cost_the_others() -> None:
    entry = b'{"name": "\xff", "x": "%b"}' % (b"x" * 1_000_000)
    page = msgspec.Raw(b'{"tools": [' + entry + b", " + bytes(raw(tool("good"))) + b"]}")
    offer = await fetch_offer("s", Listing({"tools": {}}, tools_list={None: page}), OfferLimits())
    assert names(offer) == ["good"]
    assert offer.findings == ("s: left out of its tools, as too large or nested too deeply: '?'.",)


async def test_too_many_entries_that_cannot_be_decoded_end_the_list() -> None:
    entries = b", ".join([b'{"name": 1e999}'] * (MAX_MALFORMED + 1) + [bytes(raw(tool("last")))])
    page = msgspec.Raw(b'{"tools": [' + entries + b"]}")
    offer = await fetch_offer("s", Listing({"tools": {}}, tools_list={None: page}), OfferLimits())
    assert names(offer) == []
    assert offer.findings[0] == "s: more than 1000 of its tools are malformed; the rest is left out."


@pytest.mark.parametrize(
    "page",
    [b"[]", b'{"tools": [{"name": "a", "x": nan}]}', b'{"tools": {}}', b'{"tools": 5}'],
)
async def test_a_page_that_cannot_be_read_at_all_is_a_fault(page: bytes) -> None:
    server = Listing({"tools": {}}, tools_list={None: msgspec.Raw(page)})
    with pytest.raises((RemoteProtocolError, UpstreamProtocolError)):
        await fetch_offer("s", server, OfferLimits())


@pytest.mark.parametrize("page", [b"{}", b'{"tools":null}'])
async def test_a_page_without_its_list_is_an_empty_one_and_reported(page: bytes) -> None:
    offer = await fetch_offer("s", Listing({"tools": {}}, tools_list={None: msgspec.Raw(page)}), OfferLimits())
    assert (offer.tools, offer.failures) == ((), {})
    assert offer.findings == ("s: its answer to tools/list has no tools, which is read as an empty list.",)


async def test_others_get_their_turn_while_lists_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.runtime.task_scope.TURN", 0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    page: Params = {"tools": [tool(f"t{n}") for n in range(500)]}
    other = asyncio.ensure_future(others())
    try:
        await fetch_offer("s", Listing({"tools": {}}, tools_list={None: raw(page)}), OfferLimits())
    finally:
        other.cancel()
    assert turns >= 500


async def test_marks_for_headers_stay_if_a_client_can_follow_them_and_go_if_it_would_drop_the_tool() -> None:
    def marked(value: object) -> Params:
        return {"type": "object", "properties": {"x": {"type": "string", "x-mcp-header": value}}}

    good, bad = tool("good", inputSchema=marked("Region")), tool("bad", inputSchema=marked("no header!"))
    offer = await fetch_offer("s", Listing({"tools": {}}, tools_list={None: {"tools": [good, bad]}}), OfferLimits())
    unmarked: Params = {"type": "object", "properties": {"x": {"type": "string"}}}
    assert as_clients_see(offer.tools) == [good, tool("bad", inputSchema=unmarked)]
    assert [dict(entry.marks) for entry in offer.tools] == [{"region": ("x",)}, {}]


# --------------------------------------------------------------------------------------------------------- what changed


def test_two_offers_differ_in_the_lists_whose_change_a_server_tells_of() -> None:
    a, p = Offered("a", tool("a")), Offered("p", {"name": "p"})
    before = Offer(tools=(a,), prompts=(p,))
    assert changed_lists(before, before) == set()
    assert changed_lists(None, before) == {TOOLS, PROMPTS}
    assert changed_lists(before, Offer(tools=(Offered("a", tool("a")),))) == {PROMPTS}
    template = Offered("a:{b}", {"uriTemplate": "a:{b}", "name": "n"})
    assert changed_lists(before, Offer(before.tools, before.prompts, templates=(template,))) == {RESOURCES}
