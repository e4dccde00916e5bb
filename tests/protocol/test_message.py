"""The envelope: what clients send is read strictly (T1, T4), what servers send tolerantly (R5); nothing is altered."""

import json
import tracemalloc
from typing import cast

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluicegate.errors import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, ErrorObject, RemoteProtocolError
from sluicegate.protocol.json_limits import JsonLimits
from sluicegate.protocol.message import (
    MAX_CALL,
    Message,
    Notification,
    Params,
    Request,
    RequestId,
    Response,
    Result,
    as_array,
    as_object,
    encode,
    opened,
)
from sluicegate.protocol.parse_request import (
    decode_strict,
    is_notification,
    parse_strict,
    read_message,
    recover_id,
    recover_request_id,
)
from sluicegate.protocol.parse_response import (
    NO_RESULT,
    NO_VERSION,
    Unreadable,
    decode_batch_tolerant,
    decode_tolerant,
)
from tests.protocol.strategies import json_objects, json_values, mutated, request, request_ids


def refusal_of(data: bytes, limits: JsonLimits | None = None) -> tuple[int, RequestId | None]:
    """The code and the id with which a client's message is refused."""
    with pytest.raises(RemoteProtocolError) as caught:
        decode_strict(data, limits or JsonLimits())
    return caught.value.code, caught.value.request_id


def same(one: object, other: object) -> bool:
    """Whether two values are the same in JSON: 1, 1.0 and true are equal in Python but not there."""
    return repr(one) == repr(other)


def raw(message: Message | Unreadable) -> bytes:
    """The bytes of a result that nobody has opened."""
    assert isinstance(message, Response) and isinstance(message.reply, Result)
    assert isinstance(message.reply.value, msgspec.Raw)
    return bytes(message.reply.value)


# --- Ids --------------------------------------------------------------------------------------------------------------

GOOD_IDS = [0, 1, -1, "1", "", "0", "null", 9007199254740991, -9007199254740991, "x" * 256, "ü" * 128, "\u2028\0"]


@pytest.mark.parametrize("request_id", GOOD_IDS, ids=repr)
def test_an_id_comes_back_with_its_value_and_type(request_id: RequestId) -> None:
    message = decode_strict(request(request_id, "ping"))
    assert isinstance(message, Request)
    assert same(message.id, request_id)
    answer = json.loads(encode(Response(message.id, Result({}))))
    assert same(answer["id"], request_id)
    heard = decode_tolerant(encode(Response(message.id, Result({}))))
    assert isinstance(heard, Response)
    assert same(heard.id, request_id)


@pytest.mark.parametrize(
    "written", "null true false 1.0 1.5 1e3 -0.0 {} [] [1] 9007199254740992 -9007199254740992 1e30".split()
)
def test_an_id_that_is_neither_string_nor_integer_is_refused_without_it(written: str) -> None:
    data = b'{"jsonrpc":"2.0","id":%s,"method":"ping"}' % written.encode()
    assert refusal_of(data) == (INVALID_REQUEST, None)


@pytest.mark.parametrize("request_id", ["x" * 257, "ü" * 129, "😀" * 65])
def test_an_id_over_256_bytes_is_refused_without_it(request_id: str) -> None:
    assert refusal_of(request(request_id, "ping")) == (INVALID_REQUEST, None)
    assert refusal_of(encode(Request(request_id, "ping", {}))) == (INVALID_REQUEST, None)


@pytest.mark.parametrize("written", ["true", "1.0", "1.5", "{}", "9007199254740992", "-9007199254740993"])
def test_an_answer_with_a_foreign_id_answers_no_request(written: str) -> None:
    heard = decode_tolerant(b'{"jsonrpc":"2.0","id":%s,"result":{}}' % written.encode())
    assert heard == Unreadable("has an id that is neither string nor integer")


# --- The envelope, strictly -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"m"}', Request(1, "m", {})),
        (b' {"params":{"a":[1]},"method":"m","id":"1","jsonrpc":"2.0"}\r\n', Request("1", "m", {"a": [1]})),
        (b'{"jsonrpc":"2.0","method":"m"}', Notification("m", {})),
        (b'{"jsonrpc":"2.0","method":"","params":{}}', Notification("", {})),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":null}}', Response(1, Result({"a": None}))),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}', Response(1, ErrorObject(-1, "no"))),
        (
            b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no","data":null,"more":1}}',
            Response(1, ErrorObject(-1, "no", None)),
        ),
        (b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}', Response(None, ErrorObject(1, ""))),
        (b'{"jsonrpc":"2.0","error":{"code":1,"message":""}}', Response(None, ErrorObject(1, ""))),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","vendor":{"x":1}}', Request(1, "m", {})),
    ],
)
def test_each_kind_of_message_is_read_from_either_peer(data: bytes, message: Message) -> None:
    assert decode_strict(data) == message
    heard = decode_tolerant(data)
    if isinstance(heard, Response) and isinstance(heard.reply, Result):
        heard = Response(heard.id, Result(opened(heard.reply)))
    assert heard == message


@pytest.mark.parametrize(
    ("data", "request_id"),
    [
        (b"1", None),
        (b'"ping"', None),
        (b"null", None),
        (b"[]", None),
        (b"{}", None),
        (b'{"id":1,"method":"m"}', 1),
        (b'{"jsonrpc":2.0,"id":1,"method":"m"}', 1),
        (b'{"jsonrpc":"2.1","id":"1","method":"m"}', "1"),
        (b'{"jsonrpc":"2.0","id":1}', 1),
        (b'{"jsonrpc":"2.0","id":1,"params":{}}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":null}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","result":{}}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","error":null}', 1),
        (b'{"jsonrpc":"2.0","method":1,"params":"bar"}', None),
    ],
)
def test_a_broken_envelope_is_refused_under_its_id_where_that_is_readable(
    data: bytes, request_id: RequestId | None
) -> None:
    assert refusal_of(data) == (INVALID_REQUEST, request_id)


