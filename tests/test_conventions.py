"""Rules that all tests keep: how they wait, how they are named, and how many of them may skip."""

import ast
import re
from collections.abc import Generator
from pathlib import Path

TESTS = Path(__file__).parent

MAX_SKIPS = 34
"""Places in the source of the tests that may skip something. Each names its reason; `pytest -ra` prints it."""

VAGUE = {"who", "nobody", "told", "said", "somebody", "everybody", "whoever", "anew"}
"""Words for persons, and words that hide the subject. Programs are not persons."""


def calls() -> Generator[tuple[Path, ast.Call, str]]:
    """All calls of dotted names in the source of the tests, with the line that a call begins in."""
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield path, node, lines[node.lineno - 1]


def test_each_sleep_in_a_test_has_a_comment_with_its_reason() -> None:
    sleeps = [
        f"{path.relative_to(TESTS)}:{call.lineno}"
        for path, call, line in calls()
        if ast.unparse(call.func) in ("asyncio.sleep", "time.sleep") and ast.unparse(call.args[0]) != "0"
        # In a loop with its own time, a sleep takes no time.
        if "#" not in line and "run_in_own_time" not in path.read_text(encoding="utf-8")
    ]
    assert sleeps == [], "wait for an event, or use tests/polling.py"


def test_few_places_skip_tests_and_each_says_why() -> None:
    names = ("pytest.skip", "pytest.mark.skipif", "pytest.mark.skip", "pytest.importorskip")
    skips = [(path, call) for path, call, _ in calls() if ast.unparse(call.func) in names]
    assert len(skips) <= MAX_SKIPS, [f"{path.relative_to(TESTS)}:{call.lineno}" for path, call in skips]
    for path, call in skips:
        reasons = call.args if ast.unparse(call.func) == "pytest.skip" else [word.arg for word in call.keywords]
        assert reasons, f"{path.relative_to(TESTS)}:{call.lineno} does not say why it skips"


def test_names_of_tests_name_their_subject() -> None:
    vague = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.M)
        if VAGUE.intersection(name.split("_"))
    ]
    assert vague == []
