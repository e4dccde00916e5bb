"""What a server asks in the middle of a call, asked on the terminal; declined where there is none."""

import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

import click

from sluicegate.cli.arguments import Wrong, one_value, types_of
from sluicegate.cli.render import clean, say
from sluicegate.client.answers import ElicitAnswer, ElicitRequest
from sluicegate.protocol.message import Params, as_array, as_object

_DECLINED: Final = ElicitAnswer("decline")


class Terminal:
    """Answers what servers ask. `paused` is told when a person needs the terminal, and when no longer."""

    def __init__(self, paused: Callable[[bool], None]) -> None:
        self._paused = paused

    def __call__(self, request: ElicitRequest) -> ElicitAnswer:
        """What the person at the terminal does with the question."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            self._paused(True)  # Only stderr may be a terminal, with a bar on it.
            say(f"the server asks: {clean(request.message)} (Declined: nobody can be asked here.)")
            self._paused(False)
            return _DECLINED
        self._paused(True)
        try:
            # In the loop's own thread: while a person thinks, there is nothing else to do, and Ctrl+C is heard.
            with _interruptible():
                return _asked(request)
        except click.Abort as end:
            # Click says the same of Ctrl+D and of Ctrl+C; which of them it was is behind it.
            if isinstance(end.__context__, EOFError):
                click.echo(err=True)
                return _DECLINED
            raise KeyboardInterrupt from None
        finally:
            self._paused(False)


@contextmanager
def _interruptible() -> Generator[None]:
    """Let Ctrl+C end a blocking read; asyncio's own handler would only cancel a task, later."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _asked(request: ElicitRequest) -> ElicitAnswer:
    fields = as_object(request.schema.get("properties")) or {} if request.mode != "url" else {}
    hint = " (Ctrl+D declines)" if fields else ""
    click.echo(f"The server asks: {clean(request.message)}{hint}", err=True)
    if request.mode == "url":
        click.echo(f"  Open this page, if you trust it: {clean(request.url or '')}", err=True)
        return ElicitAnswer("accept") if click.confirm("  Have you?", err=True) else _DECLINED
    if not fields:
        return ElicitAnswer("accept", {}) if click.confirm("  Agree?", err=True) else _DECLINED
    required = as_array(request.schema.get("required")) or []
    content: dict[str, object] = {}
    for name, value in fields.items():
        answer = _field(name, as_object(value) or {}, request.schema, is_required=name in required)
        if answer is not None:
            content[name] = answer
    return ElicitAnswer("accept", content)


def _field(name: str, field: Params, root: Params, *, is_required: bool) -> object:
    """The person's value for one field of the form, asked until it is one; None if it is left empty."""
    title = field.get("title")
    label = clean(title if isinstance(title, str) else name)
    if isinstance(text := field.get("description"), str):
        click.echo(f"  {clean(text)}", err=True)
    if (choices := _choices(field)) is not None:
        label += f" ({', '.join(choices)})"
    if types_of(field, root) == frozenset({"boolean"}):
        return click.confirm(f"  {label}", default=field.get("default") is True, err=True)
    default = field.get("default", None if is_required else "")
    while True:
        text = str(click.prompt(f"  {label}", default=default, show_default=default not in (None, ""), err=True))
        if not text and not is_required:
            return None
        try:
            return one_value(name, text, field)
        except Wrong as problem:
            click.echo(f"  {problem}", err=True)


def _choices(field: Params) -> list[str] | None:
    """The values that a field may have, if it says so."""
    values = as_array(field.get("enum"))
    if values is None:
        options = as_array(field.get("oneOf")) or []
        values = [option["const"] for each in options if (option := as_object(each)) is not None and "const" in option]
    return [clean(str(value)) for value in values] or None