@pytest.mark.parametrize(
    "members",
    [
        '"id":1,"result":{},"error":{"code":1,"message":""}',
        '"id":1,"result":5',
        '"id":1,"result":null',
        '"id":1,"error":{"code":"1","message":""}',
        '"id":1,"error":{"code":1.5,"message":""}',
        '"id":1,"error":{"code":true,"message":""}',
        '"id":1,"error":{"message":""}',
        '"id":1,"error":null',
        '"id":null,"result":{}',
        '"result":{}',
        '"id":true,"result":{}',
        '"id":1,"result":{},"Error":{}',
    ],
)
def test_a_broken_response_is_refused_without_an_id(members: str) -> None:
    # The id in it is one of our own count: sent back, it would end another request of the client.
    assert refusal_of(b'{"jsonrpc":"2.0",%s}' % members.encode()) == (INVALID_REQUEST, None)


@pytest.mark.parametrize("params", ["null", "[]", "[1]", '"x"', "1", "false", '{"_meta":1}', '{"_meta":null}'])
def test_params_that_are_no_object_are_bad_params(params: str) -> None:
    assert refusal_of(b'{"jsonrpc":"2.0","id":"a","method":"m","params":%s}' % params.encode()) == (INVALID_PARAMS, "a")


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ('{"jsonrpc":"2.0","method":"m"}', True),
        ('{"jsonrpc":"2.0","method":"m","params":[1]}', True),
        ('{"jsonrpc":"2.0","method":"m","params":{"Name":1}}', True),
        ('{"jsonrpc":"2.0","method":"m","id":1}', False),
        ('{"jsonrpc":"2.0","method":"m","id":null}', False),
        ('{"jsonrpc":"2.0","method":"m","ID":1}', False),
        ('{"jsonrpc":"2.0","method":1}', False),
        ('{"method":"m"}', False),
        ('{"jsonrpc":"2.0","result":{}}', False),
        ("[]", False),
    ],
)
def test_a_notification_is_one_whatever_its_params_are(written: str, answer: bool) -> None:
    assert is_notification(json.loads(written)) is answer


def test_helpers_for_uncertain_data_give_the_value_or_none() -> None:
    assert (as_object({"a": 1}), as_object([1]), as_array([1]), as_array({"a": 1})) == ({"a": 1}, None, [1], None)


# --- T1: one message, one reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b'{"jsonrpc":"2.0","id":7,"method":"m","method":"n"}',
        b'{"jsonrpc":"2.0","id":7,"method":"m","method":"m"}',
        b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"name":"a","name":"b"}}',
        b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"name":"a","n\\u0061me":"b"}}',
        b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"arguments":{"x":[{"a":1,"b":2,"a":1}]}}}',
        b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"_meta":{"k":1,"k":2}}}',
        b'{"method":"m","method":"m","jsonrpc":"2.0","id":7}',
        b'{"method":"m","params":{"":1,"":2},"jsonrpc":"2.0", "id" : 7 }',
    ],
)
def test_a_member_that_stands_twice_is_refused_at_any_level(data: bytes) -> None:
    assert refusal_of(data) == (INVALID_REQUEST, 7)


@pytest.mark.parametrize(
    "data",
    [
        b'{"jsonrpc":"2.0","id":7,"id":8,"method":"m"}',
        b'{"jsonrpc":"2.0","id":7,"\\u0069d":8,"method":"m"}',
        b'{"jsonrpc":"2.0","id":7,"id":7,"method":"m"}',
        b'{"jsonrpc":"2.0","id":7,"method":"m","method":"m","id":8}',
    ],
)
def test_an_id_that_stands_twice_is_not_answered_to(data: bytes) -> None:
    assert refusal_of(data) == (INVALID_REQUEST, None)


FOLDS_ONTO_NAME = [
    *("Name", "naMe", "NAME", "name\0", "\0name", "na\0me", " name", "name ", "na\tme", "name\n", "\x7fname"),
    *("\u00a0name", "name\u3000", "name\u2028", "name\u0085", "na\u200bme", "name\ufeff", "na\u00adme", "name\ufe0f"),
    *("\u202ename", "name\U000e0041", "\uff4e\uff41\uff4d\uff45", "\uff2e\uff21\uff2d\uff25", "n\u1d43me", "𝐧𝐚𝐦𝐞"),
]


@pytest.mark.parametrize("member", FOLDS_ONTO_NAME, ids=ascii)
@pytest.mark.parametrize("beside", [True, False])
def test_a_member_that_folds_onto_one_of_params_is_refused(member: str, beside: bool) -> None:
    params: Params = {"name": "a"} if beside else {}
    assert refusal_of(request(7, "tools/call", {**params, member: "b"})) == (INVALID_REQUEST, 7)


@pytest.mark.parametrize(
    "member", ["argument\u017f", "Argument", "ta\u017f\u212a", "REQUESTSTATE", "Uri", "_Meta", "_meta "]
)
def test_long_s_and_kelvin_sign_fold_as_every_case_does(member: str) -> None:
    assert refusal_of(request(7, "tools/call", {member: {}})) == (INVALID_REQUEST, 7)


