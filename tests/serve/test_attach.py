"""A client's way to the gateway of its folder."""

import os
import socket
from collections.abc import Generator
from pathlib import Path

import pytest

from sluicegate.cli.attach import relayed
from sluicegate.cli.command import NotStarted
from sluicegate.serve import attach
from sluicegate.serve.attach import AttachRefused, NoWelcome, Stopping, client_socket


@pytest.fixture
def listener(tmp_path: Path) -> Generator[socket.socket]:
    """A socket where a gateway would have one; its connections are accepted by the kernel."""
    os.chmod(tmp_path, 0o700)
    with socket.socket(socket.AF_UNIX) as server, pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)  # The path of a socket is short.
        server.bind("g.io.sock")
        os.chmod("g.io.sock", 0o600)
        server.listen()
        yield server


@pytest.mark.usefixtures("listener")
def test_a_gateway_that_hangs_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(attach, "WELCOME_TIMEOUT", 0.05)
    path = f"{tmp_path}/g.sock"
    with pytest.raises(NoWelcome):
        attach.attach(client_socket(path), "")
    with pytest.raises(NotStarted) as problem:
        relayed([path], "", "sluicegate serve")
    assert problem.value.message == (
        f"a gateway runs for this folder (process {os.getpid()}) but does not answer. Look at its terminal, or end it:"
        f" kill -KILL {os.getpid()}. Or start a separate one with --own."
    )


@pytest.mark.parametrize(
    ("answer", "raised"),
    [(b'{"refused":"No."}\n', AttachRefused), (b'{"stopping":true}\n', Stopping), (b"", Stopping)],
)
def test_a_gateway_that_does_not_take_a_client_says_why(
    listener: socket.socket, tmp_path: Path, answer: bytes, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.socket.sendall

    def sent_and_answered(self: socket.socket, data: bytes) -> None:
        real(self, data)
        connection, _ = listener.accept()
        with connection:
            real(connection, answer)
            connection.recv(65536)

    monkeypatch.setattr(socket.socket, "sendall", sent_and_answered)
    with pytest.raises(raised):
        attach.attach(str(tmp_path / "g.io.sock"), "few")


def test_there_is_no_connection_where_no_process_listens(tmp_path: Path) -> None:
    assert attach.attach(str(tmp_path / "g.io.sock"), "") is None


def test_a_socket_that_others_could_have_made_is_not_trusted(listener: socket.socket, tmp_path: Path) -> None:
    os.chmod("g.io.sock", 0o666)
    assert attach.attach(str(tmp_path / "g.io.sock"), "") is None
    os.chmod("g.io.sock", 0o600)
    os.chmod(tmp_path, 0o777)
    assert attach.attach(str(tmp_path / "g.io.sock"), "") is None
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()
