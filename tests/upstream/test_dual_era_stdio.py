"""A command with `era = "both"`, behind a hub: a process for each era, the second one only when it is needed."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sluicegate.exchange import NOBODY, Exchange
from sluicegate.hub.hub import Hub
from sluicegate.protocol.message import Result, as_array, as_object, opened
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.upstream import dual_era
from sluicegate.upstream.stdio import stdio
from tests.polling import until

SESSION = ClientProfile("2025-11-25")
MODERN = ClientProfile("2026-07-28")

SERVER = """
import os, sluicegate
server = sluicegate.Server("s")

@server.tool
def pid() -> str:
    return str(os.getpid())

sluicegate.run(server)
"""


@asynccontextmanager
async def mounted(folder: Path) -> AsyncGenerator[Hub]:
    script = folder / "server.py"
    script.write_text(SERVER)
    hub = Hub()
    hub.mount("s", stdio("python", script, era="both"))
    async with asyncio.timeout(50), hub:
        await hub.settled()
        yield hub


async def pid_for(hub: Hub, profile: ClientProfile) -> int:
    reply = await hub(Exchange("tools/call", {"name": "s__pid", "arguments": {}}, NOBODY, profile))
    assert isinstance(reply, Result), reply
    (block,) = as_array(opened(reply)["content"]) or []
    return int(str((as_object(block) or {})["text"]))


async def test_callers_of_each_era_have_a_process_and_the_second_one_is_started_with_its_first_call(
    tmp_path: Path,
) -> None:
    async with mounted(tmp_path) as hub:
        (mount,) = hub.mounts
        modern = await pid_for(hub, MODERN)
        assert mount.session_version == ""
        session = await pid_for(hub, SESSION)
        assert session != modern and mount.session_version == "2025-11-25"
        assert [await pid_for(hub, profile) for profile in (MODERN, SESSION)] == [modern, session]
    for process in (modern, session):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


async def test_a_second_process_that_ends_is_not_restarted_at_once_and_the_first_one_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dual_era, "SESSION_RETRY", 3600.0)
    async with mounted(tmp_path) as hub:
        (mount,) = hub.mounts
        modern, session = await pid_for(hub, MODERN), await pid_for(hub, SESSION)
        os.kill(session, signal.SIGKILL)
        await until(lambda: mount.session_version == "")
        assert await pid_for(hub, SESSION) == modern and mount.is_ready


async def test_a_second_process_that_ended_is_restarted_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dual_era, "SESSION_RETRY", 0.0)
    async with mounted(tmp_path) as hub:
        (mount,) = hub.mounts
        modern, session = await pid_for(hub, MODERN), await pid_for(hub, SESSION)
        os.kill(session, signal.SIGKILL)
        await until(lambda: mount.session_version == "")
        while (third := await pid_for(hub, SESSION)) == modern:
            pass
        assert third != session
