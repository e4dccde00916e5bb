"""Replies pass unchanged only if nothing in them has to be rewritten or counted."""

import msgspec
import pytest

from sluicegate.errors import ErrorObject
from sluicegate.exchange import Exchange
from sluicegate.hub.call_sink import losses_in
from sluicegate.hub.calls import is_plain, revision_of, says_error
from sluicegate.hub.input_requests import RequestStates
from sluicegate.hub.naming import reply_rewritten
from sluicegate.protocol.message import Params, Result, read_tool_text
from sluicegate.protocol.modern_era import complete
from sluicegate.protocol.versions import REVISIONS
from tests.upstream.raw_server import Recorder

LINK: Params = {"type": "resource_link", "uri": "note://one", "name": "one"}

RESULTS: list[Params] = [
    {"content": [{"type": "text", "text": "plain words"}]},
    {"content": [{"type": "text", "text": "failed"}], "isError": True},
    {"content": [{"type": "text", "text": "well"}], "isError": False},
    {"content": [LINK]},
    {"content": [{"type": "resource", "resource": {"uri": "note://one", "text": "1"}}]},
    {"content": [{"type": "audio", "data": "", "mimeType": "audio/wav"}]},
    {"content": [], "structuredContent": {"total": 3}},
    {"content": [], "structuredContent": [1]},
    {"content": [], "_meta": {"ui": {"resourceUri": "ui://page"}}},
    {"content": [], "_meta": {"ui/resourceUri": "ui://page"}},
    {"content": [{"type": "text", "text": "long " * 10_000}, LINK]},
]


def typed(value: Params) -> Result:
    raw = msgspec.Raw(msgspec.json.encode(complete(value)))
    return Result(read_tool_text(raw) or raw)


@pytest.mark.parametrize("version", [*REVISIONS, "2031-01-01"])
@pytest.mark.parametrize("value", RESULTS, ids=lambda value: str(value)[:60])
def test_a_plain_reply_is_one_in_which_nothing_is_to_be_done(version: str, value: Params) -> None:
    reply = typed(value)
    exchange = Exchange("tools/call", {"name": "t"}, Recorder())
    is_left_alone = (
        not says_error(reply)
        and not list(losses_in("tools/call", reply, revision_of(version)))
        and RequestStates().wrapped(exchange, "files", reply, "files") is reply
        and reply_rewritten("tools/call", reply, lambda uri: f"files+{uri}") is reply
    )
    if is_plain(reply, version):
        assert is_left_alone


@pytest.mark.parametrize("version", [*REVISIONS, "2031-01-01"])
def test_text_is_plain_and_structured_content_where_the_revision_has_it(version: str) -> None:
    assert is_plain(typed(RESULTS[0]), version)
    assert is_plain(typed(RESULTS[2]), version)
    assert is_plain(typed({"content": [], "structuredContent": {}}), version) is revision_of(version).structured_content


def test_failures_errors_and_what_was_not_read_are_not_plain() -> None:
    assert not is_plain(typed({"content": [], "isError": True}), "2026-07-28")
    assert says_error(typed({"content": [], "isError": True}))
    assert not is_plain(Result(msgspec.Raw(b'{"content":[]}')), "2026-07-28")
    assert not is_plain(ErrorObject(-32603, "no"), "2026-07-28")
