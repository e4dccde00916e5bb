"""Commands on a terminal: bars, tables, colours and questions, which no pipe ever sees."""

import json
import re
import sys
from collections.abc import Mapping

import pytest

from tests.cli.folders import ENDED, NOTES, ROOT, Folder, Terminal

COLOUR = "\x1b[3"


def plain(drawn: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)


def test_progress_is_drawn_as_it_comes_and_only_the_result_stays(gateway: Folder) -> None:
    with gateway.terminal("call", "demo__count", "to=5") as terminal:
        terminal.until(r"2 of 5")
        assert terminal.ended() == 0
        assert "━" in terminal.drawn and "counted to 5" in terminal.drawn
        assert plain(terminal.drawn).rstrip().endswith("counted to 5")


def test_the_status_is_a_table_with_sentences_below(gateway: Folder) -> None:
    with gateway.terminal("status") as terminal:
        assert terminal.ended() == 0
    page = plain(terminal.drawn)
    assert COLOUR in terminal.drawn or "\x1b[1" in terminal.drawn
    assert re.search(r"server\s+state\s+protocol\s+transport\s+tools\s+calls\s+errors\s+latency", page)
    assert re.search(r"notes\s+ready\s+2026-07-28\s+stdio\s+2", page)
    assert re.search(rf"\nbroken ({ENDED}|is starting)", page) and "  Its last words: it is broken" in page
    assert re.search(r"http://\S+/mcp/reading  \(profile reading\)", page)


def test_no_color_is_respected(gateway: Folder) -> None:
    with gateway.terminal("status", NO_COLOR="1") as terminal:
        assert terminal.ended() == 0
    assert COLOUR not in terminal.drawn


def test_watching_ends_quietly(gateway: Folder) -> None:
    with gateway.terminal("status", "--watch") as terminal:
        terminal.until("latency")
        terminal.interrupt()
        assert terminal.ended() == 130
    assert "Traceback" not in terminal.drawn and "Abort" not in terminal.drawn


def test_a_question_is_asked_and_answered(gateway: Folder) -> None:
    with gateway.terminal("call", "demo__greet") as terminal:
        terminal.until(r"Who are you\? \(Ctrl\+D declines\)")
        terminal.until(r"name")
        terminal.type("Ada\n")
        assert terminal.ended() == 0
    assert "Hello, Ada." in plain(terminal.drawn)


def test_a_question_may_be_declined(gateway: Folder) -> None:
    with gateway.terminal("call", "demo__greet") as terminal:
        terminal.until(r"name")
        terminal.type("\x04")
        assert terminal.ended() == 0
    assert "Hello, whoever you are." in plain(terminal.drawn)


def test_control_c_at_a_question_ends_it_at_once(gateway: Folder) -> None:
    with gateway.terminal("call", "demo__greet") as terminal:
        terminal.until(r"name")
        terminal.interrupt()
        assert terminal.ended() == 130
    assert "Traceback" not in terminal.drawn


def test_what_a_server_says_never_moves_the_cursor(gateway: Folder) -> None:
    with gateway.terminal("call", "demo__echo", "text=\x1b[2Jgone") as terminal:
        assert terminal.ended() == 0
    assert "\x1b[2Jgone" not in terminal.drawn and "[2Jgone" in terminal.drawn
    assert gateway.out("call", "demo__echo", "text=\x1b[2Jgone") == "\x1b[2Jgone\n"


HOSTILE: dict[str, Mapping[str, object]] = {
    "a\x1b]0;title\x07\nsluicegate: forged": NOTES,
    "odd": {**NOTES, "ke\x1b[2Jy\x07": 1, "type": "std\x1b]0;title\x07io\r\nsluicegate: forged"},
}


@pytest.mark.parametrize("words", [["check"], ["serve", "--port", "0"]])
def test_what_a_file_says_never_moves_the_cursor_nor_begins_a_line(folder: Folder, words: list[str]) -> None:
    folder.servers(**HOSTILE)
    with folder.terminal(*words) as terminal:
        if words[0] == "serve":
            terminal.until("servers? ready")
            terminal.interrupt()
        assert terminal.ended() == 0
    page = plain(terminal.drawn)
    assert (
        "\x1b" not in page and "\x07" not in page and 'The type "std\ufffd]0;title\ufffdio sluicegate: forged"' in page
    )
    assert not re.search(r"^\s*sluicegate: forged", page, re.MULTILINE)


