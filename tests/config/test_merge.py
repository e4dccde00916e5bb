"""Short names of servers."""

import pytest

from sluicegate.config.merge import key_of


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("files", "files"),
        ("GitHub", "github"),
        ("brave_search", "brave-search"),
        ("My Server (2)", "my-server-2"),
        ("1password", "s-1password"),
        ("Müller", "muller"),
        ("a" * 31, "a" * 31),
    ],
)
def test_a_key_is_made_of_the_name(name: str, key: str) -> None:
    assert key_of(name) == key


def test_keys_are_always_legal_and_stay_the_same() -> None:
    for name in ("日本語", "a" * 200, "--", "é" * 50, "x" + "-" * 60 + "y"):
        key = key_of(name)
        assert len(key) <= 31 and key[0].isalpha() and set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert key_of(name) == key
    assert key_of("a" * 40) != key_of("a" * 41)
