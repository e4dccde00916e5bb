"""What is read at a glance means what the long way says it means, or is left to the long way."""

import json
from typing import cast

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluicegate.errors import RemoteProtocolError
from sluicegate.exchange import Exchange
from sluicegate.hub.calls import Calls, Server
from sluicegate.hub.losses import losses_in
from sluicegate.hub.replies import is_plain, says_error
from sluicegate.hub.rewriting import reply_rewritten
from sluicegate.hub.states import States
from sluicegate.hub.treatment import MountSettings
from sluicegate.protocol.message import LARGEST_CALL, LONG, Notification, Response, Result
from sluicegate.protocol.result_shapes import in_shape
from sluicegate.protocol.tolerant import decode_tolerant
from sluicegate.protocol.translate import reply_for_session, reply_from_session
from sluicegate.protocol.usual import read_answer, read_progress
from sluicegate.protocol.versions import REVISIONS
from tests.protocol.strategies import json_objects, mutated
from tests.upstream.raw_server import Recorder

RESULT = b'{"content":[{"type":"text","text":"hello"}]}'


def raw_of(result: Result) -> bytes:
    assert isinstance(result.value, msgspec.Raw)
    return bytes(result.value)


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":7,"result":%b}' % RESULT,
        b'{"result":%b,"jsonrpc":"2.0","id":7}' % RESULT,
        b'{"id":7,"jsonrpc":"2.0","result":%b}' % RESULT,
        b'{"jsonrpc":"2.0","id":7,"result":{"text":"gr\xc3\xbc\xc3\x9fe"}}',
        b'{"jsonrpc":"2.0","id":7,"result":{}}',
    ],
)
def test_an_answer_as_the_official_sdks_write_it_is_read_at_a_glance(line: bytes) -> None:
    answer = read_answer(line)
    assert answer is not None and answer[0] == 7 and raw_of(answer[1]) in line


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
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"a":"%b"}}' % (b"x" * LARGEST_CALL),
        b'{"method":"notifications/progress","params":{},"params":{},"jsonrpc":"2.0"}',
        b'{"method":"notifications/progress","params":{},"jsonrpc":"2.0"',
        b'{"jsonrpc":"2.0","method":"notifications/progress2","params":{}}',
    ],
)
def test_what_is_written_otherwise_is_left_to_the_long_way(line: bytes) -> None:
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
        assert raw_of(message.reply) == raw_of(answer[1])
        words_are_as_the_long_way_says(answer[1])
    if params is not None:
        assert decode_tolerant(line) == Notification("notifications/progress", params)


# ------------------------------------------------------------------------------------------------- the words of a tool

INFO = b'{"io.modelcontextprotocol/serverInfo":{"name":"x","version":"1"}}'
SPOKEN = {
    "ours": b'{"resultType":"complete","_meta":%b,"content":[{"type":"text","text":"hello"}]}' % INFO,
    "ours, plain": b'{"resultType":"complete","content":[{"type":"text","text":"hello"}],"isError":false}',
    "Python SDK 1": b'{"content":[{"type":"text","text":"hello"}],"isError":false}',
    "Python SDK 1, typed": b'{"content":[{"type":"text","text":"hello"}],"structuredContent":{"result":"hello"},'
    b'"isError":false}',
    "Python SDK 2": b'{"content":[{"text":"hello","type":"text"}],"isError":false,"resultType":"complete","_meta":%b}'
    % INFO,
    "Python SDK 2, typed": b'{"content":[{"text":"hello","type":"text"}],"isError":false,"resultType":"complete",'
    b'"structuredContent":{"result":"hello"},"_meta":%b}' % INFO,
    "Python SDK 2, typed, to an older client": b'{"content":[{"text":"hello","type":"text"}],"isError":false,'
    b'"structuredContent":{"result":"hello"}}',
    "Python SDK 2, failed": b'{"content":[{"text":"hello","type":"text"}],"isError":true,"resultType":"complete",'
    b'"_meta":%b}' % INFO,
    "TypeScript SDK": b'{"content":[{"type":"text","text":"hello"}]}',
    "failed": b'{"content":[{"type":"text","text":"hello"}],"isError":true}',
    "several": b'{"content":[{"type":"text","text":"hello"},{"type":"text","text":"\xc3\xa9\\n\\"\\u00e9\\\\"}]}',
    "nothing": b'{"content":[]}',
    "nothing but a value": b'{"content":[],"structuredContent":{}}',
    "marked in front, named behind": b'{"resultType":"complete","content":[],"isError":true,"_meta":%b}' % INFO,
    "named, not marked": b'{"content":[],"_meta":%b}' % INFO,
    "long": b'{"content":[{"type":"text","text":"hello%b"}],"isError":false}' % (b"\\n, he said" * 500),
    "long JSON": b'{"content":[{"type":"text","text":"{\\"resultType\\": %b}"}]}' % (b'{\\"ui\\": [\\"uri\\"]},' * 200),
}
AROUND = (b'{"jsonrpc":"2.0","id":7,"result":%b}', b'{"result":%b,"jsonrpc":"2.0","id":7}')


