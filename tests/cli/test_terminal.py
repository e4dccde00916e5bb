"""Commands on a terminal: progress bars, tables, colours and questions."""

import json
import re
import signal
import sys
from collections.abc import Mapping

import pytest

from tests.cli.folders import DEMO, ENDED, NOTES, PROMPTLY, ROOT, Folder, Terminal, lines_until

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
    assert re.search(r"server\s+state\s+protocol\s+transport\s+tools\s+calls\s+errors\s+p50\s+p95", page)
    assert re.search(r"notes\s+ready\s+2026-07-28\s+stdio\s+2", page)
    assert re.search(rf"\nbroken ({ENDED}|is starting)", page) and "  Its last output: it is broken" in page
    assert re.search(r"http://\S+/mcp/reading  \(profile reading\)", page)


def test_no_color_is_respected(gateway: Folder) -> None:
    with gateway.terminal("status", NO_COLOR="1") as terminal:
        assert terminal.ended() == 0
    assert COLOUR not in terminal.drawn


def test_watching_ends_quietly(gateway: Folder) -> None:
    with gateway.terminal("status", "--watch") as terminal:
        terminal.until("p50")
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


ASKING = """
import asyncio, json
from sluicegate import Call, Server

server = Server("asking")
FIELDS = {
    "colours": {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}, "default": ["red"]},
    "hero": {"type": "string", "oneOf": [{"const": "h1", "title": "Superman"}, {"const": "h2", "title": "Batman"}]},
    "heroes": {"type": "array", "items": {"anyOf": [{"const": "h1", "title": "Superman"}]}, "minItems": 1},
    "mail": {"type": "string", "format": "email"},
    "sure": {"type": "boolean"},
}


@server.tool
async def form(call: Call) -> str:
    form = {"type": "object", "properties": FIELDS, "required": list(FIELDS)}
    return json.dumps((await call.elicit("Fill it in", form)).content)


@server.tool
async def twice(call: Call) -> str:
    one = {"type": "object", "properties": {"one": {"type": "string"}}}
    two = {"type": "object", "properties": {"two": {"type": "string"}}}
    asked = await asyncio.gather(call.elicit("First?", one), call.elicit("Second?", two))
    return json.dumps([answer.content for answer in asked])
"""


@pytest.fixture
def asking(folder: Folder) -> Folder:
    """A folder with a server that has forms to fill in."""
    folder.write("asking.py", ASKING)
    folder.write("sluicegate.toml", '[activations.asking]\nfile = "asking.py"\n')
    return folder


def test_a_form_is_asked_field_by_field_until_each_is_right(asking: Folder) -> None:
    with asking.terminal("call", "asking__form") as terminal:
        terminal.until(r"Any of these, separated by commas: red, blue\s+colours \[red\]: ")
        terminal.type("\n")
        terminal.until(r"One of: h1 \(Superman\), h2 \(Batman\)\s+hero: ")
        terminal.type("h3\n")
        terminal.until(r"hero must be one of h1 \(Superman\), h2 \(Batman\); not 'h3'\.\s+hero: ")
        terminal.type("Batman\n")
        terminal.until(r"separated by commas \(at least 1\): h1 \(Superman\)\s+heroes: ")
        terminal.type("[]\n")
        terminal.until(r"field 'heroes' should have at least 1 items\.\s+heroes: ")
        terminal.type("Superman\n")
        terminal.until(r"mail: ")
        terminal.type("nobody\n")
        terminal.until(r"field 'mail' should be an e-mail address, as in ada@example\.org\.\s+mail: ")
        terminal.type("ada@example.org\n")
        terminal.until(r"sure \[y/N\]: ")
        terminal.type("perhaps\n")
        terminal.until(r"Please answer y or n\.\s+sure \[y/N\]: ")
        terminal.type("y\n")
        assert terminal.ended() == 0
    answer = {"colours": ["red"], "hero": "h2", "heroes": ["h1"], "mail": "ada@example.org", "sure": True}
    assert json.dumps(answer) in plain(terminal.drawn)


def test_questions_at_once_are_asked_one_after_the_other(asking: Folder) -> None:
    with asking.terminal("call", "asking__twice") as terminal:
        drawn = terminal.until(r"one: ")
        assert "Second?" not in drawn
        terminal.type("a\x04b\n")  # Ctrl+D after some letters is no end of the line, and declines nothing.
        terminal.until(r"two: ")
        terminal.type("c\n")
        assert terminal.ended() == 0
    assert '[{"one": "ab"}, {"two": "c"}]' in plain(terminal.drawn)


def test_a_question_ends_with_the_gateway(folder: Folder) -> None:
    folder.write("sluicegate.toml", f'[activations.demo]\nfile = "{DEMO}"\n')
    with folder.serving() as (process, _, _), folder.terminal("call", "demo__greet") as terminal:
        terminal.until(r"name: ")
        terminal.type("half of")
        process.kill()
        assert terminal.ended() == 1
    said = plain(terminal.drawn)
    assert "sluicegate: the gateway stopped before the call was answered; it may have run." in said
    assert "Traceback" not in said


