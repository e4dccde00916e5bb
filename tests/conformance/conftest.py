"""What the tests of both sides need of the suite."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance import suite


@pytest.fixture(scope="module")
def npm(stranger: Callable[[str], Path]) -> Path:
    """Where the suite is installed; without it, tests skip and say why."""
    npm = stranger("npm")
    if not (npm / suite.PROGRAM).exists():
        pytest.skip("the conformance suite is not installed: run ./scripts/strangers")
    return npm
