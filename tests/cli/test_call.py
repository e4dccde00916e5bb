"""`sluicegate call`: values in, text out, and a status that scripts can rely on; with a running gateway and without."""

import json
import re
import signal
import subprocess
import sys

import pytest

from sluicegate.cli.call import Bar, why_it_failed
from sluicegate.errors import (
    ErrorObject,
    RpcError,
    SluicegateError,
    UpstreamClosed,
    UpstreamTimeout,
    error_object,
)
from sluicegate.protocol.types import LogEvent
from tests.cli.folders import COUNTING, DEMO, ENDING, NOTES, PROMPTLY, ROOT, Folder

ALONE = "for this command alone"


def test_a_tool_of_the_running_gateway_is_called(gateway: Folder) -> None:
    done = gateway.run("call", "demo__echo", "text=hello", "times=2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\nhello\n", "")


def test_a_tool_of_a_server_that_is_a_command_is_called(gateway: Folder) -> None:
    assert "monday" in gateway.out("call", "notes__write", "day=monday", "text=Rest.").lower()


def test_the_health_of_the_gateway_is_known_though_no_list_has_it(gateway: Folder) -> None:
    found = json.loads(gateway.out("call", "health.check", "--json"))["structuredContent"]
    assert found["status"] == "degraded" and found["servers"]["ready"] >= 2


def test_without_a_gateway_there_is_no_health_to_tell(folder: Folder) -> None:
    folder.write("sluicegate.toml", '[activations.bash]\nbundled = "bash"\n')
    done = folder.run("call", "health.check")
    assert (done.returncode, done.stdout) == (1, "")
    assert "health.check is about a running gateway; start one with `sluicegate serve`." in done.stderr


def test_all_arguments_may_come_as_json(gateway: Folder) -> None:
    assert gateway.out("call", "demo__echo", "--input", '{"text": "hello"}') == "hello\n"
    for piped in ("-", "@-"):
        done = gateway.run("call", "demo__echo", "--input", piped, stdin='{"text": "from a pipe"}')
        assert done.stdout == "from a pipe\n"
    file = gateway.write("arguments.json", '{"text": "from a file"}')
    assert gateway.out("call", "demo__echo", "--input", f"@{file}") == "from a file\n"
    done = gateway.run("call", "demo__echo", "--input", "@nowhere.json")
    assert done.returncode == 2 and "--input: nowhere.json cannot be read: No such file" in done.stderr


def test_a_value_may_be_a_file_or_stdin(gateway: Folder) -> None:
    gateway.write("draft.txt", "two\nlines")
    assert gateway.out("call", "demo__echo", "text=@draft.txt") == "two\nlines\n"
    assert gateway.run("call", "demo__echo", "text=@-", stdin="piped").stdout == "piped\n"


def test_the_whole_result_can_be_had(gateway: Folder) -> None:
    result = json.loads(gateway.out("call", "demo__echo", "text=hello", "--json"))
    assert result["content"] == [{"type": "text", "text": "hello"}] and result["resultType"] == "complete"


