"""`sluicegate serve` without a file: the gateway of a folder, as its users meet it."""

import asyncio
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

import sluicegate
from sluicegate.cli.run_gateway import StartLog
from tests.cli.folders import COUNTING, DEMO, ENDING, NOTES, PROMPTLY, ROOT, Folder, lines_until

ARGS = [str(ROOT / "examples" / "demo.py")]


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_all_servers_are_served_at_one_address(folder: Folder, era: sluicegate.Era) -> None:
    folder.servers(counting=COUNTING, notes=NOTES, broken=ENDING)
    with folder.serving() as (_, url, said):
        text = "".join(said)
        assert f"claude mcp add -t http sluicegate {url}" in text
        assert (
            json.loads(text.partition("other clients: ")[2].splitlines()[0])["mcpServers"]["sluicegate"]["url"] == url
        )
        assert "2 of 3 servers ready, 3 tools: counting, notes" in text
        async with asyncio.timeout(PROMPTLY), sluicegate.connect(url, era=era) as client:
            assert {tool.name for tool in await client.tools()} == {"counting__count", "notes__write", "notes__forget"}
            assert (await client.call("counting__count", to=2)).text == "counted to 2"


def test_the_suggested_command_works(folder: Folder) -> None:
    with folder.started("serve", "--port", "0") as process:
        said = lines_until(process, "try:")
        words = said[-1].split("-m sluicegate ", 1)[1].split()
        assert words == ["call", "demo__echo", "text=hello"]
        done = folder.run(*words)
        assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_status_0(folder: Folder, number: signal.Signals) -> None:
    folder.servers(counting=COUNTING)
    with folder.serving() as (process, _, _):
        process.send_signal(number)
        assert process.wait(PROMPTLY) == 0
        assert process.stdout is not None and process.stdout.read() == ""
    assert folder.run("logs", "counting").returncode == 1  # Its socket is gone with it.


def test_with_no_files_the_demo_is_offered_until_there_are_some(folder: Folder) -> None:
    with folder.serving() as (process, _, said):
        assert "1 of 1 server ready, 5 tools: demo" in "".join(said)
        folder.servers(counting=COUNTING)
        lines_until(process, r"demo was removed")
        folder.out_once("counting__count\tto\tCount aloud, one number at a time.\n", "tools")


def test_demo_adds_it_also_when_there_are_servers_and_keeps_it(folder: Folder) -> None:
    folder.servers(counting=COUNTING)
    with folder.serving("--demo") as (process, _, _):
        folder.servers(counting=COUNTING, notes=NOTES)
        lines_until(process, r"notes was added")
        assert [row[0] for row in folder.states()] == ["counting", "notes", "demo"]


def test_a_server_called_demo_keeps_its_name(folder: Folder) -> None:
    folder.servers(demo=COUNTING)
    with folder.serving("--demo"):
        assert {"demo__count", "sluicegate-demo__count"} <= {
            line.split("\t")[0] for line in folder.out("tools").splitlines()
        }


def test_a_file_with_nothing_but_ourselves_in_it_is_served_with_a_word_on_what_to_do(folder: Folder) -> None:
    folder.servers(sluicegate={"type": "http", "url": "http://127.0.0.1:4747/mcp"})
    with folder.started("serve", "--port", "0") as process:
        assert "sluicegate import" in lines_until(process, "there are no servers")[-1]


def test_ourselves_in_the_file_are_left_out_also_at_a_port_that_only_the_command_line_knows(folder: Folder) -> None:
    folder.servers(counting=COUNTING)
    with folder.serving() as (process, url, _):
        folder.servers(counting=COUNTING, mirror={"type": "http", "url": url})
        assert "this gateway itself" in lines_until(process, "mirror")[-1]
        assert folder.out("tools") == "counting__count\tto\tCount aloud, one number at a time.\n"


def test_the_words_that_connect_clients_are_as_ours_were(folder: Folder) -> None:
    with folder.serving() as (_, _, said):
        (line,) = (line for line in said if "connect CLIENT" in line)
        assert "python -m sluicegate connect CLIENT (claude-desktop, claude-code, cursor," in line


def test_with_no_files_it_says_so_and_how_to_get_some(folder: Folder) -> None:
    with folder.serving() as (_, _, said):
        (told,) = [line for line in said if "no .mcp.json" in line]
        assert "import" in told
    folder.servers(counting=COUNTING)
    with folder.serving() as (_, _, said):
        assert "no .mcp.json" not in "".join(said)


