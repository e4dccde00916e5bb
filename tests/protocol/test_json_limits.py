"""Counting the structure of JSON before it is parsed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import RemoteProtocolError
from sluicegate.protocol import json_limits
from sluicegate.protocol.json_limits import JsonLimits, has_many_marks, limit_problem
from sluicegate.protocol.parse_request import parse_in_steps

texts = st.text(alphabet='a,:[{\\"}]\n\u2028')
values = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
)


def marks_in(value: object) -> int:
    """Commas, colons and opening brackets of a value, without those in strings."""
    if isinstance(value, list):
        items: list[object] = value  # pyright: ignore[reportUnknownVariableType]
        return 1 + max(len(items) - 1, 0) + sum(map(marks_in, items))
    if isinstance(value, dict):
        members: dict[str, object] = value  # pyright: ignore[reportUnknownVariableType]
        return 1 + max(2 * len(members) - 1, 0) + sum(map(marks_in, members.values()))
    return 0


@given(values, st.integers(0, 20), st.integers(1, 9))
def test_only_marks_outside_of_strings_count_however_the_data_is_sliced(value: object, most: int, size: int) -> None:
    sliced, json_limits._SLICE = json_limits._SLICE, size  # pyright: ignore
    try:
        assert has_many_marks(json.dumps(value, separators=(",", ":")).encode(), most) is (marks_in(value) > most)
    finally:
        json_limits._SLICE = sliced  # pyright: ignore


@pytest.mark.parametrize(
    "data", [b"[" * 4_000_000, b"[" + b"1," * 2_000_000 + b"1]", b'["' + b",\\n" * 1_000_000 + b'"]']
)
def test_a_long_message_is_read_in_many_steps(data: bytes) -> None:
    """T4: other tasks run between them."""
    steps = 0
    try:
        for _ in parse_in_steps(data):
            steps += 1
    except RemoteProtocolError as problem:
        assert "100000" in problem.message
    assert steps > 90


@pytest.mark.timeout(20)
def test_digits_are_counted_once() -> None:
    """T4: counted again from each digit, these would take minutes; 15,000 numbers of 250 digits took a second."""
    limits = JsonLimits(number_length=100_000)
    data = b"[%b]" % b",".join([b"1" * limits.number_length] * 10)
    assert limit_problem(data, [], limits) is None
    longer = data.replace(b",", b"1,", 1)
    assert limit_problem(longer, [], limits) == "a number is longer than 100000 characters"
