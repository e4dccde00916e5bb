"""Globs match what a slow reference matches, and no text makes them slow (T19)."""

import random
import time
from functools import cache

import pytest

from sluicegate.text.globs import MAX_SIZE, BadGlob, Glob, escape, glob, name_matches


@pytest.mark.parametrize(
    ("source", "matching", "others"),
    [
        ("read_file", ["read_file"], ["Read_file", "read_file\n", "read_fil", "xread_file", ""]),
        ("*", ["", "a", "a\nb", "\u202e"], ["a/b", "/"]),
        ("**", ["", "a", "a/b", "/"], []),
        ("/srv/**", ["/srv/", "/srv/a", "/srv/a/b"], ["/srv", "/srvx/a", "x/srv/a"]),
        ("/srv/*", ["/srv/", "/srv/a"], ["/srv/a/b"]),
        ("/srv/**/*.py", ["/srv/a/b.py", "/srv/a/b/c.py"], ["/srv/b.py", "/srv/a/b.pyc"]),
        ("a?c", ["abc", "a\nc"], ["ac", "a/c", "abbc"]),
        ("[a-cx]", ["a", "b", "c", "x"], ["d", "A", "", "ab"]),
        ("[!a-c]", ["d", "A", "\n"], ["a", "b", "/", ""]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[a-]", ["-", "a"], ["b"]),
        (r"[\]\-z]", ["]", "-", "z"], ["\\", "a"]),
        ("{get,list}_*", ["get_", "list_a"], ["set_a", "get"]),
        ("{a,{b,c}d}e", ["ae", "bde", "cde"], ["be", "ade"]),
        ("x{,y}", ["x", "xy"], ["y"]),
        (r"\*\{a\}", ["*{a}"], ["xa"]),
        ("a,b", ["a,b"], ["a"]),
        ("", [""], ["a"]),
        ("a*a", ["aa", "aba"], ["a"]),
        ("**/a*b", ["x/ac/ab", "/ab"], ["x/ab/", "ab"]),
        ("***", ["a/b"], []),
    ],
)
def test_a_glob_matches_the_whole_text(source: str, matching: list[str], others: list[str]) -> None:
    assert [text for text in matching if not Glob(source).matches(text)] == []
    assert [text for text in others if Glob(source).matches(text)] == []


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("[a", "[ that is not closed"),
        ("[", "[ that is not closed"),
        ("[]", "[ that is not closed"),
        ("[a-", "[ that is not closed"),
        ("[^a]", "write [!"),
        ("[z-a]", "empty range z-a"),
        ("a]", "] without a ["),
        ("{a,b", "{ that is not closed"),
        ("a}", "} without a {"),
        ("a\\", "ends in a backslash"),
        ("{a,b}" * 6, "more than 32 alternatives"),
        ("{" + "a," * 40 + "}", "more than 32 alternatives"),
        ("{" * 9 + "a" + "}" * 9, "nested too deeply"),
        ("a" * (MAX_SIZE + 1), "longer than"),
        ("{" + ",".join(f"**{index:02}{'x' * 20}*y" for index in range(32)) + "}", "too long for its number"),
    ],
)
def test_the_error_of_a_malformed_glob_names_the_reason(source: str, reason: str) -> None:
    with pytest.raises(BadGlob) as problem:
        glob(source)
    assert reason in str(problem.value)


def test_names_have_no_separator() -> None:
    assert name_matches("delete/all", "delete*") and name_matches("a/b", "a?b") and name_matches("a/b", "a[!b]b")
    assert not name_matches("Delete", "delete*")


@pytest.mark.parametrize("text", ["", "plain", "a*b?[c]{d,e}\\f", "[!x]", "**"])
def test_an_escaped_text_matches_itself_only(text: str) -> None:
    assert Glob(escape(text)).literal == text
    assert Glob(escape(text)).matches(text) and not Glob(escape(text)).matches(text + "x")


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("**", "a*", True),
        ("a**", "ab*c", True),
        ("a**", "{ab,ac*}", True),
        ("a?", "{ab,ac}", True),
        ("[a-c]", "[a-c]", True),
        ("*", "a*", False),  # `*` covers `a*`, but only a comparison of their texts would show it.
        ("a?", "a*", False),
        ("ab**", "a**", False),
    ],
)
def test_a_glob_knows_whether_it_covers_another(wide: str, narrow: str, expected: bool) -> None:
    assert Glob(wide).covers(Glob(narrow)) is expected


