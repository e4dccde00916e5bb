"""A server's list out of its pages, whatever the server makes of them."""

import logging

import msgspec
import pytest

from sluicegate.protocol.pagination import MAX_ENTRIES, MAX_MALFORMED, MAX_PAGES, MAX_WARNINGS, Gathering, Kind


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


def test_no_more_entries_are_read_than_anybody_can_use() -> None:
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
