"""`sluicegate shell`: in a pipe, and on a terminal with Ctrl+C and Ctrl+D."""

import os
import pty
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import sluicegate
from sluicegate.cli.shell import Shell
from tests.store.stage import rows_in
from tests.toolbox.box import Folder, folder

__all__ = ["folder"]

WAITING = '''
import asyncio, os, sys
import sluicegate

print("hello", file=sys.stderr, flush=True)

server = sluicegate.Server("waiting")

@server.tool
async def wait(color: bool = True) -> str:
    """Wait."""
    yield sluicegate.Progress(1, total=2, message=f"process {os.getpid()} waits")
    await asyncio.Event().wait()

@server.tool
def echo(text: str) -> str:
    """Say it again."""
    return text

sluicegate.run(server)
'''
ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "sluicegate", "shell"]


@pytest.fixture
def waiting(folder: Folder) -> Path:
    (folder.path / "waiting.py").write_text(WAITING)
    folder.servers(waiting={"command": sys.executable, "args": [str(folder.path / "waiting.py")]})
    return folder.path


def audit_folder_below(folder: Path) -> Path:
    [state] = folder.rglob("state.db")
    return state.parent / "audit"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_in_a_pipe_each_line_is_a_command(waiting: Path) -> None:
    lines = ["/mcp", "/tools echo", "echo text='two words'", 'echo {"text": "json"}', "/log waiting"]
    text = "\n".join([*lines, "echo", "/nothing", "echo text='open"])
    done = subprocess.run(COMMAND, cwd=waiting, input=text, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1, done.stderr
    shown = done.stdout.splitlines()
    assert shown[0].split("\t")[:4] == ["waiting", "ready", "modern", "2"]
    assert shown[1:] == ["mcp__waiting__echo\tSay it again.", "two words", "json", "hello"]
    assert "text is missing" in done.stderr and "no command /nothing" in done.stderr and "quote" in done.stderr


def test_names_as_the_other_commands_show_them_work_and_similar_ones_are_suggested(
    folder: Folder, waiting: Path
) -> None:
    folder.servers(
        waiting={"command": sys.executable, "args": [str(waiting / "waiting.py")]},
        ending={"command": sys.executable, "args": ["-c", "import sys; sys.exit('it is broken')"]},
    )
    text = "waiting__echo text=hello\nmcp__waiting__ecko text=a\n/mcp\n"
    done = subprocess.run(COMMAND, cwd=waiting, input=text, capture_output=True, text=True, timeout=50, check=False)
    assert done.stdout.startswith("hello\n")
    assert "there is no tool 'mcp__waiting__ecko'; /tools lists them. Did you mean mcp__waiting__echo?" in done.stderr
    assert "`/log ending`" in done.stdout and "`sluicegate " not in done.stdout


def test_without_a_terminal_calls_that_a_rule_asks_about_are_refused_with_a_rule_that_allows_them(
    folder: Folder, waiting: Path
) -> None:
    folder.settings('[[permissions]]\ntool = "mcp__waiting__echo"\naction = "ask"\n')
    done = subprocess.run(
        COMMAND, cwd=waiting, input="echo text=a\n", capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 1 and "mcp__waiting__echo" in done.stderr and "[[permissions]]" in done.stderr


async def test_a_typed_call_is_asked_about_only_if_a_rule_asks_and_calls_of_tools_always_are(
    folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lower(text: str) -> str:
        return text.lower()

    def upper(text: str) -> str:
        return text.upper()

    async def deputy(text: str) -> str:
        return (await box.execute("mcp__functions__lower", {"text": text})).text

    folder.settings('[[permissions]]\ntool = "mcp__functions__upper"\naction = "ask"\n')
    async with folder.load(lower, upper, deputy) as box:
        lines = iter(["lower text=A", "upper text=b", "deputy text=C"])

        async def read() -> str | None:
            return next(lines, None)

        shell = Shell(box)
        await shell.run(read)
    rows = rows_in(audit_folder_below(tmp_path), "approval")
    shown = capsys.readouterr()
    assert shown.out.startswith("a\n") and "B" not in shown.out and "mcp__functions__upper needs" in shown.err
    assert "mcp__functions__lower needs a permission" in shown.out
    assert [(row.name, row.verdict) for row in rows] == [
        ("lower", "approved"),
        ("upper", "declined"),
        ("deputy", "approved"),
        ("lower", "declined"),
    ]


def test_the_shell_is_installed_with_the_rest_and_no_text_names_an_extra_that_does_not_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any(each.startswith("prompt_toolkit") for each in project["dependencies"])
    files = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.py")]
    named = {extra for file in files for extra in re.findall(r"sluicegate\[(\w+)\]", file.read_text())}
    assert named <= set(project.get("optional-dependencies", ()))


class Screen:
    """The shell on a terminal."""

    def __init__(self, folder: Path, columns: int = 200) -> None:
        self._terminal, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "COLUMNS": str(columns)}
        self.process = subprocess.Popen(
            COMMAND, cwd=folder, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.shown = b""

    def until(self, text: str) -> str:
        """All that is shown up to and with a text."""
        while text.encode() not in self.shown:
            data = os.read(self._terminal, 65536)
            assert data, self.shown
            self.shown += data
        before, found, self.shown = self.shown.partition(text.encode())
        return (before + found).decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)


def test_problems_at_the_start_are_printed_once_and_wrapped_between_words(folder: Folder) -> None:
    folder.servers(gone={"command": "a-command-with-a-name-that-is-not-on-this-machine"})
    screen = Screen(folder.path, columns=80)
    try:
        lines = screen.until("sluicegate>").replace("\r", "").splitlines()[:-1]
    finally:
        screen.close()
    assert all(len(line) <= 80 for line in lines)
    assert " ".join(" ".join(lines).split()) == (
        'sluicegate: gone: The command "a-command-with-a-name-that-is-not-on-this-machine" was not found; install it, '
        "or give its full path. sluicegate: 0 tools; /help lists the commands, Ctrl+D leaves."
    )


def test_on_a_terminal_ctrl_c_cancels_a_call_and_ctrl_d_leaves_no_process(waiting: Path) -> None:
    screen = Screen(waiting)
    try:
        screen.until("sluicegate>")
        screen.type("wait\r")
        pid = int(screen.until(" waits").split("process ")[-1].split()[0])
        assert is_alive(pid)
        screen.process.send_signal(signal.SIGINT)
        screen.until("cancelled.")
        screen.until("sluicegate>")
        screen.type("ech\t")
        screen.until("o")
        screen.type(" te\t")
        screen.until("xt=")
        screen.type("again\r")
        screen.until("again\r\n")
        screen.until("sluicegate>")
        screen.type("\x04")
        assert screen.process.wait(30) == 0
        assert not is_alive(pid)
    finally:
        screen.close()


def test_ctrl_c_in_a_pipe_exits_130_and_leaves_no_process(waiting: Path) -> None:
    with subprocess.Popen(
        COMMAND, cwd=waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write("wait\n")
        process.stdin.flush()
        while "waits" not in (line := process.stderr.readline()):
            assert line
        pid = int(line.split("process ")[1].split()[0])
        process.send_signal(signal.SIGINT)
        while "cancelled" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(30) == 130
        finally:
            process.kill()
    assert not is_alive(pid)


async def test_names_keys_and_values_are_completed(folder: Folder) -> None:
    def paint(color: bool, text: str) -> str:
        return text

    server = sluicegate.Server("notes")
    server.add_resource("note://one", lambda: "first", name="one")
    async with folder.load(paint, server) as box:
        shell = Shell(box)
        assert list(shell.completions("/al")) == ["/allow"]
        assert list(shell.completions("pai")) == ["paint"]
        assert list(shell.completions("/poll pai")) == ["paint"]
        assert list(shell.completions("paint ")) == ["color=", "text="]
        assert list(shell.completions("paint text=a c")) == ["color="]
        assert list(shell.completions("paint color=t")) == ["color=true"]
        assert list(shell.completions("/read notes+")) == ["notes+note://one"]
