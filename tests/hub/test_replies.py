"""Which replies pass as the bytes that came: never one in which anything would have been changed or counted."""

import json
from itertools import combinations

import msgspec
import pytest

from sluicegate.errors import ErrorObject
from sluicegate.exchange import Exchange
from sluicegate.hub.losses import losses_in, revision_of
from sluicegate.hub.replies import is_plain, says_error
from sluicegate.hub.rewriting import reply_rewritten
from sluicegate.hub.states import States
from sluicegate.protocol.input_required import Question, input_required
from sluicegate.protocol.message import Params, Result
from sluicegate.protocol.modern import complete
from sluicegate.protocol.usual import read_answer
from sluicegate.protocol.versions import REVISIONS
from tests.upstream.raw_server import Recorder

QUESTION = Question("elicitation/create", {"mode": "form", "message": "Which?", "requestedSchema": {}})
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


@pytest.mark.parametrize("version", [*REVISIONS, "2031-01-01"])
@pytest.mark.parametrize("value", RESULTS, ids=lambda value: str(value)[:60])
def test_a_plain_reply_is_one_in_which_nothing_is_to_be_done(version: str, value: Params) -> None:
    reply = Result(msgspec.Raw(msgspec.json.encode(complete(value))))
    exchange = Exchange("tools/call", {"name": "t"}, Recorder())
    is_left_alone = (
        not says_error(reply)
        and not list(losses_in("tools/call", reply, revision_of(version)))
        and States().wrapped(exchange, "files", reply, "files") is reply
        and reply_rewritten("tools/call", reply, lambda uri: f"files+{uri}") is reply
    )
    if is_plain(reply, "tools/call", version):
        assert is_left_alone


@pytest.mark.parametrize("version", [*REVISIONS, "2031-01-01"])
def test_what_nearly_all_servers_answer_is_plain(version: str) -> None:
    assert is_plain(Result(msgspec.Raw(msgspec.json.encode(complete(RESULTS[0])))), "tools/call", version)
    assert is_plain(Result(msgspec.Raw(msgspec.json.encode(complete(RESULTS[2])))), "tools/call", version)


def test_questions_errors_and_what_is_not_bytes_are_not() -> None:
    asked = input_required({"k": QUESTION}, "state")
    assert isinstance(asked, Result)
    assert not is_plain(Result(msgspec.Raw(msgspec.json.encode(asked.value))), "tools/call", "2026-07-28")
    assert not is_plain(asked, "tools/call", "2026-07-28")
    assert not is_plain(ErrorObject(-32603, "no"), "tools/call", "2026-07-28")


@pytest.mark.parametrize("name", ["inputRequests", "input_required"])
def test_a_question_is_no_plain_reply_whichever_of_its_letters_are_escaped(name: str) -> None:
    for start, end in combinations(range(len(name) + 1), 2):
        escaped = name[:start] + "".join(f"\\u{ord(letter):04x}" for letter in name[start:end]) + name[end:]
        text = f'{{"resultType":"complete","content":[],"{escaped}":{{}}}}'
        assert name in json.loads(text)
        assert not is_plain(Result(msgspec.Raw(text.encode())), "tools/call", "2026-07-28"), escaped


def test_other_escapes_than_those_of_names_are_plain() -> None:
    text = "one line\n" * 1000 + "caf\\u00e9"
    assert is_plain(
        Result(msgspec.Raw(msgspec.json.encode(complete({"content": [{"type": "text", "text": text}]})))),
        "tools/call",
        "2026-07-28",
    )


@pytest.mark.parametrize(
    "raw",
    [
        b'{"content":[]}',
        b'{"content":[],"resultType":"complete"}',
        b'{"resultType":"task","taskId":"1"}',
        b'{"resultType":"complete","content":[],"resultType":"input_required"}',
        b'{"resultType":"complete","content":[],"result\\u0054ype":"input_required"}',
        b'{"resultType":"completed"}',
        b'[{"resultType":"complete"}]',
    ],
)
def test_a_reply_that_does_not_say_first_and_once_that_it_is_complete_is_looked_at(raw: bytes) -> None:
    assert not is_plain(Result(msgspec.Raw(raw)), "tools/call", "2026-07-28")


def test_a_type_that_is_quoted_in_a_text_is_none() -> None:
    text = 'It said {"resultType":"input_required"}.'
    raw = msgspec.json.encode(complete({"content": [{"type": "text", "text": text}]}))
    assert is_plain(Result(msgspec.Raw(raw)), "tools/call", "2026-07-28")


LONG_JSON = b'{\\"a\\": [1, 2]}, ' * 400


@pytest.mark.parametrize(
    "around",
    [
        b'"_meta":{"ui":{"resourceUri":"ui://x/y"}},"content":[%b]',
        b'"content":[%b],"_meta":{"ui/resourceUri":"ui://x/y"}',
        b'"content":[%b],"isError":true,"isError":false',
        b'"content":[%b],"isErr\\u006fr":true,"isError":false',
        b'"_meta":' + b'{"a":' * 200 + b"1" + b"}" * 200 + b',"content":[%b],"_meta":{}',
        b'"content":[%b],"resultType":"complete"',
        b'"content":[%b],"structuredContent":{"uri":"a://b"}',
        b'"content":[%b,{"type":"resource_link","uri":"a://b","name":"b"}]',
    ],
)
def test_a_long_result_is_looked_at_for_all_that_a_short_one_is(around: bytes) -> None:
    raw = b'{"resultType":"complete",' + around % (b'{"type":"text","text":"%b"}' % LONG_JSON) + b"}"
    assert not is_plain(Result(msgspec.Raw(raw)), "tools/call", "2025-11-25")


@pytest.mark.parametrize("meta", [b"", b'"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"x","version":"1"}},'])
def test_a_long_text_of_json_passes(meta: bytes) -> None:
    raw = b'{"resultType":"complete",' + meta + b'"content":[{"type":"text","text":"%b"}]}' % LONG_JSON
    assert is_plain(Result(msgspec.Raw(raw)), "tools/call", "2025-11-25")


TYPED = b'{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","content":[],"structuredContent":%b}}'


@pytest.mark.parametrize("version", [*REVISIONS, "2031-01-01"])
@pytest.mark.parametrize(
    ("value", "is_bare"), [(b'{"result":5}', True), (b'{"uri":"a://b"}', False), (b'{"ui":{}}', False), (b"[5]", False)]
)
def test_a_structured_value_passes_to_whoever_knows_such_if_it_is_like_no_resource(
    value: bytes, is_bare: bool, version: str
) -> None:
    answer = read_answer(TYPED % value)
    assert answer is not None
    if value.startswith(b"["):
        assert answer[1].words is None
    else:
        assert is_plain(answer[1], "tools/call", version) is (is_bare and revision_of(version).structured_content)


def test_words_of_a_tool_that_failed_are_counted_and_those_without_a_mark_get_one() -> None:
    for words, plain, failed in [
        (b'{"resultType":"complete","content":[],"isError":true}', False, True),
        (b'{"content":[],"isError":false}', False, False),
        (b'{"resultType":"complete","content":[]}', True, False),
    ]:
        answer = read_answer(b'{"jsonrpc":"2.0","id":1,"result":%b}' % words)
        assert answer is not None and answer[1].words is not None
        assert is_plain(answer[1], "tools/call", "2026-07-28") is plain
        assert says_error(answer[1]) is failed
