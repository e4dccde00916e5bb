"""What docs/gateway.md shows is what the commands print."""

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.folders import ROOT, Folder

PAGE = (ROOT / "docs" / "gateway.md").read_text()


def examples() -> Iterator[tuple[str, str]]:
    """Each command on the page, and what it shows."""
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for part in block.split("$ ")[1:]:
            line, _, output = part.partition("\n")
            yield line, output


@pytest.fixture
def documented(folder: Folder) -> Folder:
    """The folder that the page is about, where `python` is one that has sluicegate."""
    folder.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{folder.env['PATH']}"
    folder.write(".mcp.json", PAGE.split("```json\n")[1].split("```")[0])
    for name in ("notes.py", "demo.py"):
        folder.write(name, (ROOT / "examples" / name).read_text())
    return folder


def as_shown(folder: Folder, text: str) -> str:
    return text.replace(str(folder.path), "/home/ada/work")


def test_the_commands_say_what_the_page_shows(documented: Folder) -> None:
    shown = dict(examples())
    assert len(shown) == 8
    serve = next(output for line, output in shown.items() if line == "sluicegate serve").replace(":4747/", ":PORT/")
    with documented.started("serve", "--port", "0") as process:
        assert process.stderr is not None
        said = "".join(process.stderr.readline() for _ in serve.splitlines())
        said = said.replace(str(Path(sys.executable).parent), "/usr/bin")
        assert re.sub(r":\d+/mcp", ":PORT/mcp", as_shown(documented, said)).replace("/usr/bin/python -m ", "") == serve
        for line, output in shown.items():
            words = shlex.split(line.removesuffix(" | cat"))[1:]
            if words[0] in ("tools", "resources", "call"):
                done = documented.run(*words)
                assert (done.stdout or done.stderr) == output, line


def test_the_table_of_states_is_what_the_page_shows(documented: Folder) -> None:
    shown = dict(examples())["sluicegate status"]
    with documented.serving(), documented.terminal("status", NO_COLOR="1") as terminal:
        assert terminal.ended() == 0
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.drawn).replace("\r", "")
    head, _, *_ = shown.splitlines()
    # No call has been made, so the columns of times are narrow.
    assert head.split() in [line.split() for line in drawn.splitlines()] and shown.splitlines()[-1] in drawn
    for name in (
        "notes      ready   2026-07-28   stdio           2",
        "search     wrong   -            stdio           0",
    ):
        assert name in shown and name in drawn


def test_connecting_says_what_the_page_shows(documented: Folder) -> None:
    shown = dict(examples())["sluicegate connect cursor --yes"]
    done = documented.run("connect", "cursor", "--yes")
    assert as_shown(documented, done.stderr) == shown
