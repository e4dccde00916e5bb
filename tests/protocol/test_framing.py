"""Both framings: how the bytes are cut never shows, bounds hold, and one bad message harms no other."""

import json
import re
import tracemalloc
from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.protocol.framing import DEFAULT_CEILING, HEAD_KEPT, Frame, LineDecoder, TooLong, encode_line
from sluicegate.protocol.sse import (
    FIELD_CEILING,
    SseDecoder,
    SseEvent,
    encode_comment,
    encode_event,
)

T = TypeVar("T")

BOM = b"\xef\xbb\xbf"

# What other parsers take for the end of a line; all but the first three cannot stand raw in JSON, but may in log lines.
NOT_LINE_ENDS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"


def read_lines(stream: bytes, ceiling: int = DEFAULT_CEILING) -> list[Frame]:
    decoder = LineDecoder(ceiling)
    return decoder.feed(stream) + decoder.finish()


def read_events(stream: bytes, ceiling: int = DEFAULT_CEILING) -> list[SseEvent | TooLong]:
    return SseDecoder(ceiling).feed(stream)


def feed_all(feed: Callable[[bytes], list[T]], chunks: Iterable[bytes]) -> list[T]:
    return [frame for chunk in chunks for frame in feed(chunk)]


def whole(stream: bytes) -> list[bytes]:
    return [stream]


def single_bytes(stream: bytes) -> list[bytes]:
    return [stream[i : i + 1] for i in range(len(stream))]


# --- The same rules once more, slow and obvious, to compare with ------------------------------------------------------


def expected_lines(stream: bytes, ceiling: int) -> list[Frame]:
    frames: list[Frame] = []
    for line in stream.removeprefix(BOM).split(b"\n"):
        body = line.removesuffix(b"\r")
        if len(body) > ceiling:
            frames.append(TooLong(line[: min(HEAD_KEPT, ceiling + 1)]))
        elif re.search(rb"[^ \t\r]", body):
            frames.append(body)
    return frames


def expected_events(stream: bytes, ceiling: int) -> list[SseEvent | TooLong]:
    *lines, unfinished = re.split(rb"\r\n|\n|\r", stream.removeprefix(BOM))
    events: list[SseEvent | TooLong] = []
    fields: list[tuple[bytes, bytes]] = []
    for line in lines:
        if line:
            fields.append(expected_field(line))
            continue
        data = [value for name, value in fields if name == b"data"]
        ids = [value for name, value in fields if name == b"id" and b"\0" not in value and len(value) <= FIELD_CEILING]
        retries = [value for name, value in fields if name == b"retry" and re.fullmatch(rb"[0-9]{1,10}", value)]
        kinds = [value[:FIELD_CEILING] for name, value in fields if name == b"event"]
        fields = []
        joined = b"\n".join(data)
        is_over = len(joined) > ceiling
        if is_over:
            events.append(TooLong(joined[: min(HEAD_KEPT, ceiling)]))
        if (data and not is_over) or ids or retries:
            kind = kinds[-1].decode(errors="replace") if kinds else ""
            id = ids[-1].decode(errors="replace") if ids else None
            retry = int(retries[-1]) if retries else None
            events.append(SseEvent(b"" if is_over else joined, kind or "message", id, retry))
    # An event that is too long is seen before it ends; any other that the stream breaks off in is not.
    if unfinished.startswith(b"data:") and len(unfinished) > len(b"data:"):
        fields.append(expected_field(unfinished))
    joined = b"\n".join(value for name, value in fields if name == b"data")
    if len(joined) > ceiling:
        events.append(TooLong(joined[: min(HEAD_KEPT, ceiling)]))
    return events


def expected_field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name, value.removeprefix(b" ")


# --- Streams made of the pieces that matter, in any order and cut anywhere --------------------------------------------

