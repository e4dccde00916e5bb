"""Rules that all tests keep: how they wait, how they are named, and how many of them may skip."""

import ast
import re
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.test_layers import has_reason

TESTS = Path(__file__).parent

MAX_SKIPS = 34
"""Places in the source of the tests that may skip something. Each names its reason; `pytest -ra` prints it."""

VAGUE = {"who", "nobody", "told", "said", "somebody", "everybody", "whoever", "anew"}
"""Words for persons, and words that hide the subject. Programs are not persons."""


def calls(tree: Path) -> Generator[tuple[Path, ast.Call, str]]:
    """All calls of dotted names in the sources of a folder, with the line that a call begins in."""
    for path in sorted(tree.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield path, node, lines[node.lineno - 1]


def sleeps_without_reason(tree: Path) -> list[str]:
    """The places that sleep and do not say why."""
    return [
        f"{path.relative_to(tree)}:{call.lineno}"
        for path, call, line in calls(tree)
        if ast.unparse(call.func) in ("asyncio.sleep", "time.sleep") and ast.unparse(call.args[0]) != "0"
        # In a loop with its own time, a sleep takes no time.
        if not has_reason(line) and "run_in_own_time" not in path.read_text(encoding="utf-8")
    ]


def skips(tree: Path) -> list[tuple[str, bool]]:
    """The places that may skip something, and whether each says why."""
    names = ("pytest.skip", "pytest.mark.skipif", "pytest.mark.skip", "pytest.importorskip")
    found: list[tuple[str, bool]] = []
    for path, call, _ in calls(tree):
        if (name := ast.unparse(call.func)) in names:
            reasons = call.args if name == "pytest.skip" else [word.arg for word in call.keywords]
            found.append((f"{path.relative_to(tree)}:{call.lineno}", bool(reasons)))
    return found


def vague_names(tree: Path) -> list[str]:
    """The names of tests that do not name their subject."""
    return [
        f"{path.relative_to(tree)}: {name}"
        for path in sorted(tree.rglob("test_*.py"))
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.M)
        if VAGUE.intersection(name.split("_"))
    ]


def test_each_sleep_in_a_test_has_a_comment_with_its_reason() -> None:
    assert sleeps_without_reason(TESTS) == [], "wait for an event, or use tests/polling.py"


def test_few_places_skip_tests_and_each_says_why() -> None:
    found = skips(TESTS)
    assert len(found) <= MAX_SKIPS, found
    assert [place for place, says_why in found if not says_why] == []


def test_names_of_tests_name_their_subject() -> None:
    assert vague_names(TESTS) == []


# From here on: proof that the tests above can fail.


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("asyncio.sleep(1)", True),
        ("time.sleep(0.1)  # noqa: ASYNC251", True),
        ("time.sleep(0.1)  # The pause between two looks.", False),
        ("time.sleep(0.1)  # noqa: ASYNC251 - the pause between two looks", False),
        ("asyncio.sleep(0)", False),
    ],
)
def test_sleep_without_a_reason_is_found(tmp_path: Path, line: str, is_found: bool) -> None:
    (tmp_path / "test_a.py").write_text(f"{line}\n", encoding="utf-8")
    assert sleeps_without_reason(tmp_path) == ["test_a.py:1"] * is_found


@pytest.mark.parametrize(
    ("source", "says_why"),
    [
        ("pytest.skip()", False),
        ("pytest.skip('No network.')", True),
        ("pytest.mark.skipif(True)", False),
        ("pytest.mark.skipif(True, reason='No network.')", True),
        ("pytest.importorskip('mcp')", False),
    ],
)
def test_skip_is_found(tmp_path: Path, source: str, says_why: bool) -> None:
    (tmp_path / "test_a.py").write_text(source, encoding="utf-8")
    assert skips(tmp_path) == [("test_a.py:1", says_why)]


def test_vague_name_is_found(tmp_path: Path) -> None:
    source = "async def test_nobody_is_asked(): ...\ndef test_the_client_is_asked(): ..."
    (tmp_path / "test_a.py").write_text(source, encoding="utf-8")
    assert vague_names(tmp_path) == ["test_a.py: test_nobody_is_asked"]