@pytest.mark.parametrize(
    "member", ["Method", "METHOD", "Params", "method\0", " id", "ID", "jsonRpc", "re\u017fult", "\uff49\uff44", "Error"]
)
def test_a_member_that_folds_onto_one_of_the_envelope_is_refused(member: str) -> None:
    data = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "m", member: 1}).encode()
    assert refusal_of(data) == (INVALID_REQUEST, 7)


@pytest.mark.parametrize(
    ("where", "member"),
    [
        ("_meta", "progresstoken"),
        ("_meta", "progressTo\u212aen"),
        ("_meta", "IO.modelcontextprotocol/protocolVersion"),
        ("_meta", "io.modelcontextprotocol/protocolversion"),
        ("_meta", "io.modelcontextprotocol/protocolVersion\0"),
        ("_meta", "io.modelcontextprotocol/ClientCapabilities"),
        ("_meta", "io.modelcontextprotocol/ logLevel"),
        ("ref", "Name"),
        ("ref", "URI"),
        ("ref", "type\0"),
        ("notifications", "ResourceSubscriptions"),
    ],
)
def test_a_member_that_folds_onto_one_further_inside_is_refused(where: str, member: str) -> None:
    assert refusal_of(request(7, "m", {where: {member: "x"}})) == (INVALID_REQUEST, 7)


@pytest.mark.parametrize(
    "params",
    [
        {"names": 1, "nam": 1, "x-name": 1, "na_me": 1, "naïme": 1, "": 1, "\0": 1, "nämé": 1},
        {"name": "x", "arguments": {"Name": 1, "name": 2, "NAME\0": 3, "_Meta": {}}},
        {"_meta": {"traceparent": "00", "ProgressTokens": 1, "example.com/progressToken": 1}},
        {"ref": "Name", "notifications": ["URI"]},
    ],
)
def test_members_that_only_resemble_ours_pass_and_are_kept(params: Params) -> None:
    assert decode_strict(request(7, "tools/call", params)) == Request(7, "tools/call", params)


@given(
    st.sampled_from(["name", "uri", "arguments", "requestState", "_meta", "progressToken", "task"]),
    st.data(),
)
def test_no_spelling_that_reads_like_a_member_passes(name: str, data: st.DataObject) -> None:
    unseen = st.text(st.sampled_from(" \t\n\0\x1f\u00a0\u2009\u200b\u2060\ufeff\ufe0f"), max_size=2)
    spelled = "".join(
        data.draw(st.sampled_from([letter, letter.upper(), chr(ord(letter) + 0xFEE0)])) + data.draw(unseen)
        for letter in name
    )
    if spelled != name:
        assert refusal_of(request(1, "m", {spelled: {}})) == (INVALID_REQUEST, 1)


def test_a_name_of_endless_combining_marks_is_no_work() -> None:
    # Normalizing these would take minutes: the time limit of every test is what this one leans on.
    marks = "a" + "\u0301\u0316" * 300_000
    assert isinstance(decode_strict(request(1, "m", {marks: 1, "_meta": {marks: 1}})), Request)


@pytest.mark.parametrize(
    "value",
    [
        *(b"NaN", b"Infinity", b"-Infinity", b"-NaN", b"nan", b"inf"),
        *(rb'"\ud800"', rb'"\udc00"', rb'"\udc00\ud800"', rb'"\ud800x"', rb'"\ud800\n"', rb'{"\udfff":1}'),
        *(b'"\xff"', b'"\xc3"', b'"\xed\xa0\x80"', b'"\xc0\xaf"', b'"\xf4\x90\x80\x80"', b'"\xe2\x82"', b"\xa0"),
        *(b'"a\nb"', b'"a\x00b"', b"'x'", b"1 2", b"/* x */ 1", b"0x10", b"True", b"undefined"),
    ],
)
def test_bytes_that_are_not_json_in_utf8_are_a_parse_error(value: bytes) -> None:
    assert refusal_of(value) == (PARSE_ERROR, None)
    message = b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"name":%b}}' % value
    assert refusal_of(message) == (PARSE_ERROR, 7)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-32-le", "utf-32", "utf-8-sig"])
def test_other_encodings_and_a_bom_are_parse_errors(encoding: str) -> None:
    assert refusal_of('{"jsonrpc":"2.0","id":7,"method":"m"}'.encode(encoding)) == (PARSE_ERROR, None)


