"""Pages: every item once and in order, and no cursor but one that this list gave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import INVALID_PARAMS, InvalidParams, error_object
from sluicegate.protocol.pagination import page
from sluicegate.protocol.sealed_tokens import Sealer

SEALER = Sealer(b"key")


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
