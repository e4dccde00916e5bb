"""The paths of a gateway: its configuration files and its control socket."""

import hashlib
import os
from collections.abc import Mapping

import msgspec

from sluicegate.config.model import GatewayConfig


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """The folders in which a gateway looks for its files."""

    root: str
    home: str
    config: str | None = None
    """The file given with `--config`: servers, or settings if its name ends in `.toml`."""
    environ: Mapping[str, str] = {}
    added: tuple[str, ...] = ()
    """Keys of servers that are in no file, since a program adds them; rules may name them."""

    @classmethod
    def here(cls, config: str | None = None, root: str | None = None) -> "Places":
        """The paths of this process: working directory, home and environment."""
        return cls(
            root=os.path.abspath(root or os.curdir),
            home=os.path.expanduser("~"),
            config=None if config is None else os.path.abspath(config),
            environ=dict(os.environ),
        )

    @property
    def server_files(self) -> tuple[str, ...]:
        """Files with servers; later ones take precedence."""
        if self.config is not None and not self.config.endswith(".toml"):
            return (self.config,)
        return _once(os.path.join(self.home, ".mcp.json"), os.path.join(self.root, ".mcp.json"))

    @property
    def settings_files(self) -> tuple[str, ...]:
        """Files with settings; later ones take precedence."""
        if self.config is not None and self.config.endswith(".toml"):
            return (self.config,)
        folder = self.environ.get("XDG_CONFIG_HOME") or os.path.join(self.home, ".config")
        return _once(os.path.join(folder, "sluicegate", "sluicegate.toml"), os.path.join(self.root, "sluicegate.toml"))

    @property
    def lock_file(self) -> str:
        """The file with the approved definitions of tools."""
        return os.path.join(self.root, "sluicegate.lock")

    @property
    def files(self) -> tuple[str, ...]:
        """All configuration files, whether they exist or not."""
        return self.server_files + self.settings_files


def control_socket(config: GatewayConfig, environ: Mapping[str, str]) -> str:
    """The path of the control socket: as configured, else made from the path of the gateway's folder."""
    if config.control.socket:
        return config.control.socket
    name = _folder_digest(config.root)
    folder = environ.get("XDG_RUNTIME_DIR") or os.path.join(
        environ.get("HOME") or os.path.expanduser("~"), ".sluicegate"
    )
    return os.path.join(folder, "sluicegate" if environ.get("XDG_RUNTIME_DIR") else "run", f"{name}.sock")


def catalogs_folder(root: str, environ: Mapping[str, str]) -> str:
    """The folder in which the gateway of a folder remembers what its servers offer."""
    return os.path.join(_state_folder(root, environ), "catalogs")


def state_file(root: str, environ: Mapping[str, str]) -> str:
    """The file with the approvals, grants and pins of a folder."""
    return os.path.join(_state_folder(root, environ), "state.db")


def audit_folder(config: GatewayConfig, environ: Mapping[str, str]) -> str:
    """The folder of the audit log: as configured, else made from the path of the gateway's folder."""
    return config.audit.folder or os.path.join(_state_folder(config.root, environ), "audit")


def last_checkpoint_file(root: str, environ: Mapping[str, str]) -> str:
    """The file with the last checkpoint of the audit log. It is outside the log's folder, to notice its removal."""
    return os.path.join(_state_folder(root, environ), "audit.last")


def activations_folder(root: str, environ: Mapping[str, str]) -> str:
    """The folder in which the activations of a folder's gateway keep files."""
    return os.path.join(_state_folder(root, environ), "activations")


def _state_folder(root: str, environ: Mapping[str, str]) -> str:
    home = environ.get("HOME") or os.path.expanduser("~")
    state = environ.get("XDG_STATE_HOME") or os.path.join(home, ".local", "state")
    return os.path.join(state, "sluicegate", _folder_digest(root))


def _folder_digest(root: str) -> str:
    return hashlib.blake2b(os.path.realpath(root).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _once(*files: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(files))
