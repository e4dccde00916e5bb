"""What a server is told of callers who repeat themselves, and of one who does not."""

from itertools import product

import msgspec
import pytest

from sluicegate.errors import LocalProtocolError
from sluicegate.protocol.message import Params, RequestId
from sluicegate.protocol.modern import Profile, with_profile
from sluicegate.upstream.stamp import LONGEST_KNOWN, MOST_KNOWN, Stamp

INFO: Params = {"name": "gate", "version": "1"}
PLAIN: Params = {"sampling": {}}
ABLE: Params = {"elicitation": {"form": {}}, "extensions": {"x/y": {}}}


def test_every_request_says_what_its_own_caller_said_whatever_the_last_one_was() -> None:
    stamp = Stamp(INFO)
    equal_to_plain = dict(PLAIN)
    callers = [
        Profile("2026-07-28", capabilities, {"name": "theirs"}, level)
        for capabilities in (PLAIN, ABLE, equal_to_plain, {})
        for level in (None, "debug", "error")
    ]
    requests: list[Params] = [{"name": "t"}, {"name": "t", "_meta": {"trace": "1"}}, {}]
    tokens: list[RequestId | None] = [None, 7, 'a "word"']
    sayings = [*callers, *reversed(callers), *callers[::2]]
    for said, params, token, version in product(sayings, requests, tokens, ("2026-07-28", "2031-01-01")):
        told = msgspec.json.encode(stamp.on(params, version, said, token))
        wanted = with_profile(params, Profile(version, said.capabilities, INFO, said.log_level), token)
        assert msgspec.json.decode(told) == wanted
        assert "_meta" not in params or params["_meta"] == {"trace": "1"}


def test_what_cannot_be_written_is_refused_as_the_request_it_would_be_in() -> None:
    stamp = Stamp(INFO)
    with pytest.raises(LocalProtocolError, match="cannot be written as JSON"):
        stamp.on({}, "2026-07-28", Profile("2026-07-28", {"sampling": object()}), None)
    assert stamp.on({}, "2026-07-28", Profile("2026-07-28", PLAIN), None)


def test_many_callers_and_long_sayings_are_not_mixed_up() -> None:
    stamp = Stamp(INFO)
    for number in [*range(3 * MOST_KNOWN), *range(3 * MOST_KNOWN)]:
        capabilities: Params = {"experimental": {"x": "y" * (LONGEST_KNOWN * (number % 3)), "n": number}}
        said = Profile("2026-07-28", capabilities)
        told = msgspec.json.decode(msgspec.json.encode(stamp.on({}, "2026-07-28", said, None)))
        assert told == with_profile({}, Profile("2026-07-28", capabilities, INFO), None)
