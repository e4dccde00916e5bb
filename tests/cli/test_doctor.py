"""`sluicegate doctor`: it finds each kind of problem, and says what to do."""

import hashlib
import json
import os
import re
import socket
import sys
from contextlib import nullcontext
from typing import cast

import pytest

from sluicegate.cli.doctor import Finding, check_rules, check_servers, check_tools
from sluicegate.config.model import GatewayConfig, Naming, ServerConfig
from sluicegate.control.reports import GatewayReport, OfferedItem
from sluicegate.gate.rules import Permission, PolicyConfig, Rule
from sluicegate.gateway.status import ServerStatus
from sluicegate.hub.naming import names_for
from tests.cli.folders import COUNTING, ENDED, ENDING, NOTES, Folder, lines_until
from tests.ports import free_port

LONG = "a_tool_with_a_name_that_goes_on_and_on_for_longer_than_any_model_api_takes"


def findings(folder: Folder, status: int = 1, *words: str) -> list[Finding]:
    done = folder.run("doctor", "--start", "--json", *words)
    assert done.returncode == status, done.stdout + done.stderr
    return [Finding(**each) for each in json.loads(done.stdout)]


def about(found: list[Finding], name: str) -> str:
    return "\n".join(f"{each.severity}: {each.sentence} {each.remedy}" for each in found if each.about == name)


def test_a_report_without_problems_says_so(folder: Folder) -> None:
    folder.servers(notes=NOTES).write("sluicegate.toml", f"[http]\nport = {free_port()}\n")
    done = folder.run("doctor", "--start")
    assert (done.returncode, done.stdout) == (0, "") and done.stderr.endswith("sluicegate: found no problems.\n")


def test_problems_come_first_and_both_they_and_the_notes_are_counted(folder: Folder) -> None:
    folder.servers(notes=NOTES, off={**NOTES, "disabled": True}, lost={"command": "no-such-program-anywhere"})
    folder.write("sluicegate.toml", f"[http]\nport = {free_port()}\n[servers.nots]\nqueue = 1\n")
    done = folder.run("doctor")
    kinds = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert kinds == ["error", "warning", "note", "note"]
    assert done.stderr.endswith("sluicegate: found 2 problems and 2 notes.\n")
    with folder.terminal("doctor") as terminal:
        assert terminal.ended() == 1
    page = re.sub(r"\x1b\[[0-9;]*m", "", terminal.drawn)
    assert 0 < page.index("2 problems:") < page.index("lost: ") < page.index("2 notes:") < page.index("· off")


def test_servers_that_do_not_run_are_found_with_the_reason(folder: Folder) -> None:
    folder.servers(
        broken=ENDING,
        lost={"command": "no-such-program-anywhere"},
        needy={**NOTES, "env": {"A": "${NOT_SET_ANYWHERE}"}},
        old={
            "command": sys.executable,
            "args": ["-c", "raise ImportError(\"cannot import name 'x' from 'mcp.server'\")"],
        },
    )
    folder.write("sluicegate.toml", f"[http]\nport = {free_port()}\n")
    found = findings(folder)
    assert re.search(f"error: broken {ENDED}", about(found, "broken")) and "it is broken" in about(found, "broken")
    assert "was not found" in about(found, "lost")
    assert "error: The variable NOT_SET_ANYWHERE is not set" in about(found, "needy")
    assert 'pin "mcp<2"' in about(found, "old")


