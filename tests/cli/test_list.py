"""`sluicegate tools`, `resources` and `prompts`: what is offered, under the names that clients see."""

import json
import re

import pytest

from sluicegate.cli.list import tool_page
from sluicegate.control.reports import OfferedItem
from sluicegate.schemas.fields import MAX_DESCRIBED
from tests.cli.folders import COUNTING, NO_GATEWAY, NOTES, Folder


def test_tools_come_with_their_arguments_and_what_they_do(gateway: Folder) -> None:
    done = gateway.run("tools")
    lines = done.stdout.splitlines()
    assert "demo__echo\ttext [times]\tRepeat the text." in lines
    assert any(line.startswith("notes__write\tday text\t") for line in lines)
    assert done.stderr == "sluicegate: without broken, not ready now; `sluicegate status` says why.\n"


def test_only_tools_of_one_server_are_listed(gateway: Folder) -> None:
    done = gateway.run("tools", "--server", "notes")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["notes__write", "notes__forget"]
    assert done.stderr == ""


def test_json_has_the_whole_definition_and_whose_it_is(gateway: Folder) -> None:
    echo = json.loads(gateway.out("tools", "--server", "demo", "--json"))[0]
    assert (echo["name"], echo["server"], echo["own"]) == ("demo__echo", "demo", "echo")
    assert echo["inputSchema"]["required"] == ["text"]


def test_resources_and_their_templates(gateway: Folder) -> None:
    lines = gateway.run("resources").stdout.splitlines()
    assert "demo://about\ttext/plain\tAbout this server." in lines
    assert any("{" in line.split("\t")[0] for line in lines)
    assert json.loads(gateway.out("resources", "--server", "demo", "--json"))[0]["uri"] == "demo://about"


def test_prompts_come_with_their_arguments(gateway: Folder) -> None:
    assert "demo__summarise\ttext\tAsk a model for a summary.\n" in gateway.run("prompts").stdout


def test_denied_tools_are_left_out_and_named(folder: Folder) -> None:
    folder.servers(notes=NOTES)
    folder.write(
        "sluicegate.toml",
        """
        [policy]
        default = "allow"
        [[permissions]]
        tool = "mcp__notes__forget"
        action = "deny"
        [[permissions]]
        tool = "mcp__notes__write"
        args = { day = "sunday" }
        action = "deny"
        [[permissions]]
        prompt = "mcp__notes__*"
        action = "deny"
        """,
    )
    told = "sluicegate: without {}, which the rules deny; `sluicegate policy explain NAME` shows the rule.\n"
    with folder.serving():
        running = folder.run("tools"), folder.run("prompts")
        assert [tool["name"] for tool in json.loads(folder.out("tools", "--json"))] == ["notes__write"]
        one = folder.run("tools", "notes__forget")
        assert one.returncode == 1 and "a rule denies 'notes__forget'" in one.stderr
        assert "wrote 1 tool of 1 server" in folder.run("generate", "python").stderr
    for tools, prompts in (running, (folder.run("tools"), folder.run("prompts"))):
        assert [line.split("\t")[0] for line in tools.stdout.splitlines()] == ["notes__write"]
        assert tools.stderr.endswith(told.format("notes__forget"))
        assert prompts.stdout == "" and prompts.stderr.endswith(told.format("notes__plan"))


@pytest.mark.parametrize("command", ["tools", "resources", "prompts"])
def test_a_server_that_is_not_there_is_status_1_with_the_nearest(gateway: Folder, command: str) -> None:
    done = gateway.run(command, "--server", "note")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "sluicegate: there is no server 'note'. Did you mean 'notes'?\n"


def test_without_a_gateway_what_was_offered_last_is_listed(folder: Folder) -> None:
    folder.servers(counting=COUNTING, notes=NOTES)
    assert folder.run("call", "counting__count", "to=1").returncode == 0
    done = folder.run("tools", "--server", "counting")
    assert done.stdout == "counting__count\tto\tCount aloud, one number at a time.\n"
    assert done.stderr == f"{NO_GATEWAY}\n"
    assert folder.run("tools").stderr == f"{NO_GATEWAY}\nsluicegate: without notes, never started so far.\n"
    assert folder.out("tools", "counting__count").startswith("counting__count  (count of counting)")


def test_an_empty_list_prints_so(folder: Folder) -> None:
    with folder.servers(counting=COUNTING).serving():
        done = folder.run("prompts")
    assert (done.returncode, done.stdout) == (0, "") and "there are none" in done.stderr


def test_one_tool_is_shown_in_full(gateway: Folder) -> None:
    page = gateway.out("tools", "demo__echo")
    assert page.startswith("demo__echo  (echo of demo)\n\nRepeat the text.\n")
    assert "Hints of the server: only reads." in page
    times = "  times: integer, optional, default 1, at least 1, at most 100\n      how often\n"
    assert f"  text: string\n      what to repeat\n{times}" in page
    assert json.loads(gateway.out("tools", "demo__echo", "--json"))["own"] == "echo"


def test_references_in_the_schema_of_a_tool_are_resolved() -> None:
    day = {"type": "string", "enum": ["monday", "tuesday"], "description": "A day."}
    task = {"type": "object", "properties": {"day": {"$ref": "#/$defs/Day"}}, "required": ["day"]}
    schema: dict[str, object] = {
        "properties": {
            "day": {"$ref": "#/$defs/Day", "default": "monday"},
            "tasks": {"type": "array", "items": {"$ref": "#/$defs/Task"}},
            "one": {"anyOf": [{"$ref": "#/$defs/Task"}, {"type": "null"}]},
            "loop": {"$ref": "#/$defs/Loop"},
        },
        "required": ["tasks"],
        "$defs": {"Day": day, "Task": task, "Loop": {"properties": {"next": {"$ref": "#/$defs/Loop"}}}},
    }
    lines = "\n".join(
        tool_page(OfferedItem(server="s", own="plan", definition={"name": "s__plan", "inputSchema": schema}))
    )
    first, _, loop = lines.partition("Arguments:\n")[2].partition("  loop: ")
    assert first.splitlines() == [
        '  day: string, optional, one of monday, tuesday, default "monday"',
        "      A day.",
        "  tasks: array of object",
        "    day: string, one of monday, tuesday",
        "        A day.",
        "  one: null or object, optional",
        "    day: string, one of monday, tuesday",
        "        A day.",
    ]
    assert loop.count("next:") == MAX_DESCRIBED - 1  # It refers to itself.


def test_a_narrow_terminal_has_the_description_below_the_name(gateway: Folder) -> None:
    with gateway.terminal("tools", COLUMNS="70") as terminal:
        assert terminal.ended() == 0
    page = re.sub(r"\x1b\[[0-9;]*m", "", terminal.drawn).replace("\r", "")
    assert "demo__echo  text [times]\n    Repeat the text.\n" in page
    with gateway.terminal("tools", COLUMNS="160") as terminal:
        assert terminal.ended() == 0
    assert re.search(r"demo__echo +text \[times\] +Repeat the text\.", terminal.drawn)


def test_one_tool_that_is_not_there_is_status_1_with_the_nearest(gateway: Folder) -> None:
    done = gateway.run("tools", "demo__ecko")
    assert (done.returncode, done.stdout) == (1, "") and "Did you mean 'demo__echo'" in done.stderr
    assert gateway.run("tools", "demo__echo", "--server", "demo").returncode == 2
