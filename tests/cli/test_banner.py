"""What `sluicegate serve` prints about its servers when it starts."""

import os
import re
import subprocess
import sys
from typing import cast

import pytest

from tests.cli.folders import COUNTING, ENDED, ENDING, NOTES, ROOT, Folder, lines_until

WORDS = [str(COUNTING["command"]), *cast("list[str]", COUNTING["args"])]
CHATTY = {
    "command": sys.executable,
    "args": ["-c", f"import runpy; print('hello', flush=True); runpy.run_path({WORDS[1]!r}, run_name='__main__')"],
}
"""A server that prints to stdout."""

SLOW = ["-c", 'read line <go && exec "$0" "$1"', COUNTING["command"], str(ROOT / "examples" / "demo.py")]
"""Words for a shell, which starts a server once it is let."""


def test_hidden_tools_are_not_counted(folder: Folder) -> None:
    folder.servers(notes=NOTES).write("sluicegate.toml", '[servers.notes]\nhide = ["forg*"]\n')
    with folder.serving() as (_, _, said):
        assert "1 of 1 server ready, 1 tool: notes" in "".join(said)
        offered = folder.out("tools").splitlines()
        assert len(offered) == 1 and offered[0].startswith("notes__write\t")
        assert folder.states()[0][4] == "1"


def test_one_server_that_is_slow_is_reported_in_the_singular(folder: Folder) -> None:
    os.mkfifo(folder.path / "go")
    folder.servers(slow={"command": "sh", "args": SLOW})
    with folder.started("serve", "--port", "0") as process:
        said = lines_until(process, "still starting")
        assert said[-2] == "sluicegate: 0 of 1 server is ready so far, 0 tools\n"
        (folder.path / "go").write_text("go\n")
        lines_until(process, "1 of 1 server ready, 1 tool: slow")


def test_the_address_comes_first_and_then_what_needs_the_user(folder: Folder) -> None:
    folder.servers(chatty=CHATTY, needy={**NOTES, "env": {"A": "${NOT_SET_ANYWHERE}"}})
    with folder.serving() as (_, url, said):
        text = "".join(said)
    assert said[0] == f"sluicegate: serving at {url} (Ctrl+C to stop)\n"
    parts = [
        "or run:",
        "NOT_SET_ANYWHERE is not set",
        "starting chatty",
        "chatty printed a line",
        "1 of 2 servers ready",
    ]
    assert [text.index(part) for part in parts] == sorted(text.index(part) for part in parts)
    assert text.count("NOT_SET_ANYWHERE is not set") == 1


def test_delayed_lines_are_printed_although_the_gateway_cannot_start(folder: Folder) -> None:
    folder.servers(needy={**NOTES, "env": {"A": "${NOT_SET_ANYWHERE}"}})
    done = folder.run("serve", "--port", "0", "--profile", "none")
    assert done.returncode == 3 and "NOT_SET_ANYWHERE is not set" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("sluicegate: There is no profile 'none'")


def test_servers_without_a_fixed_version_have_one_line_and_disabled_ones_none(folder: Folder) -> None:
    npx = folder.write("bin/npx", '#!/bin/sh\nshift\nexec "$@"\n')
    npx.chmod(0o755)
    entries = {name: {"command": str(npx), "args": [name, *WORDS]} for name in ("one", "two")}
    off = {"command": "no-such-program-anywhere", "disabled": True}
    folder.servers(**entries, off=off, unused={"command": "npx", "args": ["three"], "disabled": True})
    with folder.serving() as (_, _, said):
        text = "".join(said)
    assert "sluicegate: 2 servers run unpinned versions; `sluicegate doctor --pin` pins them.\n" in said
    assert "has no fixed version" not in text and "no-such-program-anywhere" not in text


def test_a_failure_is_printed_once(folder: Folder) -> None:
    folder.servers(notes=NOTES, broken=ENDING, remote={"url": "http://127.0.0.1:9/mcp"})
    with folder.started("serve", "--port", "0") as process:
        said = lines_until(process, r"^  try: ")
    assert len([line for line in said if re.search(rf"broken {ENDED}", line)]) == 1
    assert "".join(said).count("nothing listens at 127.0.0.1:9") == 1


def test_a_failure_after_the_start_is_still_printed(folder: Folder) -> None:
    folder.servers(notes=NOTES)
    with folder.serving() as (process, _, _):
        folder.servers(notes=NOTES, broken=ENDING)
        lines_until(process, rf"sluicegate: broken {ENDED}")


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_gets_colours_and_no_line_that_it_would_break(folder: Folder, columns: int) -> None:
    folder.servers(chatty=CHATTY, broken=ENDING, needy={**NOTES, "env": {"A": "${NOT_SET_ANYWHERE}"}})
    with folder.terminal("serve", "--port", "0", COLUMNS=str(columns)) as terminal:
        drawn = terminal.until(r"  try: .*\n")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", drawn).replace("\r", "")
    assert re.search(r"serving at \x1b\[1;36mhttp://\S+/mcp\x1b\[0m", drawn) and "\x1b[1;33mwarning:" in drawn
    too_long = [line for line in plain.splitlines() if len(line) > columns and " " in line.strip()]
    assert not too_long
    assert "set it in the gateway's environment and restart the gateway" in " ".join(plain.split())


def test_the_command_that_is_named_can_be_run(folder: Folder) -> None:
    called = (
        "import sys; sys.argv = ['-m']; from sluicegate.cli.command import command_as_called as name; print(name())"
    )
    named = subprocess.run([sys.executable, "-c", called], env=folder.env, capture_output=True, text=True, check=True)
    version = ["/bin/sh", "-c", f"{named.stdout.strip()} --version"]
    done = subprocess.run(version, cwd=folder.home, env=folder.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("sluicegate "), done.stderr
