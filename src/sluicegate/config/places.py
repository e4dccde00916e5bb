"""Where a gateway's files are: those that it reads, and the socket by which commands reach it."""

import hashlib
import os
from collections.abc import Mapping

import msgspec

from sluicegate.config.values import GatewayConfig


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where a gateway looks for its files."""

    root: str
    home: str
    config: str | None = None
    """The one file that was asked for: servers, or settings if its name ends in `.toml`."""
    environ: Mapping[str, str] = {}

    @classmethod
    def here(cls, config: str | None = None, root: str | None = None) -> "Places":
        """The places of this process: its folder, its user, its variables."""
        return cls(
            root=os.path.abspath(root or os.curdir),
            home=os.path.expanduser("~"),
            config=None if config is None else os.path.abspath(config),
            environ=dict(os.environ),
        )

    @property
    def server_files(self) -> tuple[str, ...]:
        """Files with servers, the one that counts more last."""
        if self.config is not None and not self.config.endswith(".toml"):
            return (self.config,)
        return _once(os.path.join(self.home, ".mcp.json"), os.path.join(self.root, ".mcp.json"))

    @property
    def settings_files(self) -> tuple[str, ...]:
        """Files with settings, the one that counts more last."""
        if self.config is not None and self.config.endswith(".toml"):
            return (self.config,)
        folder = self.environ.get("XDG_CONFIG_HOME") or os.path.join(self.home, ".config")
        return _once(os.path.join(folder, "sluicegate", "sluicegate.toml"), os.path.join(self.root, "sluicegate.toml"))

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that may say something, whether it is there or not: what is worth watching."""
        return self.server_files + self.settings_files


def control_socket(config: GatewayConfig, environ: Mapping[str, str]) -> str:
    """The path of the commands' socket: as configured, else one that belongs to the gateway's folder."""
    if config.control.socket:
        return config.control.socket
    name = hashlib.blake2b(os.path.realpath(config.root).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    folder = environ.get("XDG_RUNTIME_DIR") or os.path.join(
        environ.get("HOME") or os.path.expanduser("~"), ".sluicegate"
    )
    return os.path.join(folder, "sluicegate" if environ.get("XDG_RUNTIME_DIR") else "run", f"{name}.sock")


def _once(*files: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(files))
