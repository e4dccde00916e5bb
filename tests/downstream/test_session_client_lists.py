"""A list that does not change is made ready for older clients once, and never kept when it does change."""

import msgspec

from sluicegate.downstream.session_client import Replies, SessionSide
from sluicegate.exchange import NOBODY, Exchange
from sluicegate.protocol.message import Reply, Result, opened
from sluicegate.protocol.versions import REVISIONS, Revision


class NoSide:
    """A client that is owed nothing."""

    def __init__(self, revision: Revision) -> None:
        self.revision = revision


def listed(*names: str) -> Result:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
    return Result(msgspec.Raw(msgspec.json.encode({"resultType": "complete", "tools": tools, "ttlMs": 5})))


class Shelf:
    """Answers with the list that is on it."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply

    async def __call__(self, exchange: Exchange) -> Reply:
        return self.reply


async def ask(replies: Replies, version: str) -> Reply:
    side: SessionSide = NoSide(REVISIONS[version])  # pyright: ignore[reportAssignmentType] - all that is asked of it
    return await replies.answer(Exchange("tools/list", {}, NOBODY), side)


def names_in(reply: Reply) -> list[object]:
    assert isinstance(reply, Result)
    value = opened(reply)
    assert "resultType" not in value and "ttlMs" not in value
    return [tool["name"] for tool in value["tools"]]  # pyright: ignore


async def test_the_same_list_is_the_same_answer_and_another_is_another() -> None:
    shelf = Shelf(listed("one"))
    replies = Replies(shelf)
    first = await ask(replies, "2025-11-25")
    assert names_in(first) == ["one"]
    assert await ask(replies, "2025-11-25") is first
    shelf.reply = listed("one", "two")
    assert names_in(await ask(replies, "2025-11-25")) == ["one", "two"]


async def test_each_revision_has_its_own() -> None:
    icon = {"src": "https://example.com/i.png"}
    tool = {"name": "one", "inputSchema": {"type": "object"}, "icons": [icon]}
    replies = Replies(Shelf(Result(msgspec.Raw(msgspec.json.encode({"resultType": "complete", "tools": [tool]})))))
    newer, older = await ask(replies, "2025-11-25"), await ask(replies, "2025-06-18")
    assert isinstance(newer, Result) and isinstance(older, Result)
    assert b"icons" in msgspec.json.encode(newer.value)
    assert b"icons" not in msgspec.json.encode(older.value)


async def test_a_list_that_is_built_for_each_request_is_not_kept() -> None:
    tools = [{"name": "one", "inputSchema": {"type": "object"}}]
    shelf = Shelf(Result({"resultType": "complete", "tools": tools}))
    replies = Replies(shelf)
    assert names_in(await ask(replies, "2025-11-25")) == ["one"]
    tools.append({"name": "two", "inputSchema": {"type": "object"}})
    assert names_in(await ask(replies, "2025-11-25")) == ["one", "two"]