def test_a_slow_server_does_not_delay_the_report_about_others(folder: Folder) -> None:
    os.mkfifo(folder.path / "go")
    slow = {"command": "sh", "args": ["-c", 'read line <go && exec "$0" "$@"', COUNTING["command"], *ARGS]}
    folder.servers(notes=NOTES, slow=slow, off={**NOTES, "disabled": True})
    with folder.started("serve", "--port", "0") as process:
        said = lines_until(process, "still starting")
        assert said[-2].endswith("1 of 2 servers are ready so far (1 disabled), 2 tools: notes\n")
        assert said[-1] == "  still starting: slow\n"
        (folder.path / "go").write_text("go\n")
        later = "".join(lines_until(process, "servers ready"))
        assert "2 of 2 servers ready (1 disabled), 3 tools: notes, slow" in later
        folder.servers(notes=NOTES, slow=slow, off=NOTES)
        after = "".join(lines_until(process, r"off is ready"))
        assert "off was started.\n" in after and "off is ready, 2 tools.\n" in after
        assert "slow is ready" not in after, "that was said with all others"


def test_a_server_that_is_taken_away_and_added_again_is_a_new_one(folder: Folder) -> None:
    folder.servers(counting=COUNTING, notes=NOTES)
    with folder.serving() as (process, _, _):
        folder.servers(counting=COUNTING)
        lines_until(process, r"notes was removed\.")
        folder.servers(counting=COUNTING, notes=NOTES)
        said = lines_until(process, r"notes is ready")
        assert "sluicegate: notes was added.\n" in said and said[-1] == "sluicegate: notes is ready, 2 tools.\n"


def test_the_effect_of_a_changed_file_is_printed(folder: Folder) -> None:
    folder.servers(counting=COUNTING, notes=NOTES)
    with folder.serving() as (process, _, _):
        folder.servers(counting=COUNTING, notes={**NOTES, "disabled": True})
        assert "notes was stopped: it is disabled in its file." in lines_until(process, "notes was")[-1]
        folder.servers(counting=COUNTING, notes=NOTES)
        lines_until(process, r"notes is ready again, 2 tools\.")
        folder.write("sluicegate.toml", '[profiles.few]\nservers = ["notes"]\n')
        assert "changed: profiles.few." in lines_until(process, "Settings changed")[-1]
        folder.write(".mcp.json", "{")
        broken = "".join(lines_until(process, "stays as it was"))
        assert ".mcp.json:1" in broken and "No server of this file is used" not in broken
        folder.servers(counting=COUNTING, notes=NOTES)
        said = "".join(lines_until(process, "reloaded; nothing changed"))
        assert "The files are applied again." in said


def test_a_mended_file_is_reported_also_where_other_things_are_still_wrong(folder: Folder) -> None:
    lost = {"command": "no-such-program-anywhere"}
    folder.servers(counting=COUNTING, lost=lost)
    with folder.serving() as (process, _, _):
        for broken, mended in (
            ("{", "stays as it was"),
            (json.dumps({"mcpServers": {"counting": 5, "lost": lost}}), "counting: "),
        ):
            folder.write(".mcp.json", broken)
            lines_until(process, mended)
            folder.servers(counting=COUNTING, lost=lost)
            lines_until(process, "The files are applied again")
            lines_until(process, "reloaded; nothing changed")
        folder.write("sluicegate.toml", "[servers.conting]\ntimeout = 5\n")
        lines_until(process, 'no server "conting"')
        (folder.path / "sluicegate.toml").unlink()
        lines_until(process, "reloaded; nothing changed")


def test_a_server_that_ends_is_reported_when_it_is_back(folder: Folder) -> None:
    ending = "import os, sluicegate\ns = sluicegate.Server('s')\n@s.tool\ndef end() -> None:\n    os._exit(3)\n"
    folder.write("ending.py", f"{ending}sluicegate.run(s)\n")
    folder.servers(ending={"command": sys.executable, "args": ["ending.py"]})
    with folder.serving() as (process, _, _):
        assert folder.run("call", "ending__end").returncode == 1
        lines_until(process, r"ending is ready again, 1 tool\.")


