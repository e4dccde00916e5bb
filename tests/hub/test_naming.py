"""Names behind one endpoint: deterministic, legal, short enough, and never two alike."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.hub.naming import MAX_TOOL_NAME, Naming, head_of, names_for

prefixes = st.from_regex(r"[a-z][a-z0-9-]{0,30}", fullmatch=True)
own_names = st.text(min_size=1, max_size=150) | st.sampled_from(["push", "a__b", "b", "read file", "ſ", "..", "a\n"])


class Names:
    """Names given out in the order in which they are asked for, none twice."""

    def __init__(self, naming: Naming = "prefix") -> None:
        self._naming: Naming = naming
        self._taken = set[str]()

    def give(self, prefix: str, own: str) -> str | None:
        name = next((name for name in names_for(prefix, own, self._naming) if name not in self._taken), None)
        self._taken |= {name} if name is not None else set()
        return name


@pytest.mark.parametrize(
    ("naming", "expected"),
    [("prefix", "git__push"), ("collide", "push"), ("claude", "mcp__git__push")],
)
def test_a_name_says_whose_it_is_in_the_way_that_was_chosen(naming: Naming, expected: str) -> None:
    assert next(names_for("git", "push", naming)) == expected
    assert list(names_for("git", "push", naming))[-1].startswith(head_of("git", naming))


def test_a_server_without_a_prefix_keeps_its_names() -> None:
    assert [Names(naming).give("", "push") for naming in ("prefix", "collide", "claude")] == ["push"] * 3


def test_the_first_keeps_its_bare_name_and_the_second_gets_its_prefix_where_only_collisions_count() -> None:
    names = Names("collide")
    assert [names.give("a", "x"), names.give("b", "x"), names.give("c", "y")] == ["x", "b__x", "y"]


def test_a_name_that_another_has_is_not_given_twice() -> None:
    names = Names()
    assert names.give("git", "push") == "git__push"
    assert names.give("", "git__push") is None


def test_what_is_split_differently_is_another_name() -> None:
    # A server's key has no underscore, so that a prefix is never part of a tool's name by accident.
    names = Names()
    assert names.give("a", "b__c") == "a__b__c"
    assert names.give("a", "b__c") is None


@pytest.mark.parametrize("own", ["x" * 100, "read file", "naïve", "a/b", "tab\t", "", "ſ"])
def test_a_long_or_illegal_name_gets_a_short_form_that_stays_the_same(own: str) -> None:
    first, second = Names().give("server", own), Names().give("server", own)
    assert first is not None and first == second
    assert len(first) <= MAX_TOOL_NAME
    assert re.fullmatch(r"[A-Za-z0-9_.-]+_[0-9a-f]{8}", first) or own == ""


def test_names_that_differ_only_in_what_is_cut_off_or_replaced_stay_apart() -> None:
    names = Names()
    given_names = [names.give("s", own) for own in ("a b", "a/b", "a\\b", "x" * 100 + "1", "x" * 100 + "2")]
    assert None not in given_names
    assert len(set(given_names)) == 5


@given(st.lists(st.tuples(prefixes, own_names), unique=True, max_size=30), st.sampled_from(["prefix", "claude"]))
def test_any_names_are_legal_and_apart_and_the_same_the_next_time(
    wanted: list[tuple[str, str]], naming: Naming
) -> None:
    first, second = Names(naming), Names(naming)
    exposed = [first.give(*each) for each in wanted]
    assert exposed == [second.give(*each) for each in wanted]
    assert all(name is not None and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) for name in exposed)
    assert len(set(exposed)) == len(wanted)
