"""A disk that is full or read-only, a broken log: calls are refused, none is forwarded, and they pass again (R26)."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, cast

import pytest

from tests.downstream.raw_client import Json
from tests.faults.gateway_stage import Process
from tests.faults.load import Answer
from tests.governance.stage import Governed, call_bytes, governing, outcome_of, wire_to
from tests.polling import PATIENCE, until_called

pytestmark = pytest.mark.timeout(120)

RULES: Final = '[[permissions]]\ntool = "*"\naction = "allow"\n'


def mount(*words: str) -> bool:
    """Mount something; whether that was possible."""
    return subprocess.run(["mount", *words], check=False, capture_output=True).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A disk of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or not mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)):
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


class Caller:
    """Calls one after the other, and what came of them."""

    def __init__(self, folder: Governed, gateway: Process) -> None:
        self._folder = folder
        self._gateway = gateway
        self._nonce = 0
        self.seen: dict[int, str] = {}
        self.may_have_run: set[int] = set()
        """Those that were answered, or of which the answer says that they ran."""

    async def call(self) -> Answer:
        self._nonce += 1
        wire = await wire_to(self._gateway)
        answer = await wire.ask(call_bytes("a__put", f'{{"nonce": {self._nonce}}}'))
        wire.close()
        self.seen[self._nonce] = outcome_of(answer)
        error = cast(Json, answer.message.get("error") or {})
        if cast(Json, error.get("data") or {}).get("delivered") != "no":
            self.may_have_run.add(self._nonce)
        return answer

    async def call_until(self, outcome: str) -> Answer:
        """Call until this comes of it; nothing else comes of a call but what the log allows."""
        async with asyncio.timeout(PATIENCE):
            while True:
                answer = await self.call()
                assert self.seen[self._nonce] in ("ok", "audit_unavailable"), answer
                if self.seen[self._nonce] == outcome:
                    return answer

    async def ready(self) -> int:
        """The status of `/readyz`."""
        wire = await wire_to(self._gateway)
        answer = await wire.ask(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wire.close()
        return answer.status

    def arrived(self) -> set[int]:
        given = [cast(Json, cast(Json, each["params"])["arguments"]) for each in self._folder.received("a")]
        return {cast(int, arguments["nonce"]) for arguments in given}


async def assert_refused_until(caller: Caller, folder: Governed, mend: Callable[[], object]) -> None:
    """Calls are refused on the wire and at the server until the disk is mended; then they pass."""
    for _ in range(5):
        answer = await caller.call_until("audit_unavailable")
        error = cast(Json, answer.message["error"])
        assert (answer.status, error["code"]) == (503, 1030)
    assert caller.arrived() <= caller.may_have_run

    # A disk that is nearly full takes a row now and then, so each look comes after a refusal, and is repeated.
    async def is_unready() -> bool:
        await caller.call_until("audit_unavailable")
        return await caller.ready() == 503

    async def is_reported() -> bool:
        await caller.call_until("audit_unavailable")
        return "audit log cannot be written" in (await folder.command("status")).stderr

    await until_called(is_unready, bool)
    await until_called(is_reported, bool)
    mend()
    await caller.call_until("ok")
    assert await caller.ready() == 200
    assert "audit log" not in (await folder.command("status")).stderr


def assert_whole(caller: Caller, folder: Governed) -> None:
    """Whatever arrived was decided on record, whatever was seen is on record, and the gaps are counted."""
    decisions = {str(row.body["digest"]): row.request for row in folder.rows("decision")}
    outcomes = {row.request for row in folder.rows("outcome")}
    for nonce in caller.arrived():
        assert folder.digest({"nonce": nonce}) in decisions
    for nonce, came in caller.seen.items():
        if came == "ok":
            assert decisions[folder.digest({"nonce": nonce})] in outcomes
    gaps = [row.body for row in folder.rows("audit") if row.verdict == "gap"]
    assert sum(cast(int, gap["rows"]) for gap in gaps) >= sum(came != "ok" for came in caller.seen.values()) - 1


@asynccontextmanager
async def calling(tmp_path: Path, settings: str = "") -> AsyncGenerator[tuple[Caller, Governed]]:
    folder = Governed(tmp_path, {"a": ()}, settings + RULES)
    try:
        async with governing(folder) as gateway:
            caller = Caller(folder, gateway)
            await caller.call_until("ok")
            yield caller, folder
            assert await gateway.stopped() == 0
        assert_whole(caller, folder)
        await folder.verified()
    finally:
        folder.remove()


def settings_for(folder: Path, **more: str) -> str:
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in {"folder": str(folder), **more}.items()]
    return "[audit]\n" + "".join(lines) + "\n"


def fill(disk: Path) -> Path:
    """A file that takes all room there is."""
    path = disk / "filling"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    return path


@pytest.mark.parametrize("sync", ["normal", "full"])
async def test_r26_a_full_disk_stops_calls_until_there_is_room(tmp_path: Path, small_disk: Path, sync: str) -> None:
    async with calling(tmp_path, settings_for(small_disk / "audit", sync=sync)) as (caller, folder):
        await assert_refused_until(caller, folder, fill(small_disk).unlink)


async def test_r26_a_full_disk_lets_calls_pass_if_so_configured_and_counts_them(
    tmp_path: Path, small_disk: Path
) -> None:
    async with calling(tmp_path, settings_for(small_disk / "audit", on_failure="open")) as (caller, folder):
        filling = fill(small_disk)
        async with asyncio.timeout(PATIENCE):
            while "audit log cannot be written" not in (await folder.command("status")).stderr:
                await caller.call_until("ok")
        for _ in range(5):
            await caller.call_until("ok")
        assert await caller.ready() == 200
        filling.unlink()
        async with asyncio.timeout(PATIENCE):
            while not [row for row in folder.rows("audit") if row.verdict == "gap"]:
                await caller.call_until("ok")


async def test_r26_a_read_only_disk_stops_calls_until_it_can_be_written(tmp_path: Path, small_disk: Path) -> None:
    audit = small_disk / "audit"
    assert mount("-o", "remount,ro", str(small_disk))
    folder = Governed(tmp_path, {"a": ()}, settings_for(audit) + RULES)
    try:
        async with governing(folder) as gateway:
            caller = Caller(folder, gateway)
            await assert_refused_until(
                caller, folder, lambda: mount("-o", "remount,rw", str(small_disk)) or pytest.fail("cannot be mended")
            )
            assert await gateway.stopped() == 0
        assert_whole(caller, folder)
        await folder.verified()
    finally:
        folder.remove()


async def test_r26_a_log_that_is_broken_is_left_as_it_is_and_another_file_continues(tmp_path: Path) -> None:
    folder = Governed(tmp_path, {"a": ()}, RULES)
    try:
        async with governing(folder) as gateway:
            caller = Caller(folder, gateway)
            await caller.call_until("ok")
            assert await gateway.stopped() == 0
        (path,) = folder.audit.glob("*.jsonl")
        path.write_bytes(b"no rows at all\n" * 1000)
        async with governing(folder) as gateway:
            caller = Caller(folder, gateway)
            await caller.call_until("ok")
            assert await gateway.stopped() == 0
        assert path.read_bytes() == b"no rows at all\n" * 1000
        done = await folder.command("audit", "verify")
        assert done.returncode == 1 and path.name in done.stdout + done.stderr
    finally:
        folder.remove()
