"""`sluicegate logs`: what servers wrote to their stderr, and go on to write."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.folders import NOTES, PROMPTLY, ROOT, Folder

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
END = r"\((closed its output and )?exited with status 4\)"
PRINTING = "import runpy; print('Server running', flush=True); runpy.run_path({!r}, run_name='__main__')"


def read_until(process: "subprocess.Popen[str]", pattern: str) -> None:
    """Read lines of its stdout up to one that is like the pattern."""
    assert process.stdout is not None
    while not re.fullmatch(pattern, line := process.stdout.readline()):
        assert line, "it has ended"


def test_the_last_lines_of_a_server_have_their_time(gateway: Folder) -> None:
    first = gateway.out("logs", "broken").splitlines()[0]
    assert re.fullmatch(f"{STAMP} it is broken", first)
    at = time.mktime(time.strptime(first[:19], "%Y-%m-%d %H:%M:%S"))
    assert 0 <= time.time() - at < 600
    assert re.fullmatch(f"{STAMP} (it is broken|{END})\n", gateway.out("logs", "broken", "-n", "1"))
    assert gateway.out("logs", "broken", "-n", "0") == ""


def test_without_a_name_the_lines_of_all_servers_come_in_their_order(folder: Folder) -> None:
    script = "import sys; print('hello from', sys.argv[1], file=sys.stderr)"
    entries = {name: {"command": sys.executable, "args": ["-c", script, name]} for name in ("one", "two")}
    folder.servers(**entries, notes=NOTES)
    with folder.serving():
        lines = [line[20:] for line in folder.out("logs").splitlines()]
        told = [json.loads(line) for line in folder.out("logs", "--json").splitlines()]
    assert {"one hello from one", "two hello from two"} <= set(lines)
    assert {(line["server"], line["text"]) for line in told} >= {("one", "hello from one"), ("two", "hello from two")}
    times = [line["at"] for line in told]
    assert times == sorted(times)


def test_the_end_of_a_server_is_a_line_of_its_log(gateway: Folder) -> None:
    # Followed, because the output of a server may end before its exit is seen.
    with gateway.started("logs", "broken", "--follow") as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(" it is broken\n")
        assert re.fullmatch(f"{STAMP} {END}\n", process.stdout.readline())
    gateway.run("restart", "notes")
    with gateway.started("logs", "notes", "--follow") as process:
        read_until(process, rf"{STAMP} \(was stopped and .+\)\n")


def test_lines_printed_to_stdout_are_marked_with_a_remedy(folder: Folder) -> None:
    script = PRINTING.format(str(ROOT / "examples" / "demo.py"))
    folder.servers(chatty={"command": sys.executable, "args": ["-c", script]})
    with folder.serving():
        done = folder.run("logs", "chatty")
        assert [line[20:] for line in done.stdout.splitlines()] == ["(stdout) Server running"]
        assert "make the server print them to stderr" in done.stderr
        status = folder.run("status")
        assert "to stdout, which is for MCP messages only" in status.stderr and '"Server running"' in status.stderr
        doctor = folder.run("doctor")
        told = r'^warning: chatty printed .*: "Server running"\. Make it print to stderr\.'
        assert re.search(told, doctor.stdout, re.MULTILINE)


def test_a_server_without_a_stderr_says_so(gateway: Folder) -> None:
    done = gateway.run("logs", "demo")
    told = "sluicegate: demo runs inside the gateway, so its output is on the gateway's own terminal.\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", told)


def test_a_server_that_cannot_have_written_anything_says_why(folder: Folder) -> None:
    folder.servers(typo={"comand": "python3"}, remote={"url": "http://127.0.0.1:9/mcp"})
    with folder.serving():
        told = "typo has not run, because its entry is wrong; `sluicegate status` says why."
        assert told in folder.run("logs", "typo").stderr
        assert "remote runs at a URL, so the gateway has no log of it" in folder.run("logs", "remote").stderr
        assert folder.run("logs").stderr == "sluicegate: no server has written anything.\n"


@pytest.mark.parametrize("name", [("broken",), ()])
def test_following_goes_on_with_what_it_writes(gateway: Folder, name: tuple[str, ...]) -> None:
    with gateway.started("logs", *name, "--follow", "-n", "1") as process:
        read_until(process, ".+\n")  # It has begun.
        gateway.run("restart", "broken")
        read_until(process, ".+ it is broken\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(PROMPTLY) == 130


@pytest.mark.parametrize("command", ["logs", "restart"])
def test_without_a_gateway_it_is_status_1_and_says_how_to_start_one(folder: Folder, command: str) -> None:
    done = folder.run(command, "demo")
    assert (done.returncode, done.stdout) == (1, "")
    assert "`sluicegate serve`" in done.stderr


@pytest.mark.parametrize("command", ["logs", "restart"])
def test_a_server_that_is_not_there_is_status_1(gateway: Folder, command: str) -> None:
    done = gateway.run(command, "nots")
    assert done.returncode == 1 and "Did you mean 'notes'?" in done.stderr
