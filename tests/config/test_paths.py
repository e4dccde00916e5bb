"""Where the files and the socket of a gateway are."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sluicegate.config import paths
from sluicegate.config.model import GatewayConfig
from sluicegate.config.paths import (
    Places,
    audit_folder,
    control_socket,
    control_sockets,
    named_folders,
    note_folders,
    state_file,
    user_folders,
)
from sluicegate.exchange import Caller, Target
from sluicegate.gate.policy import Rules, judge
from tests.config.folders import Folders


def test_each_folder_has_a_control_socket_of_its_own(folders: Folders, tmp_path: Path) -> None:
    config = folders.config()
    with TemporaryDirectory() as runtime:
        environ = {"XDG_RUNTIME_DIR": runtime, "HOME": "/home/me"}
        socket = control_socket(config, environ)
        assert socket.startswith(f"{runtime}/sluicegate/") and len(socket) < 100
        assert control_socket(GatewayConfig(root=str(tmp_path)), environ) != socket
        home = control_socket(config, {"HOME": "/home/me"})
        assert home.startswith("/home/me/.sluicegate/run/")
        assert control_sockets(config.root, environ) == (socket, home)
        folders.settings('[control]\nsocket = "run/x.sock"\n')
        assert control_socket(folders.config(), environ) == str(folders.root / "run" / "x.sock")


def test_the_folder_that_the_system_gives_the_user_needs_no_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with TemporaryDirectory() as given, TemporaryDirectory() as named:  # They are private; the paths are short.
        monkeypatch.setattr(paths, "RUN_USER", given)
        for environ in ({"HOME": "/home/me"}, {"HOME": "/home/me", "XDG_RUNTIME_DIR": named}):
            assert control_sockets(str(tmp_path), environ)[0].startswith(f"{given}/sluicegate/")
        os.chmod(given, 0o750)
        assert control_sockets(str(tmp_path), {"HOME": "/home/me"})[0].startswith("/home/me/.sluicegate/run/")


def test_a_folder_that_only_a_variable_names_is_found_without_it(tmp_path: Path) -> None:
    small = {"HOME": str(tmp_path / "home")}
    named = {name: str(tmp_path / name) for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME")}
    for folder in (*small.values(), *named.values()):
        Path(folder).mkdir()
    own = user_folders(small)
    note_folders(small)
    assert not (tmp_path / "home" / ".sluicegate").exists()
    note_folders({**small, **named})
    assert not (tmp_path / "home" / ".sluicegate").exists(), "they have no files of ours"
    for _ in range(2):
        note_folders({**small, **named}, new=True)
    found = user_folders(small)
    assert found.runtime == (str(tmp_path / "XDG_RUNTIME_DIR" / "sluicegate"), *own.runtime)
    assert found.state == (str(tmp_path / "XDG_STATE_HOME"), *own.state)
    assert found.config == own.config, "it has no settings yet"
    (tmp_path / "XDG_CONFIG_HOME" / "sluicegate").mkdir()
    (tmp_path / "XDG_CONFIG_HOME" / "sluicegate" / "sluicegate.toml").touch()
    note_folders({**small, **named})
    assert user_folders(small).config == (*own.config, str(tmp_path / "XDG_CONFIG_HOME"))
    notes = tmp_path / "home" / ".sluicegate" / "folders"
    assert len(notes.read_text().splitlines()) == 3
    notes.chmod(0o622)
    assert user_folders(small) == own, "other users could have written it"


def test_a_noted_folder_that_others_can_change_is_used_only_where_a_variable_names_it(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"HOME": str(folders.home)}
    named = {name: str(tmp_path / name) for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME")}
    for folder in named.values():
        (Path(folder) / "sluicegate").mkdir(parents=True)
    own = user_folders(small)
    note_folders({**small, **named})
    noted = user_folders(small)
    assert named["XDG_STATE_HOME"] in noted.state and named["XDG_CONFIG_HOME"] in noted.config
    for mode in (0o775, 0o757):
        for folder in named.values():
            os.chmod(folder, mode)
        assert user_folders(small) == own
        assert named["XDG_STATE_HOME"] in user_folders({**small, **named}).state
        problems = folders.load().problems
        assert {problem.file for problem in problems if "chmod go-w" in problem.sentence} == set(named.values())
    for folder in named.values():
        os.chmod(folder, 0o755)
    assert user_folders(small) == noted
    real = os.stat

    def of_another_user(path: str) -> os.stat_result:
        status = real(path)
        return os.stat_result((*status[:4], status.st_uid + 1, *status[5:10])) if path in named.values() else status

    monkeypatch.setattr(paths.os, "stat", of_another_user)
    assert user_folders(small) == own


def test_the_notes_are_replaced_by_those_of_folders_that_exist(tmp_path: Path) -> None:
    home = tmp_path / "home"
    notes = home / ".sluicegate" / "folders"
    gone, other, last = (tmp_path / name for name in ("gone", "other", "last"))
    for folder in (gone, other, last):
        folder.mkdir()
        note_folders({"HOME": str(home), "XDG_STATE_HOME": str(folder)}, new=True)
        if folder == gone:
            gone.rmdir()
    assert notes.read_text() == f"state {other}\nstate {last}\n"
    assert os.listdir(notes.parent) == ["folders"] and notes.stat().st_mode & 0o777 == 0o600
    notes.write_text("state /nowhere\n" * 10_000)
    note_folders({"HOME": str(home), "XDG_STATE_HOME": str(last)}, new=True)
    assert notes.read_text() == f"state {last}\n"
    assert user_folders({"HOME": str(home)}).state[0] == str(last)


def test_relative_folders_in_variables_count_for_nothing(tmp_path: Path) -> None:
    environ = {"HOME": "/home/me", "XDG_CONFIG_HOME": "x", "XDG_STATE_HOME": ".", "XDG_RUNTIME_DIR": "."}
    assert user_folders(environ) == user_folders({"HOME": "/home/me"})
    assert not named_folders(environ)


def test_the_home_folder_of_the_user_database_counts_besides_the_variable(
    monkeypatch: pytest.MonkeyPatch, folders: Folders, tmp_path: Path
) -> None:
    monkeypatch.setattr(paths, "database_home", lambda: str(tmp_path / "real"))
    (tmp_path / "real" / ".config" / "sluicegate").mkdir(parents=True)
    real = tmp_path / "real" / ".config" / "sluicegate" / "sluicegate.toml"
    real.write_text('[[permissions]]\ntool = "mcp__demo__count"\naction = "deny"\n')
    folders.settings('[[permissions]]\ntool = "*"\naction = "allow"\n', user=True)
    rules = Rules(folders.config().policy)
    verdict = judge(rules, Caller("local"), Target("demo", "tool", "count"), {})
    assert verdict.action == "deny" and verdict.rule == "…/.config/sluicegate/sluicegate.toml:1"
    assert judge(rules, Caller("local"), Target("demo", "tool", "other"), {}).action == "allow"


def test_a_state_that_exists_is_used_from_every_environment(folders: Folders, tmp_path: Path) -> None:
    root, small = str(folders.root), {"HOME": str(folders.home)}
    first = Path(state_file(root, small))
    first.parent.mkdir(parents=True)
    first.touch()
    large = {**small, "XDG_STATE_HOME": str(tmp_path / "state")}
    assert state_file(root, large) == str(first)
    other = tmp_path / "state" / "sluicegate" / first.parent.name / "audit"
    other.mkdir(parents=True)
    assert state_file(root, large) == str(other.parent / "state.db")
    folders.environ.update(large)
    (problem,) = folders.load().problems
    assert (problem.severity, problem.file) == ("warning", str(first.parent)) and str(other.parent) in problem.sentence


def test_each_folder_has_an_audit_log_of_its_own(folders: Folders, tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": "/state", "HOME": "/home/me"}
    folder = Path(audit_folder(folders.config(), state))
    assert folder.parts[:3] == ("/", "state", "sluicegate") and folder.name == "audit"
    assert audit_folder(GatewayConfig(root=str(tmp_path)), state) != str(folder)
    assert audit_folder(folders.config(), {"HOME": "/home/me"}).startswith("/home/me/.local/state/sluicegate/")
    folders.settings('[audit]\nfolder = "log"\nanchors = ["~/copy", "../copy", "https://log.example/x"]\n')
    config = folders.config()
    assert audit_folder(config, state) == str(folders.root / "log")
    home, root = folders.home, folders.root
    assert config.audit.anchors == (str(home / "copy"), str(root.parent / "copy"), "https://log.example/x")


def test_the_places_of_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert Places.here().files == (
        str(tmp_path / "home" / ".mcp.json"),
        str(tmp_path / ".mcp.json"),
        str(tmp_path / "home" / ".config" / "sluicegate" / "sluicegate.toml"),
        str(tmp_path / "sluicegate.toml"),
    )
    assert Places.here(config="x.json").server_files == (str(tmp_path / "x.json"),)
    assert Places.here(root=str(tmp_path / "home")).server_files == (str(tmp_path / "home" / ".mcp.json"),)
