"""`sluicegate status`: how every server is."""

import json
import signal

from tests.cli.folders import COUNTING, ENDING, NOTES, PROMPTLY, Folder


def test_a_line_for_each_server_with_the_reason_for_those_that_are_not_ready(gateway: Folder) -> None:
    rows = [line.split("\t") for line in gateway.out("status").splitlines()]
    by_name = {row[0]: row for row in rows}
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


def test_without_a_gateway_the_servers_are_started_looked_at_and_ended(folder: Folder) -> None:
    folder.servers(notes=NOTES, counting=COUNTING, broken=ENDING, off={**NOTES, "disabled": True})
    done = folder.run("status")
    rows = {line.split("\t")[0]: line.split("\t") for line in done.stdout.splitlines()}
    assert done.returncode == 0 and "started for this command alone" in done.stderr
    states = {name: row[1] for name, row in rows.items()}
    assert states.pop("broken") in ("degraded", "failed", "starting")
    assert states == {"notes": "ready", "counting": "ready", "off": "disabled"}


def test_an_address_is_told_only_where_one_is(folder: Folder) -> None:
    assert json.loads(folder.out("status", "--json"))["address"] == ""


def test_a_folder_can_be_named(gateway: Folder, folder: Folder) -> None:
    done = folder.run("status", "--folder", str(gateway.path), XDG_RUNTIME_DIR=gateway.env["XDG_RUNTIME_DIR"])
    assert done.returncode == 0 and done.stdout.startswith("notes\tready") and done.stderr == ""
