"""A request that is read at a glance means what the long way says it means, or is left to the long way."""

import gc
import json
import tracemalloc
from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluicegate.errors import ErrorObject, RemoteProtocolError, error_object
from sluicegate.protocol.conversation import Asked
from sluicegate.protocol.glance import Repeats, plain_request
from sluicegate.protocol.headers import Claims
from sluicegate.protocol.message import LARGEST_ID, Request
from sluicegate.protocol.modern import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    LOG_LEVEL_KEY,
    VERSION_KEY,
    is_modern,
    read_request,
)
from sluicegate.protocol.strict import check_limits, parse_json, parse_strict, read_message

Outcome = Asked | ErrorObject | tuple[object, object]

META: dict[str, Any] = {
    VERSION_KEY: "2026-07-28",
    CAPABILITIES_KEY: {"roots": {"listChanged": True}, "experimental": {"size": 1}},
    CLIENT_INFO_KEY: {"name": "bench", "version": "1"},
}
FIRST: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "echo", "arguments": {"text": "hello"}, "_meta": META},
}
HEADERS = {"mcp-protocol-version": ["2026-07-28"], "mcp-method": ["tools/call"], "mcp-name": ["echo"]}


def body(value: object) -> bytes:
    return json.dumps(value).encode()


def claims() -> Claims:
    return Claims(lambda name: HEADERS.get(name, []))


def after(first: bytes) -> Repeats:
    """What is known behind a head once this request has come the long way."""
    repeats = Repeats()
    message = read_message(parse_strict(first))
    assert isinstance(message, Request)
    profile, _ = read_request(message, claims())
    for _ in range(2):  # One alone is not worth it.
        repeats.learn(first, message, profile)
    return repeats


def outcome(data: bytes, repeats: Repeats) -> Outcome:
    """What an endpoint makes of a body: what is asked, or the error and the id that it is answered with."""
    try:
        asked = repeats.read(data)
        if asked is not None:
            return asked
        value = parse_json(data)
        check_limits(data, value)
        message = read_message(value)
        if not isinstance(message, Request):
            return "no request", message
        profile, params = read_request(message, claims())
        return Asked(message.id, message.method, params, profile, True)
    except RemoteProtocolError as problem:
        return error_object(problem), problem.request_id


def same(one: Outcome, other: Outcome) -> bool:
    # By their words: to Python 1, 1.0 and true are equal, to JSON they are not.
    return repr(one) == repr(other)


def is_known(data: bytes, repeats: Repeats) -> bool:
    return repeats.read(data) is not None


def changed(*path: str, to: object, base: Mapping[str, Any] = FIRST) -> bytes:
    """The first request, or another one, with one member changed."""
    value = deepcopy(base)
    inner: Any = value
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = to
    return body(value)


