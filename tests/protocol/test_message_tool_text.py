"""Text results: what is read as one, and that every revision gets the same from it as from the general translation."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.protocol.message import Result, ToolText, opened, read_tool_text
from sluicegate.protocol.translate.results import reply_for_session, reply_from_session
from sluicegate.protocol.versions import REVISIONS
from tests.protocol.strategies import json_objects

INFO = b'{"io.modelcontextprotocol/serverInfo":{"name":"x","version":"1"}}'
TEXTS = {
    "ours": b'{"resultType":"complete","_meta":%b,"content":[{"type":"text","text":"hello"}]}' % INFO,
    "Python SDK 1": b'{"content":[{"type":"text","text":"hello"}],"isError":false}',
    "Python SDK 2": b'{"content":[{"text":"hello","type":"text"}],"isError":false,"resultType":"complete",'
    b'"structuredContent":{"result":"hello"},"_meta":%b}' % INFO,
    "TypeScript SDK": b'{"content":[{"type":"text","text":"hello"}]}',
    "failed": b'{"content":[{"type":"text","text":"hello"}],"isError":true}',
    "several": b'{"content":[{"type":"text","text":"hello"},{"type":"text","text":"\xc3\xa9\\n\\"\\u00e9\\\\"}]}',
    "empty": b'{"content":[],"structuredContent":{}}',
    "laid out": b' {\n  "content" : [ ]\n}',
    "long numbers": b'{"content":[],"structuredContent":{"a":1.50,"b":123456789012345678901234567890}}',
    "name in structured content": b'{"content":[],"structuredContent":{"resultType":"input_required","uri":"a://b"}}',
}


@pytest.mark.parametrize("data", TEXTS.values(), ids=TEXTS)
def test_text_results_are_read_and_keep_every_member(data: bytes) -> None:
    text = read_tool_text(msgspec.Raw(data))
    assert text is not None
    assert json.loads(msgspec.json.encode(text), parse_float=str) == json.loads(data, parse_float=str)


@pytest.mark.parametrize(
    "data",
    [
        b'{"content":[],"structuredContent":[1]}',
        b'{"content":[],"structuredContent":null}',
        b'{"content":[],"structuredContent":' + b'{"a":' * 100 + b"1" + b"}" * 101,
        b'{"content":[],"_meta":{"io.modelcontextprotocol/serverInfo":' + b"[" * 100 + b"]" * 100 + b"}}",
        b'{"content":[],"_meta":{"ui/resourceUri":"a://b"}}',
        b'{"content":[],"toolResult":1}',
        b'{"content":[],"Content":[]}',
        b'{"content":[],"isError":null}',
        b'{"content":[],"resultType":"input_required"}',
        b'{"resultType":"input_required","content":[],"resultType":"complete"}',
        b'{"resultType":"complete","content":[],"result\\u0054ype":"input_required"}',
        b'{"content":[],"inputRequests":{}}',
        b'{"content":[{"text":"no type"}]}',
        b'{"content":[{"type":"text","text":5}]}',
        b'{"content":[{"type":"text","text":"x","annotations":{}}]}',
        b'{"content":[{"type":"text","text":"x"},{"type":"resource_link","uri":"a://b","name":"b"}]}',
        b'{"content":[{"type":"text","text":"\\ud800"}]}',
        b'{"content":[{"type":"text","text":"\\x"}]}',
        b'{"content":[{"type":"text","text":NaN}]}',
        b'{"content":' + b"[" * 100_000,
        b"{}",
        b"[]",
    ],
    ids=lambda data: data[:70].decode(errors="replace"),
)
def test_everything_else_is_not_a_text_result(data: bytes) -> None:
    assert read_tool_text(msgspec.Raw(data)) is None


MIB = 1024 * 1024
BLOCK = b'{"type":"text","text":"{,:["}'


def content(*blocks: bytes) -> bytes:
    return b'{"content":[%b]}' % b",".join(blocks)


@pytest.mark.parametrize("text", [b"x" * MIB, b"{" * MIB, b"\\n" * MIB, b'{\\"a\\":[1,2]},' * 80_000])
def test_one_long_text_is_a_text_result(text: bytes) -> None:
    data = content(b'{"type":"text","text":"%b"}' % text)
    read = read_tool_text(msgspec.Raw(data))
    assert read is not None and bytes(read.to_raw()) == data


def test_several_thousand_texts_are_a_text_result() -> None:
    data = content(*[BLOCK] * 5000, b'{"type":"text","text":"%b"}' % (b"x" * MIB))
    read = read_tool_text(msgspec.Raw(data))
    assert read is not None and len(read.content) == 5001


def test_very_many_texts_are_not_decoded_one_by_one() -> None:
    assert read_tool_text(msgspec.Raw(content(*[BLOCK] * 40_000))) is None


@pytest.mark.parametrize(
    ("data", "written"),
    [
        (b'{"content":[],"isError":true,"isError":false}', b'{"content":[],"isError":false}'),
        (b'{"content":[],"isErr\\u006fr":true}', b'{"content":[],"isError":true}'),
        (
            b'{"content":[{"type":"text","text":"a","text":"b"}]}',
            b'{"content":[{"type":"text","text":"b"}]}',
        ),
    ],
)
def test_a_member_that_occurs_twice_or_is_escaped_leaves_once_and_plainly(data: bytes, written: bytes) -> None:
    text = read_tool_text(msgspec.Raw(data))
    assert text is not None and bytes(text.to_raw()) == written


def test_the_result_type_is_added_once_and_removed_with_the_server_info() -> None:
    text = read_tool_text(msgspec.Raw(b'{"content":[],"isError":true,"_meta":%b}' % INFO))
    assert text is not None
    marked = text.marked()
    assert bytes(marked.to_raw()) == b'{"resultType":"complete","_meta":%b,"content":[],"isError":true}' % INFO
    assert marked.marked() is marked
    assert bytes(marked.for_session().to_raw()) == b'{"content":[],"isError":true}'


texts = st.fixed_dictionaries(
    {"content": st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=20)}), max_size=3)},
    optional={
        "structuredContent": json_objects,
        "isError": st.booleans(),
        "resultType": st.just("complete"),
        "_meta": st.just(msgspec.json.decode(INFO)),
    },
)


@given(texts, st.sampled_from(sorted(REVISIONS)))
def test_every_revision_gets_from_text_what_the_general_translation_gives(
    value: dict[str, object], version: str
) -> None:
    came = reply_from_session("tools/call", {}, Result(msgspec.Raw(msgspec.json.encode(value))))
    assert isinstance(came, Result) and isinstance(came.value, ToolText)
    assert opened(came) == {"resultType": "complete", **value}
    left = reply_for_session("tools/call", {}, came, REVISIONS[version])
    general = reply_for_session("tools/call", {}, Result({"resultType": "complete", **value}), REVISIONS[version])
    assert isinstance(left, Result) and isinstance(general, Result)
    assert opened(left) == opened(general)
