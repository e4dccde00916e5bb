"""Results with very many entries are refused before they are decoded entry by entry (T4)."""

import asyncio
from typing import cast

import msgspec
import pytest

import sluicegate
from sluicegate.errors import ErrorObject, UpstreamProtocolError
from sluicegate.exchange import NOBODY, Exchange
from sluicegate.protocol.message import Params, Reply, Result, opened
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.protocol.translate.results import reply_for_session
from sluicegate.protocol.versions import REVISIONS
from tests.hub.scripted import Scripted, tools

LINK = b'{"type":"resource_link","uri":"a://x","name":"n"}'
TEXT = b'{"type":"text","text":""}'
EMPTY = b"{}"


def result(entry: bytes, count: int, rest: bytes = b"") -> msgspec.Raw:
    entries = b",".join([entry] * count)
    return msgspec.Raw(b'{"resultType":"complete","content":[' + entries + b"]" + rest + b"}")


async def replied(raw: msgspec.Raw) -> Reply:
    """What a caller gets through a hub when its server answers a call with this result."""

    async def answer(exchange: Exchange) -> Reply:
        return tools("t") if exchange.method == "tools/list" else Result(raw)

    hub = sluicegate.Hub("hub")
    hub.mount("s", Scripted(answer, {"tools": {}}))
    async with hub, asyncio.timeout(20):
        await hub.settled()
        return await hub(Exchange("tools/call", {"name": "s__t", "arguments": {}}, NOBODY, ClientProfile()))


@pytest.mark.parametrize(
    "raw",
    [result(LINK, 100_000), result(TEXT, 300_000), result(LINK + b"," + EMPTY, 100_000)],
    ids=["links", "texts", "empty"],
)
async def test_too_many_entries_are_refused_as_an_invalid_answer(raw: msgspec.Raw) -> None:
    with pytest.raises(UpstreamProtocolError, match="more than 100000 commas, colons and brackets"):
        await replied(raw)


async def test_many_entries_pass_with_their_names_changed() -> None:
    reply = cast(Result, await replied(result(LINK, 10_000)))
    links = cast(list[Params], opened(reply)["content"])
    assert len(links) == 10_000 and links[-1]["uri"] != "a://x"


async def test_a_large_table_beside_a_text_passes() -> None:
    table = b',"structuredContent":{"rows":[' + b",".join([b"[1,2,3]"] * 200_000) + b"]}"
    reply = await replied(result(TEXT, 1, table))
    assert not isinstance(reply, ErrorObject)


def test_a_large_table_is_added_as_text_for_an_older_client_without_comparing_it() -> None:
    table = b',"structuredContent":{"rows":[' + b",".join([b"[1,2,3]"] * 200_000) + b"]}"
    reply = reply_for_session("tools/call", {}, Result(result(TEXT, 1, table)), REVISIONS["2025-03-26"])
    assert isinstance(reply, Result) and len(cast(list[object], opened(reply)["content"])) == 2


def test_too_many_entries_are_not_translated_for_an_older_client() -> None:
    with pytest.raises(UpstreamProtocolError, match="more than 100000"):
        reply_for_session("tools/call", {}, Result(result(LINK, 100_000)), REVISIONS["2025-03-26"])
