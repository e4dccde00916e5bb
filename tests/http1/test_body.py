"""The chunked coding: any cutting gives the same body, and whatever we accept, llhttp reads the same way."""

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.http1.body import BadChunk, ChunkDecoder

BODIES = st.lists(st.binary(min_size=1, max_size=40), max_size=8)


def encode(parts: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    return b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts) + b"0\r\n%b\r\n" % trailer


@given(BODIES, st.sampled_from([b"", b";a=b", b';a="b"']), st.sampled_from([b"", b"A: b\r\n"]), st.data())
def test_any_cutting_gives_the_same_body_and_the_same_rest(
    parts: list[bytes], extension: bytes, trailer: bytes, data: st.DataObject
) -> None:
    wire = encode(parts, extension, trailer) + b"REST"
    decoder, body, at = ChunkDecoder(), b"", 0
    while decoder.rest is None:
        end = data.draw(st.integers(at + 1, len(wire)))
        body += b"".join(decoder.feed(wire[at:end]))
        at = end
    assert body == b"".join(parts)
    assert decoder.rest + wire[at:] == b"REST"


class Reader:
    """What llhttp makes of a chunked request."""

    def __init__(self) -> None:
        self.body = b""
        self.complete = False

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True

    def read(self, wire: bytes) -> None:
        head = b"POST / HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        httptools.HttpRequestParser(self).feed_data(head + wire)


ALPHABET = st.sampled_from(
    [b"0", b"1", b"2", b"a", b";", b"x", b":", b" ", b"\r", b"\n", b"\r\n", b"0\r\n\r\n", b"1\r\nx\r\n"]
)


@settings(max_examples=500)
@given(st.lists(ALPHABET, max_size=14).map(b"".join))
def test_llhttp_reads_accepted_bodies_the_same_way(wire: bytes) -> None:
    decoder = ChunkDecoder()
    try:
        body = b"".join(decoder.feed(wire))
    except BadChunk:
        return
    if decoder.rest is not None:
        reader = Reader()
        reader.read(wire[: len(wire) - len(decoder.rest)])
        assert (reader.body, reader.complete) == (body, True)


@pytest.mark.parametrize("wire", [b"1" * 2000, b"1;" + b"x" * 2000, b"0\r\nA: " + b"x" * 2000, b"1\r\nxx"])
def test_line_that_grows_without_end_is_refused_before_its_end(wire: bytes) -> None:
    decoder = ChunkDecoder()
    with pytest.raises(BadChunk):
        for byte in wire:
            decoder.feed(bytes((byte,)))
