"""Nothing that a person is asked about hides in characters that are not seen."""

import unicodedata

import pytest

from sluicegate.text.visible_text import CONTROLS, HIDDEN, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünïcode 😀\nnext line", "plain, ünïcode 😀\nnext line"),
        ("a\u202eb", "a<U+202E>b"),
        ("a\u200bb\u200dc\ufeff", "a<U+200B>b<U+200D>c<U+FEFF>"),
        ("a\r\tb\x1b[2J\x9b", "a<U+000D><U+0009>b<U+001B>[2J<U+009B>"),
        ("\U000e0041\u2028\u3164\u2800", "<U+E0041><U+2028><U+3164><U+2800>"),
        ("\ud800", "<U+D800>"),
    ],
)
def test_hidden_characters_are_named(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_all_control_and_format_characters_are_hidden_ones() -> None:
    # Visible format characters: signs of numbers in Arabic, Syriac and Kaithi, and joiners of hieroglyphs and musical
    # notes that have a shape of their own.
    shaped = {"ARABIC", "SYRIAC", "KAITHI", "EGYPTIAN"}
    for code in range(0x110000):
        character = chr(code)
        if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Cs") and character != "\n":
            is_shaped = unicodedata.name(character, "").split(" ")[0] in shaped and code != 0x061C
            assert is_shaped or HIDDEN.match(character), hex(code)


def test_characters_that_a_terminal_replaces_are_hidden() -> None:
    for code in range(0x110000):
        if CONTROLS.match(chr(code)):
            assert HIDDEN.match(chr(code)), hex(code)