def test_a_call_that_waits_for_approval_does_not_delay_a_stop_and_has_not_run(folder: Folder) -> None:
    rule = '[[permissions]]\ntool = "mcp__demo__*"\naction = "ask"\n'
    folder.write("sluicegate.toml", f'[limits]\ndrain = 3600\n[activations.demo]\nfile = "{DEMO}"\n{rule}')
    with folder.serving() as (process, _, _):
        with folder.terminal("call", "demo__echo", "text=a") as terminal:
            terminal.until(r"May it run\?")
            with folder.started("call", "demo__echo", "text=b") as other:
                lines_until(other, "there is no terminal to ask on")
                process.send_signal(signal.SIGINT)
                assert process.wait(PROMPTLY) == 0
                assert other.wait(PROMPTLY) == 1
            assert terminal.ended() == 1
    assert "sluicegate: the gateway stopped before the call was answered; nothing was run." in plain(terminal.drawn)
    rows = [json.loads(line) for file in folder.home.rglob("audit/*.jsonl") for line in file.read_text().splitlines()]
    assert sorted(row["verdict"] for row in rows if row["kind"] == "approval") == ["expired", "expired"]


def test_a_question_ends_with_the_server_that_asked(folder: Folder) -> None:
    folder.write("leaving.py", LEAVING)
    folder.servers(leaving={"command": sys.executable, "args": [str(folder.path / "leaving.py")]})
    with folder.terminal("call", "leaving__ask") as terminal:
        terminal.until(r"name: ")
        (folder.path / "leave").touch()
        assert terminal.ended() == 1
    assert "the call may have run" in plain(terminal.drawn)


# Of the session era, where a call is under way while it asks; it leaves when told so by a file.
LEAVING = """
import json, os, sys, time

def answer(request, result):
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)

for line in sys.stdin:
    request = json.loads(line)
    match request.get("method"):
        case "initialize":
            info = {"name": "leaving", "version": "1"}
            answer(request, {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info})
        case "tools/list":
            answer(request, {"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]})
        case "tools/call":
            form = {"type": "object", "properties": {"name": {"type": "string"}}}
            params = {"message": "Who?", "requestedSchema": form}
            question = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": params}
            print(json.dumps(question), flush=True)
            while not os.path.exists("leave"):
                time.sleep(0.01)
            sys.exit(3)
        case _ if "id" in request:
            error = {"code": -32601, "message": "Method not found"}
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}), flush=True)
"""


def test_text_of_a_server_never_moves_the_cursor(gateway: Folder) -> None:
    with gateway.terminal("call", "demo__echo", "text=\x1b[2Jgone") as terminal:
        assert terminal.ended() == 0
    assert "\x1b[2Jgone" not in terminal.drawn and "[2Jgone" in terminal.drawn
    # In a pipe, too: most of what is in one is shown on a terminal later (T23).
    assert gateway.out("call", "demo__echo", "text=\x1b[2Jgone") == "\ufffd[2Jgone\n"
    raw = gateway.out("call", "demo__echo", "text=\x9b2J\u202egone", "--json")
    assert "\\u009b2J\\u202egone" in raw and json.loads(raw)["content"][0]["text"] == "\x9b2J\u202egone"


HOSTILE: dict[str, Mapping[str, object]] = {
    "a\x1b]0;title\x07\nsluicegate: forged": NOTES,
    "odd": {**NOTES, "ke\x1b[2Jy\x07": 1, "type": "std\x1b]0;title\x07io\r\nsluicegate: forged"},
}


@pytest.mark.parametrize("words", [["check"], ["serve", "--port", "0"]])
def test_text_of_a_file_never_moves_the_cursor_nor_begins_a_line(folder: Folder, words: list[str]) -> None:
    folder.servers(**HOSTILE)
    with folder.terminal(*words) as terminal:
        if words[0] == "serve":
            terminal.until("servers? ready")
            terminal.interrupt()
        assert terminal.ended() == (1 if words == ["check"] else 0)
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
    assert terminal.drawn == f"\x1b[31m{sentence}\x1b[0m\r\n"
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
            terminal.until(r"Write 1 server to .*\?")
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
        ([str(ROOT / "examples" / "demo.py")], r"sluicegate\s+serve\s+\S+/examples/demo\.py"),
        (["-m", "sluicegate", "serve", "--stdio"], r"python -m sluicegate serve\s"),
    ],
)
def test_a_server_for_a_pipe_says_on_a_terminal_what_it_waits_for(
    folder: Folder, words: list[str], instead: str
) -> None:
    terminal = Terminal([sys.executable, *words], folder.path, {**folder.env, "TERM": "xterm"})
    try:
        terminal.until("this is an MCP server on stdin and stdout")
        terminal.until(instead)
        terminal.type("\x04")
        assert terminal.ended() == 0
    finally:
        terminal.close()


def test_a_narrow_terminal_has_fewer_columns_and_whole_words(gateway: Folder) -> None:
    with gateway.terminal("status", COLUMNS="40") as terminal:
        assert terminal.ended() == 0
    page = plain(terminal.drawn)
    assert re.search(r"server\s+state\s+tools\s", page) and "p50" not in page
    assert re.search(r"notes\s+ready\s", page)


def test_only_the_first_sentence_of_a_description_is_in_the_list(folder: Folder) -> None:
    folder.write(
        "wordy.py",
        "import sluicegate\nserver = sluicegate.Server('w')\n@server.tool\ndef talk() -> str:\n"
        "    '''Talk, e.g. of\n    nothing. And go on.\n\n    For long.'''\n    return ''\n",
    )
    folder.write("sluicegate.toml", '[activations.wordy]\nfile = "wordy.py"\n')
    assert folder.run("call", "wordy__talk").returncode == 0
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