# ------------------------------------------------------------------------------------------- against a slow reference


def slowly(source: str, text: str, separator: str) -> bool:
    """The meaning of a glob without braces inside braces, by trying everything."""
    if "{" in source:
        before, _, rest = source.partition("{")
        inner, _, after = rest.partition("}")
        # \0 keeps * inside braces and * behind them from becoming **.
        return any(slowly(f"{before}\0{each}\0{after}", text, separator) for each in inner.split(","))

    @cache
    def rest_matches(place: int, at: int) -> bool:
        if place == len(source):
            return at == len(text)
        if source[place] == "\0":
            return rest_matches(place + 1, at)
        if source.startswith("**", place):
            return rest_matches(place + 2, at) or (at < len(text) and rest_matches(place, at + 1))
        is_inner = at < len(text) and text[at] != separator
        if source[place] == "*":
            return rest_matches(place + 1, at) or (is_inner and rest_matches(place, at + 1))
        if source[place] == "?":
            return is_inner and rest_matches(place + 1, at + 1)
        if source[place] == "[":
            end = source.index("]", place)
            chars = source[place + 1 : end].removeprefix("!")
            inside = is_inner and (text[at] in chars or (chars[1:2] == "-" and chars[0] <= text[at] <= chars[2]))
            return is_inner and inside != (source[place + 1] == "!") and rest_matches(end + 1, at + 1)
        return at < len(text) and text[at] == source[place] and rest_matches(place + 1, at + 1)

    return rest_matches(0, 0)


PIECES = ["a", "b", "c", "/", "*", "**", "?", "[ab]", "[!a]", "[a-b]", "{a,b}", "{,a*,b/}", "{**a,c?}", "ab", "."]


@pytest.mark.soak(short=10_000, full=100_000)
def test_globs_agree_with_a_slow_reference(repeats: int) -> None:
    chance = random.Random(4747)
    matched = 0
    for _ in range(repeats):
        source = "".join(chance.choices(PIECES, k=chance.randrange(7)))
        if source.count("{") > 2:
            continue
        text = "".join(chance.choices("abc/.", [5, 3, 1, 2, 1], k=chance.randrange(9)))
        separator = chance.choice(["/", "/", ""])
        found = Glob(source, separator).matches(text)
        assert found == slowly(source, text, separator), (source, text, separator)
        matched += found
    assert matched > repeats / 50


HOSTILE = ["a", "aa", "b", "*", "**", "?", "[!b]", "[a-y]", "{a,aa}", "*a", "**a", "a*", "/", "??"]


@pytest.mark.soak(short=300, full=10_000)
def test_no_text_makes_a_glob_slow(repeats: int) -> None:
    chance = random.Random(19)
    worst = 0.0
    for _ in range(repeats):
        source = "**" + "".join(chance.choices(HOSTILE, k=chance.randrange(4, 60)))
        try:
            made = Glob(source)
        except BadGlob:
            continue
        alphabet = chance.choice(["a", "ab", "a/", "aaaaaaaaaaab", "".join(map(chr, range(0x4E00, 0x6000)))])
        text = "".join(chance.choices(alphabet, k=16 * 1024 if alphabet.isascii() else 5461))
        started = time.process_time()
        made.matches(text)
        worst = max(worst, time.process_time() - started)
    # 2 to 3 ms where nothing else runs; what backtracks would take minutes.
    assert worst < 0.1


def test_each_character_is_read_once() -> None:
    """Whatever the number of wildcards, twice the text takes about twice the time, not four times."""
    made = Glob("**a*a?a**a*a?[!b]**b")
    times = [min(_seconds(made, "a" * length + "ab") for _ in range(5)) for length in (20_000, 200_000)]
    assert times[1] < 50 * times[0]


def _seconds(made: Glob, text: str) -> float:
    started = time.process_time()
    assert made.matches(text)
    return time.process_time() - started
