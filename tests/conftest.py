"""What every test may lean on."""

from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

# Time per example says more about the machine than about the code; pytest-timeout bounds each test as a whole.
hypothesis.settings.register_profile("sluicegate", deadline=None, print_blob=True)
hypothesis.settings.load_profile("sluicegate")

STRANGERS = Path(__file__).parents[1] / ".strangers"


@pytest.fixture(scope="session")
def stranger() -> Callable[[str], Path]:
    """Return where a stranger (mcp1, mcp2, pypi or npm) is installed, or skip the test and say why it is not."""

    def find(name: str) -> Path:
        # scripts/strangers copies the lock last, so it is there only if all else is.
        if (STRANGERS / f"{name}.lock").exists():
            return STRANGERS / name
        missing = STRANGERS / f"{name}.missing"
        reason = missing.read_text().strip() if missing.exists() else "run ./scripts/strangers"
        pytest.skip(f".strangers/{name} is not installed: {reason}")

    return find
