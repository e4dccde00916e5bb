"""`sluicegate audit`: the record can be read, verified, proven and erased, with and without a running gateway."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluicegate.client.client import Client
from sluicegate.exchange import NOBODY, Caller, Exchange, Target, Verdict
from sluicegate.gate.audit import Audit
from sluicegate.protocol.message import Reply, Result
from sluicegate.store.audit_log import open_audit_log
from tests.cli.folders import COUNTING, ROOT, Folder

CANARY = "canary-5f2a-XyZ"
SETTINGS = '[audit]\nfolder = "log"\nanchors = ["copy/checkpoints"]\n'
WORDS = ("list", "tail", "stats", "export", "verify")


async def record(folder: Path) -> list[str]:
    """Four calls, as the gateway records them; their ids."""
    requests: list[str] = []

    async def answer(exchange: Exchange) -> Reply:
        return Result({"content": [], "isError": exchange.caller.id == "bob"})

    copies = (str(folder / "copy" / "checkpoints"),)
    async with open_audit_log(str(folder / "log"), anchors=copies) as log:
        step = Audit(log)
        for caller, name, action in (
            ("ada", "read", "allow"),
            ("ada", "write", "deny"),
            ("bob", "read", "allow"),
            ("ada", "re\x1b[31mad\n", "allow"),
        ):
            exchange = Exchange(
                "tools/call",
                {"arguments": {"path": "/srv/a", "password": CANARY}},
                NOBODY,
                caller=Caller(caller),
                target=Target("files", "tool", name),
                verdict=Verdict(action, records_values=name == "write"),  # pyright: ignore[reportArgumentType]
            )
            await step(exchange, answer)
            requests.append(exchange.request_id)
    return requests


@pytest.fixture
def requests(folder: Folder) -> list[str]:
    """The requests of a log in the folder."""
    folder.write("sluicegate.toml", SETTINGS)
    return asyncio.run(record(folder.path))


def lines(folder: Folder, *words: str) -> list[dict[str, object]]:
    done = folder.invoke("audit", *words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_rows_are_listed_and_filtered(folder: Folder, requests: list[str]) -> None:
    assert len(lines(folder, "list", "--json")) == len(lines(folder, "export")) == 10
    denied = lines(folder, "list", "--json", "--verdict", "deny")
    assert [(row["request"], row["name"], row["caller"]) for row in denied] == [(requests[1], "write", "ada")]
    assert len(lines(folder, "list", "--json", "--caller", "b*", "--kind", "outcome")) == 1
    assert len(lines(folder, "list", "--json", "--tool", "w*", "--server", "files")) == 2
    assert len(lines(folder, "list", "--json", "--since", "1h", "--last", "3")) == 3
    assert lines(folder, "list", "--json", "--until", "1h") == lines(folder, "list", "--json", "--since", "2100-01-01")
    rows = folder.invoke("audit", "list", "--caller", "bob").stdout.splitlines()
    assert [row.split("\t")[1:6] for row in rows] == [
        ["decision", "bob", "files", "read", "allow"],
        ["outcome", "bob", "files", "read", "tool_error"],
    ]


@pytest.mark.parametrize("name", ["write", "files__write", "mcp__files__write", "files.write", "f*__w*", "my__write"])
def test_tools_are_found_by_the_names_that_clients_see(folder: Folder, requests: list[str], name: str) -> None:
    folder.servers(Files={"command": "files"})
    folder.write("sluicegate.toml", f'{SETTINGS}\n[servers.Files]\nprefix = "my"\n')
    found = lines(folder, "list", "--json", "--tool", name)
    assert [row["request"] for row in found] == [requests[1]] * 2
    assert lines(folder, "list", "--json", "--server", "Files") == lines(folder, "list", "--json", "--server", "files")
    assert lines(folder, "list", "--json", "--tool", "other__write") == []


def test_a_server_without_a_prefix_is_not_what_a_command_without_conditions_means(
    folder: Folder, requests: list[str]
) -> None:
    folder.servers(other={"command": "other"})
    folder.write("sluicegate.toml", f'{SETTINGS}\n[servers.other]\nprefix = ""\n')
    assert len(lines(folder, "list", "--json")) == len(lines(folder, "export")) == 10
    assert len(lines(folder, "list", "--json", "--tool", "__write")) == 0
    done = folder.invoke("audit", "erase", "--yes")
    assert done.returncode == 2 and "Say which values" in done.stderr


def test_the_key_of_a_server_counts_more_than_the_name_or_prefix_of_another(
    folder: Folder, requests: list[str]
) -> None:
    folder.servers(files={"command": "files"}, other={"command": "other"})
    folder.write(
        "sluicegate.toml", f'{SETTINGS}\n[servers.files]\nprefix = "other"\n[servers.other]\nprefix = "files"\n'
    )
    assert len(lines(folder, "list", "--json", "--server", "files")) == 8
    assert lines(folder, "list", "--json", "--server", "other") == []
    assert len(lines(folder, "list", "--json", "--tool", "files__write")) == 2


def test_a_search_without_matches_prints_so(folder: Folder, requests: list[str]) -> None:
    for words in (["list"], ["list", "--json"], ["tail"]):
        done = folder.invoke("audit", *words, "--caller", "eve")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "sluicegate: no rows match.\n")


def test_a_terminal_that_follows_shows_the_head_once(folder: Folder, requests: list[str]) -> None:
    with folder.terminal("audit", "tail", "--follow", "-n", "1", COLUMNS="200") as terminal:
        terminal.until("closed")
        asyncio.run(record(folder.path))
        shown = terminal.until("tool_error")
        assert len(re.findall("verdict", shown)) == 1


def test_t30_a_name_cannot_forge_a_line_or_control_the_terminal(folder: Folder, requests: list[str]) -> None:
    for words in (["list"], ["list", "--json"], ["export"], ["stats"], ["tail"]):
        out = folder.invoke("audit", *words).stdout
        assert "\x1b" not in out and not re.search(r"^ad", out, re.MULTILINE)


def test_t31_no_command_shows_a_secret(folder: Folder, requests: list[str]) -> None:
    outputs = [folder.invoke("audit", word).stdout for word in WORDS]
    outputs += [folder.invoke("audit", word, requests[1]).stdout for word in ("show", "prove")]
    assert all(outputs[:4]) and CANARY not in "".join(outputs)
    files = [path for path in (folder.path / "log").iterdir() if path.is_file()]
    assert CANARY.encode() not in b"".join(path.read_bytes() for path in files)


def test_a_request_is_shown_with_its_recorded_values(folder: Folder, requests: list[str]) -> None:
    shown = json.loads(folder.invoke("audit", "show", requests[1]).stdout)
    assert [row["kind"] for row in shown["rows"]] == ["decision", "outcome"]
    assert shown["values"] == {"path": "/srv/a", "password": "***"}
    assert "values" not in json.loads(folder.invoke("audit", "show", requests[0]).stdout)
    assert folder.invoke("audit", "show", "*").returncode == 1, "it is no glob"


def test_the_last_rows_and_new_ones_are_printed(folder: Folder, requests: list[str]) -> None:
    assert len(folder.invoke("audit", "tail", "-n", "2").stdout.splitlines()) == 2
    with folder.started("audit", "tail", "--follow", "--json", "-n", "1") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["verdict"] == "closed"
        asyncio.run(record(folder.path))
        assert json.loads(process.stdout.readline())["verdict"] == "opened"
        assert json.loads(process.stdout.readline())["kind"] == "decision"


def test_on_a_narrow_terminal_a_row_takes_few_lines_and_no_rows_have_no_head(
    folder: Folder, requests: list[str]
) -> None:
    with folder.terminal("audit", "list", "--server", "nothing", COLUMNS="80") as terminal:
        assert terminal.ended() == 0 and "verdict" not in terminal.drawn
    with folder.terminal("audit", "list", "--kind", "decision", "-n", "1", COLUMNS="80", NO_COLOR="1") as terminal:
        assert terminal.ended() == 0
        first, second, *_ = terminal.drawn.splitlines()
        assert first.endswith("  decision") and second.startswith("    caller: ada, server: files, ")


def test_calls_are_counted(folder: Folder, requests: list[str]) -> None:
    counts = json.loads(folder.invoke("audit", "stats", "--json", "--tool", "read").stdout)
    assert [(row["server"], row["name"], row["verdicts"]) for row in counts] == [
        ("files", "read", {"allow": 2, "ok": 1, "tool_error": 1})
    ]
    assert counts[0]["p95_ms"] >= counts[0]["p50_ms"] >= 0
    assert "allow 2, ok 1, tool_error 1" in folder.invoke("audit", "stats").stdout


def test_a_log_is_verified_and_the_first_bad_row_named(folder: Folder, requests: list[str]) -> None:
    good = folder.invoke("audit", "verify")
    assert good.returncode == 0 and "10 rows in 1 file" in good.stderr
    (path,) = (folder.path / "log").glob("*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b'"caller":"ada"', b'"caller":"eve"')
    path.write_bytes(b"".join(lines))
    bad = folder.invoke("audit", "verify")
    assert bad.returncode == 1 and f"{path.name}: row 4 has been changed" in bad.stdout
    report = json.loads(folder.invoke("audit", "verify", "--json").stdout)
    assert report["faults"][0]["row"] == 4


def test_the_hashes_of_a_log_are_checked_without_sluicegate(folder: Folder, requests: list[str]) -> None:
    def checked() -> "subprocess.CompletedProcess[str]":
        copy = folder.path / "copy" / "checkpoints"
        command = [sys.executable, str(ROOT / "examples" / "verify_log.py"), str(folder.path / "log"), str(copy)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)

    assert not re.search("(from|import) sluicegate", (ROOT / "examples" / "verify_log.py").read_text())
    key = (folder.path / "log" / "signing.pub").read_text()
    assert checked().stdout == f"writer1: 10 rows\nsigned with {key}", checked().stderr
    (path,) = (folder.path / "log").glob("*.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"caller":"bob"', b'"caller":"eve"'))
    assert "row 6 is not as it was written" in checked().stderr
    path.unlink()
    assert "rows 1 to 10 are missing" in checked().stderr
    (folder.path / "log" / "writer1.checkpoints").unlink()
    assert "rows 1 to 10 are missing" in checked().stderr, "the copy says so"
    shutil.rmtree(folder.path / "log")
    asyncio.run(record(folder.path))
    assert "checkpoints of another log" in checked().stderr
    shutil.rmtree(folder.path / "log")
    assert "has no audit log" in checked().stderr


def test_the_anchor_of_the_settings_is_compared(folder: Folder, requests: list[str]) -> None:
    log = folder.path / "log"
    for path in [*log.glob("*.jsonl"), log / "writer1.checkpoints"]:
        path.unlink()
    asyncio.run(record(folder.path / "elsewhere"))
    (path,) = (folder.path / "elsewhere" / "log").glob("*.jsonl")
    path.rename(log / path.name)
    assert folder.invoke("audit", "verify").returncode == 1
    assert folder.invoke("audit", "verify", "--key", "nonsense").returncode == 1


def test_a_proof_is_checked_without_sluicegate(folder: Folder, requests: list[str]) -> None:
    proof = folder.write("proof.json", folder.invoke("audit", "prove", requests[1]).stdout)
    key = (folder.path / "log" / "signing.pub").read_text().strip()

    def checked(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, str(ROOT / "examples" / "verify_proof.py"), str(proof), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)

    def other(text: str) -> str:
        return ("B" if text[0] == "A" else "A") + text[1:]

    assert not re.search("(from|import) sluicegate", (ROOT / "examples" / "verify_proof.py").read_text())
    done = checked(key)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("row 4: decision deny files write of ada")
    assert checked().stdout.splitlines()[-1] == f"signed with {key}"
    good = json.loads(proof.read_text())
    for damage in ("content", "previous", "checkpoint", "values"):
        broken = json.loads(json.dumps(good))
        text = broken["rows"][0][damage]
        broken["rows"][0][damage] = text.replace("deny", "okay") if damage == "content" else other(text)
        if damage == "values":
            broken["rows"][0][damage] = text.replace("/srv/a", "/srv/b")
        proof.write_text(json.dumps(broken))
        assert checked(key).returncode != 0, damage
    proof.write_text(json.dumps({**good, "rows": []}))
    assert "has no rows" in checked(key).stderr


def test_values_are_erased_when_that_is_confirmed(folder: Folder, requests: list[str]) -> None:
    assert folder.invoke("audit", "erase", requests[1]).returncode == 1, "there is no terminal to confirm it on"
    assert folder.invoke("audit", "erase", "--yes").returncode == 2, "not all of them by accident"
    done = folder.invoke("audit", "erase", requests[1], "--yes")
    assert (done.returncode, done.stderr) == (0, "sluicegate: erased the values of 1 row.\n")
    assert "values" not in json.loads(folder.invoke("audit", "show", requests[1]).stdout)
    assert folder.invoke("audit", "verify").returncode == 0


def test_a_file_that_cannot_be_read_is_named_and_the_rest_is_shown(folder: Folder, requests: list[str]) -> None:
    (folder.path / "log" / "2020-01-writer9.jsonl").write_bytes(b"x" * 5000 + b"\n")
    done = folder.invoke("audit", "list", "--json")
    assert (
        done.returncode == 1
        and len(done.stdout.splitlines()) == 10
        and "2020-01-writer9.jsonl cannot be read" in done.stderr
    )


def test_a_folder_without_a_log_says_so(folder: Folder) -> None:
    for word in WORDS:
        done = folder.invoke("audit", word)
        assert done.returncode == 1 and "there is no audit log in" in done.stderr
    done = folder.invoke("audit", "list", "--since", "soon")
    assert done.returncode == 2 and "is not a time" in done.stderr


# ------------------------------------------------------------------------------------------- with a running gateway


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The control operations that commands of this process asked a gateway for."""
    names: list[str] = []
    call = Client.call

    async def note(client: Client, tool: str, *words: Any, **options: Any) -> Any:
        names.append(tool)
        return await call(client, tool, *words, **options)

    monkeypatch.setattr(Client, "call", note)
    return names