ceilings = st.sampled_from([1, 3, 8, 40, HEAD_KEPT - 1, HEAD_KEPT, HEAD_KEPT + 1, 3 * HEAD_KEPT])
long_runs = st.sampled_from(
    [b"y" * n for n in (HEAD_KEPT - 1, HEAD_KEPT, HEAD_KEPT + 1, FIELD_CEILING + 8, 3 * HEAD_KEPT, 3 * HEAD_KEPT + 1)]
)
line_pieces = st.one_of(
    st.sampled_from([b"\n", b"\r\n", b"\r", b" ", b"\t", BOM, BOM[:1], BOM[:2], b"{}", b'{"id":1}', b"\0", b"\xff"]),
    st.sampled_from([char.encode() for char in NOT_LINE_ENDS]),
    st.binary(max_size=12),
    long_runs,
)
event_pieces = st.one_of(
    st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n", b"\r\r", BOM, BOM[:2], b":", b" ", b"\0"]),
    st.sampled_from([b"data", b"data:", b"data: ", b"data:  ", b"dat", b"datax: 1", b": note", b"unknown: 1"]),
    st.sampled_from([b"id: 7", b"id", b"id:", b"id: a\0b", b"event: ping", b"event", b"retry: 30", b"retry: 3x"]),
    st.sampled_from([b"id: \xff", b"id: ", b"event: ", b"retry: ", b"9" * 10, b"9" * 11, "\u0663".encode()]),
    st.sampled_from([char.encode() for char in NOT_LINE_ENDS]),
    st.binary(max_size=12),
    long_runs,
)


def streams(pieces: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(pieces, max_size=40).map(b"".join)


@st.composite
def cut(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """The stream in chunks, some of them empty, or byte by byte."""
    if draw(st.booleans()) and len(stream) < 300:
        return single_bytes(stream)
    places = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]


@given(streams(line_pieces), ceilings, st.data())
def test_any_chunking_gives_the_same_lines(stream: bytes, ceiling: int, data: st.DataObject) -> None:
    decoder = LineDecoder(ceiling)
    frames = feed_all(decoder.feed, data.draw(cut(stream)))
    assert frames + decoder.finish() == expected_lines(stream, ceiling)


@given(streams(event_pieces), ceilings, st.data())
def test_any_chunking_gives_the_same_events(stream: bytes, ceiling: int, data: st.DataObject) -> None:
    assert feed_all(SseDecoder(ceiling).feed, data.draw(cut(stream))) == expected_events(stream, ceiling)


@given(st.lists(st.binary(max_size=200)), ceilings)
def test_random_bytes_never_raise_and_little_is_held(chunks: list[bytes], ceiling: int) -> None:
    lines, events = LineDecoder(ceiling), SseDecoder(ceiling)
    for chunk in chunks:
        lines.feed(chunk)
        events.feed(chunk)
        assert lines.buffered <= max(ceiling + 1, HEAD_KEPT)
        assert events.buffered <= max(ceiling, HEAD_KEPT) + 3 * (FIELD_CEILING + 8)
    lines.finish()


@given(st.lists(event_pieces), ceilings)
def test_fields_in_any_order_never_hold_more_than_their_ceilings(chunks: list[bytes], ceiling: int) -> None:
    decoder = SseDecoder(ceiling)
    for chunk in chunks:
        decoder.feed(chunk)
        assert decoder.buffered <= max(ceiling, HEAD_KEPT) + 3 * (FIELD_CEILING + 8)


# --- There and back ---------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.text(alphabet=NOT_LINE_ENDS + '\r\n"\\é'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=6,
)
layouts = st.sampled_from([None, 0, 2, "\t"])
ids = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), max_size=40)


def json_bytes(value: object, layout: int | str | None, newline: str) -> bytes:
    # In JSON text, a raw newline can only come from the layout.
    return json.dumps(value, ensure_ascii=False, indent=layout).replace("\n", newline).encode()


@given(st.lists(json_values), layouts, st.sampled_from(["\n", "\r\n", "\r"]), st.data())
def test_messages_survive_encoding_as_lines(
    values: list[object], layout: int | str | None, newline: str, data: st.DataObject
) -> None:
    stream = b"".join(encode_line(json_bytes(value, layout, newline)) for value in values)
    frames = feed_all(LineDecoder().feed, data.draw(cut(stream)))
    assert [json.loads(frame) for frame in frames if isinstance(frame, bytes)] == values
    assert len(stream.decode().splitlines()) == len(values), "even for readers that split where they should not"