@pytest.mark.parametrize("tail", [b"{}", b"x", b",", b"}", b"\0", b"\x0b", b"//", b"\xef\xbb\xbf", b"\xc2\xa0", b"1"])
def test_bytes_behind_the_message_are_a_parse_error(tail: bytes) -> None:
    assert refusal_of(b'{"jsonrpc":"2.0","id":7,"method":"m"}' + tail) == (PARSE_ERROR, 7)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"{", "Parse error: this is not one JSON value in UTF-8 (line 1 column 1)."),
        (b'{"a":1,"a":2}', "Invalid request: an object has the same member twice (line 1 column 12)."),
        (b"[" * 300, "Invalid request: it is nested too deeply (line 1 column 202)."),
        (b"1" * 5000, "Invalid request: a number is too long (line 1 column 4302)."),
    ],
)
def test_a_refusal_names_the_problem_and_its_position(data: bytes, told: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_strict(data)
    assert caught.value.message == told


def test_text_that_the_parser_quotes_is_not_shown() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_strict(b'{"password-hunter2":1,"password-hunter2":2}')
    assert "hunter2" not in caught.value.message and "line 1" in caught.value.message


# By the categories of the public suite (github.com/nst/JSONTestSuite): what every parser must refuse, and accept.
MUST_REJECT = [
    *(b"", b" ", b"\xef\xbb\xbf", b"[", b"]", b"{", b"}", b'"', b"[}", b"{]", b"[1}", b"[[]", b"[]]", b"[1]x"),
    *(b"[,1]", b"[1,]", b"[1,,2]", b"[,]", b"[1 true]", b'["a" "b"]', b'["a"', b"[1:2]", b"[a", b"[\x0b1]", b"[\x0c]"),
    *(b"*", b"<.>", b"[<null>]", b"abc", b"nul", b"[nul]", b"[tru]", b"[fals]", b"[TRUE]", b"\xc3\xa5"),
    *(b"[-]", b"[+1]", b"[--1]", b"[-01]", b"[012]", b"[1.]", b"[.5]", b"[-.5]", b"[1.e1]", b"[1e]", b"[1e+]"),
    *(b"[0e]", b"[1_000]", b"[1 000]", b"[0x1F]", b"[1e1.5]", b"[1.2.3]", b"[-foo]", b"[1a]", b"[\xef\xbc\x91]"),
    *(b'{"a"}', b'{"a":}', b'{"a" 1}', b'{"a"::1}', b"{a:1}", b"{1:1}", b"{null:1}", b'{"a":1,}', b'{,"a":1}'),
    *(b'{"a":1,,"b":2}', b'{"a":1 "b":2}', b"{'a':1}", b'{"a":1}#', b'{"a":1}/**/', b'{"a":"b"}}', b'{"a":1'),
    *(rb'["\x00"]', rb'["\u00"]', rb'["\u12G4"]', rb'["\U0061"]', rb'["\a"]', rb'["\ "]', b'["\\"]', b'["a\tb"]'),
    *(b'["\x1f"]', b"['a']", b'["\\\xe5"]', rb'[\u0020"a"]', b'"a"b', b"\\n", b'["a\nb"]', rb'["\uD834\uDd"]'),
]
MUST_ACCEPT = [
    *(b"[]", b"{}", b"0", b"-1", b"true", b"null", b'""', b'"a"', b" [ ] ", b"[[] ]", b'[""]', b'[null,1,"1",{}]'),
    *(b"\t[1]\r\n", b"[false]", b"[1,null,null,2]", b'{"":0}', b'{"a":[]}', rb'{"a\u0000b":1}', b'{"a":{"b":{}}}'),
    *(b"[123]", b"[-0]", b"[0e1]", b"[0e+1]", b"[1E22]", b"[1E-2]", b"[1e2]", b"[123.456e78]", b"[-0.0000001]"),
    *(rb'["\"\\\/\b\f\n\r\t"]', rb'["\u0060\u012a\u12AB"]', rb'["\uD801\udc37"]', rb'["\ud83d\ude39\ud83d\udc8d"]'),
    *(rb'["\uDBFF\uDFFE"]', rb'["\uFDD0"]', rb'["\u0000"]', rb'["\\u0000"]', rb'["\\a"]', rb'["a/*b*/c/*d//e"]'),
    *('["€𝄞"]'.encode(), '["\u2028\u2029"]'.encode(), b'["\x7f"]', '["\U0010ffff"]'.encode(), rb'["\u00A0"]'),
]


@pytest.mark.parametrize("data", MUST_REJECT)
def test_json_that_every_parser_must_reject_is_rejected(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        parse_strict(data)
    assert caught.value.code == PARSE_ERROR
    assert isinstance(decode_tolerant(b'{"jsonrpc":"2.0","id":1,"result":{"x":%b}}' % data), Unreadable)


@pytest.mark.parametrize("data", MUST_ACCEPT)
def test_json_that_every_parser_must_accept_is_accepted_as_it_is_meant(data: bytes) -> None:
    assert same(parse_strict(data), json.loads(data))
    payload = b'{"x":%b}' % data
    assert raw(decode_tolerant(b'{"jsonrpc":"2.0","id":1,"result":%b}' % payload)) == payload


# --- T4: dear input ---------------------------------------------------------------------------------------------------


def nested(depth: int) -> bytes:
    """A request of that many levels, of which the envelope is the first."""
    inner = b'{"a":[' * ((depth - 1) // 2) + (b"[" if depth % 2 == 0 else b"")
    closing = (b"]" if depth % 2 == 0 else b"") + b"]}" * ((depth - 1) // 2)
    return b'{"jsonrpc":"2.0","id":7,"method":"m","params":%b}' % ((inner or b"{}") + closing)


@pytest.mark.parametrize("depth", [3, 50, 99, 100])
def test_a_hundred_levels_are_read(depth: int) -> None:
    value = parse_strict(nested(depth) if depth % 2 else b"[" * depth + b"]" * depth)
    assert value is not None


def test_the_hundredth_level_may_be_empty_or_not() -> None:
    assert parse_strict(b"[" * 100 + b"1" + b"]" * 100)
    assert parse_strict(b"[" * 99 + b"{}" + b"]" * 99)


@pytest.mark.parametrize("depth", [101, 199, 201, 1001, 100_001])
def test_more_than_a_hundred_levels_are_refused_under_the_id(depth: int) -> None:
    assert refusal_of(nested(depth)) == (INVALID_REQUEST, 7)
    assert refusal_of(b"[" * depth + b"]" * depth) == (INVALID_REQUEST, None)
    assert refusal_of(b"[" * depth) == (PARSE_ERROR if depth < 202 else INVALID_REQUEST, None)


def test_a_hundred_and_first_level_is_refused_even_if_it_is_empty() -> None:
    assert refusal_of(b"[" * 100 + b"{}" + b"]" * 100) == (INVALID_REQUEST, None)


@pytest.mark.parametrize(("count", "passes"), [(9_999, True), (10_000, True), (10_001, False), (100_000, False)])
def test_an_object_has_ten_thousand_members_at_most(count: int, passes: bool) -> None:
    data = request("a", "m", {"arguments": {str(n): n for n in range(count)}})
    if passes:
        assert isinstance(decode_strict(data), Request)
    else:
        assert refusal_of(data) == (INVALID_REQUEST, "a")


def test_many_small_objects_are_no_large_one() -> None:
    data = request(1, "m", {"arguments": {"rows": [{"a": 1, "b": 2} for _ in range(15_000)]}})
    assert isinstance(decode_strict(data), Request)


@pytest.mark.parametrize("piece", [b"[]", b"{}", b"[1]", b'{"a":1}', b"1.5", b'{"a":{"b":[]}}'])
def test_large_structures_are_counted_before_they_are_built(piece: bytes) -> None:
    # T4: less than four times the limit of a body, which is 4 MiB.
    marks_each = 1 + sum(piece.count(mark) for mark in b",:[{")
    fits = piece + (b"," + piece) * (99_990 // marks_each - 1)
    too_much = piece + (b"," + piece) * (MAX_CALL // (len(piece) + 1))
    tracemalloc.start()
    try:
        assert isinstance(decode_strict(b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":[%b]}}' % fits), Request)
        assert refusal_of(b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":[%b]}}' % too_much) == (
            INVALID_REQUEST,
            7,
        )
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_CALL
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("marks", "passes"), [(100_000, True), (100_001, False)])
@pytest.mark.parametrize("around", [b"%b", b'"%b",' % (b",:[{" * 50_000) + b"%b"])
def test_a_message_has_a_hundred_thousand_marks_outside_of_strings_at_most(
    marks: int, passes: bool, around: bytes
) -> None:
    envelope = b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":[%b]}}'
    inner = marks - 11 - (around != b"%b")  # the envelope's own, and the comma behind the string
    data = envelope % (around % (b"1" + b",1" * inner))
    if passes:
        assert isinstance(decode_strict(data), Request)
    else:
        assert refusal_of(data) == (INVALID_REQUEST, 7)


@pytest.mark.parametrize(
    ("number", "passes"),
    [
        ("1" * 256, True),
        ("1" * 257, False),
        ("-" + "1" * 255, True),
        ("-" + "1" * 256, False),
        ("1" * 4_301, False),
        ("1" * 10_000_000, False),
        ("0." + "1" * 254, True),
        ("0." + "1" * 255, False),
        ("0." + "1" * 1_000_000, False),
        ("1" * 250 + "e-100", True),
        ("1" * 250 + "e-1000", True),
        ("1" * 250 + "e-10000", False),
        ("1e308", True),
        ("1e0308", True),
        ("1e309", False),
        ("1e400", False),
        ("-1e400", False),
        ("1E+400", False),
        ("0.1e1000000", False),
        ("1" * 250 + "e99", False),
        ("1" * 209 + "E+99", True),
        ("9" * 210 + "E+99", False),
        ("1e-400", True),
        ("0e999", True),
    ],
)
@pytest.mark.parametrize("form", ['{"n":%s}', '{"n":[1,%s]}', '{"n":"x", "m": %s }'])
def test_a_number_has_256_characters_at_most_and_fits_a_double_if_it_is_one(
    number: str, passes: bool, form: str
) -> None:
    data = b'{"jsonrpc":"2.0","id":7,"method":"m","params":%b}' % (form % number).encode()
    if passes:
        assert isinstance(decode_strict(data), Request)
    else:
        assert refusal_of(data) == (INVALID_REQUEST, 7)


@pytest.mark.parametrize(
    "text",
    [
        *("1" * 10_000, "1e400", "-1E+400", "[" * 1_000, '{"a":' * 20_000, ":" * 20_000, "\\" + "1" * 300),
        *('"' + "1" * 300, '\\"' + "1" * 300 + '\\"', "é" + "1" * 300 + "é", "-" * 300, "\\" * 300 + "1" * 300),
    ],
)
def test_digits_brackets_and_colons_in_strings_are_not_counted(text: str) -> None:
    params: Params = {"arguments": {text: text, "list": [text]}}
    assert decode_strict(request(1, "m", params)) == Request(1, "m", params)


def test_a_long_number_is_seen_behind_a_string_that_resembles_its_end() -> None:
    data = b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":"\\\\","b":%b,"c":"\\""}}' % (b"1" * 257)
    assert refusal_of(data) == (INVALID_REQUEST, 7)


def test_limits_can_be_set() -> None:
    limits = JsonLimits(depth=3, members=4, number_length=5, id_bytes=6)
    fits = b'{"jsonrpc":"2.0","id":"123456","method":"m","params":{"a":[12345]}}'
    assert isinstance(decode_strict(fits, limits), Request)
    assert refusal_of(fits.replace(b"12345]", b"123456]"), limits) == (INVALID_REQUEST, "123456")
    assert refusal_of(fits.replace(b"12345]", b"[]]"), limits) == (INVALID_REQUEST, "123456")
    assert refusal_of(fits.replace(b"[12345]", b'1,"b":2,"c":3,"d":4,"e":5'), limits) == (INVALID_REQUEST, "123456")
    assert refusal_of(fits.replace(b'"123456"', b'"1234567"'), limits) == (INVALID_REQUEST, None)


@pytest.mark.parametrize("digits", ["9007199254740993", "18446744073709551616", "-9223372036854775809", "7" * 256])
def test_integers_keep_every_digit(digits: str) -> None:
    data = b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"n":[%b]}}' % digits.encode()
    assert encode(decode_strict(data)) == data
    heard = decode_tolerant(data)
    assert isinstance(heard, Request)
    assert encode(heard) == data


def test_numbers_and_what_equals_them_in_python_stay_apart() -> None:
    data = b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1,1.0,true,"1",0,-0.0,false,null,1e22]}}'
    assert encode(decode_strict(data)) == data


