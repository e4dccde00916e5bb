"""Heads: read in one way or refused, written without surprises."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import LocalProtocolError
from sluicegate.http1.headers import (
    BadHead,
    Headers,
    answer_head,
    check_beginning,
    is_plain,
    read_answer_head,
    read_request_head,
    request_head,
)

NAMES = st.text("abcXYZ-_!~09", min_size=1, max_size=10).map(lambda name: f"x{name}")
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=20).filter(
    lambda value: not any("\x7f" <= character < "\x80" for character in value)
)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=8).map(tuple))
def test_written_heads_are_read_back(fields: tuple[tuple[str, str], ...]) -> None:
    request = read_request_head(request_head("GET", "/a?b", "x:1", fields) + b"\r\n", url=100, headers=10_000)
    answer = read_answer_head(answer_head(404, fields, True) + b"Content-Length: 3\r\n\r\n")
    expected = [(name.lower(), value.strip(" \t")) for name, value in fields]
    assert list(request.headers)[2:] == expected
    assert list(answer.headers)[: len(fields)] == expected
    assert (request.method, request.path, request.query, request.length) == ("GET", "/a", "b", 0)
    assert (answer.status, answer.length, answer.keep_alive) == (404, 3, False)


@given(st.binary(max_size=60))
def test_bytes_are_read_or_refused_and_nothing_else(data: bytes) -> None:
    for raw in (data, b"GET / HTTP/1.1\r\nHost: x\r\n" + data + b"\r\n\r\n", b"HTTP/1.1 200 " + data + b"\r\n\r\n"):
        for read in (
            partial(read_request_head, url=100, headers=100),
            read_answer_head,
            partial(check_beginning, url=100, headers=100),
        ):
            try:
                read(raw)
            except BadHead as problem:
                assert problem.status >= 400
                assert not data.strip() or len(data) < 4 or data not in problem.sentence.encode()


@pytest.mark.parametrize(
    ("value", "plain"), [(None, True), ("identity", True), ("gzip", False), ("identity, br", False), ("", True)]
)
def test_a_compressed_request_is_distinguished_from_a_plain_one(value: str | None, plain: bool) -> None:
    assert is_plain(Headers((("content-encoding", value),) if value is not None else ())) is plain


def test_unknown_status_is_sent_without_a_phrase() -> None:
    assert answer_head(499, (), False) == b"HTTP/1.1 499 \r\n"
    with pytest.raises(LocalProtocolError):
        answer_head(99, (), False)