@pytest.mark.parametrize(
    "data",
    [
        body(FIRST),
        changed("id", to="another"),
        changed("id", to=LARGEST_ID // 10),
        changed("params", "arguments", to={}),
        changed("params", "arguments", to={"n": 5, "yes": True, "none": None, "deep": [{"x": 1.5}]}),
        changed("params", "arguments", to={"text": "x" * 90_000}),
        changed("params", "arguments", to={"text": body(FIRST).decode()}),
        changed("params", "arguments", to={"id": 5, "arguments": {"id": 6}, "text": '}, "_meta": {'}),
    ],
)
def test_the_last_request_is_known_again_whatever_its_id_and_arguments(data: bytes) -> None:
    assert is_known(data, after(body(FIRST)))
    assert same(outcome(data, after(body(FIRST))), outcome(data, Repeats()))


def ordered(names: tuple[str, ...], *, token: object = None, number: object = 1, text: str = "hello") -> bytes:
    """The first request with its members in another order, and perhaps with a progress token."""
    meta = {**META, "progressToken": token} if token is not None else META
    params = {"name": "echo", "arguments": {"text": text}, "_meta": meta}
    params = {name: params[name] for name in names if name in params}
    members = {**FIRST, "id": number, "params": params}
    return body({name: members[name] for name in names if name in members})


NAMES = ("jsonrpc", "id", "method", "params", "name", "arguments", "_meta")


@given(
    st.permutations(NAMES).map(tuple),
    st.sampled_from([(None, None), (5, 6), (5, "a-b"), ("5", 5), (5, None), (None, 5)]),
    st.sampled_from([1, 0, LARGEST_ID // 10, "one", ""]),
    st.text(max_size=10) | st.sampled_from(['"', '", "_meta"', '"progressToken": 5', "}}", "x" * 20_000]),
)
def test_a_request_is_known_again_in_whatever_order_its_members_stand(
    names: tuple[str, ...], tokens: tuple[object, object], number: object, text: str
) -> None:
    first, second = ordered(names, token=tokens[0]), ordered(names, token=tokens[1], number=number, text=text)
    assert is_known(second, after(first)) is ((tokens[0] is None) is (tokens[1] is None))
    assert same(outcome(second, after(first)), outcome(second, Repeats()))


def test_who_sends_a_different_request_each_time_is_soon_left_alone() -> None:
    repeats = Repeats()
    sent = [changed("params", "_meta", CLIENT_INFO_KEY, "version", to=str(number)) for number in range(1000)]
    for data in sent:
        assert not is_known(data, repeats)
        message = read_message(parse_strict(data))
        assert isinstance(message, Request)
        repeats.learn(data, message, read_request(message, claims())[0])
    assert [number for number, data in enumerate(sent, 1) if is_known(data, repeats)] == [510]


@pytest.mark.parametrize("way", [("params", "arguments", "text"), ("params", "_meta", CLIENT_INFO_KEY, "name")])
def test_nothing_is_kept_of_a_request_that_is_too_long_to_be_known_again(way: tuple[str, ...]) -> None:
    data = changed(*way, to="x" * 1_000_000)
    tracemalloc.start()
    try:
        repeats = after(data)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
    assert not is_known(data, repeats)


def test_a_request_is_known_again_whose_arguments_hold_what_looks_like_its_id() -> None:
    first = b'{"params": {"arguments": {"id": 12, "arguments": {"id": 1}}, "name": "echo", "_meta": %b}, ' % body(META)
    first += b'"method": "tools/call", "jsonrpc": "2.0", "id": 1}'
    second = first[:-2] + b"34}"
    assert is_known(second, after(first))
    assert same(outcome(second, after(first)), outcome(second, Repeats()))


SIZE = (CAPABILITIES_KEY, "experimental", "size")


@pytest.mark.parametrize(
    "data",
    [
        changed("jsonrpc", to="2"),
        changed("id", to=True),
        changed("id", to=1.0),
        changed("id", to=None),
        changed("id", to=LARGEST_ID + 1),
        changed("id", to="x" * 257),
        changed("ID", to=1),
        changed("method", to="tools/list"),
        changed("params", to=[]),
        changed("params", "name", to="other"),
        changed("params", "name", to=None),
        changed("params", "Name", to="echo"),
        changed("params", "requestState", to="x"),
        changed("params", "_meta", to=None),
        changed("params", "_meta", to={}),
        changed("params", "_meta", "_META", to={}),
        changed("params", "_meta", "com.example/trace", to="x"),
        changed("params", "_meta", "progressToken", to=True),
        changed("params", "_meta", "progressToken", to=1.0),
        changed("params", "_meta", "progressToken", to=None),
        changed("params", "_meta", "progressToken", to={}),
        changed("params", "_meta", LOG_LEVEL_KEY, to="loud"),
        changed("params", "_meta", VERSION_KEY, to="2025-11-25"),
        changed("params", "_meta", CAPABILITIES_KEY, to=[]),
        changed("params", "_meta", *SIZE, to=1.0),
        changed("params", "_meta", *SIZE, to=True),
        b"[%b]" % body(FIRST),
    ],
)
def test_what_is_not_the_last_request_again_goes_the_long_way(data: bytes) -> None:
    assert not is_known(data, after(body(FIRST)))
    assert same(outcome(data, after(body(FIRST))), outcome(data, Repeats()))


@pytest.mark.parametrize(
    "arguments",
    [
        b'{"x":1e999}',
        b'{"x":%b}' % (b"9" * 300),
        b'{"x":1.%b}' % (b"0" * 300),
        b'{"x":%b1%b}' % (b"[" * 99, b"]" * 99),
        b"{%b}" % b",".join(b'"%d":1' % n for n in range(10_001)),
    ],
)
def test_arguments_over_a_limit_are_refused_behind_a_known_head_too(arguments: bytes) -> None:
    data = body(FIRST).replace(b'{"text": "hello"}', arguments)
    refused = outcome(data, after(body(FIRST)))
    assert isinstance(refused, tuple) and isinstance(refused[0], ErrorObject) and refused[0].code == -32600
    assert same(refused, outcome(data, Repeats()))


@pytest.mark.parametrize("known", [1, None, "1"])
@pytest.mark.parametrize(
    "written", [b"1e999", b"1" * 300, b"1" * 5000, b"1.0", b"1e0", b"true", b"[" * 150 + b"]" * 150]
)
def test_a_number_in_meta_is_not_taken_for_the_one_that_was_there(known: object, written: bytes) -> None:
    first = changed("params", "_meta", *SIZE, to=known)
    data = first.replace(b'"size": ' + body(known), b'"size": ' + written)
    assert data != first
    assert same(outcome(data, after(first)), outcome(data, Repeats()))


@pytest.mark.parametrize(
    "first",
    [
        changed("params", "_meta", *SIZE, to="x" * 4096),
        changed("params", "_meta", "com.example/trace", to="x"),
        changed("params", "task", to={"ttl": 1}),
        changed("params", "name", to=5),
    ],
)
def test_a_request_out_of_the_ordinary_is_not_known_again(first: bytes) -> None:
    assert not is_known(first, after(first))


scalars: st.SearchStrategy[object] = st.sampled_from(
    [1, 1.0, True, "1", None, 0, -0.0, "echo", "2.0", 2**53, 10**30, "x" * 65, [], {}, [[1]], "é"]
)
paths: st.SearchStrategy[tuple[str, ...]] = st.sampled_from(
    [
        ("jsonrpc",),
        ("id",),
        ("method",),
        ("params",),
        ("more",),
        ("params", "name"),
        ("params", "arguments"),
        ("params", "arguments", "text"),
        ("params", "Arguments"),
        ("params", "_meta"),
        ("params", "_meta", "progressToken"),
        ("params", "_meta", "more"),
        ("params", "_meta", LOG_LEVEL_KEY),
        ("params", "_meta", CLIENT_INFO_KEY, "version"),
        ("params", "_meta", *SIZE),
    ]
)


@st.composite
def _requests(draw: st.DrawFn) -> bytes:
    return changed(*draw(paths), to=draw(scalars))


requests = _requests() | st.just(body(FIRST))


@given(requests, requests)
@example(body(FIRST), body(FIRST))
def test_any_request_after_any_other_means_what_it_means_alone(first: bytes, second: bytes) -> None:
    try:
        repeats = after(first)
    except (RemoteProtocolError, AssertionError):
        repeats = Repeats()
    assert same(outcome(second, repeats), outcome(second, Repeats()))


# ------------------------------------------------------------------------------------------------------ the session era

PLAIN: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "echo", "arguments": {"text": "hello"}},
}


def plainly(data: bytes, *, at_a_glance: bool) -> Outcome:
    """What an endpoint makes of a body: the message that it is, or the error and the id that it is answered with."""
    try:
        value = parse_json(data)
        request = plain_request(data, value) if at_a_glance else None
        if request is not None:
            return "message", request
        check_limits(data, value)
        return "message", read_message(value)
    except RemoteProtocolError as problem:
        return error_object(problem), problem.request_id


altered = partial(changed, base=PLAIN)


@pytest.mark.parametrize(
    "data",
    [
        body(PLAIN),
        altered("id", to="another"),
        altered("method", to="no such method"),
        altered("params", to={}),
        altered("params", to={"uri": "a://b"}),
        altered("params", to={"cursor": None}),
        altered("params", "arguments", to={"n": 5, "yes": True, "none": None, "deep": [{"x": 1.5}]}),
        altered("params", "arguments", to={"text": "x" * 200_000}),
        altered("params", "task", to={"ttl": 1}),
        altered("params", "_meta", to={"progressToken": 1}),
        altered("params", "_meta", to={"progressToken": "one"}),
    ],
)
def test_a_request_that_says_nothing_of_itself_is_read_at_a_glance(data: bytes) -> None:
    assert plain_request(data, parse_json(data)) is not None
    assert same(plainly(data, at_a_glance=True), plainly(data, at_a_glance=False))


@pytest.mark.parametrize(
    "data",
    [
        altered("jsonrpc", to="2"),
        altered("id", to=True),
        altered("id", to=1.0),
        altered("id", to=None),
        altered("id", to=LARGEST_ID + 1),
        altered("id", to="x" * 65),
        altered("ID", to=1),
        altered("method", to=None),
        altered("method", to="initialize"),
        altered("params", to=[]),
        altered("params", to=None),
        altered("params", "Name", to="echo"),
        altered("params", "more", to=1),
        altered("params", "ref", to={}),
        altered("params", "notifications", to={}),
        altered("params", "_meta", to={}),
        altered("params", "_meta", to=None),
        altered("params", "_meta", to={"progressToken": 1.0}),
        altered("params", "_meta", to={"progressToken": True}),
        altered("params", "_meta", to={"progressToken": None}),
        altered("params", "_meta", to={"progressToken": 1, "x": 1}),
        altered("params", "_meta", to=META),
        altered("result", to={}),
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}',
        b'{"jsonrpc": "2.0", "method": "tools/list", "params": {}}',
        b"[%b]" % body(PLAIN),
        b"1",
    ],
)
def test_what_says_more_or_is_no_such_request_goes_the_long_way(data: bytes) -> None:
    assert plain_request(data, parse_json(data)) is None
    assert same(plainly(data, at_a_glance=True), plainly(data, at_a_glance=False))