# --- What survives ----------------------------------------------------------------------------------------------------

replies = st.one_of(
    st.builds(Result, json_objects),
    st.builds(ErrorObject, st.integers(-(2**63), 2**63 - 1), st.text(max_size=20)),
    st.builds(ErrorObject, st.integers(), st.text(max_size=20), json_values),
)
messages = st.one_of(
    st.builds(Request, request_ids, st.text(max_size=20), json_objects),
    st.builds(Notification, st.text(max_size=20), json_objects),
    st.builds(Response, request_ids, replies),
    st.builds(Response, st.none(), st.builds(ErrorObject, st.integers(-40_000, 40_000), st.text())),
)


@given(messages)
def test_any_message_survives_encoding_and_strict_decoding(message: Message) -> None:
    assert same(decode_strict(encode(message)), message)


@given(messages)
def test_any_message_survives_encoding_and_tolerant_decoding(message: Message) -> None:
    heard = decode_tolerant(encode(message))
    if isinstance(message, Response) and isinstance(message.reply, Result):
        assert raw(heard) == msgspec.json.encode(message.reply.value)
        assert isinstance(heard, Response) and isinstance(heard.reply, Result)
        heard = Response(heard.id, Result(opened(heard.reply)))
    assert same(heard, message)


@given(messages, st.integers(0, 3), st.booleans())
def test_layout_and_order_make_no_difference(message: Message, indent: int, backwards: bool) -> None:
    envelope = cast(Params, json.loads(encode(message)))
    names = sorted(envelope, reverse=backwards)
    data = json.dumps({name: envelope[name] for name in names}, indent=indent or None).encode()
    assert same(decode_strict(data), message)
    heard = decode_tolerant(data)
    assert not isinstance(heard, Unreadable)
    assert json.loads(encode(heard)) == envelope


