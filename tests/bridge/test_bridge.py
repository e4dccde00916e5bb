"""Every revision with every other through the gateway, over every transport; docs/bridge.md says what came of it."""

import asyncio
from pathlib import Path

import pytest

from tests.bridge.checks import NOTES
from tests.bridge.matrix import Matrix, run_matrix
from tests.bridge.page import PAGE, TASKS, raw_part, sdk_part
from tests.bridge.sdk import SdkMatrix, run_sdks
from tests.bridge.sdk_sides import missing
from tests.bridge.stage import SIDES, Side

# The first test of each kind waits for the whole run.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="session")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    """What came of all pairs of clients and servers of our own hand."""
    return asyncio.run(run_matrix(tmp_path_factory.mktemp("bridge")))


@pytest.fixture(scope="session")
def sdk_matrix(tmp_path_factory: pytest.TempPathFactory) -> SdkMatrix:
    """What came of all pairs with an official SDK in them."""
    if missing():
        pytest.skip(f"not installed: {', '.join(missing())}; run ./scripts/strangers")
    return asyncio.run(run_sdks(tmp_path_factory.mktemp("sdks")))


@pytest.mark.parametrize("client", SIDES, ids=lambda side: f"client-{side.revision}-{side.over}")
@pytest.mark.parametrize("server", SIDES, ids=lambda side: f"server-{side.revision}-{side.over}")
def test_everything_that_two_revisions_have_in_common_is_carried(matrix: Matrix, client: Side, server: Side) -> None:
    failures = matrix[client, server].failures
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("client", SIDES, ids=lambda side: f"client-{side.revision}-{side.over}")
@pytest.mark.parametrize("server", SIDES, ids=lambda side: f"server-{side.revision}-{side.over}")
def test_what_cannot_be_carried_as_it_is_is_counted(matrix: Matrix, client: Side, server: Side) -> None:
    cell = matrix[client, server]
    expected = {NOTES[mark].loss for mark in cell.marks if NOTES[mark].loss}
    assert set(cell.losses) == expected


def test_official_sdks_of_both_eras_meet_every_revision(sdk_matrix: SdkMatrix) -> None:
    failures = {pair: cell.failures for pair, cell in sdk_matrix.items() if cell.failures}
    assert not failures, "\n".join(f"{pair}: {said}" for pair, found in failures.items() for said in found)


def test_the_page_says_what_a_run_gives(matrix: Matrix) -> None:
    assert raw_part(matrix) in _page(), "run python -m tests.bridge.matrix"


def test_the_page_says_what_a_run_with_the_sdks_gives(sdk_matrix: SdkMatrix) -> None:
    assert sdk_part(sdk_matrix) in _page(), "run python -m tests.bridge.matrix"


def test_the_page_says_what_comes_of_tasks() -> None:
    assert TASKS in _page(), "run python -m tests.bridge.matrix"  # `test_tasks` sees what it says.


def _page() -> str:
    return Path(PAGE).read_text(encoding="utf-8")
