"""The template contains the defaults."""

import re
import tomllib

import pytest

from sluicegate.config.template import keys, tables, template
from sluicegate.exchange import Caller, Target
from sluicegate.gate.judge import Rules, judge
from tests.config.folders import Folders

SERVERS = {"files": {"url": "http://a.example/"}, "search-web": {"url": "http://b.example/"}}


def uncommented() -> str:
    return re.sub(r"^# ?(?=\[|\w+ = )", "", template(), flags=re.MULTILINE)


def test_the_template_equals_no_file(folders: Folders) -> None:
    folders.servers(SERVERS)
    without = folders.config()
    folders.settings(template())
    assert folders.config() == without


def test_commented_lines_of_the_template_are_valid_too(folders: Folders) -> None:
    (folders.root / "notes.py").write_text("")
    folders.servers(SERVERS)
    folders.settings(uncommented().replace("servers.NAME", "servers.files"))
    config = folders.config()
    assert config.profiles["reading"].tools == ("*__read_*", "*__list_*")
    assert config.servers["files"].prefix == "NAME"
    assert config.servers["notes"].kind == "python"
    assert not folders.load().problems


def test_its_rules_let_read_and_ask_about_the_rest(folders: Folders) -> None:
    folders.servers(SERVERS)
    folders.settings(uncommented().replace("servers.NAME", "servers.files").partition("[activations.notes]")[0])
    assert folders.config().policy.rules == ()
    folders.settings(uncommented()[uncommented().index("[[permissions]]") :])
    rules = Rules(folders.config().policy)
    actions = {
        name: judge(rules, Caller(), Target("files", "tool", name), {}).action
        for name in ("read_text", "list", "write", "purge_all")
    }
    assert actions == {"read_text": "allow", "list": "allow", "write": "ask", "purge_all": "deny"}
    assert judge(rules, Caller(), Target("files", "resource", "file:///a"), {}).action == "allow"


def test_the_template_does_not_override_the_personal_file(folders: Folders) -> None:
    folders.servers(SERVERS)
    folders.settings('naming = "collide"\n[http]\nport = 5333\n[limits]\ndrain = 3\n', user=True)
    before = folders.config()
    assert before.http.port == 5333
    folders.settings(template())
    assert folders.config() == before


@pytest.mark.parametrize("header", [header for header in tables() if "NAME" not in header and "[" not in header])
def test_every_key_stands_in_the_template(header: str) -> None:
    table = tomllib.loads(uncommented())[header]
    assert list(table) == [key for key, _, _ in keys(tables()[header])]


def test_the_lines_can_be_read() -> None:
    assert max(len(line) for line in template().split("\n")) <= 170