@given(st.one_of(st.binary(max_size=60), mutated(messages.map(encode))))
@example(b'{"jsonrpc":"2.0","id":1,"result":{"id":1,"n":' + b"1" * 5000 + b'},"x":1}')
def test_no_bytes_whatever_are_more_than_refused(data: bytes) -> None:
    try:
        message = decode_strict(data)
    except RemoteProtocolError as refusal:
        assert refusal.code in (PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS)
        encode(Response(refusal.request_id, ErrorObject(refusal.code, refusal.message)))
    else:
        assert same(decode_strict(encode(message)), message)
        # What the strict reader lets pass, the tolerant one reads too.
        assert not isinstance(decode_tolerant(data), Unreadable)
    decode_tolerant(data)
    decode_batch_tolerant(data)


@given(st.lists(st.builds(Response, request_ids, replies), max_size=4))
def test_a_batch_of_responses_is_read_as_the_responses_in_it(responses: list[Response]) -> None:
    data = b"[%b]" % b",".join(encode(response) for response in responses)
    heard = decode_batch_tolerant(data)
    assert [encode(one) for one in heard if not isinstance(one, Unreadable)] == [encode(one) for one in responses]


# --- R5: what servers send --------------------------------------------------------------------------------------------

ODD_PAYLOADS = [
    b"{}",
    b'{ "a" : 1.0e+0 , "b":[ ],\n"c":"\\u0041\\/" }',
    b'{"a":1,"a":2}',
    b'{"n":123456789012345678901234567890.10}',
    '{"ü":"\u2028"}'.encode(),
    b'{"id":1,"jsonrpc":"1.0","error":{"id":2},"method":"x","result":[{"result":1}]}',
]


@pytest.mark.parametrize("payload", ODD_PAYLOADS)
@pytest.mark.parametrize(
    "form",
    [
        b'{"jsonrpc":"2.0","id":1,"result":%b}',
        b'{"result":%b,"jsonrpc":"2.0","id":1}',
        b' { "jsonrpc" : "2.0" , "id" : 1 , "result" : %b } ',
        b'{"vendor":"\\u0041","jsonrpc":"2.0","id":1,"result":%b,"x":{"id":9,"result":1}}',
    ],
)
def test_the_payload_of_an_answer_keeps_every_byte(form: bytes, payload: bytes) -> None:
    heard = decode_tolerant(form % payload)
    assert raw(heard) == payload
    assert isinstance(heard, Response)
    assert encode(heard) == b'{"jsonrpc":"2.0","id":1,"result":%b}' % payload


@pytest.mark.parametrize(
    "payload",
    [
        *(b'{"a":NaN}', b'{"a":"\\ud800"}', b'{"a":"\xff"}', b"{", b'{"a":1,}', b'{"a":"\n"}', b"{}}", b"Traceback"),
        *(
            b'{"a":-Infinity}',
            b'{"id":2,"a":NaN}',
            b"[" * 100_000,
            b"[" * 100_000 + b"]" * 100_000,
            b'{"a":"\xed\xa0\x80"}',
        ),
    ],
)
def test_an_answer_that_cannot_be_read_ends_its_own_call(payload: bytes) -> None:
    for form in (
        b'{"jsonrpc":"2.0","id":7,"result":%b}',
        b'{"id":7,"jsonrpc":"2.0","result":%b}',
        b' { "jsonrpc" : "2.0", "id" : 7 , "error": %b }',
    ):
        heard = decode_tolerant(form % payload)
        assert isinstance(heard, Unreadable) and heard.id == 7


