"""Options, fixtures and settings of all tests."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import cast

import hypothesis
import pytest

from sluicegate.config import paths

# Time per example says more about the machine than about the code; pytest-timeout bounds each test as a whole.
hypothesis.settings.register_profile("sluicegate", deadline=None, print_blob=True)
hypothesis.settings.load_profile("sluicegate")

# The longest tests come first, so that no worker is still busy with one of them when all others are done.
LONGEST_TESTS = ("tests/bridge/test_bridge.py", "tests/test_bench.py", "tests/conformance/")

# Fixtures that take a second or more to make. Tests that share one run in the same worker.
SHARED = {"command_of", "everything", "gateway", "house", "named", "place_of", "port_of", "programs", "run_of", "saw"}

STRANGERS = Path(__file__).parents[1] / ".strangers"


def _start_programs_with_default_signals() -> None:
    """Let programs that tests start react to signals which this process ignores.

    Background jobs of scripts ignore SIGINT, programs under nohup ignore SIGHUP, and their children inherit that. A
    handler is not inherited: this process still ignores the signal, and its children have the default.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)


_start_programs_with_default_signals()


def pytest_configure() -> None:
    """Keep the files of the user who runs the tests out of them: they are found by user id, not by HOME alone."""
    own = Path(paths.database_home() or "~").expanduser() / ".config" / "sluicegate" / "sluicegate.toml"
    if own.exists():
        pytest.exit(f"{own} would apply to the programs that tests start. Move it away while they run.", 2)
    setattr(paths, "database_home", lambda: None)  # noqa: B010 - it is imported by no other module
    setattr(paths, "RUN_USER", "/run/user/of-no-user")  # noqa: B010


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the tests marked `soak` at their full length")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in this hook, too.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--soak"):
        long = [item for item in items if _is_only_for_soaks(item)]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    for item in items:
        if isinstance(item, pytest.Function) and SHARED.intersection(item.fixturenames):
            item.add_marker(pytest.mark.xdist_group(_group_of(item)))
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST_TESTS))


def _is_only_for_soaks(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("soak")
    return marker is not None and "short" not in marker.kwargs


def _group_of(item: pytest.Function) -> str:
    """The group of a test with such a fixture: the peer that its parameters name, else its module."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    peer = params.get("client", params.get("server"))
    return item.nodeid.partition("::")[0] if peer is None else str(peer)


@pytest.fixture(scope="session")
def is_full_length(pytestconfig: pytest.Config) -> bool:
    """Whether `--soak` was given."""
    return bool(pytestconfig.getoption("--soak"))


@pytest.fixture
def repeats(request: pytest.FixtureRequest, is_full_length: bool) -> int:
    """Return how often a test marked `soak` repeats what it does."""
    item = cast(pytest.Item, request.node)  # pyright: ignore[reportUnknownMemberType] - pytest does not name it
    marker = item.get_closest_marker("soak")
    assert marker is not None, "only tests marked `soak` know how often"
    return marker.kwargs["full" if is_full_length else "short"]


@pytest.fixture(scope="session")
def stranger() -> Callable[[str], Path]:
    """Return where a stranger (mcp1, mcp2, pypi, models, npm) is installed, or skip the test and say why it is not."""

    def find(name: str) -> Path:
        # scripts/strangers copies the lock last, so it is there only if all else is.
        if (STRANGERS / f"{name}.lock").exists():
            return STRANGERS / name
        missing = STRANGERS / f"{name}.missing"
        reason = missing.read_text().strip() if missing.exists() else "run ./scripts/strangers"
        pytest.skip(f".strangers/{name} is not installed: {reason}")

    return find
