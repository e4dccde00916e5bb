"""What a person types on the terminal, line by line; the wait for it ends with whatever it was wanted for.

Not `input`, which nothing ends but a line: here the loop goes on, hears that the call is over, and hears Ctrl+C.
"""

import asyncio
import os
import sys
from contextlib import suppress

import click


class NoLonger(Exception):
    """Nobody waits for what the person would type."""


class Keyboard:
    """The terminal that stdin is, with the kernel's own editing of lines."""

    def __init__(self) -> None:
        self._is_over = False
        self._line: asyncio.Future[str] | None = None

    def end(self) -> None:
        """Let whoever waits for a line, now or later, have `NoLonger`."""
        self._is_over = True
        if self._line is not None and not self._line.done():
            self._line.set_exception(NoLonger())

    async def line(self, prompt: str) -> str:
        """The next line, without its end.

        Raises:
            EOFError: there is none, as after Ctrl+D.
            NoLonger: it is not wanted any more.
        """
        if self._is_over:
            raise NoLonger
        click.echo(prompt, nl=False, err=True)
        loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
        line = self._line = loop.create_future()
        typed = bytearray()

        def read() -> None:
            try:
                more = os.read(terminal, 4096)
            except OSError:  # It was hung up.
                more = b""
            typed.extend(more)
            if line.done() or (more and not more.endswith(b"\n")):
                return  # Ctrl+D after some letters hands out these, and the line goes on.
            if typed:
                line.set_result(typed.decode(sys.stdin.encoding, "replace").rstrip("\r\n"))
            else:
                line.set_exception(EOFError())

        loop.add_reader(terminal, read)
        try:
            return await line
        except (asyncio.CancelledError, NoLonger):
            _forget_half_a_line(terminal)
            click.echo(err=True)
            raise
        except EOFError:
            click.echo(err=True)
            raise
        finally:
            loop.remove_reader(terminal)

    async def agrees(self, question: str, *, default: bool = False) -> bool:
        """Whether the person says yes."""
        while True:
            said = (await self.line(f"{question} [{'Y/n' if default else 'y/N'}]: ")).strip().lower()
            if not said:
                return default
            if said in ("y", "yes", "true", "n", "no", "false"):
                return said in ("y", "yes", "true")
            click.echo("  Please say y or n.", err=True)


def _forget_half_a_line(terminal: int) -> None:
    """Leave no part of an answer for the shell, which would take it for a command."""
    import termios  # Here and not above: not every system has these.

    with suppress(termios.error):
        termios.tcflush(terminal, termios.TCIFLUSH)