def test_a_missing_profile_is_reported_with_the_existing_ones(gateway: Folder) -> None:
    url = json.loads(gateway.out("status", "--json"))["address"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{url}/raeding", b"{}", timeout=PROMPTLY)
    with refused.value as answer:
        assert answer.code == 404
        assert json.load(answer)["error"]["message"] == "There is no profile 'raeding'; there are: reading."
    request = urllib.request.Request(f"{url}/raeding", b"{}", {"Host": "example.com"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=PROMPTLY)
    with refused.value as answer:
        assert answer.code == 421 and b"reading" not in answer.read()


def test_python_files_of_the_configuration_are_loaded(folder: Folder) -> None:
    folder.write("sluicegate.toml", f'[activations.mine]\nfile = "{DEMO}"\n\n[activations.wrong]\nfile = "wrong.py"\n')
    folder.write("wrong.py", "raise RuntimeError('no')\n")
    with folder.serving() as (_, _, said):
        assert "RuntimeError: no" in "".join(said)
        assert folder.out("call", "mine__echo", "text=hello") == "hello\n"
        rows = {line.split("\t")[0]: line for line in folder.out("status").splitlines()}
        assert rows["wrong"].split("\t")[1] == "failed" and "could not be loaded: RuntimeError" in rows["wrong"]


def test_a_python_file_that_is_not_there_is_loaded_when_it_comes(folder: Folder) -> None:
    folder.write("sluicegate.toml", '[activations.mine]\nfile = "mine.py"\n')
    with folder.serving() as (process, _, said):
        assert 'The file of the activation "mine" does not exist.' in "".join(said)
        folder.write(
            "mine.py", "import sluicegate\ns = sluicegate.Server('s')\n@s.tool\ndef hi() -> str:\n    return 'hi'\n"
        )
        lines_until(process, r"mine is ready, 1 tool\.")
        assert folder.out("call", "mine__hi") == "hi\n"


def test_a_command_and_a_file_that_are_not_there_are_reported_once_with_their_places(folder: Folder) -> None:
    folder.servers(notes=NOTES, lost={"command": "no-such-program-anywhere"})
    folder.write("sluicegate.toml", '[activations.gone]\nfile = "gone.py"\n')
    with folder.serving() as (process, _, said):
        said += lines_until(process, r"^  try: ")
    text = "".join(said)
    assert text.count("no-such-program-anywhere") == 1 and "/.mcp.json:" in text
    assert text.count("gone.py") + text.count('activation "gone"') == 1 and "/sluicegate.toml:2: " in text
    assert "1 of 3 servers ready" in text


def test_an_earlier_report_about_an_entry_does_not_hide_a_later_one(folder: Folder) -> None:
    folder.servers(notes=NOTES, lost={"command": "no-such-program-anywhere", "disabled": True})
    with folder.serving() as (process, _, _):
        lines_until(process, r"^  try: ")
        folder.servers(notes=NOTES, lost={"command": "sh", "args": ["-c", "echo the key is wrong >&2; exit 3"]})
        lines_until(process, "Its last output: the key is wrong")


def test_a_hub_in_a_python_file_is_a_server_like_any_other(folder: Folder) -> None:
    clock = "import sluicegate\nclock = sluicegate.Server('clock')\nclock.add_tool(lambda: 'noon', name='now')\n"
    folder.write("team.py", f"{clock}hub = sluicegate.Hub('team')\nhub.mount('clock', clock)\n")
    folder.write("sluicegate.toml", '[activations.team]\nfile = "team.py"\n')
    with folder.serving() as (process, _, _):
        assert folder.out("call", "team__clock__now") == "noon\n"
        folder.write("team.py", f"{clock}hub = sluicegate.Hub('team')\nhub.mount('tower', clock)\n")
        lines_until(process, "team was loaded again")
        folder.out_once("team__tower__now\t\t\n", "tools")
        process.send_signal(signal.SIGINT)
        assert process.wait(PROMPTLY) == 0
    assert folder.out("call", "team__tower__now") == "noon\n"


async def test_a_profile_has_an_address_of_its_own(folder: Folder) -> None:
    folder.servers(counting=COUNTING, notes=NOTES).write("sluicegate.toml", '[profiles.few]\nservers = ["counting"]\n')
    with folder.serving() as (_, url, said):
        assert f"profile few: {url}/few" in "".join(said)
        async with asyncio.timeout(PROMPTLY), sluicegate.connect(f"{url}/few") as client:
            assert [tool.name for tool in await client.tools()] == ["counting__count"]


def command(folder: Folder, *words: str) -> list[str]:
    return [sys.executable, "-m", "sluicegate", "serve", "--stdio", "--folder", str(folder.path), *words]


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_a_client_may_start_it(folder: Folder, era: sluicegate.Era) -> None:
    folder.servers(counting=COUNTING, notes=NOTES).write("sluicegate.toml", '[profiles.few]\nservers = ["counting"]\n')
    words = command(folder, "--profile", "few")
    async with asyncio.timeout(PROMPTLY), sluicegate.connect(words, env=folder.env, era=era, cwd="/") as client:
        assert (await client.call("counting__count", to=2)).text == "counted to 2"
        assert [tool.name for tool in await client.tools()] == ["counting__count"]


def test_a_client_may_call_native_methods_of_all_servers(folder: Folder) -> None:
    folder.servers(counting=COUNTING)
    with folder.started("serve", "--stdio", "--native") as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write('{"jsonrpc":"2.0","id":1,"method":"counting.count","params":[2]}\n')
        process.stdin.flush()
        answer, *events = [json.loads(process.stdout.readline()) for _ in range(6)]
        assert answer == {"jsonrpc": "2.0", "id": 1, "result": 1}
        found = [event["params"]["result"] for event in events]
        assert [event["type"] for event in found] == ["start", "progress", "progress", "content", "complete"]
        assert found[3]["text"] == "counted to 2"


def test_rules_hold_for_native_calls(folder: Folder) -> None:
    folder.servers(counting=COUNTING, notes=NOTES)
    rules = (
        '[[permissions]]\ntool = "mcp__notes"\naction = "deny"\n'
        '[[permissions]]\ntool = "mcp__counting__*"\naction = "ask"\n[control]\nport = 0\n'
    )
    folder.write("sluicegate.toml", rules)
    with folder.started("serve", "--stdio", "--native") as process:
        assert process.stdin is not None and process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def say(method: str, params: object) -> None:
            stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + "\n")
            stdin.flush()

        say("notes.write", {})
        error = json.loads(stdout.readline())["error"]
        assert error["code"] == -32601 and not any(name.startswith("notes") for name in error["data"]["available"])
        say("counting.count", [2])
        *_, asked = [json.loads(stdout.readline()) for _ in range(3)]
        assert asked["params"]["result"]["type"] == "request"
        say("respond", {"id": asked["params"]["result"]["id"], "action": "decline"})
        answers = [json.loads(stdout.readline()) for _ in range(2)]
        assert {"jsonrpc": "2.0", "id": 1, "result": True} in answers
        assert "error" in [each.get("params", {}).get("result", {}).get("type") for each in answers]


async def test_both_fronts_at_once(folder: Folder) -> None:
    folder.servers(counting=COUNTING)
    with folder.started("serve", "--stdio", "--http", "--port", "0") as process:
        url = re.search(r"serving at (\S+)", lines_until(process, "serving at")[-1])
        assert url is not None and process.stdin is not None and process.stdout is not None
        async with asyncio.timeout(PROMPTLY), sluicegate.connect(url[1]) as client:
            assert (await client.call("counting__count", to=2)).text == "counted to 2"
        meta: dict[str, object] = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        ask: dict[str, object] = {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {"_meta": meta}}
        process.stdin.write(json.dumps(ask) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 7
        process.stdin.close()
        assert process.wait(PROMPTLY) == 0


def test_a_second_gateway_for_the_folder_is_status_3(gateway: Folder) -> None:
    done = gateway.run("serve", "--port", "0")
    assert (done.returncode, done.stdout) == (3, "")
    url = json.loads(gateway.out("status", "--json"))["address"]
    assert done.stderr == f"sluicegate: sluicegate already serves this folder at {url}; `sluicegate status` shows it.\n"


def test_an_unusable_socket_path_is_status_3_and_reported(folder: Folder) -> None:
    folder.write("sluicegate.toml", '[control]\nsocket = "/dev/null/it.sock"\n')
    done = folder.run("serve", "--port", "0")
    assert (done.returncode, done.stdout) == (3, "")
    assert "socket = under [control]" in done.stderr and "Traceback" not in done.stderr


def test_a_second_gateway_at_the_same_port_is_reported_where_the_first_is(gateway: Folder) -> None:
    url = json.loads(gateway.out("status", "--json"))["address"]
    done = gateway.run("serve", "--port", url.split(":")[2].split("/")[0])
    assert done.returncode == 3 and f"already serves this folder at {url};" in done.stderr


def test_a_port_that_is_taken_is_status_3_and_no_server_was_started(folder: Folder) -> None:
    mark = folder.path / "started"
    folder.servers(marking={"command": sys.executable, "args": ["-c", f"open({str(mark)!r}, 'w')"]})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = folder.run("serve", "--port", port)
    assert (done.returncode, done.stdout) == (3, "")
    assert (
        done.stderr == f"sluicegate: port {port} is in use, perhaps by the gateway of another folder; use --port N.\n"
    )
    assert not mark.exists()


def test_an_address_that_others_can_reach_is_status_3(folder: Folder) -> None:
    for words, toml in ((["--host", "0.0.0.0"], ""), ([], '[http]\nhost = "0.0.0.0"\n')):
        folder.write("sluicegate.toml", toml)
        done = folder.run("serve", *words)
        assert done.returncode == 3 and "anyone_may_connect" in done.stderr and len(done.stderr.splitlines()) == 1


def test_errors_of_the_configuration_are_status_3_with_file_and_line(folder: Folder) -> None:
    folder.write("sluicegate.toml", "[http]\nport = 4747\nhots = 3\n")
    done = folder.run("serve")
    assert (done.returncode, done.stdout) == (3, "")
    assert re.search(r"sluicegate\.toml:3(:\d+)?: error: ", done.stderr) and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--config", "nowhere.json"], 3),
        (["--stdio", "--profile", "nowhere"], 3),
        (["--http"], 2),
        (["--stdio", "--port", "1"], 2),
        (["x.py", "--profile", "few"], 2),
        (["x.py", "--config", "y"], 2),
        (["x.py", "--demo"], 2),
        (["--folder", "nowhere"], 2),
    ],
)
def test_wrong_command_lines_are_reported(folder: Folder, words: list[str], status: int) -> None:
    done = folder.run("serve", *words)
    assert (done.returncode, done.stdout) == (status, "") and "Traceback" not in done.stderr