@contextmanager
def gateway_with_calls(folder: Folder) -> Generator["subprocess.Popen[str]"]:
    """A running gateway, which keeps its log in the folder `log` and has answered a call."""
    folder.servers(counting=COUNTING)
    folder.write("sluicegate.toml", f'{SETTINGS}\n[servers.counting]\nprefix = "my"\n')
    with folder.serving() as (process, _, _):
        folder.out("call", "my__count", "to=1")
        yield process


def test_commands_that_read_rows_ask_the_running_gateway(folder: Folder, asked: list[str]) -> None:
    with gateway_with_calls(folder):
        asked.clear()
        rows = lines(folder, "list", "--json", "--tool", "my__count", "--caller", "local")
        assert [(row["kind"], row["server"], row["name"]) for row in rows] == [
            ("decision", "counting", "count"),
            ("outcome", "counting", "count"),
        ]
        assert lines(folder, "list", "--json", "--server", "my", "--caller", "local", "--last", "2") == rows
        assert (
            lines(
                folder, "list", "--json", "--server", "my", "--caller", "local", "--last", "1001", "--kind", "decision"
            )
            == rows[:1]
        )
        assert lines(folder, "tail", "--json", "-n", "1", "--kind", "outcome") == rows[1:]
        shown = json.loads(folder.invoke("audit", "show", str(rows[0]["request"])).stdout)
        assert shown["rows"] == rows
        [counts] = json.loads(
            folder.invoke("audit", "stats", "--json", "--tool", "my__count", "--caller", "local").stdout
        )
        assert counts["verdicts"] == {"allow": 1, "ok": 1}
        names = [name for name in asked if name != "status"]
        assert names == ["audit_rows", "audit_last", "audit_rows", "audit_last", "audit_request", "audit_stats"]