@pytest.mark.parametrize("around", [*AROUND, b'{"id":7,"result":%b,"jsonrpc":"2.0"}'])
@pytest.mark.parametrize("result", SPOKEN.values(), ids=SPOKEN)
def test_the_words_of_a_tool_as_the_official_sdks_write_them_are_seen_at_once(result: bytes, around: bytes) -> None:
    answer = read_answer(around % result)
    assert answer is not None and answer[1].words is not None
    both_ways_agree(around % result)


def text(*values: bytes) -> bytes:
    return b'{"content":[%b]' % b",".join(b'{"type":"text","text":%b}' % value for value in values)


@pytest.mark.parametrize(
    "result",
    [
        text(b'"x"') + b',"structuredContent":[1]}',
        text(b'"x"') + b',"structuredContent":null}',
        text(b'"x"') + b',"structuredContent":{"resultType":"complete"}}',
        text(b'"x"') + b',"structuredContent":' + b'{"a":' * 100 + b"1" + b"}" * 101,
        text(b'"x"') + b',"structuredContent":{"a":1},"structuredContent":{"b":2}}',
        text(b'"x"') + b',"structuredContent": {}}',
        text(b'"x"') + b',"structuredContent":{},"toolResult":1}',
        text(b'"x"') + b',"_meta":%b,"isError":false}' % INFO,
        text(b'"x"') + b',"_meta":%b,"_meta":%b}' % (INFO, INFO),
        text(b'"x"') + b',"isError":false,"isError":false}',
        text(b'"x"') + b',"isError":true,"isError":false}',
        text(b'"x"') + b',"isError":null}',
        text(b'"x"') + b',"isErr\\u006fr":true}',
        text(b'"x"') + b',"isErr\\u006fr":true,"isError":false}',
        text(b'"x"', b"5") + b"}",
        text(b"5") + b"}",
        b'{"content":[{"type":"text","text":"x","annotations":{}}]}',
        b'{"content":[{"type":"text","type":"text","text":"x"}]}',
        b'{"content":[{"type":"text","text":"x}]}}","text":"x"}]}',
        b'{"content":[{"text":"x","type":"text","text":"x"}]}',
        b'{"content":[{"type":"image","text":"x"}]}',
        b'{"content":[{"type":"text","text":"x"},{"type":"resource_link","uri":"a://b","name":"b"}]}',
        b'{"content":[{"type":"text","text":"x"},]}',
        b'{"content":[],"content":[]}',
        b'{"structuredContent":{"content":[{"type":"text","text":"x"}]},"content":[]}',
        b'{"resultType":"complete","content":[],"resultType":"complete"}',
        b'{"resultType":"complete","_meta":%b,"content":[],"_meta":%b}' % (INFO, INFO),
        b'{"resultType":"complete","isError":false,"content":[]}',
        b'{"content":[],"resultType":"complete","resultType":"complete"}',
        b'{"content":[],"resultType":"input_required"}',
        b'{"resultType":"input_required","content":[]}',
        b'{"content":[],"resultType":"complete","_meta":{"other":1}}',
        b'{"content":[],"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"a":[1]}}}',
        b'{"content":[],"resultType":"complete","_meta":%b}' % INFO.replace(b'"x"', b'"%b"' % (b"x" * 2000)),
        text(b'"\\ud800"') + b"}",
        text(b'"\\x"') + b"}",
        text(b'"a\\u0"') + b"}",
        text(b'"\t"') + b"}",
        text(b'"\xff"') + b"}",
        text(b'"%b\xff"' % (b"x" * LONG)) + b"}",
        text(b'"x"') + b',"structuredContent":{"a":"\xff"}}',
        b'{"content":[{"type":"text","text":"\\u0],"resultType":"complete"}',
        b'{"content": []}',
        b"{}",
    ],
)
def test_what_is_more_or_less_than_words_is_not_taken_for_them(result: bytes) -> None:
    for around in AROUND:
        answer = read_answer(around % result)
        assert answer is None or answer[1].words is None
        both_ways_agree(around % result)


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":7,"id":7,"result":{"content":[]}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"content":[]},"result":{"content":[]}}',
        b'{"jsonrpc":"2.0","id":7,"result":{},"result":{"content":[]}}',
        b'{"id":7,"result":{"isError":false,"content":[{"type":"text","text":"x"}]},"jsonrpc":"2.0"}',
        b'{"jsonrpc":"2.0","id":7.0,"result":{"content":[]}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"content":[]} }',
    ],
)
def test_words_in_an_unusual_envelope_are_left_to_the_long_way(line: bytes) -> None:
    answer = read_answer(line)
    assert answer is None or answer[1].words is None
    both_ways_agree(line)


def words_are_as_the_long_way_says(result: Result) -> None:
    """Whoever goes by `words` comes to what those come to who open the result."""
    if result.words is None:
        return
    for version in REVISIONS:
        for is_older in (False, True):
            assert passed(result, version, is_older) == passed(Result(result.value), version, is_older)


