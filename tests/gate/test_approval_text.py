"""What a person sees of a question: all of it, or a part and the length of the rest (T18)."""

import json
import time

import pytest

from sluicegate.gate.approval_text import MAX_SHOWN, as_lines, form, name_of, shown_question, unshown
from sluicegate.store.base import Approval
from sluicegate.web.html import question_form

HIDDEN = "\u202e" * 80_000


def question(arguments: dict[str, object], *, name: str = "write", others: object = None) -> Approval:
    now = time.time_ns()
    return Approval(
        id="abcdef",
        run="run",
        binding="binding",
        caller="ada",
        client="editor 1",
        method="tools/call",
        server="files",
        kind="tool",
        name=name,
        arguments=json.dumps(arguments),
        others=json.dumps(others or {}),
        rule="sluicegate.toml:7",
        asked=now,
        deadline=now + 300 * 10**9,
    )


LONG_QUESTIONS = {
    "hidden characters": question({"path": "/a", "text": HIDDEN}),
    "a long text": question({"text": "x" * 200_000}),
    "many lines": question({"text": "\n" * 200_000}),
    "nested": question({"value": [HIDDEN]}),
    "many arguments": question({f"a{number}": number for number in range(20_000)}),
    "a long name of an argument": question({HIDDEN: 1}),
    "a long name of the target": question({}, name=HIDDEN),
    "other members": question({}, others={HIDDEN: HIDDEN}),
    "many other members": question({}, others={f"a{number}": number for number in range(20_000)}),
    "quotes": question({"text": '"<&' * 60_000}),
}


@pytest.mark.parametrize("asked", LONG_QUESTIONS.values(), ids=LONG_QUESTIONS)
def test_t18_a_long_question_is_cut_before_it_is_rendered_and_says_how_much_is_missing(asked: Approval) -> None:
    lines = as_lines(asked)
    assert len("\n".join(lines)) < 8 * MAX_SHOWN and len(question_form(asked, "token", 1)) < 8 * MAX_SHOWN
    assert lines[-1] == unshown(asked) and "characters are left out" in lines[-1]
    assert "caller: ada" in lines and "rule: sluicegate.toml:7" in lines
    assert unshown(asked) in question_form(asked, "token", 1)
    assert form(asked, lambda: None) is None


def test_t18_the_count_is_that_of_the_characters_that_are_not_shown() -> None:
    asked = question({"text": "x" * 100_000})
    [argument] = shown_question(asked).arguments
    assert argument.note == f"100,000 characters, {100_002 - len(argument.value):,} of them not shown"
    assert f" {100_002 - len(argument.value):,} characters are left out." in unshown(asked)
    further = question({"text": "x" * 100_000, "path": "/etc/passwd", "count": 3})
    assert "2 whole arguments among them" in unshown(further)


def test_a_question_that_fits_is_shown_in_full() -> None:
    asked = question({"path": "/a", "text": "y" * 60_000})
    assert unshown(asked) == "" and "y" * 60_000 in "\n".join(as_lines(asked))
    assert form(asked, lambda: None) is not None


def test_t18_a_long_name_does_not_fill_a_sentence() -> None:
    assert name_of("files", HIDDEN) == f"files: {'<U+202E>' * 200} … [79,800 more characters]"