@pytest.mark.parametrize("written", [b"1e999", b"9" * 300, b"1.%b" % (b"0" * 300), b"[" * 150 + b"]" * 150])
@pytest.mark.parametrize("place", [b'{"text": "hello"}', b'"hello"', b'"echo"'])
def test_plain_params_over_a_limit_are_refused(written: bytes, place: bytes) -> None:
    data = body(PLAIN).replace(place, written)
    refused = plainly(data, at_a_glance=True)
    assert isinstance(refused, tuple) and isinstance(refused[0], ErrorObject) and refused[0].code == -32600
    assert same(refused, plainly(data, at_a_glance=False))


values: st.SearchStrategy[object] = st.recursive(
    scalars | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    ["jsonrpc", "id", "method", "params", "result", "error", "name", "arguments", "_meta", "uri", "cursor", "Name", "x"]
)
metas = st.dictionaries(st.sampled_from(["progressToken", VERSION_KEY, LOG_LEVEL_KEY, "ProgressToken", "x"]), scalars)


@given(
    st.dictionaries(names, values, max_size=3),
    st.dictionaries(names, values, max_size=3) | metas.map(lambda meta: {"_meta": meta}),
    st.sampled_from(["id", "params", ""]),
)
def test_any_body_read_at_a_glance_means_what_it_means_the_long_way(
    members: dict[str, object], params: dict[str, object], missing: str
) -> None:
    inner = {**PLAIN["params"], **params}
    data = body({name: value for name, value in {**PLAIN, "params": inner, **members}.items() if name != missing})
    assert same(plainly(data, at_a_glance=True), plainly(data, at_a_glance=False))
    request = plain_request(data, parse_json(data))
    assert request is None or not is_modern(request.params)


