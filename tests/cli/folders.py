"""A folder with a home of its own, to run commands in as a shell does, with or without a terminal."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import chdir, contextmanager, suppress
from pathlib import Path

from click.testing import CliRunner

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "sluicegate"]
PROMPTLY = 30.0

NOTES: dict[str, object] = {"command": sys.executable, "args": [str(ROOT / "examples" / "notes.py")]}
COUNTING: dict[str, object] = {"command": sys.executable, "args": [str(ROOT / "examples" / "demo.py")]}
ENDING: dict[str, object] = {
    "command": sys.executable,
    "args": ["-c", "import sys; print('it is broken', file=sys.stderr); sys.exit(4)"],
}
ENDED = "(exited with status 4|closed its output)"
"""A pattern for the sentence about ENDING: on a loaded machine its output may be seen to end before its exit."""
NO_GATEWAY = "sluicegate: no gateway runs for this folder; start one with `sluicegate serve`."
DEMO = ROOT / "src" / "sluicegate" / "demo.py"


class Folder:
    """A folder to run commands in; nothing of the real home is seen there."""

    def __init__(self, path: Path, runtime: str) -> None:
        self.path = path / "work"
        self.home = path / "home"
        self.path.mkdir()
        self.home.mkdir()
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "CODEX_", "SLUICEGATE_"))
        }
        # A socket's path must be short, and a test's folder is not.
        self.env = {**kept, "HOME": str(self.home), "XDG_RUNTIME_DIR": runtime, "COLUMNS": "160"}
        self.env.pop("NO_COLOR", None)

    def servers(self, **servers: Mapping[str, object]) -> "Folder":
        """Write its .mcp.json."""
        self.write(".mcp.json", json.dumps({"mcpServers": servers}, indent=2))
        return self

    def write(self, name: str, text: str) -> Path:
        """Write a file of it."""
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text, encoding="utf-8")
        return self.path / name

    def run(self, *words: str, stdin: str = "", **env: str) -> "subprocess.CompletedProcess[str]":
        """Run a command and return its output and exit status."""
        return subprocess.run(
            [*COMMAND, *words],
            cwd=self.path,
            env={**self.env, **env},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PROMPTLY,
            check=False,
        )

    def invoke(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """The same inside this process, which is faster."""
        from sluicegate.cli.main import sluicegate

        hidden: dict[str, str | None] = {name: None for name in os.environ if name not in self.env}
        with chdir(self.path):
            result = CliRunner().invoke(sluicegate, words, env={**hidden, **self.env}, prog_name="sluicegate")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return subprocess.CompletedProcess(words, result.exit_code, result.stdout, result.stderr)

    def out(self, *words: str) -> str:
        """The stdout of a command that succeeds."""
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def states(self, *words: str) -> list[list[str]]:
        """The rows of `sluicegate status` without the head."""
        head, *rows = [line.split("\t") for line in self.out("status", *words).splitlines()]
        assert head[:2] == ["server", "state"]
        return rows

    def out_once(self, expected: str, *words: str) -> None:
        """Run a command until it prints this."""
        deadline = time.monotonic() + PROMPTLY
        while (out := self.out(*words)) != expected:
            assert time.monotonic() < deadline, out

    @contextmanager
    def started(self, *words: str) -> Generator["subprocess.Popen[str]"]:
        """A command while it runs."""
        with subprocess.Popen(
            [*COMMAND, *words],
            cwd=self.path,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    @contextmanager
    def serving(self, *words: str) -> Generator[tuple["subprocess.Popen[str]", str, list[str]]]:
        """A gateway whose servers are all ready or have failed, its URL, and its output so far."""
        with self.started("serve", "--port", "0", *words) as process:
            said = lines_until(process, r"servers? ready")
            url = re.search(r"serving at (\S+)", "".join(said))
            assert url is not None, said
            yield process, url[1], said

    @contextmanager
    def terminal(self, *words: str, **env: str) -> Generator["Terminal"]:
        """A command on a terminal."""
        terminal = Terminal([*COMMAND, *words], self.path, {**self.env, "TERM": "xterm-256color", **env})
        try:
            yield terminal
        finally:
            terminal.close()


def lines_until(process: "subprocess.Popen[str]", pattern: str) -> list[str]:
    """The lines of its stderr up to one that has the pattern."""
    assert process.stderr is not None
    said: list[str] = []
    while not re.search(pattern, "".join(said[-1:])):
        said.append(process.stderr.readline())
        assert said[-1], "".join(said)
    return said


class Terminal:
    """A command on a pseudo-terminal, and what it draws there."""

    def __init__(self, command: list[str], cwd: Path, env: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(env),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self.drawn = ""

    def until(self, pattern: str) -> str:
        """Everything drawn so far, once it has the pattern."""
        deadline = time.monotonic() + PROMPTLY
        while not re.search(pattern, self.drawn):
            assert self._more(deadline), f"no {pattern!r} in {self.drawn!r}"
        return self.drawn

    def type(self, text: str) -> None:
        """Type something."""
        os.write(self._ours, text.encode())

    def interrupt(self) -> None:
        """Ctrl+C, as a person does it: once more if the first one came right before the program began to read.

        Python learns of such a one only with the next line: between its last look at the signals and its read.
        """
        deadline = time.monotonic() + PROMPTLY
        while self.process.poll() is None and time.monotonic() < deadline:
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(2.0)

    def ended(self) -> int:
        """Its exit status, once all is drawn."""
        deadline = time.monotonic() + PROMPTLY
        while self._more(deadline):
            pass
        return self.process.wait(PROMPTLY)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def _more(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing more in time after {self.drawn!r}"
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # Linux says so when the last program has left the terminal.
            return False
        self.drawn += data.decode(errors="replace")
        return bool(data)


@contextmanager
def folder_in(path: Path) -> Generator[Folder]:
    """A folder below a path."""
    with tempfile.TemporaryDirectory(prefix="sg") as runtime:
        yield Folder(path, runtime)
