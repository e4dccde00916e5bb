"""Where the files and the socket of a gateway are."""

from pathlib import Path

import pytest

from sluicegate.config.model import GatewayConfig
from sluicegate.config.paths import Places, control_socket
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
