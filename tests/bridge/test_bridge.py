"""Every revision with every other through the gateway, over every transport; docs/bridge.md has the results."""

import asyncio
from pathlib import Path

import pytest

from tests.bridge.checks import NOTES
from tests.bridge.matrix import run_matrix
from tests.bridge.page import PAGE, TASKS, raw_part, sdk_part
from tests.bridge.sdk import run_sdks
from tests.bridge.sdk_sides import missing

pytestmark = pytest.mark.timeout(400)

# One test for all pairs of a kind: they share one run, and tests of different workers cannot share anything.


def test_everything_that_two_revisions_have_in_common_is_carried(tmp_path: Path) -> None:
    matrix = asyncio.run(run_matrix(tmp_path))
    failures = [f"{pair}: {failure}" for pair, cell in matrix.items() for failure in cell.failures]
    assert not failures, "\n".join(failures)
    for pair, cell in matrix.items():
        assert set(cell.losses) == {NOTES[mark].loss for mark in cell.marks if NOTES[mark].loss}, pair
    assert raw_part(matrix) in _page(), "run python -m tests.bridge.matrix"


def test_official_sdks_of_both_eras_meet_every_revision(tmp_path: Path, is_full_length: bool) -> None:
    if missing():
        pytest.skip(f"not installed: {', '.join(missing())}; run ./scripts/strangers")
    matrix = asyncio.run(run_sdks(tmp_path, every_pair=is_full_length))
    failures = [f"{pair}: {failure}" for pair, cell in matrix.items() for failure in cell.failures]
    assert not failures, "\n".join(failures)
    assert sdk_part(matrix) in _page(), "run python -m tests.bridge.matrix"


def test_the_page_says_what_comes_of_tasks() -> None:
    assert TASKS in _page(), "run python -m tests.bridge.matrix"  # `test_tasks` sees what it says.


def _page() -> str:
    return Path(PAGE).read_text(encoding="utf-8")
