"""`sluicegate serve` without a file: the gateway of a folder, as its users meet it."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys

import pytest

import sluicegate
from tests.cli.folders import COUNTING, DEMO, ENDING, NOTES, PROMPTLY, Folder, lines_until


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_all_servers_are_served_at_one_address(folder: Folder, era: sluicegate.Era) -> None:
    folder.servers(counting=COUNTING, notes=NOTES, broken=ENDING)
    with folder.serving() as (_, url, said):
        text = "".join(said)
        assert f"claude mcp add --transport http sluicegate {url}" in text
        assert (
            json.loads(text.partition("other clients: ")[2].splitlines()[0])["mcpServers"]["sluicegate"]["url"] == url
        )
        assert "2 of 3 servers ready, 3 tools: counting, notes" in text
        async with asyncio.timeout(PROMPTLY), sluicegate.connect(url, era=era) as client:
            assert {tool.name for tool in await client.tools()} == {"counting__count", "notes__write", "notes__forget"}
            assert (await client.call("counting__count", to=2)).text == "counted to 2"


def test_it_says_what_to_try_and_that_works(folder: Folder) -> None:
    with folder.started("serve", "--port", "0") as process:
        said = lines_until(process, "try:")
        words = said[-1].split("-m sluicegate ", 1)[1].split()
        assert words == ["call", "demo__echo", "text=hello"]
        done = folder.run(*words)
        assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_status_0(folder: Folder, number: signal.Signals) -> None:
    folder.servers(counting=COUNTING)
    with folder.serving() as (process, _, _):
        process.send_signal(number)
        assert process.wait(PROMPTLY) == 0
        assert process.stdout is not None and process.stdout.read() == ""
    assert folder.run("logs", "counting").returncode == 1  # Its socket is gone with it.


def test_with_no_files_the_demo_is_offered_until_there_are_some(folder: Folder) -> None:
    with folder.serving() as (process, _, said):
        assert "1 of 1 servers ready, 5 tools: demo" in "".join(said)
        folder.servers(counting=COUNTING)
        lines_until(process, r"demo was removed")
        folder.out_once("counting__count\tto\tCount aloud, one number at a time.\n", "tools")


def test_demo_adds_it_also_when_there_are_servers_and_keeps_it(folder: Folder) -> None:
    folder.servers(counting=COUNTING)
    with folder.serving("--demo") as (process, _, _):
        folder.servers(counting=COUNTING, notes=NOTES)
        lines_until(process, r"notes was added")
        names = [line.split("\t")[0] for line in folder.out("status").splitlines()]
        assert names == ["counting", "notes", "demo"]


def test_a_server_called_demo_keeps_its_name(folder: Folder) -> None:
    folder.servers(demo=COUNTING)
    with folder.serving("--demo"):
        assert {"demo__count", "sluicegate-demo__count"} <= {
            line.split("\t")[0] for line in folder.out("tools").splitlines()
        }


def test_a_file_with_nothing_but_ourselves_in_it_is_served_with_a_word_on_what_to_do(folder: Folder) -> None:
    folder.servers(sluicegate={"type": "http", "url": "http://127.0.0.1:4747/mcp"})
    with folder.started("serve", "--port", "0") as process:
        assert "sluicegate import" in lines_until(process, "nothing is there to run")[-1]


def test_python_files_of_the_configuration_are_loaded(folder: Folder) -> None:
    folder.write("sluicegate.toml", f'[activations.mine]\nfile = "{DEMO}"\n\n[activations.wrong]\nfile = "wrong.py"\n')
    folder.write("wrong.py", "raise RuntimeError('no')\n")
    with folder.serving() as (_, _, said):
        assert "RuntimeError: no" in "".join(said)
        assert folder.out("call", "mine__echo", "text=hello") == "hello\n"
        rows = {line.split("\t")[0]: line for line in folder.out("status").splitlines()}
        assert rows["wrong"].split("\t")[1] == "failed" and "could not be loaded: RuntimeError" in rows["wrong"]


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
    assert "Another gateway serves this folder already" in done.stderr


def test_a_place_for_the_socket_that_cannot_be_had_is_status_3_and_said(folder: Folder) -> None:
    done = folder.run("serve", "--port", "0", XDG_RUNTIME_DIR="/dev/null")
    assert (done.returncode, done.stdout) == (3, "")
    assert "socket = under [control]" in done.stderr and "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_status_3_and_no_server_was_started(folder: Folder) -> None:
    mark = folder.path / "started"
    folder.servers(marking={"command": sys.executable, "args": ["-c", f"open({str(mark)!r}, 'w')"]})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = folder.run("serve", "--port", port)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        f"sluicegate: port {port} of 127.0.0.1 is taken by another program; "
        "choose one with --port, or any with --port 0.\n"
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
def test_wrong_command_lines_are_told(folder: Folder, words: list[str], status: int) -> None:
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
