"""Commands in a folder below the one that the servers are of: they lead there, and start no demo instead."""

from pathlib import Path

import pytest

from sluicegate.cli.above import way_up
from sluicegate.config import Places
from tests.cli.folders import COUNTING, Folder


def below(folder: Folder) -> Folder:
    """The folder as whoever has gone down from it sees it."""
    inner = folder.path / "data" / "deep"
    inner.mkdir(parents=True)
    folder.path = inner
    return folder


@pytest.mark.parametrize("words", [("status",), ("tools",), ("call", "counting__count", "to=1"), ("doctor",)])
def test_a_file_above_is_named_with_the_option_that_uses_it(folder: Folder, words: tuple[str, ...]) -> None:
    root = folder.servers(counting=COUNTING).path
    done = below(folder).invoke(*words)
    told = f"There is a .mcp.json in {root}, above this folder: add --folder ../.. to use it."
    assert (done.returncode, done.stdout) == (1, "") and told in done.stderr and "demo" not in done.stderr


def test_what_check_says_would_run_comes_with_what_is_above(folder: Folder) -> None:
    folder.servers(counting=COUNTING)
    assert "the demo server would run. There is a .mcp.json in " in below(folder).invoke("check").stderr


def test_a_gateway_that_runs_above_is_named_and_asked(folder: Folder) -> None:
    root = folder.servers(counting=COUNTING).path
    with folder.serving():
        inner = below(folder)
        told = f"A gateway runs for {root}, above this folder: add --folder ../.. to ask that one."
        for words in (("status",), ("logs", "counting"), ("restart", "counting")):
            done = inner.run(*words)
            assert done.returncode == 1 and told in done.stderr
        assert inner.out("call", "counting__count", "to=1", "--folder", "../..") == "counted to 1\n"


def test_what_others_have_put_above_is_not_proposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".mcp.json").write_text("{}")
    (tmp_path / "inner").mkdir()
    places = Places(root=str(tmp_path / "inner"), home=str(tmp_path / "home"))
    assert str(tmp_path) in way_up(places, lambda _: False)
    assert way_up(places, lambda _: False, only_running=True) == ""
    monkeypatch.setattr("os.getuid", lambda: -1)
    assert way_up(places, lambda _: False) == ""
