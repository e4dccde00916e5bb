"""The one reader of lines that a person types, for code that runs in an event loop."""

import asyncio
import os
import sys
from contextlib import suppress

try:
    import termios
except ImportError:  # Windows has none.
    termios = None


class PromptEnded(Exception):
    """The answer is no longer needed."""


class Keyboard:
    """Reads lines from the terminal in the event loop; unlike `input`, the wait can be ended and Ctrl+C works."""

    def __init__(self) -> None:
        self._is_over = False
        self._line: asyncio.Future[str] | None = None

    def end(self) -> None:
        """End the wait for a line, now and in future, with `PromptEnded`."""
        self._is_over = True
        self.end_line()

    def end_line(self) -> None:
        """End the wait for the current line with `PromptEnded`."""
        if self._line is not None and not self._line.done():
            self._line.set_exception(PromptEnded())

    async def line(self, prompt: str) -> str:
        """The next line, without its end.

        Raises:
            EOFError: there is none, as after Ctrl+D.
            PromptEnded: it is no longer needed.
        """
        if self._is_over:
            raise PromptEnded
        _write(prompt)
        loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
        line = self._line = loop.create_future()
        typed = bytearray()

        def read() -> None:
            try:
                more = os.read(terminal, 4096)
            except OSError:  # The terminal was closed.
                more = b""
            typed.extend(more)
            if line.done() or (more and not more.endswith(b"\n")):
                return  # Ctrl+D after some letters delivers these, and the line goes on.
            if typed:
                line.set_result(typed.decode(sys.stdin.encoding, "replace").rstrip("\r\n"))
            else:
                line.set_exception(EOFError())

        loop.add_reader(terminal, read)
        try:
            return await line
        except (asyncio.CancelledError, PromptEnded):
            _discard_input(terminal)
            _write("\n")
            raise
        except EOFError:
            _write("\n")
            raise
        finally:
            loop.remove_reader(terminal)

    async def confirm(self, question: str, *, default: bool = False) -> bool:
        """Whether the person answers yes."""
        while True:
            answer = (await self.line(f"{question} [{'Y/n' if default else 'y/N'}]: ")).strip().lower()
            if not answer:
                return default
            if answer in ("y", "yes", "true", "n", "no", "false"):
                return answer in ("y", "yes", "true")
            _write("  Please answer y or n.\n")


def _discard_input(terminal: int) -> None:
    """Leave no half-typed answer for the shell, which would take it for a command."""
    if termios is not None:
        with suppress(termios.error):
            termios.tcflush(terminal, termios.TCIFLUSH)


def _write(text: str) -> None:
    # stderr may be closed or its reader gone; the person may still type.
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()
