"""What all tests of stores share."""

from collections.abc import Generator

import pytest

from sluicegate.store import retention


@pytest.fixture(autouse=True)
def few_looks() -> Generator[None]:
    """Old files of an audit log are removed at the second look."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "MIN_LOOKS", 2)
        yield
