"""What somebody may have meant: a slip is recognised, another word is not taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.config.likeness import near
from sluicegate.config.problems import nearest


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("prot", "port"),
        ("naem", "name"),
        ("htp", "http"),
        ("serv", "serve"),
        ("note", "notes"),
        ("tims", "times"),
        ("comand", "command"),
        ("header", "headers"),
        ("concurency", "concurrency"),
        ("brave-serch", "brave-search"),
        ("demo__ecko", "demo__echo"),
        ("longest-call", "longest_call"),
        ("Notes", "notes"),
        ("includetools", "includeTools"),
    ],
)
def test_a_slip_of_one_or_two_letters_is_recognised(word: str, meant: str) -> None:
    assert near(word, ["something", meant, "else"]) == [meant]
    assert nearest(word, [meant, "something"]) == f' Did you mean "{meant}"?'


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("host", "port"),
        ("hide", "file"),
        ("stop", "status"),
        ("start", "restart"),
        ("ws", "sse"),
        ("a", "b"),
        ("", "a"),
        ("notes", "quotes"),
        ("timeout", "tool_timeouts"),
        ("demo__frobnicate", "demo__echo"),
        ("files__read", "files__write"),
        ("github", "gitlab"),
        ("weather", "whether-or-not"),
    ],
)
def test_another_word_is_no_slip(word: str, other: str) -> None:
    assert near(word, [other]) == [] and nearest(word, [other]) == ""


def test_the_nearest_comes_first_and_no_more_than_are_wanted() -> None:
    known = ["search-all", "searched", "search_al", "serach"]
    assert near("search_all", known, most=3) == ["search-all", "search_al"]
    assert near("search_all", known) == ["search-all"]


@given(st.text(min_size=3, max_size=20), st.integers(0, 19))
def test_a_letter_left_out_is_always_found_and_the_word_itself_first(word: str, place: int) -> None:
    assert near(word, ["§" * 40, word]) == [word]
    shorter = word[: place % len(word)] + word[place % len(word) + 1 :]
    if len(shorter.casefold()) >= 3 and len(word.casefold()) == len(word):
        assert near(shorter, [word]) == [word]
