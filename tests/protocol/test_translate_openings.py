"""A tool's result that begins as others did means to an older client what it would mean if it were opened."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluicegate.errors import ErrorObject
from sluicegate.protocol.message import Reply, Result
from sluicegate.protocol.modern import SERVER_INFO_KEY
from sluicegate.protocol.translate import reply_for_session
from sluicegate.protocol.translate_openings import LONGEST_OPENING, MOST_OPENINGS, Openings
from sluicegate.protocol.versions import REVISIONS, SESSION_VERSIONS, V2025_11_25

LATEST = REVISIONS[V2025_11_25]
HELLO: list[Any] = [{"type": "text", "text": "hello"}]
META = {SERVER_INFO_KEY: {"name": "echo", "version": "1"}}
USUAL = {"resultType": "complete", "_meta": META, "content": HELLO}


def raw(value: object, *, compact: bool = True) -> Result:
    """A result as it comes from a server."""
    return Result(msgspec.Raw(json.dumps(value, separators=(",", ":") if compact else None).encode()))


def read(reply: Reply) -> object:
    if not isinstance(reply, Result):
        return reply
    assert isinstance(reply.value, msgspec.Raw)
    return json.dumps(json.loads(bytes(reply.value)))  # By its words: to Python 1, 1.0 and true are equal.


def translated(openings: Openings, value: object, version: str = V2025_11_25) -> object:
    return read(openings.reply_for_session({}, raw(value), REVISIONS[version]))


def opened(value: object, version: str = V2025_11_25) -> object:
    return read(reply_for_session("tools/call", {}, raw(value), REVISIONS[version]))


def test_what_was_left_out_once_is_left_out_again() -> None:
    openings = Openings()
    for text in ("one", "two", 'a "quoted" one, and C:\\users'):
        content = [{"type": "text", "text": text}]
        assert translated(openings, {**USUAL, "content": content}) == json.dumps({"content": content})


MORE: list[dict[str, object]] = [
    {"isError": True},
    {"structuredContent": {"n": 1}},
    {"structuredContent": 5},
    {"structuredContent": None},
    {"structuredContent": {"structuredContent": 5}},
    {"content": [{"type": "text", "text": "x", "structuredContent": {}}], "structuredContent": 5},
    {"_meta": META},
    {"_meta": {"x": 1}},
    {"resultType": "complete"},
    {"ttlMs": 5},
    {"cacheScope": "public"},
    {"content": [{"type": "text", "text": "x", "_meta": {"x": 1}}]},
    {"content": [{"type": "text", "text": "é \u2028"}]},
    {"content": "not even a list"},
]


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("usual", [USUAL, {"resultType": "complete", "content": HELLO}, {"content": HELLO}])
def test_what_follows_a_known_beginning_is_translated_all_the_same(
    usual: dict[str, object], more: dict[str, object]
) -> None:
    openings = Openings()
    for value in (usual, {**usual, **more}, usual, {**usual, **more}):
        assert translated(openings, value) == opened(value)


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_what_one_revision_taught_is_not_taken_for_all_that_another_needs(version: str) -> None:
    openings = Openings()
    value = {**USUAL, "content": [{"type": "audio", "data": "", "mimeType": "audio/wav"}]}
    for wanted in (V2025_11_25, version, V2025_11_25, version):
        assert translated(openings, value, wanted) == opened(value, wanted)


def test_whether_a_structured_value_is_said_in_words_is_looked_at_each_time() -> None:
    openings = Openings()
    for text in ("5", "6", "5"):
        value = {"structuredContent": 5, "content": [{"type": "text", "text": text}]}
        assert translated(openings, value) == opened(value)


@pytest.mark.parametrize(
    "data",
    [
        b'{"structured\\u0043ontent":5,"content":[{"type":"text","text":"%b"}]}',
        b'{"result\\u0054ype":"complete","content":[{"type":"text","text":"%b"}]}',
        b'{"content":[{"type":"text","text":"%b"}],"result\\u0054ype":"complete"}',
        b'{"a\\"content":1,"content":[{"type":"text","text":"%b"}]}',
        b'{"resultType":"complete","x":{"content":[]},"content":[{"type":"text","text":"%b"}]}',
        b'{"resultType":"complete","content" : [{"type":"text","text":"%b"}],"_meta" : {}}',
        b'{"resultType":"complete","isError":true}',
        b"{}",
    ],
)
def test_names_that_are_written_in_an_unusual_way_are_read_all_the_same(data: bytes) -> None:
    openings = Openings()
    for text in (b"5", b"6", b"5"):
        result = Result(msgspec.Raw(data.replace(b"%b", text)))
        alone = reply_for_session("tools/call", {}, result, LATEST)
        assert read(openings.reply_for_session({}, result, LATEST)) == read(alone)


def test_errors_and_results_that_are_no_bytes_are_translated_as_ever() -> None:
    openings = Openings()
    translated(openings, USUAL)
    assert openings.reply_for_session({}, ErrorObject(-32022, "no"), LATEST) == ErrorObject(-32603, "no")
    assert openings.reply_for_session({}, Result(USUAL), LATEST) == Result({"content": HELLO})


def test_only_so_many_beginnings_are_known_and_no_long_ones() -> None:
    openings = Openings()
    for number in range(3 * MOST_OPENINGS):
        value = {"resultType": "complete", "_meta": {SERVER_INFO_KEY: {"name": str(number)}}, "content": HELLO}
        assert translated(openings, value) == json.dumps({"content": HELLO})
    long = {"_meta": {SERVER_INFO_KEY: {"name": "x" * LONGEST_OPENING}}, "content": HELLO}
    for _ in range(2):
        assert translated(openings, long) == json.dumps({"content": HELLO})
    known = openings._known  # pyright: ignore[reportPrivateUsage]
    assert len(known) <= MOST_OPENINGS and max(map(len, known)) <= LONGEST_OPENING


BLOCKS: list[object] = [
    {"type": "text", "text": "5"},
    {"type": "text", "text": '{"resultType":"complete","_meta":{}}'},
    {"type": "text", "text": "x", "_meta": {"ttlMs": 1}},
    {"type": "resource_link", "uri": "a://b", "name": "b", "icons": []},
    {"type": "audio", "data": "", "mimeType": "audio/wav"},
]
METAS: list[object] = [META, {}, {"x": 1}, {**META, "x": 1}, {SERVER_INFO_KEY: {"content": 1}}, 5]
STRUCTURED: list[object] = [{}, {"n": 1}, 5, [5], {"content": [], "_meta": {}}]
MEMBERS: dict[str, st.SearchStrategy[object]] = {
    "content": st.lists(st.sampled_from(BLOCKS), max_size=2) | st.none(),
    "resultType": st.sampled_from(["complete", "x", 5]),
    "_meta": st.sampled_from(METAS),
    "structuredContent": st.sampled_from(STRUCTURED),
    **dict.fromkeys(["ttlMs", "cacheScope", "isError", "x"], st.sampled_from([1, "public", True])),
}


@st.composite
def _results(draw: st.DrawFn) -> dict[str, object]:
    # In the order in which they come, as a server would write them.
    return {name: draw(MEMBERS[name]) for name in draw(st.lists(st.sampled_from(sorted(MEMBERS)), max_size=5))}


results = _results()


@given(st.lists(st.tuples(results, st.sampled_from(SESSION_VERSIONS)), min_size=1, max_size=8), st.booleans())
@example([(USUAL, V2025_11_25), (USUAL, V2025_11_25)], True)
def test_any_result_after_any_others_means_what_it_means_alone(
    values: list[tuple[dict[str, object], str]], compact: bool
) -> None:
    openings = Openings()
    for value, version in [*values, *values]:
        result, revision = raw(value, compact=compact), REVISIONS[version]
        alone = reply_for_session("tools/call", {}, result, revision)
        assert read(openings.reply_for_session({}, result, revision)) == read(alone)


@pytest.mark.parametrize("twice", [b'"content":[],"content":[1]', b'"content":[],"isError":false,"isError":true'])
def test_of_a_member_that_stands_twice_the_last_one_is_left_whatever_came_before(twice: bytes) -> None:
    result = Result(msgspec.Raw(b'{"resultType":"complete",' + twice + b"}"))
    openings = Openings()
    first = openings.reply_for_session({}, result, LATEST)
    assert translated(openings, {"resultType": "complete", "content": HELLO}) == json.dumps({"content": HELLO})
    assert (
        openings.reply_for_session({}, result, LATEST) == first == reply_for_session("tools/call", {}, result, LATEST)
    )


def test_a_client_of_the_newest_revision_is_told_all_of_it() -> None:
    openings, newest = Openings(), REVISIONS["2026-07-28"]
    translated(openings, USUAL)
    assert openings.reply_for_session({}, raw(USUAL), newest) == raw(USUAL)
