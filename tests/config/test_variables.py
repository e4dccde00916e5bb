"""Variables in strings."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.config.variables import Variables, parse_dotenv

VARIABLES = Variables(environ={"A": "apple", "EMPTY": "", "HOME": "/home/me"}, root="/srv/shop", home="/home/me")


@pytest.mark.parametrize(
    ("text", "value", "shown"),
    [
        ("plain", "plain", "plain"),
        ("${A}", "apple", "***"),
        ("x${A}y${A}z", "xappleyapplez", "x***y***z"),
        ("${env:A}", "apple", "***"),
        ("${A:-pear}", "apple", "***"),
        ("${B:-pear}", "pear", "pear"),
        ("${B:-}", "", ""),
        ("${EMPTY}", "", "***"),
        ("${EMPTY:-pear}", "pear", "pear"),
        ("${B:-${A}}", "apple", "***"),
        ("${B:-${C:-${A}}}!", "apple!", "***!"),
        ("${env:B:-pear}", "pear", "pear"),
        ("${HOME}/x", "/home/me/x", "/home/me/x"),
        ("${userHome}/x", "/home/me/x", "/home/me/x"),
        ("${workspaceFolder}/x", "/srv/shop/x", "/srv/shop/x"),
        ("${workspaceFolderBasename}", "shop", "shop"),
        ("${pathSeparator}${/}", os.sep * 2, os.sep * 2),
        ("$A $ {A} ${", "$A $ {A} ${", "$A $ {A} ${"),
        ("${A", "${A", "${A"),
        ("${no name} ${1} ${}", "${no name} ${1} ${}", "${no name} ${1} ${}"),
    ],
)
def test_variables_are_put_in(text: str, value: str, shown: str) -> None:
    expanded = VARIABLES.expand(text)
    assert (expanded.value, expanded.shown) == (value, shown)
    assert not expanded.missing and not expanded.elsewhere


def test_missing_variables_are_named() -> None:
    assert VARIABLES.expand("${B} ${A} ${env:C}").missing == ("B", "C")
    assert VARIABLES.expand("${B:-${D}}").missing == ("D",)


def test_variables_that_only_an_editor_can_give_are_named() -> None:
    assert VARIABLES.expand("Bearer ${input:my-token}").elsewhere == ("input:my-token",)
    assert VARIABLES.expand("${command:pick}").elsewhere == ("command:pick",)


def test_the_value_of_a_variable_is_not_expanded_again() -> None:
    variables = Variables(environ={"A": "${B}", "B": "b"}, root="/", home="/")
    assert variables.expand("${A}").value == "${B}"


@given(st.text(alphabet="${}:-AB env/", max_size=30))
def test_any_text_expands(text: str) -> None:
    expanded = VARIABLES.expand(text)
    assert "apple" not in expanded.shown


def test_defaults_within_defaults_have_an_end() -> None:
    text = "${B:-" * 2000 + "}" * 2000
    assert not VARIABLES.expand(text).missing


# `.env` files.


def test_an_env_file() -> None:
    text = "# c\nA=1\nexport B = two words # c\nC='a # b'\nD=\"x\\ny\"\r\nnonsense\n\nE=\n"
    assert dict(parse_dotenv(text)) == {"A": "1", "B": "two words", "C": "a # b", "D": "x\ny", "E": ""}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=x", "x"),
        ("A = x \t\r", "x"),
        ("A=a#b", "a"),
        ("A= # c", ""),
        ("A='x' y # c", "'x' y"),
        ("A=\"x' y", "\"x' y"),
        ("A='x' # c", "x"),
        ('A="x\\"y" # c', 'x"y'),
    ],
)
def test_a_value_ends_where_a_comment_or_the_line_does(line: str, value: str) -> None:
    assert list(parse_dotenv(line)) == [("A", value)]


def test_a_line_is_looked_through_once_however_long_it_is() -> None:
    blanks = " " * 1_000_000
    assert list(parse_dotenv(f"A=x{blanks}y\nB='x'{blanks}y\n{blanks}C{blanks}={blanks}\nexport{blanks}x{blanks}")) == [
        ("A", f"x{blanks}y"),
        ("B", f"'x'{blanks}y"),
        ("C", ""),
    ]
