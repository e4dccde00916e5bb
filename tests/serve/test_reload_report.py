"""Each problem in the files is reported once, not again after every other change."""

import re
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cli.folders import COUNTING, Folder, folder_in, lines_until


@pytest.fixture
def folder(tmp_path: Path) -> Generator[Folder]:
    with folder_in(tmp_path) as made:
        yield made


def test_a_new_problem_is_reported_once(folder: Folder) -> None:
    old = {**COUNTING, "comand": "x"}
    folder.servers(counting=COUNTING, old=old)
    with folder.serving() as (process, _, said):
        assert 'The key "comand" is unknown' in "".join(said)
        slip = {"command": COUNTING["command"], "arg": COUNTING["args"]}
        file = folder.servers(old=old, counting=slip).path / ".mcp.json"
        told = "".join(lines_until(process, r"counting was restarted\."))
        assert re.search(rf'{file}:\d+:\d+: note: counting: The key "arg" is unknown and ignored\.', told)
        assert 'Did you mean "args"?' in told and "comand" not in told
        # Everything stands a line further down, and nothing is new.
        file.write_text(f"// mine\n{file.read_text()}")
        assert "note: " not in "".join(lines_until(process, "reloaded; nothing changed"))
        file.write_text("{")
        assert f"{file}:1:2: warning: " in "".join(lines_until(process, "stays as it was"))
        folder.servers(old=old, counting=COUNTING)
        told = "".join(lines_until(process, r"counting was restarted\."))
        assert "are applied again" in told and "is unknown" not in told
        folder.servers(old=old, counting=slip)
        assert '"arg" is unknown' in "".join(lines_until(process, r"counting was restarted\."))


def test_a_warning_is_not_reported_again_when_another_problem_is_fixed(folder: Folder) -> None:
    lost = {"command": "no-such-program-anywhere"}
    folder.servers(lost=lost)
    with folder.serving() as (process, _, said):
        assert "warning: lost: " in "".join(said)
        folder.servers(wrong={"command": 5}, lost=lost)
        told = "".join(lines_until(process, "wrong does not run"))
        assert "warning: wrong: " in told and "warning: lost: " not in told
        folder.write("sluicegate.toml", "[http]\nhots = 3\n")
        assert "hots" in "".join(lines_until(process, "stays as it was"))
        folder.servers(wrong={"command": 5}, lost=lost, counting=COUNTING)
        assert "hots" in "".join(lines_until(process, "stays as it was")), (
            "the reason for a rejected reload is always reported"
        )
        (folder.path / "sluicegate.toml").unlink()
        told = "".join(lines_until(process, r"counting was added\."))
        assert "are applied again" in told and "warning: " not in told


def test_an_entry_for_the_gateway_itself_is_reported_once(folder: Folder) -> None:
    folder.servers(counting=COUNTING)
    with folder.serving() as (process, _, _):
        assert folder.run("connect", "claude-code", "--yes").returncode == 0
        told = "".join(lines_until(process, "sluicegate does not run: it is this gateway itself"))
        assert told.count("this gateway itself") == 1
