"""What it costs to read and to write one message, beside `json`, which does less: it refuses nothing."""

import json
from functools import partial
from typing import cast

import msgspec

from bench.measure import Contestant, Effort, Row, loop, race
from bench.samples import ANSWER, ANSWER_BYTES, LARGE_ANSWER, LARGE_ANSWER_BYTES, REQUEST, REQUEST_BYTES
from sluicegate.protocol.message import Params, Request, Response, Result, encode
from sluicegate.protocol.parse_request import decode_strict
from sluicegate.protocol.parse_response import decode_tolerant


class _Envelope(msgspec.Struct):
    """The least that a gateway could read: no check of what is inside, no duplicate seen, no limit kept."""

    id: str | int
    method: str
    params: msgspec.Raw


def run(effort: Effort) -> list[Row]:
    """The rows of this benchmark."""
    return [
        *_read_request(effort),
        *_read_answer(f"read an answer, {len(ANSWER_BYTES)} B", ANSWER_BYTES, effort),
        *_read_answer("read an answer, 100 KiB", LARGE_ANSWER_BYTES, effort),
        *_write(effort),
    ]


def _read_request(effort: Effort) -> list[Row]:
    envelope = msgspec.json.Decoder(_Envelope)
    contestants = [
        Contestant("json.loads", loop(partial(json.loads, REQUEST_BYTES))),
        Contestant("msgspec, envelope only", loop(partial(envelope.decode, REQUEST_BYTES)), remark="checks nothing"),
        Contestant("decode_strict", loop(partial(decode_strict, REQUEST_BYTES)), remark="validates every level"),
    ]
    return race(f"read a request, {len(REQUEST_BYTES)} B", contestants, effort)


def _read_answer(benchmark: str, data: bytes, effort: Effort) -> list[Row]:
    contestants = [
        Contestant("json.loads", loop(partial(json.loads, data))),
        Contestant("decode_tolerant", loop(partial(decode_tolerant, data)), remark="the result stays bytes"),
    ]
    return race(benchmark, contestants, effort)


def _write(effort: Effort) -> list[Row]:
    request = Request(17, "tools/call", cast(Params, REQUEST["params"]))
    made = Response(17, Result(cast(Params, ANSWER["result"])))
    passed = cast(Response, decode_tolerant(ANSWER_BYTES))
    large = cast(Response, decode_tolerant(LARGE_ANSWER_BYTES))
    return [
        *race(
            f"write a request, {len(REQUEST_BYTES)} B",
            [
                Contestant("json.dumps", loop(partial(_dumped, REQUEST))),
                Contestant("encode", loop(partial(encode, request))),
            ],
            effort,
        ),
        *race(
            f"write an answer, {len(ANSWER_BYTES)} B",
            [
                Contestant("json.dumps", loop(partial(_dumped, ANSWER))),
                Contestant("encode", loop(partial(encode, made)), remark="made here"),
                Contestant("encode, passed on", loop(partial(encode, passed)), remark="its result still bytes"),
            ],
            effort,
        ),
        *race(
            "write an answer, 100 KiB",
            [
                Contestant("json.dumps", loop(partial(_dumped, LARGE_ANSWER))),
                Contestant("encode, passed on", loop(partial(encode, large)), remark="its result still bytes"),
            ],
            effort,
        ),
    ]


def _dumped(message: object) -> bytes:
    return json.dumps(message).encode()