def after_plain(first: bytes) -> Repeats:
    """What is known behind a head of the session era once this request has come the long way."""
    repeats = Repeats()
    request = plain_request(first, parse_json(first))
    for _ in range(2 if request is not None else 0):
        assert request is not None
        repeats.learn_plain(first, request)
    return repeats


def plain_again(data: bytes, repeats: Repeats) -> Outcome:
    request = repeats.read_plain(data)
    return plainly(data, at_a_glance=True) if request is None else ("message", request)


@pytest.mark.parametrize(
    "data",
    [
        body(PLAIN),
        altered("id", to="another"),
        altered("params", "arguments", to={}),
        altered("params", "arguments", to={"n": 5, "yes": True, "none": None, "deep": [{"x": 1.5}]}),
        altered("params", "arguments", to={"text": "x" * 90_000}),
        altered("params", "arguments", to={"text": body(PLAIN).decode()}),
    ],
)
def test_the_last_plain_request_is_known_again_whatever_its_id_and_arguments(data: bytes) -> None:
    repeats = after_plain(body(PLAIN))
    assert repeats.read_plain(data) is not None
    assert same(plain_again(data, repeats), plainly(data, at_a_glance=False))


def test_a_plain_request_with_another_progress_token_is_known_again() -> None:
    repeats = after_plain(altered("params", "_meta", to={"progressToken": 1}))
    again = altered("params", "_meta", to={"progressToken": "two"})
    assert repeats.read_plain(again) is not None
    assert same(plain_again(again, repeats), plainly(again, at_a_glance=False))


@pytest.mark.parametrize("first", [altered("params", "task", to={"ttl": 1}), altered("params", "cursor", to=None)])
def test_a_plain_request_of_which_more_than_words_would_be_kept_is_not_known_again(first: bytes) -> None:
    assert plain_request(first, parse_json(first)) is not None
    assert after_plain(first).read_plain(first) is None


@pytest.mark.parametrize(
    "arguments", [b'{"x":1e999}', b'{"x":%b}' % (b"9" * 300), b'{"x":%b1%b}' % (b"[" * 99, b"]" * 99), b'{"x":1,"x":2}']
)
def test_arguments_over_a_limit_are_refused_after_a_good_plain_request_too(arguments: bytes) -> None:
    data = body(PLAIN).replace(b'{"text": "hello"}', arguments)
    assert after_plain(body(PLAIN)).read_plain(data) is None


plain_bodies = (
    st.tuples(st.dictionaries(names, scalars, max_size=1), st.dictionaries(names, scalars, max_size=1) | metas)
    .map(lambda drawn: {**PLAIN, "params": {**PLAIN["params"], **drawn[1]}, **drawn[0]})
    .map(body)
)


@given(plain_bodies | st.just(body(PLAIN)), plain_bodies | st.just(body(PLAIN)))
def test_any_plain_request_after_any_other_means_what_it_means_alone(first: bytes, second: bytes) -> None:
    try:
        repeats = after_plain(first)
    except RemoteProtocolError:
        repeats = Repeats()
    assert same(plain_again(second, repeats), plainly(second, at_a_glance=False))