def test_nor_do_sentences_in_a_pipe(folder: Folder) -> None:
    said = folder.servers(**HOSTILE).invoke("check").stderr
    assert "\x1b" not in said and "\x07" not in said and "\r" not in said and 'The key "ke\ufffd[2Jy\ufffd"' in said
    assert not re.search(r"^sluicegate: forged", said, re.MULTILINE)


def test_nor_does_the_sentence_that_a_command_ends_with(folder: Folder) -> None:
    words = ["serve", "no\x1b]0;title\x07\nsluicegate: forged.py"]
    sentence = "sluicegate: there is no file no\ufffd]0;title\ufffd sluicegate: forged.py."
    with folder.terminal(*words) as terminal:
        assert terminal.ended() != 0
    assert terminal.drawn == f"{sentence}\r\n"
    assert folder.run(*words).stderr == f"{sentence}\n"


def test_the_doctor_and_the_lists_are_for_people_there(gateway: Folder) -> None:
    with gateway.terminal("doctor") as terminal:
        assert terminal.ended() == 1
    assert "✗ broken " in plain(terminal.drawn)
    with gateway.terminal("tools") as terminal:
        assert terminal.ended() == 0
    assert re.search(r"tool\s+arguments\s+what it does", plain(terminal.drawn))


def test_import_asks_before_it_writes(folder: Folder) -> None:
    (folder.home / ".cursor").mkdir()
    (folder.home / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": {"notes": NOTES}}))
    for answer, is_written in (("n\n", False), ("y\n", True)):
        with folder.terminal("import") as terminal:
            terminal.until(r"Write 1 to .*\?")
            terminal.type(answer)
            assert terminal.ended() == (0 if is_written else 1)
        assert (folder.path / ".mcp.json").exists() is is_written


def test_connect_asks_before_it_writes_and_control_c_means_no(folder: Folder) -> None:
    with folder.terminal("connect", "cursor") as terminal:
        terminal.until(r"Write it\?")
        terminal.interrupt()
        assert terminal.ended() == 130
    assert not (folder.path / ".cursor").exists()


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ([str(ROOT / "examples" / "demo.py")], r"sluicegate serve \S+/examples/demo\.py"),
        (["-m", "sluicegate", "serve", "--stdio"], r"python -m sluicegate serve\s"),
    ],
)
def test_a_server_for_a_pipe_says_on_a_terminal_what_it_waits_for(
    folder: Folder, words: list[str], instead: str
) -> None:
    terminal = Terminal([sys.executable, *words], folder.path, {**folder.env, "TERM": "xterm"})
    try:
        terminal.until("this is an MCP server for the client that starts it")
        terminal.until(instead)
        terminal.type("\x04")
        assert terminal.ended() == 0
    finally:
        terminal.close()


def test_a_narrow_terminal_has_fewer_columns_and_whole_words(gateway: Folder) -> None:
    with gateway.terminal("status", COLUMNS="40") as terminal:
        assert terminal.ended() == 0
    page = plain(terminal.drawn)
    assert re.search(r"server\s+state\s+tools\s", page) and "latency" not in page
    assert re.search(r"notes\s+ready\s", page)


def test_only_the_first_sentence_of_a_description_is_in_the_list(folder: Folder) -> None:
    folder.write(
        "wordy.py",
        "import sluicegate\nserver = sluicegate.Server('w')\n@server.tool\ndef talk() -> str:\n"
        "    '''Talk, e.g. of\n    nothing. And go on.\n\n    For long.'''\n    return ''\n",
    )
    folder.write("sluicegate.toml", '[activations.wordy]\nfile = "wordy.py"\n')
    with folder.terminal("tools") as terminal:
        assert terminal.ended() == 0
    page = plain(terminal.drawn)
    assert "Talk, e.g. of nothing." in page and "go on" not in page
    assert "And go on.\n\nFor long." in folder.out("tools", "wordy__talk")


def test_control_c_ends_the_gateway_on_a_line_of_its_own(folder: Folder) -> None:
    with folder.terminal("serve", "--port", "0") as terminal:
        terminal.until("try:.*\n")
        terminal.interrupt()
        assert terminal.ended() == 0
    assert terminal.drawn.endswith("\r\n\r\n")