def test_a_tool_that_fails_is_status_1_and_its_text_still_on_stdout(gateway: Folder) -> None:
    done = gateway.run("call", "demo__fail", "reason=so it is")
    assert (done.returncode, done.stdout) == (1, "This tool always fails: so it is.\n")
    assert done.stderr == "sluicegate: the tool failed.\n"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("demo__ecko", "there is no tool 'demo__ecko'. Did you mean 'demo__echo'?"),
        ("echo", "there is no tool 'echo'. Did you mean 'demo__echo'?"),
        ("broken__anything", "broken is not ready: "),
        ("broken.anything", "broken is not ready: "),
    ],
)
def test_a_tool_that_is_not_there_is_status_1_with_the_nearest_or_the_reason(
    gateway: Folder, name: str, sentence: str
) -> None:
    done = gateway.run("call", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert sentence in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("url", ["ftp://x/y", "http://127.0.0.1:4747/mcp"])
def test_a_url_is_no_tool_and_nothing_is_started_for_it(folder: Folder, url: str) -> None:
    done = folder.run("call", url)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"'{url}' is a URL, not the name of a tool. Put the server into .mcp.json" in done.stderr
    assert "started" not in done.stderr


SLOW = """
import asyncio
import sluicegate
server = sluicegate.Server("slow")

@server.tool
async def wait() -> str:
    await asyncio.Event().wait()
    return ""
"""
LINKING = """
import sluicegate
server = sluicegate.Server("links")

@server.tool
def links():
    yield "Two notes:"
    yield sluicegate.ResourceLink("note://one", "one", description="The first.\\nMore.")
    yield sluicegate.EmbeddedResource("note://two", "Two.")
    yield sluicegate.Image(b"x", "image/png")
"""


STREAMING = """
import asyncio
import msgspec
import sluicegate
from sluicegate.activations.values import Data, Structured, Progress, ToolUse

server = sluicegate.Server("flow")
gone = asyncio.Event()

class Seen(msgspec.Struct, tag="seen"):
    planet: str

@server.tool
async def pieces(fail: bool = False):
    yield Progress(1)
    yield Data("one ")
    yield Seen("mars")
    yield Data({"n": 1})
    if fail:
        raise sluicegate.ToolError("no further")
    yield "the end"
    yield Structured({"exit_code": 0})

@server.tool
async def uses():
    yield Data("I look")
    yield ToolUse("search", {"q": 1})
    yield Data("found")

@server.tool
async def endless():
    while True:
        yield Data("x\\n")
"""


@pytest.fixture
def flow(folder: Folder) -> Folder:
    folder.write("flow.py", STREAMING)
    folder.write("sluicegate.toml", '[activations.flow]\nfile = "flow.py"\n')
    return folder


def test_streamed_output_of_a_tool_is_printed_once(flow: Folder) -> None:
    assert flow.out("call", "flow__pieces") == 'one mars\n{"n":1}\nthe end\n'
    assert flow.out("call", "flow.pieces") == 'one mars\n{"n":1}\nthe end\n'


def test_the_use_of_a_tool_is_a_line_of_its_own(flow: Folder) -> None:
    assert flow.out("call", "flow.uses") == "I look\nUsing tool: search\nfound\n"


def test_a_stream_that_fails_is_printed_up_to_there(flow: Folder) -> None:
    done = flow.run("call", "flow__pieces", "fail=true")
    assert (done.returncode, done.stdout) == (1, 'one mars\n{"n":1}\nno further\n')
    assert done.stderr.endswith("the tool failed.\n")


def test_a_stream_as_json_is_an_event_a_line(flow: Folder) -> None:
    assert [json.loads(line) for line in flow.out("call", "flow__pieces", "--json").splitlines()] == [
        {"type": "progress", "progress": 1},
        {"type": "content", "text": "one "},
        {"type": "seen", "planet": "mars"},
        {"type": "data", "data": {"n": 1}},
        {"type": "content", "text": "the end"},
        {"type": "complete", "exit_code": 0},
    ]


def test_an_event_that_is_no_text_has_a_line_of_its_own(folder: Folder) -> None:
    folder.write("sluicegate.toml", f'[activations.counter]\nfile = "{ROOT / "examples" / "counter.py"}"\n')
    expected = "".join(f'{{"type":"counted","number":{number}}}\n' for number in (1, 2))
    assert folder.out("call", "counter.count", "steps=2") == expected


def test_pieces_come_as_they_are_sent_and_a_closed_pipe_ends_the_call(flow: Folder) -> None:
    with flow.started("call", "flow__endless") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["x\n"] * 3
        process.stdout.close()
        assert process.wait(PROMPTLY) != 0


def test_links_are_printed_with_their_uris_and_what_cannot_be_printed_is_counted(folder: Folder) -> None:
    folder.write("links.py", LINKING)
    folder.write("sluicegate.toml", '[activations.links]\nfile = "links.py"\n')
    done = folder.run("call", "links__links")
    assert done.stdout == "Two notes:\nlinks+note://one  The first.\nTwo.\n"
    assert done.stderr.endswith("sluicegate: the result also holds 1 image; --json prints all of it.\n")


def test_the_limit_that_ends_a_call_is_named_with_its_key_and_table(folder: Folder) -> None:
    folder.write("slow.py", SLOW)
    folder.write("sluicegate.toml", '[activations.slow]\nfile = "slow.py"\n[servers.slow]\ntimeout = 0.2\n')
    done = folder.run("call", "slow__wait")
    assert (done.returncode, done.stdout) == (1, "")
    assert "slow did not answer within 0.2 s (`timeout`)" in done.stderr
    assert "To allow more, set timeout under [servers.slow] in sluicegate.toml." in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "text is missing. It takes: text=<string> [times=<integer>]"),
        (["text=a", "times=often"], "times must be a whole number; 'often' is not."),
        (["text=a", "tims=2"], "the tool has no argument 'tims'. Did you mean 'times'?"),
        (["text"], "'text' is not an argument: write key=value."),
        (["--text", "a"], "there is no option --text. If text is an argument of the tool, write text=a"),
        (["--text=a"], "If text is an argument of the tool, write text=a"),
        (["text=@nowhere.txt"], "text: nowhere.txt cannot be read: No such file or directory."),
        (["--input", "{"], "the arguments are not JSON"),
        (["--input", "[]"], "the arguments are not a JSON object."),
        (["text=a", "--input", "{}"], "--input holds all arguments; leave the others out."),
        (["--json", '{"text": "a"}'], 'arguments as JSON are given with --input: --input \'{"text": "a"}\''),
    ],
)
def test_wrong_arguments_are_status_2_and_never_reach_the_tool(
    gateway: Folder, words: list[str], sentence: str
) -> None:
    done = gateway.run("call", "demo__echo", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr and "Traceback" not in done.stderr


def test_a_refusal_of_the_server_is_status_1(gateway: Folder) -> None:
    done = gateway.run("call", "demo__echo", "text=a", "times=101")
    assert done.returncode == 1 and "100" in done.stdout + done.stderr


def test_a_question_is_not_answered_where_there_is_no_terminal(gateway: Folder) -> None:
    done = gateway.run("call", "demo__greet")
    assert (done.returncode, done.stdout) == (0, "Hello, whoever you are.\n")
    assert "Who are you?" in done.stderr and "Not answered" in done.stderr


def test_a_tool_that_needs_approval_is_refused_at_once_without_a_terminal(folder: Folder) -> None:
    folder.write("sluicegate.toml", '[activations.bash]\nbundled = "bash"\n')
    done = folder.run("call", "bash.execute", "command=touch ran")
    assert done.returncode == 1 and not (folder.path / "ran").exists()
    assert "nothing was run. It runs without a question if a rule allows it" in done.stdout


def test_without_a_gateway_only_the_server_that_is_needed_is_started(folder: Folder) -> None:
    folder.servers(counting=COUNTING, notes=NOTES, broken=ENDING)
    done = folder.run("call", "counting__count", "to=2")
    assert (done.returncode, done.stdout) == (0, "counted to 2\n")
    assert done.stderr == f"sluicegate: no gateway runs for this folder, so counting is started {ALONE}.\n"


def test_with_bare_names_all_servers_are_started(folder: Folder) -> None:
    folder.servers(counting=COUNTING).write("sluicegate.toml", 'naming = "collide"\n')
    assert folder.out("call", "count", "to=2") == "counted to 2\n"


def test_with_the_names_of_claude_the_server_is_found_too(folder: Folder) -> None:
    folder.servers(counting=COUNTING, broken=ENDING).write("sluicegate.toml", 'naming = "claude"\n')
    done = folder.run("call", "mcp__counting__count", "to=2")
    assert (done.returncode, done.stdout) == (0, "counted to 2\n") and "broken" not in done.stderr


def test_with_nothing_configured_there_is_the_demo(folder: Folder) -> None:
    assert folder.out("call", "demo__echo", "text=hello") == "hello\n"


def test_a_file_asked_for_by_name_counts_although_a_gateway_runs(gateway: Folder) -> None:
    gateway.write("other.json", json.dumps({"mcpServers": {"counting": COUNTING}}))
    done = gateway.run("call", "--config", "other.json", "counting__count", "to=2")
    assert (done.returncode, done.stdout) == (0, "counted to 2\n") and ALONE in done.stderr


def test_a_configuration_with_errors_is_status_3(folder: Folder) -> None:
    folder.write("sluicegate.toml", "naming = 3\n")
    done = folder.run("call", "demo__echo", "text=a")
    assert (done.returncode, done.stdout) == (3, "")
    assert "sluicegate.toml:1" in done.stderr and "nothing was started" in done.stderr


def test_control_c_is_quiet_and_status_130(folder: Folder) -> None:
    with folder.started("call", "demo__count", "to=10000", "pause=1") as process:
        assert process.stderr is not None
        assert ALONE in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(PROMPTLY) == 130
        assert process.stderr.read() == ""


def test_a_call_whose_server_dies_may_have_run_and_the_message_says_so(folder: Folder) -> None:
    ending = "import os, sluicegate\ns = sluicegate.Server('s')\n@s.tool\ndef end() -> None:\n    os._exit(3)\n"
    folder.write("ending.py", f"{ending}sluicegate.run(s)\n")
    folder.servers(ending={"command": sys.executable, "args": ["ending.py"]})
    with folder.serving():
        with_gateway = folder.run("call", "ending__end")
    for done in (with_gateway, folder.run("call", "ending__end")):
        assert (done.returncode, done.stdout) == (1, "")
        assert re.search("ending (exited with status 3|closed its output).*may have run", done.stderr)
        assert done.stderr.count("may have run") == 1


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (UpstreamClosed("a is gone."), "a is gone; the call may have run."),
        (UpstreamTimeout("a took too long."), "a took too long; the call may have run."),
        (UpstreamClosed("a is not connected.", delivered="no"), "a is not connected."),
        (RpcError(error_object(UpstreamClosed("a is gone."))), "a is gone; the call may have run."),
        (
            RpcError(ErrorObject(1, "It was cut, and may have run.", {"delivered": "unknown"})),
            "It was cut, and may have run.",
        ),
        (RpcError(ErrorObject(1, "No.", {"delivered": "unknown"})), "No."),
        (RpcError(ErrorObject(1, "No.")), "No."),
    ],
)
def test_the_message_says_once_that_a_call_may_have_run(problem: SluicegateError, sentence: str) -> None:
    assert why_it_failed(problem) == sentence