@given(
    st.lists(st.tuples(json_values, st.none() | ids, st.none() | ids, st.none() | st.integers(0, 10**10 - 1))),
    st.data(),
)
def test_messages_survive_encoding_as_events(
    sent: list[tuple[object, str | None, str | None, int | None]], data: st.DataObject
) -> None:
    stream = b"".join(
        encode_event(json_bytes(value, 2, "\r\n"), event=event, id=id, retry=retry) + encode_comment("still here")
        for value, event, id, retry in sent
    )
    received = feed_all(SseDecoder().feed, data.draw(cut(stream)))
    assert [
        (json.loads(event.data), event.event, event.id, event.retry)
        for event in received
        if isinstance(event, SseEvent)
    ] == [(value, event or "message", id, retry) for value, event, id, retry in sent]


# --- Lines ------------------------------------------------------------------------------------------------------------


def test_lines_end_at_lf_or_crlf_and_lose_one_cr_only() -> None:
    assert read_lines(b"a\nb\r\nc\r\r\nd\re\n") == [b"a", b"b", b"c\r", b"d\re"]


def test_a_line_end_cut_in_two_is_one_line_end() -> None:
    decoder = LineDecoder()
    assert [decoder.feed(chunk) for chunk in (b"a\r", b"\n", b"", b"b", b"\r\nc\n")] == [
        [],
        [b"a"],
        [],
        [],
        [b"b", b"c"],
    ]


def test_blank_lines_are_no_messages() -> None:
    assert read_lines(b"\n\r\n \t \n\r\r\n{}\n\n  ") == [b"{}"]


def test_a_line_of_other_whitespace_is_not_blank() -> None:
    assert read_lines(b"\x0b\n\x0c\n\0\n") == [b"\x0b", b"\x0c", b"\0"]


@pytest.mark.parametrize("char", NOT_LINE_ENDS)
def test_nothing_but_lf_ends_a_line(char: str) -> None:
    line = f'{{"text":"a{char}b"}}'.encode()
    assert read_lines(line + b"\n" + line) == [line, line]


def test_a_bom_is_passed_over_only_where_the_stream_begins() -> None:
    stream = BOM + b"a\n" + BOM + b"b\n"
    assert read_lines(stream) == [b"a", BOM + b"b"]
    assert feed_all(LineDecoder().feed, single_bytes(stream)) == [b"a", BOM + b"b"]
    assert read_lines(BOM + BOM + b"a\n") == [BOM + b"a"]


def test_half_a_bom_is_what_it_is() -> None:
    assert read_lines(BOM[:2]) == [BOM[:2]]
    assert read_lines(BOM[:2] + b"\n") == [BOM[:2]]
    decoder = LineDecoder()
    assert decoder.feed(BOM[:1]) == []
    assert decoder.buffered == 1
    assert decoder.feed(b"x\n") == [BOM[:1] + b"x"]


def test_the_last_line_needs_no_newline() -> None:
    decoder = LineDecoder()
    assert decoder.feed(b'{"a":1}\n{"b"') == [b'{"a":1}']
    assert decoder.buffered == 4
    assert decoder.feed(b":2}\r") == []
    assert decoder.finish() == [b'{"b":2}']
    assert decoder.buffered == 0


def test_an_empty_stream_has_no_messages() -> None:
    assert LineDecoder().finish() == []


@pytest.mark.parametrize("ceiling", [100, HEAD_KEPT + 100])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("chunks", [whole, single_bytes])
def test_a_line_of_just_the_ceiling_passes_and_one_byte_more_fails_alone(
    ceiling: int, line_end: bytes, chunks: Callable[[bytes], list[bytes]]
) -> None:
    full, over = b"{%b}" % (b"x" * (ceiling - 2)), b"{%b}" % (b"x" * (ceiling - 1))
    seen = over + line_end[:-1]
    stream = line_end.join([full, over, b"{}", b""])
    head = seen[: min(HEAD_KEPT, ceiling + 1)]
    assert feed_all(LineDecoder(ceiling).feed, chunks(stream)) == [full, TooLong(head), b"{}"]


