"""Tokens come back only as they were given: any other byte, key or purpose is the same failure (T12)."""

import base64
import string
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.protocol.sealed_tokens import Sealer

KEY = b"a key of the gateway"
BASE64URL = string.ascii_letters + string.digits + "-_"

bindings = st.lists(st.text(st.characters(), max_size=8), max_size=3)  # lone surrogates too


@given(st.binary(max_size=64), bindings, st.binary(max_size=40))
def test_a_token_gives_back_its_payload_for_the_same_things(payload: bytes, bound_to: list[str], key: bytes) -> None:
    token = Sealer(key).seal(payload, bound_to)
    assert Sealer(key).open(token, iter(bound_to)) == payload
    assert set(token) <= set(BASE64URL)


@given(st.binary(max_size=40), st.data())
def test_a_token_with_any_character_changed_fails(payload: bytes, data: st.DataObject) -> None:
    sealer = Sealer(KEY)
    token = sealer.seal(payload, ("who",))
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from(BASE64URL).filter(lambda one: one != token[at]))
    assert sealer.open(token[:at] + other + token[at + 1 :], ("who",)) is None


def test_a_token_with_any_bit_flipped_fails() -> None:
    sealer = Sealer(KEY)
    token = sealer.seal(b"payload", ("who", "what"))
    raw = _bytes(token)
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert sealer.open(_token(flipped), ("who", "what")) is None


@pytest.mark.parametrize("payload", [b"", b"p", b"payload" * 9])
def test_a_token_that_is_cut_short_or_made_longer_fails(payload: bytes) -> None:
    sealer = Sealer(KEY)
    raw = _bytes(sealer.seal(payload, ("who",)))
    pieces = [raw[:end] for end in range(len(raw))] + [raw[start:] for start in range(1, len(raw))]
    assert [piece for piece in pieces if sealer.open(_token(piece), ("who",)) is not None] == []
    assert [more for more in (b"\0", b"\x01", raw) if sealer.open(_token(raw + more), ("who",)) is not None] == []


def test_parts_of_two_tokens_do_not_make_a_third() -> None:
    sealer = Sealer(KEY)
    one, two = (_bytes(sealer.seal(payload, ("who",))) for payload in (b"first of two", b"other of two"))
    assert [at for at in range(1, len(one)) if sealer.open(_token(one[:at] + two[at:]), ("who",)) is not None] == []


@given(st.binary(max_size=20), bindings, bindings)
def test_a_token_for_other_things_fails(payload: bytes, bound_to: list[str], others: list[str]) -> None:
    sealer = Sealer(KEY)
    opened = sealer.open(sealer.seal(payload, bound_to), others)
    assert opened == (payload if bound_to == others else None)


@pytest.mark.parametrize(
    ("bound_to", "others"),
    [
        (("ab", "c"), ("a", "bc")),
        (("ab",), ("a", "b")),
        (("a", ""), ("a",)),
        ((), ("",)),
        (("a", "b"), ("b", "a")),
        (("é",), ("e\u0301",)),
        (("a",), ("A",)),
    ],
)
def test_values_that_would_run_together_are_distinguished(bound_to: tuple[str, ...], others: tuple[str, ...]) -> None:
    sealer = Sealer(KEY)
    assert sealer.open(sealer.seal(b"", bound_to), others) is None


def test_a_payload_cannot_pass_for_what_a_token_is_bound_to() -> None:
    sealer = Sealer(KEY)
    token = sealer.seal(b"payload", ("who",))
    for tail in (b"who", b"\x01who", (3).to_bytes(8, "big") + b"who"):
        assert sealer.open(_token(_bytes(token) + tail), ()) is None


@given(st.binary(max_size=20), st.binary(max_size=40), st.binary(max_size=40))
def test_a_token_of_another_key_fails(payload: bytes, key: bytes, other: bytes) -> None:
    opened = Sealer(other).open(Sealer(key).seal(payload, ("who",)), ("who",))
    assert opened == (payload if key == other else None)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 100])
def test_only_one_spelling_of_a_token_is_ours(size: int) -> None:
    sealer = Sealer(KEY)
    token = sealer.seal(b"\xfb\xff\xfe" * size, ())
    padding = "=" * (-len(token) % 4)
    last = BASE64URL[(_value(token[-1]) + 1) % 64]  # other spare bits, if there are any
    spellings = {
        token + "=",
        token + "==",
        token + "A",
        token + "A===",
        token + "\n",
        " " + token,
        token[:5] + "\n" + token[5:],
        token[:5] + "=" + token[5:],
        token[:-1] + last,
        token.replace("-", "+").replace("_", "/"),
        token + padding,
    } - {token}
    assert sealer.open(token, ()) == b"\xfb\xff\xfe" * size
    assert [spelling for spelling in spellings if sealer.open(spelling, ()) is not None] == []


def _value(character: str) -> int:
    return (string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_").index(character)


@pytest.mark.parametrize(
    "token",
    [None, 0, 1.5, True, b"bytes", [], {}, "", "A", "AA", "A" * 21, "A" * 22, "*", "ü", "\ud800", "=" * 8, "A=A="],
)
def test_text_that_is_no_token_is_the_same_failure(token: object) -> None:
    assert Sealer(KEY).open(token, ()) is None


@given(st.text(max_size=60))
def test_no_text_whatever_raises_or_opens(token: str) -> None:
    assert Sealer(KEY).open(token, ("who",)) is None


def test_a_token_shows_neither_its_payload_nor_its_key_nor_what_it_is_bound_to() -> None:
    raw = _bytes(Sealer(b"0123456789abcdef").seal(b"what nobody may read", ("principal-name",)))
    assert len(raw) == 16 + 1 + len(b"what nobody may read")
    assert [text for text in (b"0123456789abcdef", b"nobody", b"principal") if text in raw] == []


def test_inputs_with_one_difference_give_unrelated_tokens() -> None:
    sealer = Sealer(KEY)
    tokens = [_bytes(sealer.seal(n.to_bytes(8, "big"), ("tools",))) for n in range(256)]
    assert len({token[:16] for token in tokens}) == len({token[16:] for token in tokens}) == 256
    assert sealer.seal(b"", ("tools",)) == Sealer(KEY).seal(b"", ("tools",)), "no lots are drawn"


def test_cryptography_is_loaded_with_the_first_token_and_not_before() -> None:
    program = """
import sys, sluicegate
from sluicegate.protocol.sealed_tokens import Sealer
sealer = Sealer(b"key")
assert sealer.open("no token", ()) is None
assert "cryptography" not in sys.modules
assert sealer.open(sealer.seal(b"payload", ()), ()) == b"payload"
assert "cryptography" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def _bytes(token: str) -> bytes:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))


def _token(raw: bytes | bytearray) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
