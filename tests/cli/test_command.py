"""Commands in a folder below the one with the configuration: they use the nearest folder above, as git does."""

from pathlib import Path

import pytest

from sluicegate.cli.command import project_folder
from tests.cli.folders import COUNTING, Folder


def below(folder: Folder) -> Folder:
    """The same folder, with commands run two levels below it."""
    inner = folder.path / "data" / "deep"
    inner.mkdir(parents=True)
    folder.path = inner
    return folder


@pytest.mark.parametrize("name", [".mcp.json", "sluicegate.toml"])
def test_the_nearest_folder_with_a_configuration_is_used(tmp_path: Path, name: str) -> None:
    inner = tmp_path / "project" / "src" / "deep"
    inner.mkdir(parents=True)
    assert project_folder(str(inner), "/home/ada") == str(inner)
    (tmp_path / name).write_text("{}")
    assert project_folder(str(inner), "/home/ada") == str(tmp_path)
    (tmp_path / "project" / name).write_text("{}")
    assert project_folder(str(inner), "/home/ada") == str(tmp_path / "project")
    (inner / name).write_text("{}")
    assert project_folder(str(inner), "/home/ada") == str(inner)


def test_the_home_folder_counts_only_in_itself(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / ".mcp.json").write_text("{}")
    assert project_folder(str(tmp_path / "inner"), str(tmp_path)) == str(tmp_path / "inner")
    assert project_folder(str(tmp_path), str(tmp_path)) == str(tmp_path)


def test_files_of_other_users_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / ".mcp.json").write_text("{}")
    monkeypatch.setattr("os.getuid", lambda: -1)
    assert project_folder(str(tmp_path / "inner"), "/home/ada") == str(tmp_path / "inner")


def test_commands_use_the_servers_of_a_folder_above(folder: Folder) -> None:
    root = folder.servers(counting=COUNTING).path
    inner = below(folder)
    assert inner.invoke("check").stderr == f"sluicegate: read {root / '.mcp.json'}.\n"
    assert inner.out("call", "counting__count", "to=1") == "counted to 1\n"
    # A folder that is named is used as it is.
    assert "the demo server would run" in inner.invoke("check", "--folder", ".").stderr


def test_commands_use_the_running_gateway_of_a_folder_above(folder: Folder) -> None:
    folder.servers(counting=COUNTING)
    with folder.serving() as (_, url, _):
        inner = below(folder)
        assert url in inner.out("status", "--json")
        assert inner.run("call", "counting__count", "to=1").stderr == ""
        done = inner.run("serve", "--port", "0")
        assert done.returncode == 3 and f"already serves this folder at {url}" in done.stderr