def test_a_line_that_never_ends_is_reported_once_and_where_it_becomes_too_long() -> None:
    decoder = LineDecoder(10_000)
    seen = [decoder.feed(b"z" * 1000) for _ in range(100)]
    assert seen == [*[[]] * 10, [TooLong(b"z" * HEAD_KEPT)], *[[]] * 89]
    assert decoder.buffered == HEAD_KEPT
    assert decoder.feed(b"z\n{}\n") == [b"{}"]
    assert decoder.finish() == []


def test_an_event_that_never_ends_is_reported_once_and_where_it_becomes_too_long() -> None:
    decoder = SseDecoder(10_000)
    assert decoder.feed(b"data: ") == []
    seen = [decoder.feed(b"z" * 1000) for _ in range(100)]
    assert seen == [*[[]] * 10, [TooLong(b"z" * HEAD_KEPT)], *[[]] * 89]
    assert decoder.buffered == HEAD_KEPT
    assert decoder.feed(b"\ndata: more\n\ndata: {}\n\n") == [SseEvent(b"{}")]


def test_the_id_of_an_event_that_is_too_long_still_counts() -> None:
    assert read_events(b"data: abcdef\nid: 7\n\ndata: g\n\n", ceiling=5) == [
        TooLong(b"abcde"),
        SseEvent(b"", id="7"),
        SseEvent(b"g"),
    ]


def test_the_id_of_a_line_that_is_too_long_is_recovered() -> None:
    start = b'{"jsonrpc":"2.0","id":17,"result":"'
    (frame, following) = read_lines(start + b"r" * 20_000 + b'"}\n{}\n', ceiling=10_000)
    assert isinstance(frame, TooLong)
    assert frame.head.startswith(start)
    assert len(frame.head) == HEAD_KEPT
    assert following == b"{}"


# --- Events -----------------------------------------------------------------------------------------------------------


def test_an_event_ends_at_a_blank_line_and_is_a_message_unless_named() -> None:
    assert read_events(b"data: {}\n\nevent: endpoint\ndata: /messages\n\ndata: 3\n\n") == [
        SseEvent(b"{}"),
        SseEvent(b"/messages", "endpoint"),
        SseEvent(b"3"),
    ]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_lines_of_an_event_end_at_cr_lf_or_crlf_wherever_they_are_cut(end: bytes) -> None:
    stream = end.join([b"id: 1", b"data: a", b"data: b", b"", b"data: c", b"", b""])
    expected = [SseEvent(b"a\nb", id="1"), SseEvent(b"c")]
    assert read_events(stream) == expected
    assert feed_all(SseDecoder().feed, single_bytes(stream)) == expected


def test_an_event_is_seen_at_its_last_cr_without_waiting_for_an_lf() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\r\n\r") == [SseEvent(b"a")]
    assert decoder.feed(b"\nid: 2\r") == []
    assert decoder.feed(b"") == []
    assert decoder.feed(b"\ndata: b\r\n\r\n") == [SseEvent(b"b", id="2")]


def test_lines_of_data_are_joined_by_lf() -> None:
    assert read_events(b"data: {\ndata:   1\ndata\ndata:}\n\n") == [SseEvent(b"{\n  1\n\n}")]
    assert read_events(b"data:\ndata: a\ndata\n\n") == [SseEvent(b"\na\n")]


def test_one_space_after_the_colon_is_left_out() -> None:
    assert read_events(b"data:a\n\ndata: a\n\ndata:  a\n\ndata:\ta\n\n") == [
        SseEvent(b"a"),
        SseEvent(b"a"),
        SseEvent(b" a"),
        SseEvent(b"\ta"),
    ]


def test_comments_and_unknown_fields_are_passed_over() -> None:
    assert read_events(b": ping\n\n:\n\nfoo: 1\nDATA: no\n data: no\ndatax\n\n: x\ndata: a\nbar\n\n") == [
        SseEvent(b"a")
    ]


