"""What `sluicegate serve` prints about its servers when it starts."""

import os
import subprocess
import sys

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


def test_one_server_that_is_slow_is_reported_in_the_singular(folder: Folder) -> None:
    os.mkfifo(folder.path / "go")
    folder.servers(slow={"command": "sh", "args": SLOW})
    with folder.started("serve", "--port", "0") as process:
        said = lines_until(process, "still starting")
        assert said[-2] == "sluicegate: 0 of 1 server is ready so far, 0 tools\n"
        (folder.path / "go").write_text("go\n")
        lines_until(process, "1 of 1 server ready, 1 tool: slow")


def test_the_command_that_is_named_can_be_run(folder: Folder) -> None:
    called = "import sys; sys.argv = ['-m']; from sluicegate.cli.serve import command_as_called as name; print(name())"
    named = subprocess.run([sys.executable, "-c", called], env=folder.env, capture_output=True, text=True, check=True)
    version = ["/bin/sh", "-c", f"{named.stdout.strip()} --version"]
    done = subprocess.run(version, cwd=folder.home, env=folder.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("sluicegate "), done.stderr
