"""Variables in `.env` files."""

import pytest

from sluicegate.config.dotenv import dotenv


def test_an_env_file() -> None:
    text = "# c\nA=1\nexport B = two words # c\nC='a # b'\nD=\"x\\ny\"\r\nnonsense\n\nE=\n"
    assert dict(dotenv(text)) == {"A": "1", "B": "two words", "C": "a # b", "D": "x\ny", "E": ""}


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
    assert list(dotenv(line)) == [("A", value)]


def test_a_line_is_looked_through_once_however_long_it_is() -> None:
    blanks = " " * 1_000_000
    assert list(dotenv(f"A=x{blanks}y\nB='x'{blanks}y\n{blanks}C{blanks}={blanks}\nexport{blanks}x{blanks}")) == [
        ("A", f"x{blanks}y"),
        ("B", f"'x'{blanks}y"),
        ("C", ""),
    ]
