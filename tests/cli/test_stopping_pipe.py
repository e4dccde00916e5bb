"""A gateway with stdio and HTTP that ends by a signal, or because its stdio client has ended."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from tests.cli.folders import PROMPTLY, Folder, lines_until

WAITING = """\
import os, signal, sys, time
import sluicegate
server = sluicegate.Server("waiting")

@server.tool
def wait(number: int) -> str:
    with open(f"began{number}", "w") as began:
        began.write("now")
    with open(f"go{number}") as go:
        return go.read()

sluicegate.run(server)
if "stay" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
"""

BY_HTTP = """\
import asyncio, sys
import sluicegate

async def main():
    async with sluicegate.connect(sys.argv[1]) as gateway:
        try:
            print((await gateway.call("waiting__wait", number=2)).text)
        except sluicegate.SluicegateError:
            print("refused")

asyncio.run(main())
"""

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
PARAMS = {"name": "waiting__wait", "arguments": {"number": 1}, "_meta": META}
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": PARAMS}

WHOLE = 20.0
"""Seconds in which a gateway ends after a signal, whatever its servers do (R29)."""


class Pair:
    """A gateway with a call over stdio and a call over HTTP in progress."""

    def __init__(
        self, folder: Folder, gateway: "subprocess.Popen[str]", url: str, by_http: "subprocess.Popen[str]"
    ) -> None:
        self.gateway = gateway
        self._folder = folder
        self._url = urlsplit(url)
        self._by_http = by_http

    def let_go(self, number: int, text: str) -> None:
        """Let the tool answer."""
        (self._folder.path / f"go{number}").write_text(text)

    def pipe_said(self) -> "dict[str, dict[str, object]]":
        """The next answer that the client of the pipe gets."""
        assert self.gateway.stdout is not None
        return json.loads(self.gateway.stdout.readline())

    def http_said(self) -> str:
        """The answer that the other client gets."""
        out, err = self._by_http.communicate(timeout=PROMPTLY)
        assert err == ""
        return out

    def assert_takes_nobody(self) -> None:
        """Check that HTTP tells health checks and new clients that the gateway is about to stop."""
        assert self._ask("GET", "/readyz") == (503, {"status": "stopping"})
        assert self._ask("GET", "/healthz") == (200, {"status": "ok"})
        status, answer = self._ask("POST", self._url.path, {**CALL, "id": "late"})
        assert status == 503 and answer["id"] == "late"
        assert answer["error"]["data"]["reason"] == "shutting_down"

    def _ask(self, method: str, path: str, message: "dict[str, Any] | None" = None) -> "tuple[int, dict[str, Any]]":
        connection = HTTPConnection(self._url.hostname or "", self._url.port, timeout=PROMPTLY)
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        headers |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "waiting__wait"}
        with closing(connection):
            connection.request(method, path, json.dumps(message), headers if message else {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())


@contextmanager
def pair(folder: Folder, *words: str) -> Generator[Pair]:
    folder.write("waiting.py", WAITING)
    folder.servers(waiting={"command": sys.executable, "args": ["waiting.py", *words]})
    for number in (1, 2):
        os.mkfifo(folder.path / f"began{number}")
        os.mkfifo(folder.path / f"go{number}")
    with folder.started("serve", "--stdio", "--http", "--port", "0") as gateway:
        url = re.search(r"serving at (\S+)", "".join(lines_until(gateway, r"servers? ready")))
        assert url is not None and gateway.stdin is not None
        gateway.stdin.write(json.dumps(CALL) + "\n")
        gateway.stdin.flush()
        with subprocess.Popen(
            [sys.executable, "-c", BY_HTTP, url[1]],
            env=folder.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as by_http:
            try:
                for number in (1, 2):
                    assert (folder.path / f"began{number}").read_text() == "now"
                yield Pair(folder, gateway, url[1], by_http)
            finally:
                by_http.kill()


def test_a_signal_stops_every_front_at_once_and_all_calls_have_their_time(folder: Folder) -> None:
    folder.write("sluicegate.toml", f"[limits]\ndrain = {PROMPTLY}\n")
    with pair(folder) as both:
        both.gateway.send_signal(signal.SIGTERM)
        (said,) = lines_until(both.gateway, "in progress")[-1:]
        assert "2 calls are in progress, with 30 s to finish; Ctrl+C or a second signal cancels them now." in said
        both.assert_takes_nobody()
        both.let_go(1, "by pipe")
        assert both.pipe_said()["result"]["content"] == [{"type": "text", "text": "by pipe"}]
        both.let_go(2, "by HTTP")
        assert both.http_said() == "by HTTP\n"
        assert both.gateway.wait(PROMPTLY) == 0


def test_a_client_that_hangs_up_closes_the_other_fronts_whose_calls_have_their_time(folder: Folder) -> None:
    folder.write("sluicegate.toml", f"[limits]\ndrain = {PROMPTLY}\n")
    with pair(folder) as both:
        assert both.gateway.stdin is not None
        both.gateway.stdin.close()
        (said,) = lines_until(both.gateway, "in progress")[-1:]
        assert said == "sluicegate: 1 call is in progress, with 30 s to finish.\n"
        both.assert_takes_nobody()
        # Clients send one when they have hung up and we are still there; that is no second signal.
        both.gateway.send_signal(signal.SIGTERM)
        both.let_go(2, "by HTTP")
        assert both.http_said() == "by HTTP\n"
        assert both.gateway.wait(PROMPTLY) == 0


def test_calls_that_never_end_and_a_server_that_does_not_stop_share_one_deadline(folder: Folder) -> None:
    with pair(folder, "stay") as both:
        both.gateway.send_signal(signal.SIGTERM)
        assert both.gateway.wait(WHOLE) == 0
        assert both.http_said() == "refused\n"
        assert both.pipe_said()["error"]["code"] == 1031


def test_a_second_signal_ends_it_at_once(folder: Folder) -> None:
    folder.write("sluicegate.toml", "[limits]\ndrain = 3600\n")
    with pair(folder) as both:
        both.gateway.send_signal(signal.SIGTERM)
        lines_until(both.gateway, "in progress")
        both.gateway.send_signal(signal.SIGINT)
        assert both.gateway.wait(PROMPTLY) == 1
