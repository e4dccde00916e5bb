"""The runs of the official SDK's clients, which several modules look at."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.strangers.runs import Client, Row, Run, RunOf, Saw, run


@pytest.fixture(scope="session")
def run_of(stranger: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> RunOf:
    """What came of a client's run through all scenarios; it is run when first asked for."""
    runs: dict[Client, Run] = {}

    def run_of(client: Client) -> Run:
        if client not in runs:
            runs[client] = run(client, stranger(client.sdk), tmp_path_factory.mktemp("run") / "farewell")
        return runs[client]

    return run_of


@pytest.fixture(scope="session")
def saw(run_of: RunOf) -> Saw:
    """What a client saw in a scenario."""

    def saw(client: Client, scenario: str) -> Row:
        row = run_of(client).rows[scenario]
        assert "failed" not in row, row["failed"]
        return row["saw"]

    return saw