def test_a_taken_port_is_found_only_if_it_is_not_ours(folder: Folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        folder.servers(notes=NOTES).write("sluicegate.toml", f"[http]\nport = {port}\n")
        found = findings(folder)
    assert "is in use." in about(found, f"port {port}") and "--port" in about(found, f"port {port}")


@pytest.mark.parametrize("words", [(), ("--start",)])
def test_a_configuration_that_serve_would_refuse_is_found(folder: Folder, words: tuple[str, ...]) -> None:
    folder.servers(counting=COUNTING).write("sluicegate.toml", f'[http]\nhost = "0.0.0.0"\nport = {free_port()}\n')
    done = folder.run("doctor", *words)
    assert done.returncode == 1 and 'With host = "0.0.0.0" anyone on the network could call every tool.' in done.stdout
    refused = folder.run("serve")
    assert refused.returncode == 3 and "anyone_may_connect = true" in refused.stderr
    folder.write("sluicegate.toml", '[control]\nsocket = "/dev/null/x.sock"\n')
    assert "error:" in folder.run("doctor", *words).stdout and folder.run("serve", "--port", "0").returncode == 3


def test_without_a_gateway_nothing_is_started_and_the_command_is_printed(folder: Folder) -> None:
    folder.servers(broken=ENDING).write("sluicegate.toml", f"[http]\nport = {free_port()}\n")
    done = folder.run("doctor")
    assert done.returncode == 0 and "note: servers: they were not checked" in done.stdout
    assert "`sluicegate doctor --start`" in done.stdout and "broken" not in done.stdout


@pytest.mark.parametrize("is_running", [False, True])
def test_a_command_that_is_not_there_is_counted_once_with_its_place(folder: Folder, is_running: bool) -> None:
    folder.servers(lost={"command": "no-such-program-anywhere"})
    folder.write("sluicegate.toml", f'[http]\nport = {free_port()}\n\n[activations.gone]\nfile = "gone.py"\n')
    with folder.serving() if is_running else nullcontext():
        done = folder.run("doctor", "--start")
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and done.stderr.endswith("sluicegate: found 2 problems.\n")
    assert [line.partition(" See ")[0] for line in lines] == [
        'error: lost: The command "no-such-program-anywhere" was not found; install it, or give its full path.',
        'error: gone: The file of the activation "gone" does not exist.',
    ]
    assert lines[0].endswith(f" See {folder.path / '.mcp.json'}:4.")


def test_a_file_that_broke_under_a_running_gateway_is_reported_once_with_what_is_kept(folder: Folder) -> None:
    folder.servers(notes=NOTES)
    with folder.serving() as (process, _, _):
        file = folder.write(".mcp.json", "{\n")
        lines_until(process, "stays as it was")
        done = folder.run("doctor")
    assert (done.returncode, done.stderr) == (1, "sluicegate: found 1 problem.\n")
    assert done.stdout.startswith(f"warning: {file}:2: ") and done.stdout.count(str(file)) == 1
    assert done.stdout.endswith("The gateway goes on with what it had before.\n") and "is used" not in done.stdout


def test_settings_that_broke_under_a_running_gateway_are_reported_with_what_is_kept(folder: Folder) -> None:
    folder.servers(notes=NOTES)
    with folder.serving() as (process, _, _):
        folder.write("sluicegate.toml", "naming = 3\n")
        lines_until(process, "stays as it was")
        (found,) = findings(folder, 3)
    assert found.severity == "error" and found.sentence.endswith("The gateway goes on with what it had before.")


def test_without_a_gateway_the_remedy_is_the_command_and_not_the_log(folder: Folder) -> None:
    silent = {"command": sys.executable, "args": ["-c", "raise SystemExit", "--token", "s3cret-value"]}
    folder.servers(broken=ENDING, silent=silent).write("sluicegate.toml", f"[http]\nport = {free_port()}\n")
    found = findings(folder)
    assert not any("sluicegate logs" in about(found, name) for name in ("broken", "silent"))
    assert about(found, "broken").endswith("Its last output: it is broken.")
    command = f"{sys.executable} -c 'raise SystemExit' --token ***"
    assert about(found, "silent").endswith(f"Run its command in a shell to see why: {command}")


def test_the_log_of_another_folder_is_named_with_that_folder(gateway: Folder, folder: Folder) -> None:
    # The sockets of both are found by the same user.
    folder.env["XDG_RUNTIME_DIR"] = gateway.env["XDG_RUNTIME_DIR"]
    found = about(findings(folder, 1, "--folder", str(gateway.path)), "broken")
    assert f"`sluicegate logs broken --folder {gateway.path}`" in found
    done = folder.run("logs", "broken", "--folder", str(gateway.path))
    assert done.returncode == 0 and "it is broken" in done.stdout


def test_a_running_gateway_is_looked_at_and_its_port_is_no_problem(gateway: Folder) -> None:
    found = findings(gateway)
    assert {each.about for each in found if each.severity == "error"} == {"broken"}


def test_floating_versions_and_the_same_server_twice_are_found(folder: Folder) -> None:
    npx = folder.write("bin/npx", '#!/bin/sh\nshift\nexec "$@"\n')
    npx.chmod(0o755)
    off = {"command": "npx", "args": ["-y", "other"], "disabled": True}
    floating = {"command": str(npx), "args": ["thing", NOTES["command"], *cast("list[str]", NOTES["args"])]}
    folder.servers(one=COUNTING, two=COUNTING, floating=floating, off=off)
    folder.write("sluicegate.toml", f"[http]\nport = {free_port()}\n")
    found = findings(folder)
    assert "is one server configured several times?" in about(found, "one, two")
    assert about(found, "floating").startswith("note: has no fixed version")
    assert "other" not in about(found, "off")  # It does not run.


def test_a_file_that_others_may_write_to_is_found(folder: Folder) -> None:
    folder.servers(notes=NOTES)
    (folder.path / ".mcp.json").chmod(0o666)
    assert "other users may write to it" in about(findings(folder), str(folder.path / ".mcp.json"))


def test_a_configuration_with_errors_is_status_3(folder: Folder) -> None:
    folder.write("sluicegate.toml", "naming = 3\n")
    assert any(each.severity == "error" for each in findings(folder, 3))


# ------------------------------------------------------------------------------------------------ what needs no process


def report(*servers: ServerStatus, findings: list[str] | None = None, naming: Naming = "prefix") -> GatewayReport:
    return GatewayReport(
        address="", root="/", profiles=[], servers=list(servers), findings=findings or [], naming=naming
    )


def ready(name: str, **more: object) -> ServerStatus:
    return ServerStatus(name=name, state="ready", sentence="", kind="stdio", prefix=name, **more)  # pyright: ignore[reportArgumentType]


def tool(server: str, own: str, name: str = "") -> OfferedItem:
    return OfferedItem(server=server, own=own, definition={"name": name or f"{server}__{own}"})


def test_names_that_had_to_be_cut_are_found() -> None:
    config = GatewayConfig(root="/")
    (found,) = check_tools(
        [tool("files", LONG, "files__a_tool_12345678"), tool("files", "read")], report(ready("files")), config
    )
    assert LONG in found.sentence and "files__a_tool_12345678" in found.sentence and "prefix" in found.remedy


@pytest.mark.parametrize(("naming", "length"), [("prefix", 58), ("claude", 55), ("collide", 65)])
def test_a_long_name_is_reported_with_a_remedy(naming: Naming, length: int) -> None:
    own = "a" * length
    shown = next(names_for("files", own, naming))
    assert len(shown) == 64
    (found,) = check_tools([tool("files", own, shown)], report(ready("files"), naming=naming), GatewayConfig(root="/"))
    assert "a short prefix" in found.remedy and "[servers.files]" in found.remedy


@pytest.mark.parametrize(("naming", "length"), [("prefix", 57), ("claude", 52), ("collide", 64)])
def test_names_that_fit_are_not_found(naming: Naming, length: int) -> None:
    own = "a" * length
    tools = [tool("files", own, next(names_for("files", own, naming)))]
    assert not list(check_tools(tools, report(ready("files"), naming=naming), GatewayConfig(root="/")))


def test_single_tools_that_two_servers_have_are_noted() -> None:
    tools = [tool("a", "search"), tool("a", "read"), tool("b", "search")]
    (found,) = check_tools(tools, report(ready("a"), ready("b")), GatewayConfig(root="/"))
    assert (found.severity, found.about) == ("note", "a, b") and "search" in found.sentence


def test_more_tools_than_models_take_are_found() -> None:
    tools = [tool("a", f"tool{number}") for number in range(129)]
    (found,) = check_tools(tools, report(ready("a")), GatewayConfig(root="/"))
    assert "129" in found.sentence and "profiles" in found.remedy


def test_entries_left_out_of_the_catalog_are_found() -> None:
    (found,) = check_tools([], report(findings=["b: 'x' of its tools is left out."]), GatewayConfig(root="/"))
    assert found.severity == "warning" and "left out" in found.sentence


def test_only_a_server_that_we_start_has_a_log_to_look_into() -> None:
    for kind, remedy in (("stdio", "See `sluicegate logs a`."), ("http", "")):
        (found,) = check_servers([ServerStatus(name="a", kind=kind, state="failed", sentence="a is away.")], {})
        assert found.remedy == remedy


def test_slow_starts_restarts_and_losses_are_found_and_old_revisions_are_not_mentioned() -> None:
    server = ready("a", version="2025-11-25", restarts=3, hangs=1, lost={"log messages that belong to no call": 3})
    said = [each.sentence for each in check_servers([server], {"a": 12.0})]
    assert said == [
        "took 12 s to start.",
        "was restarted once because it answered neither calls nor pings.",
        "ended 2 times by itself.",
        "some of it was not preserved between revisions of MCP.",
    ]


RULES = """
[servers."*"]
resend = ["cou*", "nobody_*"]

[servers.notes]
hide = ["frget", "forget"]
tools = ["wrte*", "write", "forget"]
tool_timeouts = { slow = 3, write = 5 }

[profiles.empty]
tools = ["notes__writ"]
hide = ["forgt_*"]

[profiles.good]
tools = ["notes__*", "count"]
hide = ["forget"]

[profiles.nobody]
servers = ["nots"]
"""


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "alone"])
def test_globs_that_match_no_tool_are_found_with_a_suggestion(folder: Folder, is_running: bool) -> None:
    counting = {**COUNTING, "excludeTools": ["cuont"]}
    folder.servers(notes=NOTES, counting=counting)
    folder.write("sluicegate.toml", f"{RULES}[http]\nport = {free_port()}\n")
    with folder.serving() if is_running else nullcontext():
        found = findings(folder)
    assert about(found, "notes, counting") == 'warning: "nobody_*" in resend matches no tool. '
    assert about(found, "notes").splitlines() == [
        'warning: "wrte*" in tools matches no tool. Did you mean "write"?',
        'warning: "frget" in hide matches no tool. Did you mean "forget"?',
        'warning: "slow" in tool_timeouts matches no tool. ',
    ]
    assert about(found, "counting") == 'warning: "cuont" in hide matches no tool. Did you mean "count"?'
    assert about(found, "profile empty").splitlines() == [
        'warning: "notes__writ" in tools matches no tool. Did you mean "notes__write"?',
        'warning: "forgt_*" in hide matches no tool. Did you mean "forget"?',
        "warning: it offers no tool: its globs exclude all tools of its servers. ",
    ]
    assert about(found, "profile nobody") == "warning: it offers no tool: no server matches it. "
    assert not about(found, "profile good")


