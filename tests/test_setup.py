"""`scripts/setup` says what it does before it does it, and how far it is."""

import os
import pty
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]

PYTHON = """#!/bin/sh
case "$*" in
    *version_info* | *ensurepip*) exit 0 ;;
    *) echo "asked for: $*" >&2 && exit 1 ;;
esac
"""
"""One that could make an environment, and fails at it."""


INSTALLING = """#!/bin/sh
case "$*" in
    *version_info* | *ensurepip* | *"pip --version") exit 0 ;;
    "-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    *requirements/run.txt)
        for number in 01 02 03 04 05 06 07 08 09 10; do echo "Collecting p$number==1.0 (from -r x)"; done
        echo "Ignoring p11: markers 'sys_platform == \'win32\'' don't match your environment"
        echo "  Downloading p10-1.0.whl"
        echo "Installing collected packages: p01, p02, p03, p04, p05, p06, p07, p08, p09, p10"
        ;;
    *"--editable .") echo "Installing collected packages: sluicegate" ;;
    *) echo "asked for: $*" >&2 && exit 1 ;;
esac
"""
"""One that makes an environment and installs packages, as far as can be seen."""


def fresh_copy(folder: Path, python: str) -> dict[str, str]:
    """Lay out a folder as a fresh clone has it; the environment variables for its scripts, with that Python."""
    for name in ("scripts", "requirements"):
        (folder / name).mkdir()
    shutil.copy(ROOT / "scripts" / "setup", folder / "scripts")
    (folder / "requirements" / "dev.txt").touch()
    lock = "".join(f"p{number:02}==1.0 \\\n    --hash=sha256:00\n" for number in range(1, 12))
    (folder / "requirements" / "run.txt").write_text(lock)
    (folder / "pyproject.toml").touch()
    (folder / "python").write_text(python)
    (folder / "python").chmod(0o755)
    return {**os.environ, "PYTHON": str(folder / "python")}


def test_a_fresh_copy_says_that_it_sets_itself_up_before_it_makes_an_environment(tmp_path: Path) -> None:
    env = fresh_copy(tmp_path, PYTHON)
    words = [tmp_path / "scripts" / "setup"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=30, check=False)
    first, second, third, fourth = done.stderr.splitlines()
    assert first.startswith("sluicegate: setting up .venv") and second == "sluicegate: making a virtual environment"
    assert third == "asked for: -m venv --clear .venv"
    assert done.returncode == 1 and "could not make a virtual environment" in fourth


def test_progress_is_plain_lines_without_a_terminal(tmp_path: Path) -> None:
    env = fresh_copy(tmp_path, INSTALLING)
    words = [tmp_path / "scripts" / "setup", "run"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines()[1:] == [
        "sluicegate: making a virtual environment",
        "sluicegate: fetching p10 (10 of 11)",
        "sluicegate: installing 10 of 11 packages",
        "sluicegate: installing sluicegate",
    ]
    assert done.stderr.isascii() and done.stderr.replace("\n", "").isprintable()
    again = subprocess.run(words, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert (again.returncode, again.stderr) == (0, "")


def test_progress_on_a_terminal_is_one_line_that_names_each_package(tmp_path: Path) -> None:
    env = fresh_copy(tmp_path, INSTALLING)
    terminal, slave = pty.openpty()
    with subprocess.Popen([tmp_path / "scripts" / "setup", "run"], env=env, stderr=slave) as process:
        os.close(slave)
        shown = b""
        try:
            while data := os.read(terminal, 4096):
                shown += data
        except OSError:  # On Linux this is the end.
            pass
        finally:
            os.close(terminal)
        assert process.wait(30) == 0
    lines = shown.decode().split("\r\x1b[K")
    assert [f"sluicegate: fetching p{number:02} ({number} of 11)" for number in range(1, 12)] == lines[2:13]
    assert lines[-1] == ""  # Nothing is left of it.
