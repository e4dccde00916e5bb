"""Heads that came before are known again, whatever length of the body they tell; and mean what reading them says."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluicegate.http1 import Limits
from sluicegate.http1.headers import (
    MAX_CACHED,
    AnswerHead,
    BadHead,
    HeadCache,
    RequestHead,
    read_answer_head,
    read_request_head,
)
from tests.http1.raw import exchange

FIRST = b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nAccept: a/b\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 5\r\n\r\n"


def read_request(raw: bytes) -> RequestHead:
    return read_request_head(raw, url=1000, headers=1000)


def words(head: RequestHead | AnswerHead | None) -> dict[str, object] | None:
    if head is None:
        return None
    return {**msgspec.structs.asdict(head), "headers": list(head.headers)}


@pytest.mark.parametrize("name", [b"Content-Length", b"content-length", b"CONTENT-LENGTH"])
@pytest.mark.parametrize("length", [b"0", b"5", b"6", b"123456", b"007"])
def test_a_head_is_known_again_with_another_length(name: bytes, length: bytes) -> None:
    first = FIRST.replace(b"Content-Length", name)
    second = first.replace(b": 5", b": " + length)
    known = HeadCache[RequestHead]()
    known.learn(first, read_request(first))
    if name == b"CONTENT-LENGTH" and second != first:
        assert known.find(second) is None
    else:
        assert words(known.find(second)) == words(read_request(second))


def test_equal_parts_of_two_bodies_do_not_decide_their_length() -> None:
    head = read_request(FIRST)
    assert head.length == 5 and "content-length" not in head.headers


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified", b"100 Continue"])
def test_an_answer_without_a_body_has_none_whatever_length_it_tells(status: bytes) -> None:
    first = ANSWER.replace(b"200 OK", status).replace(b": 5", b": 0")
    known = HeadCache[AnswerHead]()
    known.learn(first, read_answer_head(first))
    second = first.replace(b": 0", b": 77")
    found = known.find(second) or read_answer_head(second)
    assert found.length == 0


pieces = st.sampled_from(
    [
        *(b"Content-Length: 5", b"Content-Length: 7", b"content-length: 5", b"Content-Length: ", b"Content-Length: +5"),
        *(b"Content-Length: 5 ", b"Content-Length:5", b"Content-Length: 5, 5", b"Content-Length: 99999999999999999"),
        *(b"Transfer-Encoding: chunked", b"X: y", b"X: \r\nContent-Length: 5", b"X-Content-Length: 9", b"Host: y"),
    ]
)
heads = st.lists(pieces, max_size=4).map(
    lambda lines: b"POST / HTTP/1.1\r\nHost: x\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"
)


@given(st.lists(heads, max_size=4), heads)
@example([FIRST], FIRST.replace(b": 5", b": 6"))
def test_a_known_head_means_what_it_means_when_it_is_read(before: list[bytes], raw: bytes) -> None:
    known = HeadCache[RequestHead]()
    for other in before:
        try:
            known.learn(other, read_request(other))
        except BadHead:
            pass
    found = known.find(raw)
    assert found is None or words(found) == words(read_request(raw))


def test_memory_of_heads_is_bounded() -> None:
    known = HeadCache[RequestHead]()
    head = read_request(FIRST)
    for number in range(3 * MAX_CACHED):
        known.learn(b"%d\r\nContent-Length: 5\r\n\r\n" % number, head)
        known.find(b"%d\r\nContent-Length: %d\r\n\r\n" % (number, number))
        assert len(known.exact) <= MAX_CACHED
    known.learn(b"x" * 5000, head)
    assert known.find(b"x" * 5000) is None


def test_headers_are_cached_once_for_all_lengths_of_the_body() -> None:
    known = HeadCache[RequestHead]()
    first = read_request(FIRST)
    known.learn(FIRST, first)
    for length in range(3 * MAX_CACHED):
        found = known.find(FIRST.replace(b": 5", b": %d" % length))
        assert found is not None and (found.length, found.headers) == (length, first.headers)


async def test_a_body_that_is_too_large_is_refused_behind_a_known_head() -> None:
    async with exchange(limits=Limits(body=10)) as peer:
        for length, status in ((3, 200), (10, 200), (11, 413)):
            peer.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (length, b"x" * length))
            assert (await peer.read_reply()).status == status