def test_globs_for_a_server_that_is_not_ready_are_not_checked(folder: Folder) -> None:
    folder.servers(notes=NOTES, broken=ENDING)
    rules = (
        '[servers."*"]\nhide = ["delete_*"]\n[servers.broken]\nresend = ["x"]\n[profiles.p]\ntools = ["broken__x"]\n'
    )
    folder.write("sluicegate.toml", f"{rules}[http]\nport = {free_port()}\n")
    assert not [each for each in findings(folder) if "matches no tool" in each.sentence or "offers no" in each.sentence]


def test_rules_that_match_no_tool_are_found_with_a_suggestion() -> None:
    server = ServerConfig(name="My Notes", key="my-notes", source=None)
    written = ["mcp__my-notes__add_*", "mcp__my-notes__delte_note", "mcp__other__x", "mcp__my-notes"]
    rules = tuple(Rule(Permission(tool=each, action="deny"), "sluicegate.toml", 7) for each in written)
    config = GatewayConfig(root="/", servers={"My Notes": server}, policy=PolicyConfig(rules))
    (found,) = check_rules(config, {"My Notes": ["add_note", "delete_note"]})
    assert (found.about, found.remedy) == ("sluicegate.toml:7", 'Did you mean "delete_note"?')
    assert not list(check_rules(config, {}))


