"""A gateway that hangs is distinguished from one that does not run, and no servers are started beside it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluicegate.cli.gateway_client import NoAnswer, listening_process
from tests.cli.folders import PROMPTLY, Folder, lines_until

COUNTED = """\
import os
import sluicegate
open(f"started-{os.getpid()}", "w").close()
server = sluicegate.Server("counted")

@server.tool
def name() -> str:
    return "counted"

sluicegate.run(server)
"""


@pytest.fixture
def counted(folder: Folder) -> Folder:
    """A folder with a server that leaves a file behind each time it is started."""
    folder.write("counted.py", COUNTED)
    return folder.servers(counted={"command": sys.executable, "args": ["counted.py"]})


def starts(folder: Folder) -> int:
    return len(list(folder.path.glob("started-*")))


@contextmanager
def held(gateway: "subprocess.Popen[str]") -> Generator[None]:
    """A process that does nothing meanwhile."""
    gateway.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        gateway.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(
    "words", [("status",), ("call", "counted__name"), ("tools",), ("restart", "counted"), ("logs", "counted")]
)
def test_a_command_says_that_it_does_not_answer_and_starts_nothing(counted: Folder, words: tuple[str, ...]) -> None:
    with counted.serving() as (gateway, _, _):
        with held(gateway):
            done = counted.run(*words)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr == (
                f"sluicegate: a gateway runs for this folder (process {gateway.pid}) but does not answer."
                f" Look at its terminal, or end it: kill -KILL {gateway.pid}.\n"
            )
            assert starts(counted) == 1
        assert counted.out("call", "counted__name") == "counted\n"


def test_the_doctor_finds_it_and_whatever_else_is_wrong(counted: Folder) -> None:
    with counted.serving() as (gateway, _, _), held(gateway):
        (counted.path / ".mcp.json").chmod(0o666)
        done = counted.run("doctor", "--json")
        found = {each["about"]: each for each in json.loads(done.stdout)}
        assert done.returncode == 1 and starts(counted) == 1
        assert set(found) == {"gateway", str(counted.path / ".mcp.json")}
        assert found["gateway"]["severity"] == "error" and "does not answer" in found["gateway"]["sentence"]
        assert "no problems" not in done.stderr


def test_the_doctor_finds_it_beside_files_that_cannot_be_read(counted: Folder) -> None:
    with counted.serving() as (gateway, _, _), held(gateway):
        counted.write("sluicegate.toml", "[")
        done = counted.run("doctor")
        assert done.returncode == 3 and "does not answer" in done.stdout and "sluicegate.toml" in done.stdout


def test_another_gateway_is_not_started_beside_it(counted: Folder) -> None:
    with counted.serving() as (gateway, _, _), held(gateway):
        done = counted.run("serve", "--port", "0")
        assert done.returncode == 3 and "Another gateway serves this folder already" in done.stderr
        assert starts(counted) == 1


def test_a_hanging_gateway_is_reported_by_watch(counted: Folder) -> None:
    with counted.serving() as (gateway, _, _), counted.started("status", "--watch", "--json") as status:
        assert status.stdout is not None and status.stdout.readline()
        with held(gateway):
            _, err = status.communicate(timeout=PROMPTLY)
            assert status.returncode == 1 and "does not answer" in err


@pytest.mark.parametrize(
    "words",
    [("status",), ("tools",), ("tools", "counted__name"), ("resources",), ("prompts",), ("check",), ("doctor",)],
    ids=" ".join,
)
def test_looking_runs_nothing(counted: Folder, words: tuple[str, ...]) -> None:
    counted.write("file.py", 'open("started-file", "w").close()\n')
    counted.write("sluicegate.toml", '[http]\nport = 0\n\n[activations.file]\nfile = "file.py"\n')
    for more in ((), ("--config", ".mcp.json")):
        done = counted.run(*words, *more)
        assert done.returncode == (1 if "counted__name" in words else 0), done.stdout + done.stderr
        assert starts(counted) == 0
    if words != ("check",):
        assert "`sluicegate serve`" in done.stderr


def test_serve_prints_what_it_starts_with_secrets_masked(counted: Folder) -> None:
    args = ["counted.py", "--token", "s3cret-value"]
    counted.servers(counted={"command": sys.executable, "args": args})
    with counted.serving() as (_, _, said):
        assert f"sluicegate: starting counted: {sys.executable} counted.py --token ***\n" in said


def test_a_socket_that_a_killed_gateway_left_behind_is_not_a_gateway(counted: Folder) -> None:
    with counted.serving() as (gateway, _, _):
        gateway.kill()
        gateway.wait(PROMPTLY)
        done = counted.run("call", "counted__name")
        assert (done.returncode, done.stdout) == (0, "counted\n") and "started for this command alone" in done.stderr


def test_a_gateway_is_found_where_it_was_before_the_file_named_another_place(counted: Folder) -> None:
    with counted.serving() as (gateway, url, _):
        socket_path = Path(counted.env["XDG_RUNTIME_DIR"]) / "new" / "it.sock"
        counted.write("sluicegate.toml", f'[control]\nsocket = "{socket_path}"\n')
        lines_until(gateway, "control.socket takes effect when the gateway is started the next time")
        assert json.loads(counted.out("status", "--json"))["address"] == url
        assert starts(counted) == 1
        again = counted.run("serve", "--port", "0")
        assert again.returncode == 3 and f"already serves this folder at {url}" in again.stderr


def test_a_socket_is_listened_at_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert listening_process("none") is None
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("some")
        assert listening_process("some") is None
        server.listen(0)
        assert listening_process("some") == os.getpid()
        assert listening_process("some") == 0, "no more can wait there, but somebody does"
    assert listening_process("some") is None


def test_a_process_that_is_not_known_is_not_named() -> None:
    problem = NoAnswer(0)
    assert problem.message == "a gateway runs for this folder but does not answer. Look at its terminal, or end it."