def test_commands_read_the_log_of_a_gateway_whose_files_are_now_wrong(folder: Folder) -> None:
    with gateway_with_calls(folder):
        folder.write("sluicegate.toml", "[audit\n")
        assert len(lines(folder, "list", "--json", "--tool", "my__count", "--caller", "local")) == 2
        assert folder.invoke("audit", "verify").returncode == 3


def test_files_are_read_for_options_that_name_them(folder: Folder, asked: list[str]) -> None:
    with gateway_with_calls(folder):
        asked.clear()
        log = str(folder.path / "log")
        assert len(lines(folder, "list", "--json", "--tool", "count", "--caller", "local", "--audit-folder", log)) == 2
        settings = str(folder.path / "sluicegate.toml")
        assert len(lines(folder, "list", "--json", "--tool", "count", "--caller", "local", "--config", settings)) == 2
        assert asked == []


def test_verify_prove_export_and_erase_use_the_files_of_a_running_gateway(folder: Folder, asked: list[str]) -> None:
    with gateway_with_calls(folder):
        asked.clear()
        rows = lines(folder, "export", "--tool", "my__count", "--caller", "local")
        assert len(rows) == 2
        assert folder.invoke("audit", "verify").returncode == 0
        assert folder.invoke("audit", "erase", str(rows[0]["request"]), "--yes").returncode == 0
        folder.invoke("audit", "prove", str(rows[0]["request"]))
        assert asked == []


def test_following_goes_on_when_the_gateway_stops(folder: Folder) -> None:
    with gateway_with_calls(folder) as gateway:
        with folder.started("audit", "tail", "--follow", "--json", "-n", "1", "--kind", "outcome") as tail:
            assert tail.stdout is not None
            assert json.loads(tail.stdout.readline())["name"] == "count"
            folder.out("call", "my__count", "to=1")
            assert json.loads(tail.stdout.readline())["name"] == "count"
            gateway.terminate()
            gateway.wait(30)
            asyncio.run(record(folder.path))
            assert json.loads(tail.stdout.readline())["caller"] == "ada"


def test_a_gateway_that_records_nothing_names_the_way_to_an_older_log(folder: Folder, requests: list[str]) -> None:
    folder.servers(counting=COUNTING)
    folder.write("sluicegate.toml", f"{SETTINGS}enabled = false\n")
    with folder.serving():
        done = folder.invoke("audit", "list")
        assert (done.returncode, done.stdout) == (1, "")
        assert "keeps no audit log" in done.stderr and "--audit-folder" in done.stderr
        assert len(lines(folder, "list", "--json", "--audit-folder", str(folder.path / "log"))) == 10
