"""What is read at a glance means what the long way says it means, or is left to the long way."""

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluicegate.protocol.message import LARGE_RESULT, MAX_CALL, Notification, Response, Result, ToolText
from sluicegate.protocol.parse_response import decode_tolerant, read_answer, read_progress
from tests.protocol.strategies import json_objects, mutated

RESULT = b'{"content":[{"type":"text","text":"hello"}]}'
FULL_RESULT = (
    b'{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"x","version":"1"}},'
    b'"content":[{"type":"text","text":"a"},{"type":"text","text":""}],"structuredContent":{"a":[1]},"isError":true}'
)


def raw_of(result: Result) -> bytes:
    value = result.value.to_raw() if isinstance(result.value, ToolText) else result.value
    assert isinstance(value, msgspec.Raw)
    return bytes(value)


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":7,"result":%b}' % RESULT,
        b'{"result":%b,"jsonrpc":"2.0","id":7}' % RESULT,
        b'{"id":7,"jsonrpc":"2.0","result":%b}' % RESULT,
        b'{"jsonrpc":"2.0","id":7,"result":%b}' % FULL_RESULT,
        b'{"jsonrpc":"2.0","id":7,"result":{"text":"gr\xc3\xbc\xc3\x9fe"}}',
        b'{"jsonrpc":"2.0","id":7,"result":{}}',
    ],
)
def test_an_answer_as_the_official_sdks_write_it_is_read_at_a_glance(line: bytes) -> None:
    answer = read_answer(line)
    assert answer is not None and answer[0] == 7 and raw_of(answer[1]) in line


@pytest.mark.parametrize(
    "result",
    [
        RESULT,
        FULL_RESULT,
        b'{"content":[]}',
        b'{"content":[],"isError":false}',
        b'{"structuredContent":{},"content":[],"resultType":"complete"}',
        b'{"content":[{"text":"gr\xc3\xbc\xc3\x9fe","type":"text"}]}',
        b'{"content":[{"type":"text","text":"%b"}]}' % (b"{x}" * 300 + b"x" * LARGE_RESULT),
    ],
)
def test_text_content_is_decoded_together_with_its_envelope(result: bytes) -> None:
    answer = read_answer(b'{"jsonrpc":"2.0","id":7,"result":%b}' % result)
    assert answer is not None and isinstance(answer[1].value, ToolText)
    assert json.loads(raw_of(answer[1])) == json.loads(result)


@pytest.mark.parametrize(
    "result",
    [
        b'{"content":[],"content":[{"type":"text","text":"a"}]}',
        b'{"content":[{"type":"text","text":"a","text":"b"}]}',
        b'{"content":[],"isError":true,"isError":false}',
        b'{"content":[],"is\\u0045rror":false}',
        b'{"content": []}',
        b'{"content":[{"type":"text","text":5}]}',
        b'{"content":[{"type":"text","text":"a","annotations":{}}]}',
        b'{"content":[],"structuredContent":[]}',
        b'{"content":[],"structuredContent":{"a":%b1%b}}' % (b"[" * 100, b"]" * 100),
        b'{"content":[%b{"type":"text","text":""}]}' % (b'{"type":"text","text":""},' * 50_000),
    ],
)
def test_all_other_results_stay_raw(result: bytes) -> None:
    answer = read_answer(b'{"jsonrpc":"2.0","id":7,"result":%b}' % result)
    assert answer is not None and isinstance(answer[1].value, msgspec.Raw) and raw_of(answer[1]) == result


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":1}}',
        b'{"method":"notifications/progress","params":{"progressToken":7,"progress":1},"jsonrpc":"2.0"}',
    ],
)
def test_progress_as_the_official_sdks_write_it_is_read_at_a_glance(line: bytes) -> None:
    assert read_progress(line) == {"progressToken": 7, "progress": 1}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"rubbish",
        b'{"jsonrpc":"2.0","id":"7","result":{}}',
        b'{"jsonrpc":"2.0","id":-0,"result":{}}',
        b'{"jsonrpc":"2.0","id":1e0,"result":{}}',
        b'{"jsonrpc":"2.0","id":null,"result":{}}',
        b'{"jsonrpc":"2.0","id":7,"result":[]}',
        b'{"jsonrpc":"2.0","id":7,"result":[{}}',
        b'{"jsonrpc":"2.0","id":7,"result":"}"}',
        b'{"jsonrpc":"2.0","result":5,"id":7}',
        b'{"jsonrpc":"1.0","id":7,"result":{}}',
        b'{"jsonrpc":"2.0","id":7,"result":{},"extra":1}',
        b'{"jsonrpc":"2.0","id":7,"result":{},"Result":{}}',
        b'{"jsonrpc":"2.0","id":8,"id":7,"result":{}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"a":1},"result":{}}',
        b'{"jsonrpc":"2.0","id":8,"id":7,"result":%b}' % RESULT,
        b'{"jsonrpc":"2.0","id":7,"result":%b,"result":%b}' % (RESULT, RESULT),
        b'{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"\xff"}]}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"\\ud800"}]}}',
        b'{"jsonrpc":"2.0","\\u0069d":7,"result":{}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"a":NaN}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"a":"\xff"}}',
        b'{"jsonrpc":"2.0","id":7,"result":{}} {}',
        b'{"jsonrpc":"2.0","id":7,"result":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001,
        b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":""}}',
        b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress"}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}]',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":[{}]}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{},"params":{}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{},"id":{}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"a":"\xff"}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"a":NaN}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":' + b'{"a":' * 9_000 + b"1" + b"}" * 9_001,
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"a":[%b0]}}' % (b"0," * 100_001),
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"a":"%b"}}' % (b"x" * MAX_CALL),
        b'{"method":"notifications/progress","params":{},"params":{},"jsonrpc":"2.0"}',
        b'{"method":"notifications/progress","params":{},"jsonrpc":"2.0"',
        b'{"jsonrpc":"2.0","method":"notifications/progress2","params":{}}',
    ],
)
def test_messages_in_another_layout_are_left_to_the_full_parser(line: bytes) -> None:
    assert read_answer(line) is None and read_progress(line) is None


