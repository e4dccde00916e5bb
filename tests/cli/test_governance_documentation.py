"""The examples of docs/governance.md do what the page says."""

import re
import shlex
from typing import Final

from tests.cli.folders import NOTES, ROOT, Folder

PAGE: Final = (ROOT / "docs" / "governance.md").read_text(encoding="utf-8").split("\n## Rules\n")[1].split("\n## ")[0]
"""The section about rules."""


def test_the_rules_of_the_page_say_what_it_shows(folder: Folder) -> None:
    rules, cases = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[:2]
    folder.servers(github=NOTES, files=NOTES)
    folder.write("sluicegate.toml", rules)
    folder.write("cases.toml", cases)
    checked = folder.invoke("check")
    assert checked.returncode == 0 and "warning" not in checked.stderr
    assert folder.invoke("policy", "test", "cases.toml").returncode == 0
    (shown,) = re.findall(r"```console\n\$ sluicegate (.*?)\n(.*?)```", PAGE, re.DOTALL)
    done = folder.invoke(*shlex.split(shown[0]))
    assert done.stdout + done.stderr == shown[1]


def test_no_line_of_prose_is_too_long() -> None:
    assert not [line for line in PAGE.split("\n") if len(line) > 140 and not line.startswith("|")]
