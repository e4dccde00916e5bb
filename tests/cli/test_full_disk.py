"""A full disk (R33): commands change nothing and report it, and a gateway that cannot log goes on serving."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.folders import COMMAND, DEMO, NOTES, PROMPTLY, Folder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="has no /dev/full")

ROOM = 64  # Bytes that a file may have; every file that the commands write is longer.


def little_room() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, ROOM))


def all_of(folder: Folder) -> dict[str, tuple[bytes, int]]:
    """Every file of the folder and of its home: what is in it, and who may read it."""
    files = [path for place in (folder.path, folder.home) for path in place.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mode) for path in files}


@pytest.mark.parametrize(
    "words",
    [
        ("init", "--force"),
        ("import", "cursor", "--yes"),
        ("connect", "claude-code", "--yes"),
        ("connect", "cursor", "--yes"),
        ("connect", "cursor", "--undo", "--yes"),
    ],
    ids=" ".join,
)
def test_a_command_that_has_no_room_to_write_changes_nothing_and_says_so(
    folder: Folder, words: tuple[str, ...]
) -> None:
    folder.servers(notes=NOTES)
    folder.write("sluicegate.toml", "# mine\n" * 40)
    folder.write("sluicegate.toml.bak", "# older\n")
    theirs = '{"mcpServers": {"theirs": {"command": "theirs", "args": ["and", "some", "more", "words"]}}}'
    folder.write(".cursor/mcp.json", theirs)
    if "--undo" in words:
        assert folder.run("connect", "cursor", "--yes").returncode == 0
    before = all_of(folder)
    done = subprocess.run(
        [*COMMAND, *words],
        cwd=folder.path,
        env={**folder.env, "PYTHONDONTWRITEBYTECODE": "1"},  # Python itself would write half of what it compiles.
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROMPTLY,
        check=False,
        preexec_fn=little_room,
    )
    assert done.returncode == 1, done.stderr
    assert "cannot be written: File too large; it is unchanged." in done.stderr and "Traceback" not in done.stderr
    assert all_of(folder) == before, "nothing is changed, lost, or left behind"
    assert folder.run(*words).returncode == 0, "with room, it works"


def printed_to_nowhere(folder: Folder, *words: str) -> "subprocess.CompletedProcess[str]":
    """A command whose stdout is on a disk that is full."""
    with open("/dev/full", "wb") as full:
        return subprocess.run(
            [*COMMAND, *words],
            cwd=folder.path,
            env=folder.env,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PROMPTLY,
            check=False,
        )


FULL = "stdout cannot be written: No space left on device; the output is incomplete."


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("status", "--json"),
        ("tools",),
        ("tools", "--json"),
        ("tools", "notes__write"),
        ("check",),
        ("check", "--json"),
        ("doctor", "--json"),
        ("init", "--stdout"),
        ("--help",),
        ("call", "--help"),
        ("--version",),
    ],
    ids=" ".join,
)
def test_a_command_whose_stdout_is_full_says_so_in_a_sentence_and_fails(folder: Folder, words: tuple[str, ...]) -> None:
    folder.servers(notes=NOTES)
    if words[0] == "tools":  # It lists what was offered last.
        folder.run("doctor", "--start")
    done = printed_to_nowhere(folder, *words)
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == f"sluicegate: {FULL}"
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
def test_a_call_whose_result_cannot_be_printed_is_reported_as_run(folder: Folder, more: tuple[str, ...]) -> None:
    done = printed_to_nowhere(folder, "call", "demo__echo", "text=" + "long " * 10_000, *more)
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == f"sluicegate: the call has run, but {FULL}"


@pytest.mark.parametrize("words", [("check",), ("tools",), ("call", "demo__echo", "text=a")], ids=" ".join)
def test_a_command_without_a_stdout_does_its_work(folder: Folder, words: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, *words],
        cwd=folder.path,
        env=folder.env,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PROMPTLY,
        check=False,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr


SMALL_DISK = """
mount -t tmpfs -o size=64k,mode=700 tmpfs "$1" || exit 77
cd "$1"
printf '# mine\\n' > sluicegate.toml
printf '# older\\n' > sluicegate.toml.bak
cat /dev/zero > filler 2> /dev/null
shift
"$@" init --force; echo "status $?"
cat sluicegate.toml sluicegate.toml.bak; ls -A
"""


def test_on_a_disk_that_is_full_nothing_is_lost(folder: Folder) -> None:
    words = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--mount"]
    try:
        done = subprocess.run(
            [*words, "sh", "-c", SMALL_DISK, "sh", str(folder.path), *COMMAND],
            env=folder.env,
            capture_output=True,
            text=True,
            timeout=PROMPTLY,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("unshare is not here")
    if "status" not in done.stdout:
        pytest.skip(f"a file system of its own is not allowed here: {done.stderr.strip()}")
    assert "cannot be written: No space left on device; it is unchanged." in done.stderr
    assert done.stdout.split("\n")[:3] == ["status 1", "# mine", "# older"]
    assert done.stdout.split()[-3:] == ["filler", "sluicegate.toml", "sluicegate.toml.bak"]


def test_a_gateway_whose_log_is_on_a_full_disk_serves_and_follows_its_files(folder: Folder) -> None:
    folder.servers(notes=NOTES)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    with (
        open("/dev/full", "wb") as full,
        subprocess.Popen(
            [*COMMAND, "serve", "--port", port], cwd=folder.path, env=folder.env, stdout=full, stderr=full
        ) as process,
    ):
        try:
            until_it_says(folder, "notes")
            folder.write("sluicegate.toml", f'[activations.demo]\nfile = "{DEMO}"\n')  # Of which it would tell.
            until_it_says(folder, "demo")
            assert folder.out("call", "demo__echo", "text=still here") == "still here\n"
            process.send_signal(signal.SIGTERM)
            process.wait(PROMPTLY)
        finally:
            process.kill()
    assert not [path for path in Path(folder.env["XDG_RUNTIME_DIR"]).rglob("*") if path.is_socket()]


def until_it_says(folder: Folder, server: str) -> None:
    """Return when the gateway that runs has that server ready."""
    deadline = time.monotonic() + PROMPTLY
    while True:
        status = folder.run("logs", server)  # Only of one that runs; `status` would start its own.
        if status.returncode == 0 and f"{server}\tready" in folder.out("status"):
            return
        assert time.monotonic() < deadline, status.stderr
