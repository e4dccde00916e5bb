"""HTTP servers in processes of their own: ours, a bare one, the official SDK's, and nginx; and what they cost."""

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench import workers
from bench.workers import ROOT


class Server(NamedTuple):
    """Its port and its process."""

    port: int
    pid: int

    def cpu(self) -> int:
        """The CPU time of all its threads so far, in nanoseconds (Linux: the clock of another process)."""
        return time.clock_gettime_ns((~self.pid << 3) | 2)

    def resident(self) -> int:
        """The bytes of memory that it holds."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * 4096


@contextmanager
def our_server(module: str = "our_http_server", *words: str) -> Generator[Server]:
    """A module of `peers/` that prints its address to stderr; by default `sluicegate.run(server, http=True)`."""
    command = [sys.executable, "-m", f"bench.peers.{module}", *words]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            line = process.stderr.readline()
            yield Server(int(line.partition("127.0.0.1:")[2].partition("/")[0]), process.pid)
        finally:
            process.terminate()


@contextmanager
def bare_server() -> Generator[Server]:
    """The least that Python does for a call."""
    command = [sys.executable, "-m", "bench.peers.bare", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield Server(int(process.stdout.readline()), process.pid)
        finally:
            process.terminate()


@contextmanager
def official_server(sdk: str) -> Generator[Server]:
    """The official SDK's: `mcp1` or `mcp2`."""
    command = [str(workers.STRANGERS / sdk / "bin" / "python"), "-m", "bench.peers.official_http_server"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            server = Server(int(process.stdout.readline()), process.pid)
            wait_until_open(server.port)
            yield server
        finally:
            process.kill()  # it would wait for its sessions


_NGINX = """
worker_processes 1; daemon off; master_process off; pid {home}/pid; error_log {home}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 100000000; default_type application/json;
    client_body_temp_path {home}/body; proxy_temp_path {home}/proxy; fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi; scgi_temp_path {home}/scgi;
    server {{ listen 127.0.0.1:{port}; location / {{ return 200 '{answer}'; }} }}
}}
"""


def nginx_missing() -> str | None:
    """Why nginx cannot take part, or None if it can."""
    return None if shutil.which("nginx") else "nginx is not installed"


@contextmanager
def nginx(answer: str) -> Generator[Server]:
    """nginx in one process, which answers everything with this body."""
    with tempfile.TemporaryDirectory() as home, socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
        place.close()
        config = Path(home, "nginx.conf")
        config.write_text(_NGINX.format(home=home, port=port, answer=answer))
        with subprocess.Popen(["nginx", "-c", str(config)], stderr=subprocess.DEVNULL) as process:
            try:
                wait_until_open(port)
                yield Server(port, process.pid)
            finally:
                process.terminate()


def wait_until_open(port: int) -> None:
    """Wait until somebody listens there.

    Raises:
        TimeoutError: nobody does.
    """
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise TimeoutError(f"nobody listens on port {port}")
