"""The names by which commands know servers and tools: also a server's key; of a tool that is not there, the way out."""

import asyncio
from collections.abc import Generator
from typing import cast

import pytest

from sluicegate.cli.gateway_client import GatewayClient, explain_missing
from sluicegate.control.reports import GatewayReport, OfferedItem, OwnTools
from sluicegate.gateway.status import ServerStatus
from tests.cli.folders import COUNTING, NOTES, Folder, folder_in

SETTINGS = """
[servers.memory-store]
prefix = ""
hide = ["for*"]

[servers.counting]
tools = ["add*"]

[servers.short]
prefix = "s"
"""


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Generator[Folder]:
    """A folder whose gateway runs, with servers that have several names, and tools that are hidden."""
    with folder_in(tmp_path_factory.mktemp("named")) as made:
        made.servers(
            **{"Memory Store": NOTES, "counting": COUNTING, "short": COUNTING, "ghost": {"command": "no-such"}}
        )
        made.write("sluicegate.toml", SETTINGS)
        with made.serving():
            yield made


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (("logs", "memory-store"), ""),
        (("tools", "--server", "memory-store"), "write\t"),
        (("resources", "--server", "memory-store"), "notes://all\t"),
        (("prompts", "--server", "memory-store"), ""),
        (("restart", "memory-store"), ""),
    ],
    ids=["logs", "tools", "resources", "prompts", "restart"],
)
def test_a_server_goes_by_its_key(named: Folder, words: tuple[str, ...], begins: str) -> None:
    done = named.run(*words)
    assert done.returncode == 0 and "there is no server" not in done.stderr
    assert done.stdout.startswith(begins)


def test_a_server_goes_by_its_key_where_no_gateway_runs(named: Folder) -> None:
    done = named.run("tools", "--server", "memory-store", "--config", ".mcp.json")
    assert done.returncode == 0 and done.stdout.startswith("write\t") and "counting" not in done.stderr


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("memory-store__forget", 'Memory Store has it, and hide = ["for*"] in its settings hides it.'),
        ("counting__count", 'counting has it, and tools = ["add*"] in its settings hides it.'),
    ],
)
def test_a_hidden_tool_is_reported_with_a_remedy(named: Folder, name: str, sentence: str) -> None:
    for command in ("call", "tools"):
        done = named.invoke(command, name)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == f"sluicegate: there is no tool {name!r}; {sentence}"


@pytest.mark.parametrize(
    "name", ["s__count", "short__count", "mcp__short__count", "short.count", "mcp__s__count", "s.count"]
)
def test_every_spelling_of_a_tool_is_accepted_and_one_is_shown(named: Folder, name: str) -> None:
    done = named.invoke("call", name, "to=2")
    assert (done.returncode, done.stdout) == (0, "counted to 2\n"), done.stderr
    assert named.invoke("tools", name).stdout.startswith("s__count  (count of short)\n")


def test_every_spelling_is_accepted_also_without_a_gateway(named: Folder) -> None:
    done = named.run("call", "mcp__short__count", "to=2", "--config", ".mcp.json")
    assert (done.returncode, done.stdout) == (0, "counted to 2\n"), done.stderr


@pytest.mark.parametrize("name", ["Memory Store__write", "memory-store__write", "mcp__Memory Store__write", "write"])
def test_a_tool_goes_by_the_name_of_its_server_that_had_to_be_rewritten(named: Folder, name: str) -> None:
    assert named.invoke("tools", name).stdout.startswith("write  (write of Memory Store)")
    explained = named.invoke("policy", "explain", name if "__" in name else f"mcp__memory-store__{name}")
    assert explained.returncode == 0 and "there is no server" not in explained.stderr


def test_no_rule_is_named_for_a_tool_that_its_server_does_not_have(named: Folder) -> None:
    said = named.run("call", "memory-store__forgive").stderr
    assert "hide" not in said and "there is no tool 'memory-store__forgive'" in said


class _Told:
    """A gateway that has one server, which is not ready."""

    def __init__(self, sentence: str) -> None:
        self._server = ServerStatus(name="ghost", key="ghost", state="degraded", sentence=sentence, kind="stdio")

    async def report(self) -> GatewayReport:
        return GatewayReport(address="", root="/", profiles=[], servers=[self._server], findings=[], naming="prefix")

    async def own_tools(self) -> dict[str, OwnTools]:
        return {}

    async def offers(self, kind: str) -> list[OfferedItem]:
        return []


@pytest.mark.parametrize(
    ("sentence", "said"),
    [
        ("ghost: The command was not found.", "ghost is not ready: The command was not found."),
        ("ghost ended. It is tried again.", "ghost is not ready: it ended. It is tried again."),
    ],
)
def test_a_server_is_named_once_in_each_sentence(sentence: str, said: str) -> None:
    assert asyncio.run(explain_missing(cast("GatewayClient", _Told(sentence)), "ghost__anything", [])) == said


def test_a_server_that_is_not_ready_is_named_once(named: Folder, folder: Folder) -> None:
    folder.servers(ghost={"command": "no-such"})
    for done in (named.run("call", "ghost__anything"), folder.run("call", "ghost__anything")):
        # On a slow machine the server has been given up by now, and a command to try names it too.
        said = done.stderr.splitlines()[-1].replace("`sluicegate restart ghost`", "")
        assert done.returncode == 1 and said.startswith("sluicegate: ghost is not ready: ") and said.count("ghost") == 1
