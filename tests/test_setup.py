"""`scripts/setup` says what it does before it does it."""

import os
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


def test_a_fresh_copy_says_that_it_sets_itself_up_before_it_makes_an_environment(tmp_path: Path) -> None:
    for name in ("scripts", "requirements"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "scripts" / "setup", tmp_path / "scripts")
    (tmp_path / "requirements" / "dev.txt").touch()
    (tmp_path / "pyproject.toml").touch()
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    done = subprocess.run(
        [tmp_path / "scripts" / "setup"],
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    first, second, third = done.stderr.splitlines()
    assert first.startswith("sluicegate: setting up .venv") and second == "asked for: -m venv --clear .venv"
    assert done.returncode == 1 and "could not make a virtual environment" in third
