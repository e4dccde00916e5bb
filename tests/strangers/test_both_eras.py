"""A server on the official SDK of both eras over stdio: what it can do live it does for session-era callers only."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import sluicegate
from sluicegate import ElicitRequest
from sluicegate.testing import MemoryUpstream
from sluicegate.upstream.stdio import Eras

SERVER: Final = Path(__file__).parent / "peers" / "server_mcp2.py"


def choose(question: ElicitRequest) -> dict[str, object]:
    return {"colour": "green", "amount": 3}


@pytest.mark.parametrize(("era", "is_asked"), [("auto", False), ("both", True)])
async def test_a_tool_that_asks_live_can_do_so_in_a_process_for_session_era_callers(
    era: Eras, is_asked: bool, stranger: Callable[[str], Path]
) -> None:
    hub = sluicegate.Hub()
    hub.mount("s", sluicegate.stdio(stranger("mcp2") / "bin" / "python", SERVER, era=era))
    async with asyncio.timeout(50), hub:
        await hub.settled()
        async with (
            sluicegate.connect(MemoryUpstream(hub, era="session"), elicit=choose) as older,
            sluicegate.connect(MemoryUpstream(hub, era="modern"), elicit=choose) as newer,
        ):
            if is_asked:
                assert (await older.call("s__choose_at_once", message="Which?")).text == "accept"
            else:
                with pytest.raises(sluicegate.RpcError, match="no back-channel"):
                    await older.call("s__choose_at_once", message="Which?")
            for client in (older, newer):
                assert (await client.call("s__echo", text="hello")).text == "hello"