VALUES: dict[str, st.SearchStrategy[object]] = {
    "jsonrpc": st.sampled_from(["2.0", "1.0", 2]),
    "id": st.integers(-3, 2**60) | st.sampled_from(["7", "x", None, True, 1.5]),
    "method": st.sampled_from(["notifications/progress", "ping", 5]),
    "params": json_objects | st.just([]),
    "result": json_objects | st.just([]),
    "error": json_objects,
    "ID": st.just(1),
    "_meta": json_objects,
}
members = st.sampled_from(list(VALUES)).flatmap(lambda name: st.tuples(st.just(name), VALUES[name]))


@given(st.lists(members, max_size=5), st.sampled_from([b"", b" ", b"}", b"]"]), st.booleans())
@example([("jsonrpc", "2.0"), ("id", 1), ("result", {})], b"", True)
@example([("jsonrpc", "2.0"), ("method", "notifications/progress"), ("params", {})], b"", True)
def test_both_ways_agree_on_whatever_a_server_may_write(
    found: list[tuple[str, object]], end: bytes, is_compact: bool
) -> None:
    separator = b"," if is_compact else b", "
    line = b"{" + separator.join(compact(name) + b":" + compact(value) for name, value in found) + b"}" + end
    both_ways_agree(line)


USUAL = [
    b'{"jsonrpc":"2.0","id":7,"result":%b}' % RESULT,
    b'{"result":%b,"jsonrpc":"2.0","id":7}' % RESULT,
    b'{"jsonrpc":"2.0","id":7,"result":%b}' % FULL_RESULT,
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":1}}',
    b'{"method":"notifications/progress","params":{"progressToken":7,"progress":1},"jsonrpc":"2.0"}',
]


@given(mutated(st.sampled_from(USUAL)))
def test_both_ways_agree_on_what_is_nearly_usual(line: bytes) -> None:
    both_ways_agree(line)


def both_ways_agree(line: bytes) -> None:
    answer, params = read_answer(line), read_progress(line)
    if answer is not None:
        message = decode_tolerant(line)
        assert isinstance(message, Response) and isinstance(message.reply, Result)
        assert message.id == answer[0]
        text = message.reply.tool_text()
        if isinstance(answer[1].value, ToolText):
            assert text is not None and bytes(text.to_raw()) == raw_of(answer[1])
        else:
            assert raw_of(message.reply) == raw_of(answer[1])
            assert text is None or not answer[1].is_other
    if params is not None:
        assert decode_tolerant(line) == Notification("notifications/progress", params)
