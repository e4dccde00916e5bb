"""Pages that are served with cursors, and lists that are gathered from the pages of a server."""

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import INVALID_PARAMS, InvalidParams, error_object
from sluicegate.protocol.pagination import MAX_ENTRIES, MAX_MALFORMED, MAX_PAGES, MAX_WARNINGS, Gathering, Kind, page
from sluicegate.protocol.sealed_tokens import Sealer

SEALER = Sealer(b"key")


# --- Serving pages ----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(), max_size=40), st.integers(1, 12))
def test_following_the_cursors_gives_every_item_once_and_in_order(items: list[int], size: int) -> None:
    pages: list[list[int]] = []
    cursor: object = None
    while True:
        found, cursor = page(items, cursor, "tools", size, SEALER)
        pages.append(list(found))
        if cursor is None:
            break
    assert [item for one in pages for item in one] == items
    # No page but the first of an empty list is empty, and none but the last is short.
    assert all(len(one) == size for one in pages[:-1])
    assert pages[-1] or not items


@pytest.mark.parametrize("cursor", ["", "x", "0", 0, 1, True, [], {}, "A" * 32, "ü"])
def test_a_cursor_that_is_none_of_ours_is_refused_as_bad_params(cursor: object) -> None:
    with pytest.raises(InvalidParams) as caught:
        page([1, 2, 3], cursor, "tools", 1, SEALER)
    assert error_object(caught.value).code == INVALID_PARAMS


def test_a_cursor_of_another_list_or_another_gateway_is_refused() -> None:
    _, cursor = page([1, 2, 3], None, "tools", 1, SEALER)
    assert page([1, 2, 3], cursor, "tools", 1, SEALER)[0] == [2]
    with pytest.raises(InvalidParams):
        page([1, 2, 3], cursor, "prompts", 1, SEALER)
    with pytest.raises(InvalidParams):
        page([1, 2, 3], cursor, "tools", 1, Sealer(b"other"))


def test_a_cursor_outlives_a_list_that_became_shorter() -> None:
    _, cursor = page([1, 2, 3], None, "tools", 2, SEALER)
    assert page([1], cursor, "tools", 2, SEALER) == ([], None)


# --- Gathering pages --------------------------------------------------------------------------------------------------


def read(entry: object) -> str:
    if not isinstance(entry, str):
        raise msgspec.ValidationError("Expected `str`")
    return entry


NAMES: Kind[str] = Kind("names/list", "names", read, lambda name: name)


def test_pages_are_joined_and_each_entry_is_there_once() -> None:
    gathering = Gathering("The server", NAMES)
    assert gathering.add({"names": ["a", "b"], "nextCursor": "2"}) == {"cursor": "2"}
    assert gathering.add({"names": ["b", 3, "c"]}) is None
    assert gathering.items == ["a", "b", "c"]


def test_a_list_without_an_end_ends() -> None:
    gathering, pages = Gathering("The server", NAMES), 0
    params = {}
    while params is not None:
        params = gathering.add({"names": [f"n{pages}"], "nextCursor": f"{pages}"})
        pages += 1
    assert pages == MAX_PAGES == len(gathering.items)


def test_the_number_of_entries_that_are_read_is_limited() -> None:
    gathering = Gathering("The server", NAMES)
    first = [f"a{n}" for n in range(MAX_ENTRIES - 1)]
    assert gathering.add({"names": first, "nextCursor": "2"}) == {"cursor": "2"}
    assert gathering.add({"names": ["x", "y", "z"], "nextCursor": "3"}) is None
    assert gathering.items == [*first, "x"]


def test_a_flood_of_malformed_entries_is_neither_read_nor_logged_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """To tell of each took half a millisecond, and a page can hold millions: the loop would stand still for an hour."""
    seen = 0

    def count(entry: object) -> str:
        nonlocal seen
        seen += 1
        return read(entry)

    gathering = Gathering("The server", Kind("names/list", "names", count, lambda name: name))
    with caplog.at_level(logging.WARNING):
        assert gathering.add({"names": ["a", *[0] * 100_000, "b"], "nextCursor": "2"}) is None
    assert gathering.items == ["a"] and seen == MAX_MALFORMED + 2
    assert len(caplog.records) == MAX_WARNINGS + 2
    assert "more faults" in caplog.text and f"more than {MAX_MALFORMED} malformed" in caplog.text


def test_a_long_name_is_never_logged_whole(caplog: pytest.LogCaptureFixture) -> None:
    Gathering("The server", NAMES).add({"names": ["x" * 100_000, "x" * 100_000, "y"]})
    assert "twice" in caplog.text and len(caplog.text) < 1000
