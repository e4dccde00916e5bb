"""Gateways in processes of their own, and what they cost: all of their processes but the servers that they started."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench.servers import wait_until_open
from bench.workers import ROOT, process_tree

PYTHON = sys.executable
SERVER = (PYTHON, "-m", "bench.peers_gateway.server")

_NGINX: Final = """
worker_processes 1; daemon off; master_process off; pid {home}/pid; error_log {home}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 100000000;
    client_body_temp_path {home}/body; proxy_temp_path {home}/proxy; fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi; scgi_temp_path {home}/scgi;
    upstream behind {{ server 127.0.0.1:{behind}; keepalive 64; keepalive_requests 100000000; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_set_header Host $http_host; proxy_buffering off;
        }}
    }}
}}
"""


class Gate(NamedTuple):
    """A gateway that runs."""

    process: "subprocess.Popen[bytes]"
    servers: Path
    """A folder that holds the process ids of the servers behind it."""
    port: int = 0

    def cpu(self) -> int:
        """The CPU time of its processes so far, in nanoseconds."""
        return sum(map(_cpu_of, self._own()))

    def resident(self) -> int:
        """The bytes of memory that they hold."""
        return sum(map(_resident_of, self._own()))

    def with_servers(self) -> int:
        """The bytes of memory of all that it started."""
        return sum(map(_resident_of, process_tree(self.process.pid)))

    def _own(self) -> list[int]:
        others = {int(file.name) for file in self.servers.iterdir()}
        return [pid for pid in process_tree(self.process.pid) if pid not in others]


def _cpu_of(pid: int) -> int:
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return 0


def _resident_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


@contextmanager
def folder(servers: Mapping[str, object], settings: str = "") -> Generator[Path]:
    """A folder with a `.mcp.json` of these servers."""
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        place = Path(home)
        (place / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
        if settings:
            (place / "sluicegate.toml").write_text(settings)
        yield place


def by_pipe(pids: Path) -> dict[str, object]:
    """An entry for the server as a child process."""
    command, *arguments = [*SERVER, "stdio", str(pids)]
    return {"command": command, "args": arguments, "cwd": str(ROOT), "env": {"PYTHONPATH": str(ROOT)}}


@contextmanager
def web_server() -> Generator[Gate]:
    """The server over HTTP."""
    with tempfile.TemporaryDirectory(prefix="bench-") as pids, tempfile.TemporaryDirectory(prefix="bench-") as none:
        command = [*SERVER, "http", pids]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
            assert process.stderr
            try:
                line = process.stderr.readline().decode()
                yield Gate(process, Path(none), int(line.partition("127.0.0.1:")[2].partition("/")[0]))
            finally:
                process.terminate()


@contextmanager
def twenty_servers() -> Generator[int]:
    """The port of twenty servers with fifty tools each."""
    command = [PYTHON, "-m", "bench.peers_gateway.twenty"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        yield int(process.stdout.readline())


@contextmanager
def started(
    command: Sequence[str],
    pids: Path,
    port: int = 0,
    *,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
) -> Generator[Gate]:
    """A gateway by its command, open on its port; without one it is asked on its stdin."""
    log = tempfile.TemporaryFile()
    pipe = subprocess.PIPE if not port else subprocess.DEVNULL
    out = subprocess.PIPE if not port else log
    with (
        log,
        subprocess.Popen(
            command, cwd=cwd, env={**_surroundings(), **(environment or {})}, stdin=pipe, stdout=out, stderr=log
        ) as process,
    ):
        try:
            if port:
                try:
                    wait_until_open(port)
                except TimeoutError:
                    log.seek(0)
                    words = log.read().decode(errors="replace").strip().splitlines()
                    raise RuntimeError(f"it did not start: {words[-1] if words else 'it said nothing'}") from None
            yield Gate(process, pids, port)
        finally:
            for pid in reversed(process_tree(process.pid)):
                with_no_mercy(pid)


def _surroundings() -> dict[str, str]:
    """Our environment; but byte code is kept, as mostly, or every start would compile everything."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def with_no_mercy(pid: int) -> None:
    """Kill a process that we started, or that one of these did."""
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


@contextmanager
def nginx_before(behind: int) -> Generator[Gate]:
    """nginx as a reverse proxy for a port, in one process."""
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        config, port = Path(home, "nginx.conf"), free_port()
        config.write_text(_NGINX.format(home=home, port=port, behind=behind))
        with started(["nginx", "-c", str(config)], pids_in(home), port) as gate:
            yield gate


@contextmanager
def bare_before(behind: int) -> Generator[Gate]:
    """The least that Python does for a call, before a port."""
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        port = free_port()
        command = [PYTHON, "-m", "bench.peers.bare", str(port), str(behind)]
        with started(command, pids_in(home), port) as gate:
            yield gate


def pids_in(home: str) -> Path:
    """A new folder for process ids."""
    place = Path(home, "pids")
    place.mkdir()
    return place


@contextmanager
def ours(servers: dict[str, object], pids: Path, settings: str = "", *, stdio: bool = False) -> Generator[Gate]:
    """Our gateway for these servers."""
    port = 0 if stdio else free_port()
    with folder(servers, settings) as place:
        door = ["--stdio"] if stdio else ["--port", str(port)]
        command = [PYTHON, "-m", "sluicegate", "serve", "--folder", str(place), *door]
        home = {"HOME": str(place), "XDG_CONFIG_HOME": str(place), "XDG_RUNTIME_DIR": str(place)}
        with started(command, pids, port, environment=home) as gate:
            yield gate