@pytest.mark.parametrize(
    "payload", [b'{"a":NaN}', b'{"a":"\\ud800"}', b'{"a":"\xff"}', b'{"a":1,}', b"[" * 9_999 + b"]" * 9_999]
)
def test_the_id_is_found_behind_what_cannot_be_read(payload: bytes) -> None:
    for form in (b'{"jsonrpc":"2.0","result":%b,"id":"a b"}', b'{"result":%b,"jsonrpc":"2.0", "id": "a b" } '):
        heard = decode_tolerant(form % payload)
        assert isinstance(heard, Unreadable) and heard.id == "a b"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Server started, id: 7",
        b'{"jsonrpc":"2.0","result":{"a":1,"id":7}',
        b'{"jsonrpc":"2.0","result":{"a":"}","id":7}',
        b'{"jsonrpc":"2.0","result":[{"a":1,"id":7}',
        b'{"jsonrpc":"2.0","result":{"a":NaN,"id":7}}',
        b'{"jsonrpc":"2.0","id":7,"result":{"a":NaN},"id":8}',
        b'{"jsonrpc":"2.0","id":01,"result":NaN}',
        b'{"jsonrpc":"2.0","id":9007199254740993,"result":NaN}',
        b'{"jsonrpc":"2.0","id":"\xff","result":{}}',
        b'{"jsonrpc":"2.0","id":"a\nb","result":{}}',
        # Requests and notifications of the server: their ids are of another count than ours.
        b'{"jsonrpc":"2.0","id":7,"method":"roots/list","params":NaN}',
        b'{"jsonrpc":"2.0","method":"roots/list","id":7,"params":NaN}',
        b'{"jsonrpc":"2.0","method":"roots/list","params":NaN,"id":7}',
    ],
)
def test_no_call_is_ended_on_a_guess(data: bytes) -> None:
    heard = decode_tolerant(data)
    assert isinstance(heard, Unreadable) and heard.id is None


@pytest.mark.parametrize(
    ("members", "request_id"),
    [
        ('"id":7,"result":{},"result":{}', 7),
        ('"id":7,"result":{},"error":{"code":1,"message":""},"error":null', 7),
        ('"id":7,"result":{},"res\\u0075lt":{}', 7),
        ('"jsonrpc":"2.0","id":7,"result":{}', 7),
        ('"id":7,"id":8,"result":{}', None),
        ('"id":7,"result":{"id":1},"\\u0069d":7', None),
        ('"id":7,"method":"ping","method":"ping"', None),
        ('"id":7,"result":{},"Result":{}', 7),
        ('"id":7,"result":{},"ID":8', 7),
        ('"id":7,"method":"ping","Method":"x"', None),
    ],
)
def test_an_envelope_that_can_be_read_in_two_ways_is_not_read(members: str, request_id: RequestId | None) -> None:
    heard = decode_tolerant(b'{"jsonrpc":"2.0",%b}' % members.encode())
    assert isinstance(heard, Unreadable)
    assert heard.id == request_id


@pytest.mark.parametrize(
    ("members", "request_id"),
    [
        ('"id":7', 7),
        ('"id":7,"level":"info","message":"a line of a log"', 7),
        ('"id":7,"method":"GET"', None),
        ('"jsonrpc":"1.0","id":7,"result":{}', 7),
        ('"jsonrpc":2.0,"id":7,"result":{}', 7),
        ('"jsonrpc":"2.0","id":7,"result":5', 7),
        ('"jsonrpc":"2.0","id":7,"result":[]', 7),
        ('"jsonrpc":"2.0","id":null,"result":null', None),
        ('"jsonrpc":"2.0","id":7,"result":{},"error":{"code":1,"message":""}', 7),
        ('"jsonrpc":"2.0","id":7,"error":{"code":"x","message":""}', 7),
        ('"jsonrpc":"2.0","id":7,"error":"broken"', 7),
        ('"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"","data":1e999}', 7),
        ('"jsonrpc":"2.0","result":{}', None),
        ('"jsonrpc":"2.0","id":null,"result":{}', None),
        ('"jsonrpc":"2.0"', None),
        ('"jsonrpc":"2.0","id":7,"method":5', None),
        ('"jsonrpc":"2.0","id":7,"method":"m","params":[1]', None),
        ('"jsonrpc":"2.0","id":7,"method":"m","params":{"a":1e999}', None),
        ('"jsonrpc":"2.0","id":null,"method":"m"', None),
        ('"jsonrpc":"2.0","id":1.5,"method":"m"', None),
    ],
)
def test_an_answer_of_the_wrong_shape_ends_its_call_and_a_call_none(members: str, request_id: int | None) -> None:
    heard = decode_tolerant(b"{%b}" % members.encode())
    assert isinstance(heard, Unreadable)
    assert heard.id == request_id


@pytest.mark.parametrize(
    ("members", "message", "faults"),
    [
        ('"id":7,"result":{"a":1}', Response(7, Result(msgspec.Raw(b'{"a":1}'))), [NO_VERSION]),
        ('"id":7,"error":{"code":1,"message":"m"}', Response(7, ErrorObject(1, "m")), [NO_VERSION]),
        ('"method":"notifications/message","params":{}', Notification("notifications/message", {}), [NO_VERSION]),
        ('"jsonrpc":"2.0","id":7', Response(7, Result(msgspec.Raw(b"{}"))), [NO_RESULT]),
        ('"jsonrpc":"2.0","id":7,"result":null', Response(7, Result(msgspec.Raw(b"{}"))), [NO_RESULT]),
        ('"id":7,"result":null', Response(7, Result(msgspec.Raw(b"{}"))), [NO_VERSION, NO_RESULT]),
        ('"jsonrpc":"2.0","id":7,"result":null,"error":{"code":1,"message":"m"}', Response(7, ErrorObject(1, "m")), []),
        ('"jsonrpc":"2.0","id":7,"result":{},"error":null', Response(7, Result(msgspec.Raw(b"{}"))), []),
    ],
)
def test_what_an_envelope_lacks_is_filled_in_and_reported(members: str, message: Message, faults: list[str]) -> None:
    reported: list[str] = []
    assert decode_tolerant(b"{%b}" % members.encode(), reported.append) == message
    assert reported == faults