def test_an_event_that_is_only_named_is_not_seen() -> None:
    assert read_events(b"event: ping\n\ndata: a\n\n") == [SseEvent(b"a")]


def test_the_last_of_several_fields_counts() -> None:
    assert read_events(b"event: a\nevent: b\nid: 1\nid: 2\nretry: 1\nretry: 2\ndata:\n\n") == [
        SseEvent(b"", "b", "2", 2)
    ]
    assert read_events(b"event: a\nevent\ndata:\n\n") == [SseEvent(b"", "message")]


def test_empty_data_counts_for_its_id() -> None:
    assert read_events(b"id: 5\ndata:\n\nid: 6\n\nid\n\ndata\n\n") == [
        SseEvent(b"", id="5"),
        SseEvent(b"", id="6"),
        SseEvent(b"", id=""),
        SseEvent(b""),
    ]


def test_an_id_with_nul_is_passed_over() -> None:
    assert read_events(b"id: a\0b\ndata: 1\n\n") == [SseEvent(b"1")]


@pytest.mark.parametrize("chunks", [whole, single_bytes])
def test_an_id_beyond_its_ceiling_is_passed_over(chunks: Callable[[bytes], list[bytes]]) -> None:
    longest = "i" * FIELD_CEILING
    stream = f"id: {longest}\n\nid:{longest}\n\nid:{longest}i\ndata: 1\n\nid: {longest}i\ndata: 2\n\n".encode()
    expected = [SseEvent(b"", id=longest), SseEvent(b"", id=longest), SseEvent(b"1"), SseEvent(b"2")]
    assert feed_all(SseDecoder().feed, chunks(stream)) == expected


@pytest.mark.parametrize("chunks", [whole, single_bytes])
def test_the_name_of_an_event_is_cut_at_its_ceiling_and_makes_no_message(
    chunks: Callable[[bytes], list[bytes]],
) -> None:
    longest = "e" * FIELD_CEILING
    stream = f"event: {longest}\ndata: 1\n\nevent: {longest}{longest}\ndata: 2\n\n".encode()
    assert feed_all(SseDecoder().feed, chunks(stream)) == [SseEvent(b"1", longest), SseEvent(b"2", longest)]


@pytest.mark.parametrize(
    ("value", "retry"), [("3000", 3000), ("0", 0), ("9" * 10, 9_999_999_999)], ids=["some", "none", "longest"]
)
def test_retry_is_a_number_of_milliseconds(value: str, retry: int) -> None:
    assert read_events(f"retry: {value}\n\n".encode()) == [SseEvent(b"", retry=retry)]


@pytest.mark.parametrize("value", ["", "-1", "+1", "1.5", "1 ", "0x1", "\u0663", "1_0", "9" * 11, "9" * 9999])
def test_retry_that_is_no_plain_number_is_passed_over(value: str) -> None:
    assert read_events(f"retry: {value}\n\n".encode()) == []


def test_an_event_the_stream_breaks_off_in_is_not_seen() -> None:
    assert read_events(b"data: a\n\nid: 2\ndata: b\n") == [SseEvent(b"a")]
    assert read_events(b"data: b") == []


def test_a_bom_before_the_first_event_is_passed_over() -> None:
    stream = BOM + b"data: a\n\n" + BOM + b"data: b\n\n"
    assert read_events(stream) == [SseEvent(b"a")]
    assert feed_all(SseDecoder().feed, single_bytes(stream)) == [SseEvent(b"a")]


@pytest.mark.parametrize("char", NOT_LINE_ENDS)
def test_nothing_but_cr_and_lf_ends_a_line_of_an_event(char: str) -> None:
    data = f'{{"text":"a{char}b"}}'.encode()
    assert read_events(b"data: " + data + b"\n\n") == [SseEvent(data)]


def test_invalid_utf8_spoils_no_more_than_the_field_it_is_in() -> None:
    assert read_events(b"event: \xff\nid: \xff\ndata: \xff\n\n") == [SseEvent(b"\xff", "\ufffd", "\ufffd")]


