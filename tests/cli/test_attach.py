"""Clients that start `sluicegate serve --stdio` share the gateway of their folder."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluicegate.config.model import GatewayConfig
from sluicegate.config.paths import control_socket
from sluicegate.runtime.lock import locked
from sluicegate.serve.attach import client_socket
from tests.cli.folders import COMMAND, PROMPTLY, Folder, lines_until
from tests.marks import new_mark, processes_with
from tests.polling import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc")

SERVER = """\
import os
import sluicegate
server = sluicegate.Server("one")

@server.tool
def pid() -> str:
    return str(os.getpid())

@server.tool
def wait() -> str:
    open("began", "w").close()
    with open("go") as go:
        return go.read()

sluicegate.run(server)
"""

META: dict[str, object] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Client:
    """A client that has started `sluicegate serve --stdio`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def send(self, method: str, **params: object) -> None:
        assert self.process.stdin is not None
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, object]:
        """The next answer; empty if there is none any more."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {}

    def call(self, tool: str) -> str:
        """The text that a tool returns."""
        self.send("tools/call", name=tool, arguments={})
        return text_of(self.answer())

    def tools(self) -> list[str]:
        self.send("tools/list")
        return re.findall(r'"name": "(one__\w+)"', json.dumps(self.answer()))

    def leave(self) -> str:
        """Hang up; returns what it had written to stderr."""
        _, said = self.process.communicate(timeout=PROMPTLY)
        assert self.process.returncode == 0
        return said


def text_of(answer: dict[str, object]) -> str:
    (text,) = re.findall(r'"text": "(.*?)"', json.dumps(answer))
    return text


@contextmanager
def client(folder: Folder, *words: str, env: Mapping[str, str] | None = None) -> Generator[Client]:
    # A group of its own: clients end a server with its group.
    with subprocess.Popen(
        [*COMMAND, "serve", "--stdio", *words],
        cwd=folder.path,
        env=env or folder.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield Client(process)
        finally:
            process.kill()


class Shared(Folder):
    """A folder with one server, whose processes have a mark."""

    mark: str

    def gateways_end(self) -> None:
        """Wait until neither a server nor a socket is left."""
        wait_until(lambda: not processes_with(self.mark) and not os.listdir(os.path.dirname(control_of(self))))


def control_of(folder: Folder) -> str:
    return control_socket(GatewayConfig(root=str(folder.path)), folder.env)


@pytest.fixture
def shared(folder: Folder) -> Generator[Shared]:
    folder.__class__ = Shared
    assert isinstance(folder, Shared)
    folder.mark = new_mark()
    folder.write("one.py", SERVER)
    folder.servers(one={"command": sys.executable, "args": ["one.py"], "env": {"MARK": folder.mark}})
    folder.write("sluicegate.toml", f'[limits]\ndrain = {PROMPTLY}\n[profiles.few]\ntools = ["pid"]\n')
    os.mkfifo(folder.path / "began")
    os.mkfifo(folder.path / "go")
    yield folder
    folder.gateways_end()


def test_two_clients_share_one_set_of_servers_and_one_with_own_has_its_own(shared: Shared) -> None:
    with client(shared, "--own") as own:
        alone = own.call("one__pid")
        count = len(processes_with(shared.mark))
        with client(shared) as first, client(shared) as second:
            pid = first.call("one__pid")
            assert pid != alone and second.call("one__pid") == pid
            assert len(processes_with(shared.mark)) == 2 * count
            assert shared.out("call", "one__pid") == f"{pid}\n", "commands reach the gateway that is shared"
            said = [first.leave(), second.leave()]
        assert sum(": starting one: " in each for each in said) == 1
        assert own.call("one__pid") == alone
        own.leave()


@pytest.mark.parametrize("how", ["hangs up", "is killed"])
def test_a_client_that_leaves_does_not_end_the_calls_of_another(shared: Shared, how: str) -> None:
    with client(shared) as first, client(shared) as second:
        pid = first.call("one__pid")
        second.send("tools/call", name="one__wait", arguments={})
        (shared.path / "began").read_text()
        if how == "hangs up":
            first.leave()
        else:
            os.killpg(first.process.pid, signal.SIGKILL)
            first.process.wait(PROMPTLY)
        (shared.path / "go").write_text("it goes on")
        assert text_of(second.answer()) == "it goes on"
        with client(shared) as third:
            assert third.call("one__pid") == second.call("one__pid") == pid
            second.leave()
            third.leave()


def test_requests_right_before_the_client_hangs_up_are_answered(shared: Shared) -> None:
    with client(shared) as lasting:
        lasting.call("one__pid")
        with client(shared) as brief:
            brief.send("tools/list")
            out, _ = brief.process.communicate(timeout=PROMPTLY)
            assert "one__pid" in out and brief.process.returncode == 0
        lasting.leave()


def test_a_client_attaches_itself_to_the_gateway_that_was_started_by_hand(shared: Shared) -> None:
    with shared.serving() as (gateway, _, _), client(shared) as first:
        pid = first.call("one__pid")
        assert shared.out("call", "one__pid") == f"{pid}\n"
        assert first.leave() == ""
        with client(shared) as second:
            second.send("tools/call", name="one__wait", arguments={})
            (shared.path / "began").read_text()
            gateway.send_signal(signal.SIGTERM)
            lines_until(gateway, "in progress")
            (shared.path / "go").write_text("in time")
            assert text_of(second.answer()) == "in time", "the gateway lets calls finish"
            assert second.answer() == {}
            assert second.process.stderr is not None
            sentence = "the gateway of this folder has ended; start the client's connection again."
            assert second.process.stderr.read() == f"sluicegate: {sentence}\n"
            assert second.process.wait(PROMPTLY) == 1
            assert gateway.wait(PROMPTLY) == 0


def test_a_client_with_the_environment_of_the_sdks_has_the_gateway_the_rules_and_the_log_of_the_shell(
    shared: Shared, tmp_path: Path
) -> None:
    for name in ("config", "state"):
        shared.env[f"XDG_{name.upper()}_HOME"] = str(tmp_path / name)
    rules = tmp_path / "config" / "sluicegate" / "sluicegate.toml"
    rules.parent.mkdir(parents=True)
    rules.write_text('[policy]\ndefault = "allow"\n[[permissions]]\ntool = "mcp__one__wait"\naction = "deny"\n')
    # What the official SDKs pass to the servers that they start.
    names = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
    small = {name: shared.env[name] for name in names if name in shared.env}

    def refused(each: Client) -> None:
        each.send("tools/call", name="one__wait", arguments={})
        assert "error" in each.answer() and each.tools() == ["one__pid"]

    with shared.serving(), client(shared, env=small) as first:
        pid = first.call("one__pid")
        assert shared.out("call", "one__pid") == f"{pid}\n"
        refused(first)
        shown = subprocess.run([*COMMAND, "status"], cwd=shared.path, env=small, capture_output=True, text=True)
        assert shown.stdout == shared.out("status")
        first.leave()
    with client(shared, env=small) as second:  # No gateway runs: this client starts one, in its own environment.
        assert second.call("one__pid") != pid
        refused(second)
        assert shared.out("call", "one__pid") == f"{second.call('one__pid')}\n"
        second.leave()
    shared.gateways_end()
    found = [json.loads(line) for line in shared.out("audit", "list", "--verdict", "deny", "--json").splitlines()]
    assert [row["name"] for row in found] == ["wait"] * 2


def test_each_client_has_its_profile(shared: Shared) -> None:
    with client(shared) as first, client(shared, "--profile", "few") as few:
        assert first.tools() == ["one__pid", "one__wait"]
        assert few.tools() == ["one__pid"]
        done = shared.run("serve", "--stdio", "--profile", "nowhere")
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr == "sluicegate: There is no profile 'nowhere'; there are: few.\n"
        first.leave()
        few.leave()


def test_sigterm_ends_the_client_alone(shared: Shared) -> None:
    with client(shared) as first, client(shared) as second:
        pid = first.call("one__pid")
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(PROMPTLY) == 0
        assert second.call("one__pid") == pid
        second.leave()


def test_a_gateway_that_ends_with_its_client_is_not_shared(shared: Shared) -> None:
    with client(shared, "--demo") as first:
        pid = first.call("one__pid")
        with client(shared) as second:
            assert second.call("one__pid") != pid
            first.leave()
            second.call("one__pid")
            assert "This one serves its client without a control socket" in second.leave()


@contextmanager
def listening(folder: Folder) -> Generator[socket.socket]:
    """A socket in the place of that of a gateway."""
    path = client_socket(control_of(folder))
    Path(path).parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        os.chmod(path, 0o600)
        server.listen()
        server.settimeout(PROMPTLY)
        try:
            yield server
        finally:
            os.unlink(path)


def welcomed(server: socket.socket, welcome: bytes) -> socket.socket:
    connection, _ = server.accept()
    assert connection.recv(65536).endswith(b"\n")
    connection.sendall(welcome)
    return connection


def test_a_client_that_meets_a_gateway_which_stops_waits_for_the_next(shared: Shared) -> None:
    with client(shared) as first:
        with listening(shared) as server, locked(control_of(shared)):
            first.send("tools/call", name="one__pid", arguments={})
            for _ in range(2):
                welcomed(server, b'{"stopping":true}\n').close()
        assert text_of(first.answer())
        first.leave()


def test_a_gateway_that_does_not_read_stops_the_client_and_nothing_is_lost(shared: Shared) -> None:
    with listening(shared) as server, client(shared) as first:
        with welcomed(server, b"{}\n") as connection:
            assert first.process.stdin is not None
            stdin = first.process.stdin.fileno()
            os.set_blocking(stdin, False)
            sent = 0
            with pytest.raises(BlockingIOError):
                while True:
                    sent += os.write(stdin, b"x" * 4096)
                    # What the relay has read is on its way; more than all buffers hold is too much.
                    assert sent < 8 * 1024 * 1024
            connection.settimeout(PROMPTLY)
            got = 0
            while got < sent:
                got += len(connection.recv(65536))
            assert got == sent
    assert first.process.returncode is not None
