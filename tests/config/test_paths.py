"""Where the files and the socket of a gateway are."""

from pathlib import Path

import pytest

from sluicegate.config.model import GatewayConfig
from sluicegate.config.paths import Places, audit_folder, control_socket
from tests.config.folders import Folders


def test_each_folder_has_a_control_socket_of_its_own(folders: Folders, tmp_path: Path) -> None:
    config = folders.config()
    runtime = {"XDG_RUNTIME_DIR": "/run/user/1000"}
    socket = control_socket(config, runtime)
    assert socket.startswith("/run/user/1000/sluicegate/") and len(socket) < 100
    assert control_socket(GatewayConfig(root=str(tmp_path)), runtime) != socket
    assert control_socket(config, {"HOME": "/home/me"}).startswith("/home/me/.sluicegate/run/")
    folders.settings('[control]\nsocket = "run/x.sock"\n')
    assert control_socket(folders.config(), runtime) == str(folders.root / "run" / "x.sock")


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
