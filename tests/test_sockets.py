"""Sockets of the commands: one gateway has them, whoever else comes in the same moment is told."""

import asyncio
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sluicegate.claims import claimed, leave
from sluicegate.errors import ConfigError
from sluicegate.sockets import SocketWire, dial, is_ours_alone, listen


@pytest.fixture
def path() -> Generator[str]:
    """A short path, as those of sockets must be, in a folder that is ours alone."""
    with tempfile.TemporaryDirectory(prefix="sg-") as folder:
        yield f"{folder}/control.sock"


async def test_what_we_listen_at_is_ours_alone_until_others_can_reach_it(path: str) -> None:
    assert not is_ours_alone(path), "there is nothing yet"
    async with asyncio.timeout(10), await listen(path, lambda wire: None):
        assert is_ours_alone(path)
        os.chmod(os.path.dirname(path), 0o750)
        assert not is_ours_alone(path)


def test_a_file_is_no_socket_of_ours(path: str) -> None:
    Path(path).touch(0o600)
    assert not is_ours_alone(path)


def test_of_many_who_claim_a_path_at_once_one_gets_it_each_time(path: str) -> None:
    everybody = threading.Barrier(8)

    def claim() -> None:
        everybody.wait(10)
        try:
            with claimed(path):
                winners.append(threading.get_ident())
                everybody.wait(10)  # until everybody has tried
        except ConfigError as problem:
            assert "Another gateway serves this folder already" in problem.message
            everybody.wait(10)

    for _ in range(50):
        winners: list[int] = []
        threads = [threading.Thread(target=claim) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(winners) == 1
    assert os.listdir(os.path.dirname(path)) == [], "nothing is left of it"


def test_a_claim_that_comes_and_goes_is_never_had_by_two(path: str) -> None:
    holders: list[int] = []
    most = 0

    def come_and_go(number: int) -> None:
        nonlocal most
        for _ in range(300):
            try:
                with claimed(path):
                    holders.append(number)
                    most = max(most, len(holders))
                    holders.remove(number)
            except ConfigError:
                pass

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == 1


async def test_what_one_that_was_killed_left_behind_is_no_obstacle(path: str) -> None:
    program = (
        "import asyncio, sys\n"
        "from sluicegate.claims import claimed\n"
        "from sluicegate.sockets import listen\n"
        "async def main():\n"
        "    with claimed(sys.argv[1]):\n"
        "        await listen(sys.argv[1], lambda wire: None)\n"
        "        print('here', flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, path, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(30):
        assert process.stdout is not None and await process.stdout.readline()
        with pytest.raises(ConfigError, match="Another gateway serves"), claimed(path):
            pass
        process.kill()
        await process.wait()
    left = {Path(path).name, f"{Path(path).name}.lock"}
    assert set(os.listdir(os.path.dirname(path))) == left
    with claimed(path):
        came: asyncio.Queue[SocketWire] = asyncio.Queue()
        server = await listen(path, came.put_nowait)
        async with asyncio.timeout(10):
            ours, theirs = await dial(path), await came.get()
        for wire in (ours, theirs):
            wire.close()
        server.close()
        await asyncio.sleep(0)  # in which they hang up
        leave(path)
    assert os.listdir(os.path.dirname(path)) == []


def test_who_listens_without_a_claim_is_left_alone(path: str) -> None:
    with ExitStack() as stack:
        other = stack.enter_context(socket.socket(socket.AF_UNIX))
        other.bind(path)
        other.listen()
        with pytest.raises(ConfigError, match="Another gateway serves"), claimed(path):
            pass
        assert os.listdir(os.path.dirname(path)) == [Path(path).name]


def test_a_lock_that_cannot_be_made_is_said_with_its_place(path: str) -> None:
    os.mkdir(f"{path}.lock")
    with pytest.raises(ConfigError, match=r"control\.sock\.lock, cannot be made: Is a directory"), claimed(path):
        pass
