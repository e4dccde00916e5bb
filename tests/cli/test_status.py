"""`sluicegate status`: the state of every server."""

import json
import os
import re
import signal
import urllib.request
from functools import partial
from typing import cast

import pytest

from sluicegate.cli.status import StatusLines
from sluicegate.control.reports import GatewayReport
from sluicegate.gateway.status import ServerStatus
from sluicegate.hub.supervise import tried_singly
from tests.cli.folders import COUNTING, ENDED, ENDING, NO_GATEWAY, NOTES, PROMPTLY, Folder, lines_until


def test_status_has_a_line_for_each_server_with_the_reason_if_it_is_not_ready(gateway: Folder) -> None:
    by_name = {row[0]: row for row in gateway.states()}
    assert list(by_name) == ["notes", "broken", "demo"]
    assert by_name["notes"][1:5] == ["ready", "2026-07-28", "stdio", "2"] and by_name["notes"][-1] == ""
    assert by_name["demo"][1:5] == ["ready", "2026-07-28", "python", "5"]
    assert by_name["broken"][1] in ("degraded", "failed", "starting") and "broken" in by_name["broken"][-1]


def test_json_has_all_that_is_known(gateway: Folder) -> None:
    before = json.loads(gateway.out("status", "--json"))
    gateway.out("call", "demo__echo", "text=a")
    after = json.loads(gateway.out("status", "--json"))
    assert before["address"].startswith("http://127.0.0.1:") and before["root"] == str(gateway.path)
    demo = next(server for server in after["servers"] if server["name"] == "demo")
    calls = next(server for server in before["servers"] if server["name"] == "demo")["calls"]
    assert demo["calls"] == calls + 1 and demo["era"] == "modern" and demo["errors"] >= 0


def test_watching_prints_it_again_when_something_changes(gateway: Folder) -> None:
    with gateway.started("status", "--watch", "--json") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        gateway.out("call", "demo__echo", "text=a")
        calls = _calls(first)
        while _calls(json.loads(process.stdout.readline())) == calls:
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(PROMPTLY) == 130
        assert process.stderr is not None and process.stderr.read() == ""


def _calls(report: "dict[str, list[dict[str, object]]]") -> object:
    return next(server["calls"] for server in report["servers"] if server["name"] == "demo")


