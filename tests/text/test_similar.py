"""Spelling suggestions."""

import pytest

from sluicegate.text.similar import MAX_WORD, close_matches, did_you_mean


@pytest.mark.parametrize(
    ("word", "meant"), [("prot", "port"), ("htp", "http"), ("header", "headers"), ("brave-serch", "brave-search")]
)
def test_a_misspelled_word_is_recognised(word: str, meant: str) -> None:
    assert did_you_mean(word, [meant, "something"]) == f' Did you mean "{meant}"?'


@pytest.mark.parametrize(("word", "other"), [("host", "port"), ("ws", "sse"), ("", "a"), ("github", "gitlab")])
def test_a_different_word_is_not_suggested(word: str, other: str) -> None:
    assert did_you_mean(word, [other]) == ""


def test_the_best_matches_come_first() -> None:
    known = ["searched", "search-all", "echo", "search_al"]
    assert close_matches("search_all", known, 2) == ["search_al", "search-all"]


def test_a_word_too_long_to_compare_has_no_match() -> None:
    word = "a" * (MAX_WORD + 1)
    assert close_matches(word[:-1], [word]) == [word]
    assert close_matches(word, [word]) == []
