"""Our server over HTTP, met by clients on the official TypeScript SDK of both eras and over both transports.

Each client runs all scenarios of peers/typescript_client.mjs once, in a process of its own; here is what it should have
seen. All meet the same server (servers/whole.py), and the last scenarios through a proxy that cuts them off.
"""

import asyncio
import json
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.faults.proxy import FaultProxy, Reset, fault_proxy

HERE: Final = Path(__file__).parent
DEADLINE: Final = 45.0

Row = Any  # JSON, as the client saw it


class Client(NamedTuple):
    sdk: int
    transport: str
    mode: str
    version: str

    @property
    def is_modern(self) -> bool:
        return self.version >= "2026"

    @property
    def comes_back(self) -> bool:
        """Whether it takes up a cut stream again: over SSE there is no way to, and from 2026-07-28 on none is left."""
        return self.transport == "http" and not self.is_modern


CLIENTS: Final = {
    "sdk": Client(1, "http", "", "2025-11-25"),
    "sdk sse": Client(1, "sse", "", "2025-11-25"),
    "client legacy": Client(2, "http", "legacy", "2025-11-25"),
    "client sse": Client(2, "sse", "legacy", "2025-11-25"),
    "client auto": Client(2, "http", "auto", "2026-07-28"),
    "client modern": Client(2, "http", "modern", "2026-07-28"),
}
SCENARIOS: Final = (
    "acquaintance",
    "tools",
    "calls",
    "at_once",
    "progress",
    "unasked",
    "cancellation",
    "elicitation",
    "sampling",
    "roots",
    "several_questions",
    "updates",
)

each_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
each_that_comes_back = pytest.mark.parametrize(
    "client",
    [client for client in CLIENTS.values() if client.comes_back],
    ids=[name for name, client in CLIENTS.items() if client.comes_back],
)

Saw = Callable[[Client, str], Row]