def post(url: str, message: dict[str, object], **headers: str) -> str:
    """Send a message as a client of the session era does; the session that it is in."""
    headers |= {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    request = urllib.request.Request(url, json.dumps({"jsonrpc": "2.0", **message}).encode(), headers)
    with urllib.request.urlopen(request, timeout=PROMPTLY) as answer:
        answer.read()
        return answer.headers.get("Mcp-Session-Id") or ""


def test_losses_are_reported_with_their_number(folder: Folder) -> None:
    folder.servers(notes=NOTES, counting=COUNTING)
    with folder.serving() as (_, url, _):
        assert "preserved" not in folder.run("status").stderr
        opening = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
        session = post(url, {"id": 1, "method": "initialize", "params": opening})
        post(url, {"method": "notifications/initialized"}, **{"Mcp-Session-Id": session})
        note = {"name": "notes__write", "arguments": {"day": "monday", "text": "Rest."}}
        for number in (2, 3):
            post(url, {"id": number, "method": "tools/call", "params": note}, **{"Mcp-Session-Id": session})
        told = (
            r"notes: not preserved between revisions of MCP, the last time at \d\d:\d\d:\d\d: structured content said"
        )
        told += r" as text \(2 times\)\. A client and a server of the same revision lose nothing;"
        told += r" `sluicegate status --clear`"
        done = folder.run("status")
        assert re.fullmatch(f"sluicegate: {told} clears this\\.\n", done.stderr) and len(done.stdout.splitlines()) == 3
        assert "preserved" not in folder.run("status", "--clear").stderr


NONE = "no gateway runs for this folder; waiting for `sluicegate serve` to start one."


STARTS = "import os, sys; open('starts', 'a').write('.'); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
COUNTED = {**COUNTING, "args": ["-c", STARTS, *cast("list[str]", COUNTING["args"])]}
"""A server that leaves a mark in the folder whenever it is started."""


def test_watch_without_a_gateway_waits_for_one_and_for_the_next(folder: Folder) -> None:
    folder.servers(counting=COUNTED)
    with folder.started("status", "--watch", "--json") as watching:
        assert watching.stdout is not None and watching.stderr is not None
        addresses: list[str] = []
        for _ in range(2):
            assert watching.stderr.readline() == f"sluicegate: {NONE}\n"
            with folder.serving() as (gateway, url, _):
                while (report := json.loads(watching.stdout.readline()))["address"] != url:
                    assert not report["address"]  # It is just starting.
                addresses.append(url)
                gateway.send_signal(signal.SIGTERM)
                assert gateway.wait(PROMPTLY) == 0
        assert watching.stderr.readline() == f"sluicegate: {NONE}\n"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(PROMPTLY) == 130 and watching.stderr.read() == ""
    assert len(addresses) == 2 and (folder.path / "starts").read_text() == "..", "only the gateways have started it"


def test_a_server_that_is_being_fetched_is_shown_once_as_installing(folder: Folder) -> None:
    os.mkfifo(folder.path / "gate")
    npx = folder.write("bin/npx", '#!/bin/sh\nread -r arrived <gate\nexec "$@"\n')
    npx.chmod(0o755)
    words = [str(COUNTING["command"]), *cast("list[str]", COUNTING["args"])]
    path = f"{npx.parent}{os.pathsep}{os.environ['PATH']}"
    folder.servers(counting={"command": "npx", "args": words, "env": {"PATH": path}})
    with folder.started("serve", "--port", "0") as gateway:
        lines_until(gateway, "serving at")
        with folder.started("status", "--watch") as watching:
            assert watching.stdout is not None
            rows = [watching.stdout.readline().split("\t")]
            while rows[-1][1] != "ready":
                rows.append(watching.stdout.readline().split("\t"))
                if rows[-1][1] == "installing":
                    assert re.match(r"counting has not answered for \d+ s: npx is probably fetching it", rows[-1][-1])
                    (folder.path / "gate").write_text("here\n")
            assert [row[1] for row in rows].count("installing") == 1


def test_a_terminal_shows_that_it_waits_and_then_the_gateway(folder: Folder) -> None:
    folder.servers(counting=COUNTING)
    with folder.terminal("status", "--watch") as terminal:
        terminal.until("No gateway runs for this folder; waiting")
        with folder.serving() as (gateway, url, _):
            terminal.until(re.escape(url))
            shown = len(terminal.drawn)
            gateway.kill()
            while "No gateway runs" not in terminal.drawn[shown:]:
                terminal.until(f"(?s).{{{len(terminal.drawn) + 1}}}")
        terminal.interrupt()
        assert terminal.ended() == 130


def test_a_file_that_was_named_cannot_be_watched(folder: Folder) -> None:
    done = folder.servers(counting=COUNTING).run("status", "--watch", "--config", ".mcp.json")
    assert done.returncode == 2 and "leave --config out" in done.stderr


def test_without_a_gateway_the_configuration_is_shown_with_the_tools_of_the_last_time(folder: Folder) -> None:
    folder.servers(notes=NOTES, counting=COUNTING, off={**NOTES, "disabled": True})
    assert folder.run("call", "counting__count", "to=1").returncode == 0
    done = folder.run("status")
    rows = {line.split("\t")[0]: line.split("\t") for line in done.stdout.splitlines()[1:]}
    assert (done.returncode, done.stderr) == (0, f"{NO_GATEWAY}\n")
    assert {name: (row[1], row[4]) for name, row in rows.items()} == {
        "notes": ("stopped", "0"),
        "counting": ("stopped", "1"),
        "off": ("disabled", "0"),
    }


def test_an_address_is_reported_only_where_one_is(folder: Folder) -> None:
    assert json.loads(folder.out("status", "--json"))["address"] == ""


@pytest.mark.parametrize("option", ["--folder", "--directory", "-C"])
def test_a_folder_can_be_named(gateway: Folder, folder: Folder, option: str) -> None:
    done = folder.run("status", option, str(gateway.path), XDG_RUNTIME_DIR=gateway.env["XDG_RUNTIME_DIR"])
    assert done.returncode == 0 and "\nnotes\tready" in done.stdout and done.stderr == ""


def findings(folder: Folder) -> list[str]:
    return json.loads(folder.out("status", "--json"))["findings"]


def test_a_file_that_broke_is_reported_with_its_line_and_what_is_kept_until_it_is_mended(folder: Folder) -> None:
    folder.servers(counting=COUNTING)
    with folder.serving() as (process, _, _):
        assert findings(folder) == []
        file = folder.write(".mcp.json", '{\n  "mcpServers": {\n')
        lines_until(process, "stays as it was")
        (said,) = findings(folder)
        assert said.startswith(f"{file}:3:1: warning: The file ends before the {{ of line 2 is closed")
        assert said.endswith("The gateway goes on with what it had before.") and "No server" not in said
        done = folder.run("status")
        assert "\ncounting\tready" in done.stdout and done.stderr == f"sluicegate: {said}\n"
        with folder.terminal("status") as terminal:
            assert terminal.ended() == 0
            assert "goes on with what it had before." in " ".join(terminal.drawn.split())
        folder.servers(counting=COUNTING)
        lines_until(process, "are applied again")
        assert findings(folder) == [] and folder.run("status").stderr == ""


def test_settings_that_broke_are_reported_too(folder: Folder) -> None:
    folder.servers(counting=COUNTING)
    with folder.serving() as (process, _, _):
        file = folder.write("sluicegate.toml", "[http]\nhots = 3\n")
        lines_until(process, "stays as it was")
        (said,) = findings(folder)
        assert said.startswith(f"{file}:2") and said.endswith("The gateway goes on with what it had before.")


def test_a_server_that_runs_on_since_its_entry_broke_is_reported(folder: Folder) -> None:
    folder.servers(counting=COUNTING, notes=NOTES)
    with folder.serving() as (process, _, _):
        folder.servers(counting=COUNTING, notes={"command": 5})
        lines_until(process, "notes: ")
        (said,) = findings(folder)
        assert "warning: notes: " in said and said.endswith(" It runs on as it was before.")
        assert [row[1] for row in folder.states()] == ["ready", "ready"]


def test_a_conflict_that_appears_when_files_are_applied_is_reported(folder: Folder) -> None:
    folder.servers(counting=COUNTING).write("sluicegate.toml", '[servers.late]\nprefix = "counting"\n')
    with folder.serving() as (process, _, _):
        # The one that broke would run on as it was, under the prefix that the other one is to have.
        folder.servers(counting={"command": 5}, late=NOTES)
        lines_until(process, "stays as it was")
        (said,) = (said for said in findings(folder) if "both have the prefix 'counting'" in said)
        assert said.endswith("The gateway goes on with what it had before.")
        assert folder.out("tools") == "counting__count\tto\tCount aloud, one number at a time.\n"


def test_a_file_that_was_broken_from_the_start_is_reported(folder: Folder) -> None:
    folder.write(".mcp.json", "{")
    with folder.serving():
        (said,) = findings(folder)
        assert ".mcp.json:1" in said and said.endswith("No server of this file is used.")


def test_watch_reports_a_file_that_breaks(folder: Folder) -> None:
    folder.servers(counting=COUNTING)
    with folder.serving(), folder.started("status", "--watch", "--json") as status:
        assert status.stdout is not None and json.loads(status.stdout.readline())["findings"] == []
        folder.write(".mcp.json", "{")
        while not json.loads(status.stdout.readline())["findings"]:
            pass


def test_a_server_started_for_one_command_is_not_reported_as_restarting(folder: Folder) -> None:
    folder.servers(broken=ENDING)
    why = folder.run("doctor", "--start").stdout
    assert re.search(f"error: broken {ENDED}", why) and "it is broken" in why
    assert "It was started for this command only and is not restarted." in why
    assert "again in" not in why and "sluicegate logs" not in why


def test_the_gateways_own_entry_is_no_server_and_status_is_silent_about_it(folder: Folder) -> None:
    folder.servers(counting=COUNTING, sluicegate={"type": "http", "url": "http://127.0.0.1:4747/mcp"})
    with folder.serving() as (_, _, said):
        assert "disabled" not in "".join(said) and "1 of 1 server ready, 1 tool: counting" in "".join(said)
        running = folder.run("status")
        assert findings(folder) == []
        assert "there is no server 'sluicegate'" in folder.run("logs", "sluicegate").stderr
    for done in (running, folder.run("status")):
        assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["server", "counting"]
        assert "itself" not in done.stderr
    checked = folder.run("check")
    assert [line.split("\t")[0] for line in checked.stdout.splitlines()] == ["counting"]
    assert checked.stderr.count("this gateway itself") == 1


@pytest.mark.parametrize("command", [("status",), ("tools",), ("call", "mine__add", "a=1")])
def test_a_file_of_which_nothing_can_be_read_is_reported_where_no_gateway_runs(
    folder: Folder, command: tuple[str, ...]
) -> None:
    (folder.path / ".mcp.json").write_text("hello, not json")
    done = folder.run(*command)
    assert ".mcp.json:1:1: warning: 'hello' is not a value" in done.stderr
    if command == ("status",):
        assert "no servers are configured" in done.stderr


def test_only_changes_of_a_failed_server_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    def report(sentence: str) -> GatewayReport:
        server = ServerStatus(name="a", state="failed", sentence=sentence, kind="stdio")
        return GatewayReport(address="", root="", profiles=[], servers=[server], findings=[], naming="prefix")

    singly = partial(tried_singly, restarted_by="sluicegate restart a", is_light=False)
    lines = StatusLines(as_json=True)
    for sentence in (singly(1.0), singly(2.0), singly(61.0), "It is another."):
        lines.show(report(sentence))
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_whole_command_line_as_command_has_one_way_out_wherever_it_is_reported(folder: Folder) -> None:
    folder.servers(weather={"command": "python3 weather.py --api-key sk-0123456789abcdef"})
    told = 'was not found: write "command": "python3" and "args": ["weather.py", "--api-key", "***"].'
    assert told in folder.invoke("check").stderr
    for command in ("status", "doctor"):
        done = folder.run(command)
        assert told in done.stdout and "sk-01234" not in done.stdout + done.stderr
    with folder.serving() as (_, _, said):
        assert told in "".join(said) and "sk-01234" not in "".join(said)
        assert told in folder.out("status")
        assert told in folder.run("call", "weather__today").stderr


def test_a_wrong_entry_is_called_wrong_and_the_entry_of_the_gateway_itself_is_not_mentioned(folder: Folder) -> None:
    folder.servers(
        number={"command": 5},
        unset={"command": "true", "env": {"A": "${SURELY_NOT_SET}"}},
        off={"command": "true", "disabled": True},
        itself={"url": "http://127.0.0.1:4747/mcp"},
    )
    done = folder.invoke("status")
    _, *rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[:2] for row in rows] == [["number", "wrong"], ["unset", "wrong"], ["off", "disabled"]]
    assert "itself" not in done.stdout + done.stderr
