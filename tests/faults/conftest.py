"""Fixtures of the tests of our HTTP client."""

from collections.abc import Generator

import pytest

from sluicegate.upstream.http import forget_verdicts
from tests.faults.upstreams import WAYS, Way


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


@pytest.fixture
def no_verdicts() -> Generator[None]:
    """Nothing is known about the era of any URL."""
    forget_verdicts()
    yield
    forget_verdicts()