def passed(result: Result, version: str, is_older: bool) -> object:
    """What becomes of a server's result on its way through the hub to a client, and what is counted of it."""
    calls, exchange = Calls("s", cast(Server, None), MountSettings(prefix="s")), Exchange("tools/call", {}, Recorder())
    came = reply_from_session("tools/call", {}, result) if is_older else result
    failed, lost, reply = False, list[str](), came
    # Without words it goes the long way in any case.
    if result.words is None or not is_plain(came, "tools/call", version):
        reply = calls.typed(came)
        assert isinstance(reply, Result)
        failed = says_error(reply)
        wrapped = States().wrapped(exchange, "s", reply, "s")
        assert wrapped is reply
        reply = in_shape("tools/call", reply)
        lost = list(losses_in("tools/call", reply, REVISIONS[version]))
        try:
            reply = reply_rewritten("tools/call", reply, lambda uri: f"s+{uri}")
        except RemoteProtocolError as problem:
            return problem.message
    reply = reply_for_session("tools/call", {}, reply, REVISIONS[version])
    assert isinstance(reply, Result)
    data = msgspec.json.encode(reply.value)
    # With all members in their order, also those that stand twice, and numbers as they are written.
    members = json.loads(data, object_pairs_hook=list, parse_float=str, parse_int=str)
    return failed, lost, members


STRINGS = st.text(max_size=20).map(compact) | st.sampled_from(
    [b'"\\u00e9"', b'"\\/"', b'"\\ud83d\\ude00"', b'"\\q"', b'"', b'"}]}"', b'"\\"uri\\""', b'"\\\\"', b"5"]
    + [b'"{\\"resource\\":\\"x\\"}"', b'"%b"' % (b"long, " * 700), b'"%b"' % (b'\\"ui\\": [{' * 400)]
)
OBJECTS = json_objects.map(compact) | st.sampled_from(
    [
        b"{}",
        b"[]",
        b"null",
        b'{"result":"x"}',
        b'{"uri":"a://b"}',
        b'{"uri":1,"uri":2}',
        b'{"a":1,"a":1e999}',
        b'{"\\u0075ri":"a://b"}',
        b'{"a":{"type":"resource_link","uri":"a://b","name":"b"}}',
        b'{"a":1,"resultType":"complete"}',
        b'{"a":1,"result\\u0054ype":"input_required"}',
        b'{"inputRequests":{},"isError":true}',
        b'{"a":1,"_meta":%b}' % INFO,
        b'{"content":[{"type":"text","text":"x"}]}',
        b'{"a":%b1%b}' % (b"[" * 97, b"]" * 97),
        b'{"a":%b1%b}' % (b"[" * 98, b"]" * 98),
        b'{"a":%b1%b}' % (b"[" * 99, b"]" * 99),
        b'{"a": 1}',
    ]
)
BLOCKS = st.one_of(
    STRINGS.map(lambda value: b'{"type":"text","text":%b}' % value),
    STRINGS.map(lambda value: b'{"text":%b,"type":"text"}' % value),
    st.sampled_from(
        [b'{"type":"text","text":"x","text":"y"}', b'{"type":"resource_link","uri":"a://b","name":"b"}', b"5", b"{}"]
    ),
)
PARTS: dict[bytes, st.SearchStrategy[bytes]] = {
    b'"content":': st.lists(BLOCKS, max_size=3).map(lambda blocks: b"[%b]" % b",".join(blocks)),
    b'"structuredContent":': OBJECTS,
    b'"isError":': st.sampled_from([b"false", b"true", b"null", b" false"]),
    b'"resultType":': st.sampled_from([b'"complete"', b'"complete"', b'"task"', b'"compl\\u0065te"']),
    b'"_meta":': st.sampled_from(
        [INFO, INFO, b"{}", INFO[:-1] + b',"ui/resourceUri":"a://b"}', INFO.replace(b":", b": ")]
    ),
    b'"is\\u0045rror":': st.just(b"true"),
}


@st.composite
def composed(draw: st.DrawFn) -> bytes:
    """Lines with results of all that words are of, in any order, most of them once."""
    names = draw(st.permutations(sorted(PARTS)[:5]))[: draw(st.integers(1, 5))]
    names += draw(st.lists(st.sampled_from(sorted(PARTS)), max_size=1) | st.just([]))
    if draw(st.booleans()):
        names = [b'"content":', *(name for name in names if name != b'"content":')]
    return draw(st.sampled_from(AROUND)) % (b"{%b}" % b",".join(name + draw(PARTS[name]) for name in names))


@st.composite
def spoken(draw: st.DrawFn) -> bytes:
    """Lines that are nearly the words of a tool."""
    result = draw(st.sampled_from(sorted(SPOKEN.values())))
    result = result.replace(b'"hello"', draw(STRINGS), 1).replace(b'{"result":"hello"}', draw(OBJECTS))
    return draw(st.sampled_from(AROUND)) % result


@given(spoken() | composed())
def test_both_ways_agree_on_whatever_a_tool_may_say(line: bytes) -> None:
    both_ways_agree(line)


@given(mutated(spoken() | composed()))
def test_both_ways_agree_on_what_is_nearly_the_words_of_a_tool(line: bytes) -> None:
    both_ways_agree(line)