def test_equal_notes_are_one_line_and_the_gateway_itself_is_none(folder: Folder) -> None:
    folder.servers(
        one={"command": "npx", "args": ["-y", "pkg-one"]},
        two={"command": "uvx", "args": ["pkg-two"]},
        off={**NOTES, "disabled": True},
        out={**NOTES, "disabled": True},
        itself={"url": "http://127.0.0.1:4747/mcp"},
    )
    notes = [line for line in folder.invoke("doctor").stdout.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: one, two: has no fixed version, so a different version may run tomorrow. `sluicegate doctor --pin`"
        " writes the version that runs.",
        "note: servers: they were not checked, because no gateway runs. `sluicegate doctor --start` starts them, checks"
        " them and ends them.",
        "note: off, out: does not run: It is disabled in its file.",
    ]


ENTRIES = """{
  // All of this stays as it is.
  "mcpServers": {
    "one": {"command": "npx", "args": ["-y", "@scope/pkg", "/srv"]},
    "tagged": {"command": "npx", "args": ["tagged@latest"]},
    "two": {"command": "uvx", "args": ["Pkg-Two", "--verbose"]},
    "from": {"command": "uvx", "args": ["--from", "pkg-two>=1", "two"]},
    "fixed": {"command": "npx", "args": ["pkg@1.0.0"]},
    "unknown": {"command": "npx", "args": ["never-run"]},
  }
}
"""