@pytest.mark.parametrize("chunks", [whole, single_bytes])
def test_data_of_just_the_ceiling_passes_and_one_byte_more_fails_alone(
    chunks: Callable[[bytes], list[bytes]],
) -> None:
    full, over, joined = b"x" * 100, b"y" * 101, b"data: " + b"z" * 50 + b"\n"
    stream = b"id: 1\ndata: %b\n\nid: 2\ndata: %b\n\n%b%b\nevent: e\ndata: ok\n\n" % (full, over, joined, joined)
    assert feed_all(SseDecoder(100).feed, chunks(stream)) == [
        SseEvent(full, id="1"),
        TooLong(over[:100]),
        SseEvent(b"", id="2"),
        TooLong(b"z" * 50 + b"\n" + b"z" * 49),
        SseEvent(b"ok", "e"),
    ]


def test_many_lines_of_data_are_held_up_to_the_ceiling_only() -> None:
    decoder = SseDecoder(10_000)
    (event,) = feed_all(decoder.feed, [b"data: " + b"z" * 99 + b"\ndata\n"] * 1000)
    assert event == TooLong((b"z" * 99 + b"\n\n") * 40 + b"z" * (HEAD_KEPT - 40 * 101))
    assert decoder.buffered == HEAD_KEPT
    assert decoder.feed(b"\ndata: next\n\n") == [SseEvent(b"next")]


def test_comments_do_not_use_up_the_room_of_an_event() -> None:
    decoder = SseDecoder(10)
    assert feed_all(decoder.feed, [b": still here\n"] * 1000) == []
    assert decoder.buffered == 0
    assert decoder.feed(b"data: 0123456789\n\n") == [SseEvent(b"0123456789")]


# --- Bounds -----------------------------------------------------------------------------------------------------------

ENDLESS = {
    "line": (LineDecoder, b"z"),
    "comment": (SseDecoder, b":"),
    "unknown field": (SseDecoder, b"zzz: "),
    "data": (SseDecoder, b"data: "),
    "id": (SseDecoder, b"id: "),
    "event": (SseDecoder, b"event: "),
    "retry": (SseDecoder, b"retry: "),
}