@pytest.fixture(scope="module")
def our_server() -> Generator[str]:
    """Where servers/whole.py serves."""
    command = [sys.executable, str(HERE / "servers" / "whole.py"), "http"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line.startswith("sluicegate: serving at http://127.0.0.1:"), line
            yield line.split()[3]
        finally:
            process.kill()


@pytest.fixture(scope="module")
def saw(our_server: str, stranger: Callable[[str], Path]) -> Saw:
    """What a client saw in a scenario; it is run through all of them when it is first asked."""
    runs: dict[Client, Mapping[str, Row]] = {}

    def saw(client: Client, scenario: str) -> Row:
        if client not in runs:
            runs[client] = asyncio.run(_run(client, our_server, stranger("npm")))
        row = runs[client][scenario]
        assert "failed" not in row, row["failed"]
        return row["saw"]

    return saw


async def _run(client: Client, url: str, npm: Path) -> Mapping[str, Row]:
    place = urlsplit(url)
    assert place.hostname is not None and place.port is not None
    path = "/sse" if client.transport == "sse" else place.path
    async with asyncio.timeout(DEADLINE), fault_proxy(place.hostname, place.port) as proxy:
        proxy.down = Reset(after=60_000, seen=b'"count"')
        settings = {
            "name": f"{client.sdk}-{client.transport}-{client.mode}",
            **client._asdict(),
            "url": f"http://{place.netloc}{path}",
            "proxied": proxy.url(path),
            "scenarios": [*SCENARIOS, *_cut_scenarios(client)],
        }
        command = [str(npm / "node"), str(HERE / "peers" / "typescript_client.mjs")]
        report = await _report(command, settings, npm, proxy)
        assert proxy.struck == client.comes_back, "what was to be cut was not"
        return report


def _cut_scenarios(client: Client) -> list[str]:
    if client.comes_back:
        return ["cut_call", "cut_updates"]
    return ["cut_work"] if client.is_modern else []


async def _report(command: list[str], settings: object, npm: Path, proxy: FaultProxy) -> Mapping[str, Row]:
    process = await asyncio.create_subprocess_exec(
        *command, json.dumps(settings), cwd=npm, stdin=PIPE, stdout=PIPE, limit=1 << 24
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        while line := await process.stdout.readline():
            if line != b"cut\n":
                return json.loads(line)
            proxy.reset()
            process.stdin.write(b"done\n")
        pytest.fail("the client ended without a report")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def text_of(result: Row) -> str:
    """The one text block of a successful result."""
    assert result.get("isError") is not True, result
    (block,) = result["content"]
    return block["text"]


@each_client
def test_acquaintance_is_made_in_the_era_that_the_client_wants(client: Client, saw: Saw) -> None:
    about = saw(client, "acquaintance")
    assert about["version"] == client.version
    assert (about["info"]["name"], about["info"]["version"]) == ("whole", "1.2.3")


@each_client
def test_tools_are_listed_to_the_last_page(client: Client, saw: Saw) -> None:
    row = saw(client, "tools")
    assert {"add", "count", *(f"numbered_{number:03}" for number in range(120))} <= set(row["names"])
    assert len(set(row["names"])) == len(row["names"])
    assert row["add"]["annotations"] == {"readOnlyHint": True, "idempotentHint": True}


@each_client
def test_calls_are_answered_and_failures_reported(client: Client, saw: Saw) -> None:
    row = saw(client, "calls")
    assert row["add"]["structuredContent"] == {"total": 42, "terms": [2, 40]}
    assert row["same"] is True
    assert row["failed"]["isError"] is True
    assert row["failed"]["content"][0]["text"] == "There is no more of it."
    assert row["unknown"]["code"] == -32602
    assert row["prompt"]["messages"][0]["content"]["text"] == "Write a kind letter to Ada."


@each_client
def test_calls_run_at_the_same_time(client: Client, saw: Saw) -> None:
    assert saw(client, "at_once") == {"met": True, "same": True}


@each_client
def test_a_thousand_progress_events_come_in_order(client: Client, saw: Saw) -> None:
    row = saw(client, "progress")
    assert row["arrived"] == list(range(1, 1001))
    assert row["text"] == "counted to 1000"
    if client.transport == "http":
        assert row["seen"] == row["arrived"]
    else:
        # The SDK puts off what it does with a notice, but not with a result: of the events that come in one piece with
        # the result it tells its caller nothing. Over SSE that is many, and how many is a matter of luck.
        assert row["seen"] == row["arrived"][: len(row["seen"])]


@each_client
def test_progress_that_was_not_asked_for_changes_nothing(client: Client, saw: Saw) -> None:
    row = saw(client, "unasked")
    assert (row["text"], row["after"]) == ("Hello, world.", "still there")
    # Both SDKs report an unknown token to `onerror` and go on.
    is_told = client.transport == "http" and not client.is_modern
    assert row["arrived"] == ([1, 2, 3] if is_told else [])
    ours = [each for each in row["complaints"] if "sluicegate-" in each]
    assert len(ours) == len(row["arrived"]) and all("unknown token" in each for each in ours)


@each_client
def test_cancelled_call_ends_in_the_server(client: Client, saw: Saw) -> None:
    row = saw(client, "cancellation")
    assert row["server"] == "cancelled"
    assert "unexpected" not in row["client"]


@each_client
def test_form_is_answered(client: Client, saw: Saw) -> None:
    row = saw(client, "elicitation")
    assert row["answers"] == {
        "accept": {"action": "accept", "content": ["green", 3, False]},
        "decline": {"action": "decline", "content": None},
        "cancel": {"action": "cancel", "content": None},
    }
    assert row["asked"]["requestedSchema"]["required"] == ["colour", "amount"]


@each_client
def test_clients_model_is_asked(client: Client, saw: Saw) -> None:
    row = saw(client, "sampling")
    answer = {"text": "Who? Indeed.", "model": "m1", "role": "assistant", "stop": "endTurn"}
    assert row["answer"] == answer
    assert (row["asked"]["maxTokens"], row["asked"]["systemPrompt"]) == (50, "Be brief.")


@each_client
def test_roots_are_asked_for(client: Client, saw: Saw) -> None:
    assert saw(client, "roots") == ["file:///tmp/here", "file:///tmp/there"]


@each_client
def test_one_call_asks_several_times_with_progress_in_between(client: Client, saw: Saw) -> None:
    row = saw(client, "several_questions")
    assert row["text"] == "accept, What next? Indeed., decline"
    assert row["arrived"] == [1, 2, 3]
    seen = row["seen"]
    if client.is_modern:
        # The SDK reports progress of its own with each question, as if it came from the server.
        seen = [step for step in seen if not step.get("message", "").startswith("Fulfilling input required")]
        assert len(row["seen"]) == 6
    assert seen == [{"progress": number, "total": 3} for number in (1, 2, 3)]


@each_client
def test_only_updates_of_subscribed_resources_are_sent(client: Client, saw: Saw) -> None:
    row = saw(client, "updates")
    assert row == {"mine": True, "text": "3", "learned": "notifications/tools/list_changed"}


# ------------------------------------------------------------------------------------------------------------- cut off


@each_that_comes_back
def test_a_thousand_progress_events_survive_a_cut(client: Client, saw: Saw) -> None:
    row = saw(client, "cut_call")
    assert row["seen"] == list(range(1, 1001))
    assert row["text"] == "counted to 1000"
    assert row["after"] == "still there"


@each_that_comes_back
def test_an_update_during_a_cut_is_sent_later(client: Client, saw: Saw) -> None:
    assert saw(client, "cut_updates") == ["before", "during"]


@pytest.mark.parametrize("client", [CLIENTS["client auto"], CLIENTS["client modern"]], ids=["auto", "modern"])
def test_a_cut_cancels_from_2026_07_28_on(client: Client, saw: Saw) -> None:
    # The SDK's caller does not hear of the cut: its call goes on until its time is over, a minute by default.
    assert saw(client, "cut_work") == {"server": "cancelled", "after": "still there"}
