"""`sluicegate logs`: what a server wrote to its stderr, and goes on to write."""

import signal

import pytest

from sluicegate.cli.one_server import _new as new_lines  # pyright: ignore[reportPrivateUsage]
from tests.cli.folders import PROMPTLY, Folder


def test_the_last_lines_of_a_server(gateway: Folder) -> None:
    assert gateway.out("logs", "broken").splitlines()[0] == "it is broken"
    assert gateway.out("logs", "broken", "-n", "1") == "it is broken\n"
    assert gateway.out("logs", "broken", "-n", "0") == ""


def test_a_server_without_a_stderr_says_so(gateway: Folder) -> None:
    done = gateway.run("logs", "demo")
    told = "sluicegate: demo runs inside the gateway, so its output is on the gateway's own terminal.\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", told)


def test_a_server_that_cannot_have_written_anything_says_why(folder: Folder) -> None:
    folder.servers(typo={"comand": "python3"}, remote={"url": "http://127.0.0.1:9/mcp"})
    with folder.serving():
        told = "typo has not run, because its entry is wrong; `sluicegate status` says why."
        assert told in folder.run("logs", "typo").stderr
        assert "remote is at a URL, so its log is where it runs." in folder.run("logs", "remote").stderr


def test_following_goes_on_with_what_it_writes(gateway: Folder) -> None:
    with gateway.started("logs", "broken", "--follow", "-n", "0") as process:
        assert process.stdout is not None
        gateway.run("restart", "broken")
        assert process.stdout.readline() == "it is broken\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PROMPTLY) == 130


@pytest.mark.parametrize(
    ("seen", "now", "new"),
    [
        ([], [], []),
        ([], ["a"], ["a"]),
        (["a"], ["a"], []),
        (["a"], ["a", "b"], ["b"]),
        (["a", "b"], ["b", "c"], ["c"]),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        (["a", "a"], ["a", "a", "a"], ["a"]),
    ],
)
def test_new_lines_are_found_although_old_ones_go(seen: list[str], now: list[str], new: list[str]) -> None:
    assert new_lines(seen, now) == new


@pytest.mark.parametrize("command", ["logs", "restart"])
def test_without_a_gateway_it_is_status_1_and_says_how_to_start_one(folder: Folder, command: str) -> None:
    done = folder.run(command, "demo")
    assert (done.returncode, done.stdout) == (1, "")
    assert "`sluicegate serve`" in done.stderr


@pytest.mark.parametrize("command", ["logs", "restart"])
def test_a_server_that_is_not_there_is_status_1(gateway: Folder, command: str) -> None:
    done = gateway.run(command, "nots")
    assert done.returncode == 1 and "Did you mean notes?" in done.stderr
