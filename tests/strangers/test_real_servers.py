"""The official servers of npm and PyPI behind one gateway: every tool is called, by SDKs of both eras."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import pytest_asyncio

import sluicegate
from sluicegate.http1 import Request, serve
from sluicegate.protocol.types import ProgressEvent, ToolResult
from tests.faults.gateway_stage import Folder, Process, gateway_process, servers_in
from tests.strangers.runs import HERE

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

NPM: Final = ("everything", "filesystem", "memory", "sequential-thinking")
PYPI: Final = ("time", "git", "fetch")
ERA_OF: Final = {**dict.fromkeys(NPM, "2025-11-25"), **dict.fromkeys(PYPI, "2026-07-28")}

Json = dict[str, Any]


class Call(NamedTuple):
    """A call, and something of what it says."""

    tool: str
    arguments: Json
    says: str


def calls(folder: Path, who: str, page: str) -> list[Call]:
    """One call or more of each tool, in an order that works in a folder of the caller's own."""
    here, repo = str(folder), {"repo_path": str(folder)}
    ada = {"name": f"Ada of {who}", "entityType": "person", "observations": ["writes programs"]}
    knows = {"from": ada["name"], "to": ada["name"], "relationType": "knows"}
    seen = {"entityName": ada["name"], "contents": ["reads them, too"]}
    unseen = {"entityName": ada["name"], "observations": ["writes programs"]}
    edit = {"oldText": "first", "newText": "second"}
    noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    thought = {"thought": "So it is.", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
    return [
        Call("everything__echo", {"message": who}, who),
        Call("everything__get-annotated-message", {"messageType": "error"}, "Error"),
        Call("everything__get-env", {}, "PATH"),
        Call("everything__get-resource-links", {"count": 2}, "everything+demo://resource"),
        Call(
            "everything__get-resource-reference",
            {"resourceType": "Text", "resourceId": 1},
            "everything+demo://resource",
        ),
        Call("everything__get-structured-content", {"location": "Chicago"}, "temperature"),
        Call("everything__get-sum", {"a": 2, "b": 3}, "5"),
        Call("everything__get-tiny-image", {}, "image/png"),
        Call(
            "everything__gzip-file-as-resource",
            {"name": "a.gz", "data": "data:text/plain;base64,aGVsbG8=", "outputType": "resourceLink"},
            "a.gz",
        ),
        Call("everything__toggle-simulated-logging", {}, "logging"),
        Call("everything__toggle-simulated-logging", {}, "logging"),
        Call("everything__toggle-subscriber-updates", {}, "updates"),
        Call("everything__toggle-subscriber-updates", {}, "updates"),
        Call("everything__trigger-long-running-operation", {"duration": 0.2, "steps": 2}, "completed"),
        Call("everything__trigger-elicitation-request", {}, "User provided"),
        Call("everything__trigger-sampling-request", {"prompt": "Who?", "maxTokens": 7}, "Indeed"),
        Call("everything__trigger-url-elicitation", {"url": "https://example.com/good"}, "User completed"),
        # It can be called as a task only, and asks in the middle of it. No client is told of tasks, none needs them.
        Call("everything__simulate-research-query", {"topic": "weirs", "ambiguous": True}, "Research Report: weirs"),
        Call("filesystem__write_file", {"path": f"{here}/note.txt", "content": "first\n"}, "note.txt"),
        Call("filesystem__read_file", {"path": f"{here}/note.txt"}, "first"),
        Call("filesystem__edit_file", {"path": f"{here}/note.txt", "edits": [edit]}, "second"),
        Call("filesystem__read_text_file", {"path": f"{here}/note.txt"}, "second"),
        Call("filesystem__read_multiple_files", {"paths": [f"{here}/note.txt"]}, "second"),
        Call("filesystem__read_media_file", {"path": f"{here}/dot.png"}, "image/png"),
        Call("filesystem__create_directory", {"path": f"{here}/folder"}, "folder"),
        Call("filesystem__list_directory", {"path": here}, "[DIR] folder"),
        Call("filesystem__list_directory_with_sizes", {"path": here}, "note.txt"),
        Call("filesystem__directory_tree", {"path": here, "excludePatterns": [".git"]}, "note.txt"),
        Call("filesystem__move_file", {"source": f"{here}/note.txt", "destination": f"{here}/moved.txt"}, "moved.txt"),
        Call("filesystem__search_files", {"path": here, "pattern": "moved*"}, "moved.txt"),
        Call("filesystem__get_file_info", {"path": f"{here}/moved.txt"}, "size"),
        Call("filesystem__list_allowed_directories", {}, str(folder.parent)),
        Call("memory__create_entities", {"entities": [ada]}, who),
        Call("memory__create_relations", {"relations": [knows]}, "knows"),
        Call("memory__add_observations", {"observations": [seen]}, "reads them"),
        Call("memory__read_graph", {}, who),
        Call("memory__search_nodes", {"query": ada["name"]}, who),
        Call("memory__open_nodes", {"names": [ada["name"]]}, who),
        Call("memory__delete_observations", {"deletions": [unseen]}, "deleted"),
        Call("memory__delete_relations", {"relations": [knows]}, "deleted"),
        Call("memory__delete_entities", {"entityNames": [ada["name"]]}, "deleted"),
        Call("sequential-thinking__sequentialthinking", thought, "totalThoughts"),
        Call("time__get_current_time", {"timezone": "Europe/Oslo"}, "Europe/Oslo"),
        Call("time__convert_time", noon, "21:00"),
        Call("git__git_status", repo, "moved.txt"),
        Call("git__git_add", {**repo, "files": ["moved.txt"]}, "staged"),
        Call("git__git_diff_staged", repo, "second"),
        Call("git__git_reset", repo, "reset"),
        Call("git__git_add", {**repo, "files": ["moved.txt"]}, "staged"),
        Call("git__git_commit", {**repo, "message": f"What {who} did"}, "committed"),
        Call("git__git_log", {**repo, "max_count": 1}, f"What {who} did"),
        Call("git__git_show", {**repo, "revision": "HEAD"}, "second"),
        Call("git__git_create_branch", {**repo, "branch_name": "side"}, "side"),
        Call("git__git_checkout", {**repo, "branch_name": "side"}, "side"),
        Call("git__git_branch", {**repo, "branch_type": "local"}, "side"),
        Call("git__git_diff", {**repo, "target": "HEAD"}, "Diff"),
        Call("git__git_diff_unstaged", repo, "nstaged"),
        Call("fetch__fetch", {"url": page}, "A page for whoever asks"),
    ]


class House:
    """The gateway with all seven behind it, and a page on loopback for the one that fetches."""

    def __init__(self, gateway: Process, folder: Path, page: str) -> None:
        self.gateway = gateway
        self.page = page
        self._folder = folder

    def calls(self, who: str) -> list[Call]:
        """What a client is to call, in a folder of its own that is a repository."""
        folder = self._folder / who.replace(" ", "-")
        folder.mkdir()
        (folder / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n")
        for words in (["init", "-q"], ["config", "user.name", who], ["config", "user.email", "who@example.org"]):
            subprocess.run(["git", "-C", str(folder), *words], check=True, timeout=20)
        first = ["-c", "commit.gpgsign=false", "commit", "-q", "--allow-empty", "-m", "begin"]
        subprocess.run(["git", "-C", str(folder), *first], check=True, timeout=20)
        return calls(folder, who, self.page)


def entries(npm: Path, pypi: Path, folder: Path) -> dict[str, Json]:
    """All seven as `.mcp.json` has them."""
    node, modules = str(npm / "node"), npm / "node_modules" / "@modelcontextprotocol"
    more = {"filesystem": [str(folder)], "fetch": ["--allow-private-ips"], "time": ["--local-timezone", "UTC"]}
    found: dict[str, Json] = {}
    for name in NPM:
        script = str(modules / f"server-{name}" / "dist" / "index.js")
        found[name] = {"command": node, "args": [script, *more.get(name, [])]}
    found["memory"]["env"] = {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")}
    for name in PYPI:
        found[name] = {
            "command": str(pypi / "bin" / "python"),
            "args": ["-m", f"mcp_server_{name}", *more.get(name, [])],
        }
    # Where it finds Node, its first call installs packages from npm, which may fail or take long.
    found["fetch"]["env"] = {"PATH": str(pypi / "bin")}
    return found


async def page(request: Request) -> None:
    """A page, and no word about who may fetch it."""
    if request.path == "/robots.txt":
        request.respond(404, (), b"")
    else:
        text = b"<html><body><article><p>A page for whoever asks.</p></article></body></html>"
        request.respond(200, (("Content-Type", "text/html"),), text)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(stranger: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[House]:
    npm, pypi = stranger("npm"), stranger("pypi")
    base = tmp_path_factory.mktemp("house")
    work = base / "work"
    work.mkdir()
    folder = Folder(base, entries(npm, pypi, work))
    try:
        async with serve(page) as listener, gateway_process(folder) as gateway:
            await gateway.ready(*NPM, *PYPI)
            host, port = listener.addresses[0][:2]
            yield House(gateway, work, f"http://{host}:{port}/page")
            assert await gateway.stopped() == 0
    finally:
        folder.remove()


CLIENTS: Final = {
    "mcp1": ("mcp1", "", "2025-11-25"),
    "mcp2 auto": ("mcp2", "auto", "2026-07-28"),
    "mcp2 legacy": ("mcp2", "legacy", "2025-11-25"),
}


@pytest.mark.parametrize("name", CLIENTS)
async def test_an_official_client_lists_and_calls_every_tool_of_all_servers(
    name: str, house: House, stranger: Callable[[str], Path]
) -> None:
    sdk, mode, version = CLIENTS[name]
    wanted = house.calls(name)
    given = {"url": house.gateway.address, "calls": [(call.tool, call.arguments) for call in wanted]}
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = await asyncio.create_subprocess_exec(
        *(str(stranger(sdk) / "bin" / "python"), str(HERE / "peers" / "many_calls.py"), sdk, mode),
        env={**env, "MANY_CALLS": json.dumps(given)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(120):
            said, problems = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, problems.decode()
    report = json.loads(said)
    assert report["version"] == version
    check_tools(report["tools"])
    outcomes = zip(wanted, report["outcomes"], strict=True)
    assert [problem for call, outcome in outcomes if (problem := problem_of(call, outcome))] == []


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_our_client_lists_and_calls_every_tool_of_all_servers(era: str, house: House) -> None:
    def elicit(request: sluicegate.ElicitRequest) -> sluicegate.ElicitAnswer:
        return sluicegate.ElicitAnswer("accept", None if request.url else {"name": "Ada", "check": True})

    def sample(request: sluicegate.SampleRequest) -> str:
        return f"{request.messages[0].text} Indeed."

    async with sluicegate.connect(
        house.gateway.address, era="modern" if era == "modern" else "session", elicit=elicit, sample=sample
    ) as client:
        check_tools([tool.name for tool in await client.tools()])
        for call in house.calls(f"ours {era}"):
            result = await client.call(call.tool, call.arguments)
            assert not result.is_error and call.says in repr(result), (call, result)
        heard = [
            event async for event in client.stream("everything__trigger-long-running-operation", duration=0.2, steps=2)
        ]
        assert [event.progress for event in heard if isinstance(event, ProgressEvent)] == [1, 2]
        assert isinstance(heard[-1], ToolResult)


async def test_the_status_shows_the_revision_of_each_server(house: House) -> None:
    async with house.gateway.control() as control:
        servers = servers_in((await control.call("status")).structured_content)
        assert {str(server["name"]): server["version"] for server in servers} == ERA_OF
        assert {server["state"] for server in servers} == {"ready"}


def check_tools(names: list[str]) -> None:
    """Every tool is there, once, under the name of its server, in the order of the servers."""
    called = {call.tool for call in calls(Path("/"), "anybody", "")}
    assert set(names) == called
    assert len(names) == len(set(names))
    order = list(dict.fromkeys(name.partition("__")[0] for name in names))
    assert order == [*NPM, *PYPI]


def problem_of(call: Call, outcome: Json) -> str:
    """What is wrong with the outcome of a call, if anything is."""
    said = json.dumps(outcome, ensure_ascii=False)
    is_right = "refused" not in outcome and outcome.get("isError") is not True and call.says in said
    return "" if is_right else f"{call.tool} should say {call.says!r}: {said}"