# Runs the command, and prints which of our modules it has imported.
IMPORTED = """
import subprocess
import sys
from sluicegate.cli.main import main
sys.argv = ["sluicegate", *sys.argv[1:]]
try:
    main()
finally:
    print(*(name for name in sys.modules if name.startswith(("sluicegate", "rich"))))
"""


def test_a_call_to_a_running_gateway_imports_nothing_of_a_gateway(gateway: Folder) -> None:
    command = [sys.executable, "-c", IMPORTED, "call", "demo__echo", "text=hello"]
    done = subprocess.run(
        command, cwd=gateway.path, env=gateway.env, capture_output=True, text=True, timeout=PROMPTLY, check=True
    )
    text, modules = done.stdout.splitlines()
    assert text == "hello" and "sluicegate.client.client" in modules.split()
    parts = {".".join(name.split(".")[:2]) for name in modules.split()}
    assert not parts & {"rich", *(f"sluicegate.{name}" for name in ("hub", "downstream", "http1", "server", "serve"))}
    # The messages of the control socket are defined beside the code of the gateway, which is not imported.
    assert not set(modules.split()) & {"sluicegate.gateway.gateway", "sluicegate.gateway.loading"}
    assert not set(modules.split()) & {"sluicegate.upstream.process", "sluicegate.upstream.spawn"}
    assert len(modules.split()) < 80  # Packages count, too.


