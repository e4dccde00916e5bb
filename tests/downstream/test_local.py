"""A gateway's own socket stays where the commands look for it, whatever becomes of its folder."""

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from sluicegate.downstream import local
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Reply, Result


async def answer(exchange: Exchange) -> Reply:
    return Result({})


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "GLANCE", 0.01)


async def reached(path: Path) -> None:
    """Return when somebody at the path answers."""
    async with asyncio.timeout(10):
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(path)
                break
            except OSError:
                await asyncio.sleep(0.01)
        writer.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        assert b'"result"' in await reader.readline()
        writer.close()
        assert not await reader.read()


async def test_the_socket_is_there_again_after_its_folder_was_cleared_away(tmp_path: Path) -> None:
    path = tmp_path / "run" / "gateway.sock"
    async with local.serve_socket(answer, str(path)):
        await reached(path)
        shutil.rmtree(path.parent)
        await reached(path)
    assert not path.exists()


async def test_where_it_cannot_be_again_that_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run" / "gateway.sock"
    with caplog.at_level(logging.WARNING, "sluicegate"):
        async with local.serve_socket(answer, str(path)):
            shutil.rmtree(path.parent)
            path.parent.write_text("a file, where the folder was")
            async with asyncio.timeout(10):
                while not caplog.messages:  # noqa: ASYNC110 - nobody else tells of a line in the log
                    await asyncio.sleep(0.01)
            path.parent.unlink()
            await reached(path)
    gone, back = caplog.messages
    assert "no command reaches this gateway" in gone and "cannot be made" in gone
    assert "is there again" in back


async def test_the_socket_of_another_who_came_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run" / "gateway.sock"
    async with local.serve_socket(answer, str(path)):
        shutil.rmtree(path.parent)
        async with local.serve_socket(answer, str(path)):
            pass
    assert not path.exists()