def test_pin_writes_the_versions_that_run_and_changes_nothing_else(folder: Folder) -> None:
    file = folder.write(".mcp.json", ENTRIES)
    for package, version in (("@scope/pkg", "2.1.0"), ("tagged@latest", "3.0.0")):
        place = folder.home / ".npm/_npx" / hashlib.sha512(package.encode()).hexdigest()[:16] / "node_modules"
        place = place / package.removesuffix("@latest")
        place.mkdir(parents=True)
        (place / "package.json").write_text(json.dumps({"version": version}))
    for number, version in enumerate(("1.9", "1.10.post1")):  # The one that was fetched last runs.
        place = folder.home / f".cache/uv/archive-v0/{number}/lib/python3.12/site-packages/pkg_two-{version}.dist-info"
        place.mkdir(parents=True)
        os.utime(place, (number, number))
    done = folder.invoke("doctor", "--pin")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.splitlines() == [
        "sluicegate: one: pinned to @scope/pkg@2.1.0.",
        "sluicegate: tagged: pinned to tagged@3.0.0.",
        "sluicegate: two: pinned to Pkg-Two@1.10.post1.",
        "sluicegate: from: pinned to pkg-two==1.10.post1.",
        "sluicegate: unknown: never-run has not run here so far, or its program does not tell its version; write the"
        " version yourself.",
    ]
    expected = ENTRIES.replace("@scope/pkg", "@scope/pkg@2.1.0").replace("tagged@latest", "tagged@3.0.0")
    expected = expected.replace("Pkg-Two", "Pkg-Two@1.10.post1").replace("pkg-two>=1", "pkg-two==1.10.post1")
    assert file.read_text() == expected
    assert "unknown" in folder.invoke("doctor", "--pin").stderr and file.read_text() == expected