@pytest.mark.parametrize(("decoder", "start"), ENDLESS.values(), ids=ENDLESS)
def test_a_line_without_end_takes_no_more_memory_than_the_ceiling(
    decoder: type[LineDecoder] | type[SseDecoder], start: bytes
) -> None:
    ceiling, piece = 256 * 1024, b"9" * 65_536
    subject = decoder(ceiling)
    tracemalloc.start()
    try:
        subject.feed(start)
        for _ in range(160):  # 10 MiB
            subject.feed(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * ceiling + 4 * len(piece)
    assert subject.buffered <= HEAD_KEPT + 8


@pytest.mark.parametrize("framing", ["line", "data"])
@pytest.mark.parametrize("then", [b"{}\n\n", b"9"], ids=["whole messages", "one more"])
def test_a_message_that_is_too_long_is_not_kept_in_memory(framing: str, then: bytes) -> None:
    decoder, start = ENDLESS[framing]
    subject = decoder()
    tracemalloc.start()
    try:
        subject.feed(start)
        frames = [frame for _ in range(257) for frame in subject.feed(b"9" * 65536)]
        assert [type(frame) for frame in frames] == [TooLong]
        subject.feed(b"\n\n")
        subject.feed(start)
        for _ in range(20):
            subject.feed(then)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 64 * 1024


@pytest.mark.parametrize("size", [1, 3, 1000, 5000])
def test_a_message_in_small_pieces_takes_little_more_memory_than_a_whole_one(size: int) -> None:
    length = min(512 * 1024, size * 65536)
    for decoder, start in (ENDLESS["line"], ENDLESS["data"]):
        subject = decoder()
        subject.feed(start)
        tracemalloc.start()
        try:
            for _ in range(length // size):
                subject.feed(b"9" * size)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 1.5 * length
        (frame,) = subject.feed(b"\n\n")
        assert isinstance(frame, bytes | SseEvent)
        data = frame.data if isinstance(frame, SseEvent) else frame
        assert data.removeprefix(start) == b"9" * (length // size * size)


@pytest.mark.parametrize(("decoder", "start"), [ENDLESS["line"], ENDLESS["data"]], ids=["line", "data"])
def test_a_message_that_is_too_long_is_freed_while_its_rest_arrives(
    decoder: type[LineDecoder] | type[SseDecoder], start: bytes
) -> None:
    piece = 64 * 1024
    subject = decoder(64 * piece)
    tracemalloc.start()
    try:
        subject.feed(start)
        held: list[int] = []
        for _ in range(70):
            subject.feed(b"9" * piece)
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(held) < 66 * piece
    assert max(before - after for before, after in zip(held, held[1:], strict=False)) < 20 * piece, "never all at once"
    assert held[-1] < piece


@pytest.mark.parametrize(("decoder", "start"), [ENDLESS["line"], ENDLESS["data"]], ids=["line", "data"])
def test_one_more_byte_costs_the_same_however_much_is_held(
    decoder: type[LineDecoder] | type[SseDecoder], start: bytes
) -> None:
    # No clock: if every byte copied or searched what is held, this would read 4 TB and run into pytest's timeout.
    subject = decoder()
    subject.feed(start + b"9" * 15_000_000)
    for _ in range(250_000):
        subject.feed(b"9")
    assert subject.buffered >= 15_250_000
    (frame,) = subject.feed(b"\n\n")
    assert isinstance(frame, bytes | SseEvent)


def test_a_flood_of_line_ends_holds_nothing() -> None:
    for decoder in (LineDecoder(10), SseDecoder(10)):
        for flood in (b"\n" * 10_000, b"\r\n" * 10_000, b"\n:\n" * 10_000):
            assert decoder.feed(flood) in ([], [b":"] * 10_000)
            assert decoder.buffered == 0


# --- Encoding ---------------------------------------------------------------------------------------------------------


def test_a_message_without_newlines_is_written_as_it_is() -> None:
    assert encode_line('{"a":"é"}'.encode()) == '{"a":"é"}\n'.encode()


def test_the_layout_of_a_message_becomes_spaces() -> None:
    assert encode_line(b'{\r\n\t"a": 1\n}\r') == b'{  \t"a": 1 } \n'
    assert encode_event(b'{\r\n\t"a": 1\n}\r') == b'data: {  \t"a": 1 } \n\n'


def test_characters_that_some_readers_take_for_a_line_end_are_escaped() -> None:
    message = '{"a":"\u2028\u2029\x85é\u2027"}'.encode()
    escaped = '{"a":"\\u2028\\u2029\\u0085é\u2027"}'.encode()
    assert encode_line(message) == escaped + b"\n"
    assert encode_event(message) == b"data: " + escaped + b"\n\n"


def test_an_event_is_written_with_its_fields() -> None:
    assert (
        encode_event(b"{}", event="message", id="é1", retry=0)
        == "event: message\nid: é1\nretry: 0\ndata: {}\n\n".encode()
    )


def test_a_priming_event_has_an_id_and_no_data() -> None:
    assert encode_event(b"", id="0") == b"id: 0\ndata: \n\n"


@pytest.mark.parametrize("bad", ["a\nb", "a\r", "\0"])
def test_a_field_cannot_begin_another(bad: str) -> None:
    with pytest.raises(ValueError, match="cannot contain"):
        encode_event(b"{}", event=bad)
    with pytest.raises(ValueError, match="cannot contain"):
        encode_event(b"{}", id=bad)
    with pytest.raises(ValueError, match="cannot contain"):
        encode_comment(bad)


def test_retry_is_never_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        encode_event(b"{}", retry=-1)


def test_a_comment_is_no_event() -> None:
    assert encode_comment() == b": \n\n"
    assert encode_comment("ping") == b": ping\n\n"
    assert read_events(encode_comment() + encode_comment("data: 1")) == []
