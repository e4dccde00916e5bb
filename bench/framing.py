"""What it costs to cut a stream into messages, per message: beside the shortest code that does it on a good day, and
beside `json.loads` of the same message, which comes after it anyway.
"""

import json
from collections.abc import Callable
from functools import partial

from bench.measure import Contestant, Effort, Row, Turn, loop, race
from bench.samples import compact, of_size
from sluicegate.protocol.framing import LineDecoder, encode_line
from sluicegate.protocol.sse import SseDecoder, encode_event

MESSAGE = compact(of_size(300))
LONG_MESSAGE = compact(of_size(64 * 1024))
VERY_LONG_MESSAGE = compact(of_size(1024 * 1024))
TOGETHER = 10


def run(effort: Effort) -> list[Row]:
    """The rows of this benchmark."""
    line, event = encode_line(MESSAGE), encode_event(MESSAGE, id="1/17")
    return [
        *_lines("lines of 300 B, one a chunk", line, 1, effort),
        *_lines(f"lines of 300 B, {TOGETHER} a chunk", line * TOGETHER, TOGETHER, effort),
        *_drip(effort),
        *_gathered(effort),
        *_events("SSE events of 300 B, one a chunk", event, 1, effort),
        *_events(f"SSE events of 300 B, {TOGETHER} a chunk", event * TOGETHER, TOGETHER, effort),
    ]


def _lines(benchmark: str, chunk: bytes, units: int, effort: Effort) -> list[Row]:
    contestants = [
        Contestant("json.loads", loop(partial(json.loads, MESSAGE))),
        Contestant("bytes.split", loop(partial(_NaiveLines().feed, chunk)), units, "no ceiling, no blank lines"),
        Contestant("LineDecoder", loop(partial(LineDecoder().feed, chunk)), units),
    ]
    return race(benchmark, contestants, effort)


def _drip(effort: Effort) -> list[Row]:
    pieces = [bytes((byte,)) for byte in encode_line(LONG_MESSAGE)]
    contestants = [
        Contestant("json.loads", loop(partial(json.loads, LONG_MESSAGE))),
        Contestant("bytes.split", _dripped(pieces, _NaiveLines().feed), remark="quadratic"),
        Contestant("LineDecoder", _dripped(pieces, LineDecoder().feed)),
    ]
    return race("a line of 64 KiB, one byte a chunk", contestants, effort)


def _gathered(effort: Effort) -> list[Row]:
    line = encode_line(VERY_LONG_MESSAGE)
    pieces = [line[at : at + 65536] for at in range(0, len(line), 65536)]
    contestants = [
        Contestant("json.loads", loop(partial(json.loads, VERY_LONG_MESSAGE))),
        Contestant("bytes.split", _dripped(pieces, _NaiveLines().feed), remark="quadratic"),
        Contestant("LineDecoder", _dripped(pieces, LineDecoder().feed)),
    ]
    return race("a line of 1 MiB, 64 KiB a chunk", contestants, effort)


def _dripped(pieces: list[bytes], feed: Callable[[bytes], object]) -> Turn:
    def drip() -> None:
        for piece in pieces:
            feed(piece)

    return loop(drip)


def _events(benchmark: str, chunk: bytes, units: int, effort: Effort) -> list[Row]:
    contestants = [
        Contestant("json.loads", loop(partial(json.loads, MESSAGE))),
        Contestant(
            "bytes.split", loop(partial(_NaiveEvents().feed, chunk)), units, "no CR, no joined data, no ceiling"
        ),
        Contestant("SseDecoder", loop(partial(SseDecoder().feed, chunk)), units),
    ]
    return race(benchmark, contestants, effort)


class _NaiveLines:
    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return lines


class _NaiveEvents:
    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[dict[bytes, bytes]]:
        *events, self._rest = (self._rest + chunk).split(b"\n\n")
        found: list[dict[bytes, bytes]] = []
        for event in events:
            fields: dict[bytes, bytes] = {}
            for line in event.split(b"\n"):
                name, _, value = line.partition(b": ")
                fields[name] = value
            found.append(fields)
        return found