@pytest.mark.parametrize("data", [b"5", b"[]", b'"x"', b"null", b"[1]"])
def test_a_value_that_is_no_object_is_no_message_of_a_server(data: bytes) -> None:
    assert decode_tolerant(data) == Unreadable("is not a JSON object")


def test_an_error_with_members_of_its_own_is_an_error() -> None:
    heard = decode_tolerant(
        b'{"jsonrpc":"2.0","id":"7","error":{"code":-1,"message":"m","data":{"x":[1]},"stack":"s"}}'
    )
    assert heard == Response("7", ErrorObject(-1, "m", {"x": [1]}))


def test_each_message_of_a_servers_array_is_read_singly() -> None:
    heard = decode_batch_tolerant(
        b' [{"jsonrpc":"2.0","id":1,"result":{}}, {"jsonrpc":"2.0","method":"n"}, 5, {"jsonrpc":"2.0","id":2}]'
    )
    assert isinstance(heard[0], Response)
    assert heard[1:] == [
        Notification("n", {}),
        Unreadable("is not a JSON object"),
        Response(2, Result(msgspec.Raw(b"{}"))),
    ]
    assert decode_batch_tolerant(b"[]") == []


@pytest.mark.parametrize("data", [b"[", b"[1", b"{}", b"[NaN]", b"[" * 100_000, b"[]x"])
def test_an_array_that_cannot_be_read_is_one_fault(data: bytes) -> None:
    assert decode_batch_tolerant(data) == [Unreadable("is not a readable JSON array")]


def test_a_result_is_opened_once_it_is_needed() -> None:
    value: Params = {"a": 1}
    result = opened(Result(value))
    assert result == value and result is not value
    assert opened(Result(msgspec.Raw(b'{"a":[1]}'))) == {"a": [1]}


@pytest.mark.parametrize("payload", [b'{"a":1e999}', b"[1]", b"{", b'{"a":' + b"[" * 100_000])
def test_a_result_that_cannot_be_opened_is_the_peers_fault(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="cannot be decoded"):
        opened(Result(msgspec.Raw(payload)))


# --- Ids of what is too broken to parse -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "request_id", "answered"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":"xxx', 7, None),
        (b'{"jsonrpc":"2.0","method":"tools/call","id":"7","params":{"a":"xxx', "7", None),
        (b'{"id":-7,"method":"tools/call","params":{"a":"xxx', -7, None),
        (b'{"method":"x","params":{"a":NaN},"jsonrpc":"2.0","id":7}\r\n', 7, None),
        (b'{"jsonrpc":"2.0","id":7,"result":{"content":[{"text":"xxx', None, 7),
        (b'{"jsonrpc":"2.0","id":7, "error":{"content":[{"text":"xxx', None, 7),
        (b'{"id":7,"jsonrpc":"2.0","result":{"content":[{"text":"xxx', None, 7),
        (b'{"result":{"a":NaN},"jsonrpc":"2.0","id":7}', None, 7),
        (b'{"method":"x","params":{"a":"' + b'\\"' * 200_000 + b',"id":7}', None, None),
        # To see where so many strings end would hold up everybody else.
        (b'{"method":"x","params":{"a":[' + b'"",' * 100 + b'""]},"id":7}', 7, None),
        (b'{"method":"x","params":{"a":[' + b'"",' * 100_000 + b'""]},"id":7}', None, None),
        (b'{"jsonrpc":"2.0","id":', None, None),
        (b'{"jsonrpc":"2.0","id":7', None, None),
        (b'{"jsonrpc":"2.0","id":12345678901234567,"method"', None, None),
    ],
)
def test_an_id_is_recovered_from_where_peers_write_it(
    data: bytes, request_id: RequestId | None, answered: RequestId | None
) -> None:
    assert recover_request_id(data) == request_id
    assert recover_id(data) == answered


@given(request_ids.filter(lambda one: one != 99), json_objects, st.data())
def test_a_line_that_breaks_off_never_names_another_request(
    request_id: RequestId, params: Params, data: st.DataObject
) -> None:
    whole = encode(Request(request_id, "m", {"a": {"b": 1, "id": 99}, **params, "z": [{"y": 1, "id": 99}]}))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assert recover_request_id(cut) in (request_id, None)
    answer = encode(Response(request_id, Result({"a": {"b": 1, "id": 99}, **params, "z": [{"y": 1, "id": 99}]})))
    cut = answer[: data.draw(st.integers(0, len(answer) - 1))]
    assert recover_id(cut) in (request_id, None)


def test_reading_a_value_twice_gives_the_same_message() -> None:
    value = parse_strict(request(1, "tools/call", {"name": "x"}))
    assert read_message(value) == read_message(value) == Request(1, "tools/call", {"name": "x"})


def test_a_servers_call_that_would_be_gigabytes_of_objects_is_not_decoded() -> None:
    params = b'{"a":[' + b"[]," * (MAX_CALL // 3) + b"[]]}"
    assert decode_tolerant(b'{"jsonrpc":"2.0","method":"notifications/x","params":%s}' % params) == Unreadable(
        "is too long for a request or a notification"
    )
