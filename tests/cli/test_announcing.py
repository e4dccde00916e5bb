"""What a gateway says of its servers when it starts: how many, and how many of their tools clients can see."""

import os
import subprocess
import sys
import venv

import pytest

from tests.cli.folders import COUNTING, NOTES, ROOT, Folder, lines_until

SLOW = ["-c", 'read line <go && exec "$0" "$1"', COUNTING["command"], str(ROOT / "examples" / "demo.py")]
"""Words for a shell, which starts a server once it is let."""


def test_hidden_tools_are_not_counted(folder: Folder) -> None:
    folder.servers(notes=NOTES).write("sluicegate.toml", '[servers.notes]\nhide = ["forg*"]\n')
    with folder.serving() as (_, _, said):
        assert "1 of 1 server ready, 1 tool: notes" in "".join(said)
        offered = folder.out("tools").splitlines()
        assert len(offered) == 1 and offered[0].startswith("notes__write\t")
        assert folder.out("status").split("\t")[4] == "1"


def test_one_server_that_is_slow_is_told_in_the_singular(folder: Folder) -> None:
    os.mkfifo(folder.path / "go")
    folder.servers(slow={"command": "sh", "args": SLOW})
    with folder.started("serve", "--port", "0") as process:
        said = lines_until(process, "still starting")
        assert said[-2] == "sluicegate: 0 of 1 server is ready so far, 0 tools\n"
        (folder.path / "go").write_text("go\n")
        lines_until(process, "1 of 1 server ready, 1 tool: slow")


@pytest.mark.parametrize("words", [("python", "python3"), ("python3",), ()], ids=["both", "python3", "neither"])
def test_the_command_that_is_named_can_be_run(folder: Folder, words: tuple[str, ...]) -> None:
    made = folder.path / "env" / "bin"
    venv.create(made.parent, symlinks=True)
    (python,) = made.glob("python3.*")
    python.unlink()
    python.symlink_to(os.path.realpath(sys.executable))
    for name in {"python", "python3"} - set(words):
        (made / name).unlink()
    for name in words:
        (made / name).unlink()
        (made / name).symlink_to(python.name)
    paths = [f"{ROOT}/src", *(each for each in sys.path if each.endswith("site-packages"))]
    env = {**folder.env, "PATH": str(made), "PYTHONPATH": ":".join(paths)}
    called = "import sys; sys.argv = ['-m']; from sluicegate.cli.announcing import as_called; print(as_called())"
    done = subprocess.run([python, "-c", called], cwd=folder.home, env=env, capture_output=True, text=True, check=True)
    said = done.stdout.strip()
    assert said == f"{words[0] if words else python} -m sluicegate"
    version = ["/bin/sh", "-c", f"{said} --version"]
    done = subprocess.run(version, cwd=folder.home, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("sluicegate "), done.stderr
