"""URIs by any spelling: those that mean the same are found, those that do not are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.protocol import uri_normalize
from sluicegate.protocol.uri_normalize import Spellings, plain


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("file:///a b.txt", "file:///a%20b.txt"),
        ("FILE:///a", "file:///a"),
        ("x://HOST/A", "x://host/A"),
        ("x://host/~a", "x://host/%7Ea"),
        ("x://host/%7Ea", "x://host/%7ea"),
        ("x://host/é", "x://host/%C3%A9"),
        ("x://host/a%2fb", "x://host/a%2Fb"),
        ("http://host", "http://host/"),
        ("memo:x y", "memo:x%20y"),
    ],
)
def test_spellings_of_one_uri_are_the_same(one: str, other: str) -> None:
    assert plain(one) == plain(other)
    assert list(Spellings([one]).of(other)) == [[one]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x://host/a", "x://host/A"),
        ("memo:a", "memo:A"),
        ("x://host/a%2Fb", "x://host/a/b"),
        ("x://host/a%3Fb", "x://host/a?b"),
        ("x://host/a%23b", "x://host/a#b"),
        ("x://host/%2520", "x://host/%20"),
        ("x://host/%E9", "x://host/%E8"),
        ("x://host/a", "x://host/a/"),
        ("x://host?A", "x://host?a"),
        ("x:///", "x://"),
        ("%zz", "%ZZ"),
        ("no uri", "NO uri"),
    ],
)
def test_uris_with_different_meanings_are_not_the_same(one: str, other: str) -> None:
    assert plain(one) != plain(other)


@given(st.text(alphabet="aA/%2Ff:?#é "))
def test_any_uri_is_found_by_itself_and_by_its_parents(uri: str) -> None:
    assert [uri] in Spellings(["x://other", uri]).of(uri)
    for part in ("#top", "?rev=2"):
        assert [uri] in Spellings([uri]).of(uri + part)


def test_parents_of_a_uri_follow_it_longest_first_in_all_spellings() -> None:
    found = Spellings(["x://h/a", "x://h/a b", "x://H/a%20b", "x://h/", "x://h/a b/c", "x://h/a"])
    assert list(found) == ["x://h/a", "x://h/a b", "x://H/a%20b", "x://h/", "x://h/a b/c"]
    assert list(found.of("x://h/a%20b/d")) == [["x://h/a b", "x://H/a%20b"], ["x://h/"]]
    assert list(found.of("x://h/a%20bc")) == [["x://h/"]]
    assert list(found.of("x://h")) == [["x://h/"]]
    assert list(found.of("y://h/a")) == []
    assert list(Spellings().of("x://h")) == []


def test_no_more_is_compared_than_once_each_and_of_a_long_name_no_more_than_can_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []

    def counted(uri: str) -> str:
        compared.append(uri)
        return plain(uri)

    monkeypatch.setattr(uri_normalize, "plain", counted)
    found = Spellings(f"x://{number}" for number in range(1000))
    assert not any(found.of("y://" + "%41/" * 1_000_000)) and any(found.of("x://7" + "/" * 1_000_000))
    for _ in range(100):
        assert not any(found.of("y://1"))
    assert len(compared) == 1000 + 102 and max(map(len, compared)) < 200
    # However it is spelled, enough of it is looked at.
    assert any(Spellings(["x:" + "\U0001f600" * 100]).of("%78:" + "%F0%9F%98%80" * 100 + "/part"))
