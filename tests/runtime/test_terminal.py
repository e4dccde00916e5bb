"""Reading lines from the terminal: the wait ends when the answer is no longer needed."""

import asyncio
import os
import pty
import sys
from collections.abc import Generator
from io import FileIO

import pytest

from sluicegate.runtime.terminal import Keyboard, PromptEnded


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Generator[FileIO]:
    """The other end of the terminal that stdin is."""
    ours, theirs = pty.openpty()
    with open(ours, "r+b", buffering=0) as hand, open(theirs, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield hand


async def echoed(hand: FileIO, text: bytes) -> None:
    """Type something, and wait until the terminal has it."""
    hand.write(text)
    seen = b""
    while text not in seen:
        seen += await asyncio.to_thread(os.read, hand.fileno(), 100)


async def test_half_a_line_is_not_left_for_the_shell(hand: FileIO) -> None:
    keyboard = Keyboard()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(_outcome(keyboard))
        await echoed(hand, b"rm -r")
        keyboard.end()
        assert await waiting == "no longer"
    hand.write(b"next\n")
    assert await asyncio.to_thread(os.read, sys.stdin.fileno(), 100) == b"next\n"


async def test_a_question_after_the_end_fails_at_once(hand: FileIO) -> None:
    keyboard = Keyboard()
    keyboard.end()
    with pytest.raises(PromptEnded):
        await keyboard.line("? ")


async def test_a_terminal_that_is_hung_up_is_the_end_of_what_is_typed(hand: FileIO) -> None:
    hand.close()
    async with asyncio.timeout(30):
        with pytest.raises(EOFError):
            await Keyboard().line("? ")


async def _outcome(keyboard: Keyboard) -> str:
    try:
        return await keyboard.line("? ")
    except PromptEnded:
        return "no longer"
