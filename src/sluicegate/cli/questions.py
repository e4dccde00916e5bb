"""What a server asks in the middle of a call, asked on the terminal; declined where there is none."""

import asyncio
import sys
from collections.abc import Callable
from typing import Final

import click

from sluicegate.cli.arguments import Wrong
from sluicegate.cli.fields import Field
from sluicegate.cli.keyboard import Keyboard, NoLonger
from sluicegate.cli.render import clean, say
from sluicegate.client.answers import ElicitAnswer, ElicitRequest
from sluicegate.protocol.message import as_array, as_object

_DECLINED: Final = ElicitAnswer("decline")


class Terminal:
    """Answers what servers ask. `paused` is told when a person needs the terminal, and when no longer."""

    def __init__(self, paused: Callable[[bool], None]) -> None:
        self._paused = paused
        self._keyboard = Keyboard()
        self._turn = asyncio.Lock()

    async def __call__(self, request: ElicitRequest) -> ElicitAnswer:
        """What the person at the terminal does with the question."""
        async with self._turn:  # A server may have asked something else meanwhile.
            self._paused(True)  # Also where nobody is asked: only stderr may be a terminal, with a bar on it.
            try:
                if sys.stdin.isatty() and sys.stderr.isatty():
                    return await self._asked(request)
                say(f"the server asks: {clean(request.message)} (Declined: nobody can be asked here.)")
                return _DECLINED
            except EOFError:
                return _DECLINED
            except NoLonger:
                return ElicitAnswer("cancel")
            finally:
                self._paused(False)

    def end(self) -> None:
        """Ask nothing any more: the call is over, and nobody waits for an answer."""
        self._keyboard.end()

    async def _asked(self, request: ElicitRequest) -> ElicitAnswer:
        fields = as_object(request.schema.get("properties")) or {} if request.mode != "url" else {}
        hint = " (Ctrl+D declines)" if fields else ""
        click.echo(f"The server asks: {clean(request.message)}{hint}", err=True)
        if request.mode == "url":
            click.echo(f"  Open this page, if you trust it: {clean(request.url or '')}", err=True)
            return ElicitAnswer("accept") if await self._keyboard.agrees("  Have you?") else _DECLINED
        if not fields:
            return ElicitAnswer("accept", {}) if await self._keyboard.agrees("  Agree?") else _DECLINED
        required = as_array(request.schema.get("required")) or []
        content: dict[str, object] = {}
        for name, schema in fields.items():
            answer = await self._filled_in(Field(name, schema, request.schema, is_required=name in required))
            if answer is not None:
                content[name] = answer
        return ElicitAnswer("accept", content)

    async def _filled_in(self, field: Field) -> object:
        """The person's value for one field of the form, asked until it is one; None if it is left empty."""
        for line in field.introduction():
            click.echo(f"  {line}", err=True)
        if field.is_switch:
            return await self._keyboard.agrees(f"  {field.label}", default=field.default is True)
        while True:
            try:
                return field.value(await self._keyboard.line(f"  {field.prompt()}"))
            except Wrong as problem:
                click.echo(f"  {problem}", err=True)
