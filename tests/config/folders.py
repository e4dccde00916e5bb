"""A home folder and a project folder on disk, for tests that load configurations."""

import json
from collections.abc import Mapping
from pathlib import Path

from sluicegate.config.load import Loaded, load
from sluicegate.config.model import GatewayConfig
from sluicegate.config.paths import Places


class Folders:
    """Two empty folders and the environment of a process."""

    def __init__(self, base: Path) -> None:
        self.home = base / "home"
        self.root = base / "work"
        self.environ = {"PATH": str(base / "bin"), "HOME": str(self.home)}
        for folder in (self.home, self.root, base / "bin"):
            folder.mkdir()

    def program(self, name: str) -> str:
        """A program of this name on the PATH."""
        path = Path(self.environ["PATH"]) / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return str(path)

    def servers(self, text: str | Mapping[str, object], folder: Path | None = None) -> Path:
        """Write `.mcp.json`, given as a text or as the servers in it."""
        file = (folder or self.root) / ".mcp.json"
        file.write_text(text if isinstance(text, str) else json.dumps({"mcpServers": text}, indent=2))
        return file

    def settings(self, text: str, *, user: bool = False) -> Path:
        """Write `sluicegate.toml`."""
        file = (self.home / ".config" / "sluicegate" if user else self.root) / "sluicegate.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def places(self, config: Path | None = None) -> Places:
        return Places(
            root=str(self.root), home=str(self.home), config=str(config) if config else None, environ=self.environ
        )

    def load(self, config: Path | None = None) -> Loaded:
        return load(self.places(config))

    def config(self) -> GatewayConfig:
        """The loaded configuration; fails if there are problems other than notes."""
        loaded = self.load()
        assert not [str(problem) for problem in loaded.problems if problem.severity != "note"]
        assert loaded.config is not None
        return loaded.config
