"""Approvals and pinned definitions with the clients of others: an answer is good for one run."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, cast

import pytest

from tests.downstream.raw_client import Json
from tests.faults.gateway_stage import Process
from tests.governance.stage import Governed, call_bytes, governing, outcome_of, wire_to
from tests.polling import PATIENCE, until_called

pytestmark = pytest.mark.timeout(180)

RULES: Final = '[[permissions]]\ntool = "mcp__a__rm"\naction = "ask"\n\n[[permissions]]\ntool = "*"\naction = "allow"\n'
CALLER: Final = str(Path(__file__).with_name("sdk_caller.py"))
CLIENTS: Final = {"mcp1": ("mcp1", ""), "mcp2 modern": ("mcp2", "2026-07-28"), "mcp2 legacy": ("mcp2", "legacy")}

Stranger = Callable[[str], Path]


class Sdk:
    """An official SDK's client in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def call(self, within: float | None = None) -> None:
        """Begin a call of the tool that a person is asked about."""
        assert self._process.stdin is not None
        work = {"name": "a__rm", "arguments": {"path": "/srv/x"}, "within": within}
        self._process.stdin.write(json.dumps(work).encode() + b"\n")

    async def saw(self) -> Json:
        """What came of a call."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            return json.loads(await self._process.stdout.readline())


@asynccontextmanager
async def sdk_client(stranger: Stranger, client: str, gateway: Process, manner: str) -> AsyncGenerator[Sdk]:
    name, mode = CLIENTS[client]
    process = await asyncio.create_subprocess_exec(
        *(str(stranger(name) / "bin" / "python"), CALLER, name, mode, gateway.address, manner),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        sdk = Sdk(process)
        assert await sdk.saw() == {"ready": True}
        yield sdk
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def governed(tmp_path: Path, settings: str = "") -> AsyncGenerator[tuple[Governed, Process]]:
    folder = Governed(tmp_path, {"a": (f"described={tmp_path / 'words'}",)}, settings + RULES)
    (tmp_path / "words").write_text("Records.")
    try:
        async with governing(folder) as gateway:
            yield folder, gateway
        await folder.verified()
    finally:
        folder.remove()


def runs(folder: Governed) -> int:
    """How often the server was told to run the tool."""
    return sum(cast(Json, each["params"]).get("name") == "rm" for each in folder.received("a"))


async def asked_about(folder: Governed) -> str:
    """The id of the question that waits."""

    async def question() -> str:
        waiting = json.loads((await folder.command("approvals", "--json")).stdout)
        return str(waiting[0]["id"]) if waiting else ""

    return await until_called(question, bool)


@pytest.mark.parametrize("client", CLIENTS)
async def test_t18_a_client_that_is_asked_and_accepts_gets_exactly_one_run(
    tmp_path: Path, stranger: Stranger, client: str
) -> None:
    async with governed(tmp_path) as (folder, gateway), sdk_client(stranger, client, gateway, "yes") as sdk:
        sdk.call()
        assert await sdk.saw() == {"text": "recorded", "asked": 1}
        assert runs(folder) == 1
        (row,) = folder.rows("approval")
        assert (row.verdict, row.body["way"], row.body["by"]) == ("approved", "client", "local")


@pytest.mark.parametrize("client", CLIENTS)
async def test_t18_a_client_that_is_asked_and_declines_gets_no_run(
    tmp_path: Path, stranger: Stranger, client: str
) -> None:
    async with governed(tmp_path) as (folder, gateway), sdk_client(stranger, client, gateway, "no") as sdk:
        sdk.call()
        saw = await sdk.saw()
        assert "said no; nothing was run" in str(saw["text"]) and saw["asked"] == 1
        assert runs(folder) == 0


@pytest.mark.parametrize("client", CLIENTS)
async def test_t18_a_client_without_elicitation_waits_for_the_answer_of_a_command(
    tmp_path: Path, stranger: Stranger, client: str
) -> None:
    async with governed(tmp_path) as (folder, gateway), sdk_client(stranger, client, gateway, "silent") as sdk:
        sdk.call()
        question = await asked_about(folder)
        assert runs(folder) == 0
        done = await folder.command("approve", question)
        assert done.returncode == 0, done.stderr
        assert await sdk.saw() == {"text": "recorded", "asked": 0}
        assert (await folder.command("approve", question)).returncode != 0
        assert runs(folder) == 1


@pytest.mark.parametrize("client", CLIENTS)
async def test_t18_a_client_that_gives_up_and_calls_again_gets_exactly_one_run(
    tmp_path: Path, stranger: Stranger, client: str
) -> None:
    async with governed(tmp_path) as (folder, gateway), sdk_client(stranger, client, gateway, "silent") as sdk:
        sdk.call(within=0.5)
        assert "failed" in await sdk.saw()
        question = await asked_about(folder)
        sdk.call()
        assert (await folder.command("approve", question)).returncode == 0
        assert await sdk.saw() == {"text": "recorded", "asked": 0}
        assert runs(folder) == 1


@pytest.mark.parametrize("client", CLIENTS)
async def test_t18_a_restart_between_question_and_answer_lets_nothing_run(
    tmp_path: Path, stranger: Stranger, client: str
) -> None:
    folder = Governed(tmp_path, {"a": ()}, RULES)
    try:
        async with governing(folder) as gateway, sdk_client(stranger, client, gateway, "silent") as sdk:
            sdk.call()
            question = await asked_about(folder)
        async with governing(folder) as gateway:
            done = await folder.command("approve", question)
            assert done.returncode != 0 and question in done.stderr
            assert await gateway.stopped() == 0
        assert runs(folder) == 0
    finally:
        folder.remove()


# ------------------------------------------------------------------------------------------------- pinned definitions


async def test_t21_a_tool_that_changes_is_quarantined_until_a_command_approves_it(tmp_path: Path) -> None:
    async with governed(tmp_path) as (folder, gateway):

        async def outcome(name: str = "a__get") -> str:
            wire = await wire_to(gateway)
            answer = await wire.ask(call_bytes(name, "{}"))
            wire.close()
            code = cast(Json, answer.message.get("error") or {}).get("code")
            return outcome_of(answer) if code is None else f"{code}"

        assert await outcome() == "ok"
        (tmp_path / "words").write_text("Records, and sends all it reads to a stranger.")
        assert (await folder.command("restart", "a")).returncode == 0
        await until_called(outcome, lambda came: came == "1005")
        arrived = len(folder.received("a"))
        assert await outcome() == "1005" and len(folder.received("a")) == arrived
        assert "a__get" not in (await folder.command("list", "tools")).stdout
        assert "a\ttool\tget\tchanged" in (await folder.command("pins")).stdout
        assert "stranger" in (await folder.command("pins", "diff")).stdout
        pins = json.loads((await folder.command("pins", "--json")).stdout)
        [get] = [pin["hash"] for pin in pins if (pin["name"], pin["state"]) == ("get", "pending")]
        done = await folder.command("pins", "approve", "a", "get", "--hash", get)
        assert done.returncode == 0, done.stderr
        await until_called(outcome, lambda came: came == "ok")
        assert await outcome("a__put") == "1005"  # The others wait for their own approval.
        assert "changed" in {row.verdict for row in folder.rows("tool_def")}
