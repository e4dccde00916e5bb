"""Whether JSON holds a string that begins in a certain way, found without opening it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.protocol.message import count_names, may_escape_names, mentions

TEXT = "0123456789abcde\n" * 4096


@pytest.mark.parametrize("text", ["", "short", TEXT])
def test_a_member_is_found_wherever_it_stands(text: str) -> None:
    for value in ({"uri": 1, "text": text}, {"text": text, "uri": 1}, {"content": [{"text": text}, {"uri": text}]}):
        assert mentions(msgspec.json.encode(value), (b'"name"', b'"uri"'))


@pytest.mark.parametrize("text", ["", "short", TEXT])
def test_an_absent_member_is_not_found(text: str) -> None:
    assert not mentions(msgspec.json.encode({"text": f"{text} uri", "of": [text, "ur"]}), (b'"uri"', b'"ui'))


def test_the_end_is_not_overrun() -> None:
    assert not mentions(msgspec.json.encode(TEXT)[:-1] + b'"u', (b'"uri"',))


@given(st.lists(st.sampled_from(["a", '"', "uri", "\\", "ü", "x" * 20_000, '"' * 1200]), max_size=12), st.booleans())
def test_long_texts_are_searched_as_short_ones_are(parts: list[str], with_member: bool) -> None:
    data = msgspec.json.encode({"text": "".join(parts), **({"uri": ""} if with_member else {})})
    names = (b'"uri"', b'"ui')
    assert mentions(data, names) == any(name in data for name in names)
    assert count_names(data, b'"uri"') == data.count(b'"uri"')


@pytest.mark.parametrize("text", ["", "short", TEXT])
def test_names_with_escapes_are_noticed(text: str) -> None:
    data = msgspec.json.encode({"text": text})
    assert not may_escape_names(data)
    assert may_escape_names(data[:-1] + b',"\\u0075ri":1}') and may_escape_names(b'{"\\u0075ri":1,' + data[1:])