def test_a_tool_that_a_rule_denies_is_named_as_such(folder: Folder) -> None:
    folder.servers(notes=NOTES)
    folder.write("sluicegate.toml", '[[permissions]]\ntool = "mcp__notes"\naction = "deny"\n')
    with folder.serving():
        done = folder.run("call", "notes__write", "day=2026-01-01", "text=x")
    assert done.returncode == 1
    assert "a rule denies 'notes__" in done.stderr and "policy explain mcp__notes__" in done.stderr


def test_the_log_does_not_write_over_what_a_person_types(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar()
    bar.pause(True)
    bar.log(LogEvent("info", "meanwhile"))
    assert capsys.readouterr().err == ""
    bar.pause(False)
    assert capsys.readouterr().err == "info: meanwhile\n"


def test_a_call_that_a_rule_denies_is_on_record_also_if_the_command_explains_it(folder: Folder) -> None:
    rule = '[[permissions]]\ntool = "mcp__demo__echo"\naction = "deny"\n'
    folder.write("sluicegate.toml", f'[activations.demo]\nfile = "{DEMO}"\n{rule}')
    done = folder.invoke("call", "demo__echo", "text=hello")
    assert (done.returncode, done.stdout) == (1, "") and "a rule denies 'demo__echo'" in done.stderr
    rows = [json.loads(line) for file in folder.home.rglob("audit/*.jsonl") for line in file.read_text().splitlines()]
    assert [(row["kind"], row["name"], row["verdict"]) for row in rows if row["name"]] == [("reject", "echo", "deny")]