def test_a_port_on_the_command_line_counts_more_than_the_file_also_after_a_change(folder: Folder) -> None:
    folder.servers(counting=COUNTING).write("sluicegate.toml", "[http]\nport = 1\n")
    with folder.serving() as (process, url, _):
        folder.write("sluicegate.toml", "[http]\nport = 1\n\n[servers.counting]\ntimeout = 5\n")
        lines_until(process, "counting was adjusted")
        assert json.loads(folder.out("status", "--json"))["address"] == url


def test_help_of_every_command_has_examples_and_exit_statuses() -> None:
    from sluicegate.cli.main import COMMANDS

    for name in COMMANDS:
        done = subprocess.run(
            [sys.executable, "-m", "sluicegate", name, "--help"],
            capture_output=True,
            text=True,
            timeout=PROMPTLY,
            check=False,
        )
        assert done.returncode == 0 and "Examples:" in done.stdout and "Exit status:" in done.stdout, name
        assert "\b" not in done.stdout and "\\b" not in done.stdout, name


def test_a_server_that_fails_is_printed_at_once_with_its_last_output(capsys: pytest.CaptureFixture[str]) -> None:
    reported: set[str] = set()
    log = StartLog(reported)

    def fail(name: str, why: str, details: str = "") -> None:
        record = logging.makeLogRecord({"levelno": logging.WARNING, "server": name, "why": why, "details": details})
        log.handle(record)

    fail("notes", "notes exited with status 3; see `sluicegate logs notes`.", "; its last output: no key")
    assert capsys.readouterr().err == ""  # The address comes first.
    log.open()
    told = "sluicegate: notes exited with status 3; see `sluicegate logs notes`.\n    Its last output: no key\n"
    assert capsys.readouterr().err == told
    fail("notes", "again")
    fail("files", "files does not run. A port that it needs is in use.")
    assert capsys.readouterr().err == "sluicegate: files does not run. A port that it needs is in use.\n"
    assert reported == {"notes", "files"}
    log.settled()
    fail("notes", "notes is gone.")
    assert capsys.readouterr().err == "sluicegate: notes is gone.\n"
