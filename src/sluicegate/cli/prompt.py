"""Questions that a server asks during a call, asked on the terminal; declined if there is none.

An answer is checked against the server's own schema, because a server rejects the whole form for one wrong field.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Final, cast

import click

from sluicegate.cli.output import clean, one_line, say
from sluicegate.client.handlers import ElicitAnswer, ElicitRequest
from sluicegate.protocol.message import as_array, as_object
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.runtime.terminal import Keyboard, PromptEnded
from sluicegate.schemas.fields import Choice, Field, Wrong, plain, whole
from sluicegate.schemas.validate import Checker

_DECLINED: Final = ElicitAnswer("decline")
_SHARED: Final = ("$schema", "$defs", "definitions")


Answered = Callable[[ElicitRequest], Awaitable[None]]
"""Returns when a question has been answered elsewhere; never, if that cannot be."""
Elsewhere = Callable[[ElicitRequest], Awaitable[str]]
"""A sentence about how a question can be answered elsewhere; empty if that cannot be."""


class Terminal:
    """Answers questions of servers. `pause` is called with True before a person uses the terminal, and False after."""

    def __init__(self, pause: Callable[[bool], None], answered: Answered, elsewhere: Elsewhere) -> None:
        self._pause = pause
        self._answered = answered
        self._elsewhere = elsewhere
        self._keyboard = Keyboard()
        self._turn = asyncio.Lock()
        self.unanswered = ""
        """The question that `end` ended."""

    async def __call__(self, request: ElicitRequest) -> ElicitAnswer:
        """The answer of the person at the terminal."""
        async with self._turn:  # A server may ask several questions at once.
            self._pause(True)  # Also without a person: stderr alone may be a terminal, with a progress bar.
            try:
                if sys.stdin.isatty() and sys.stderr.isatty():
                    async with TaskScope() as tasks:
                        tasks.start(self._end_when_answered(request))
                        try:
                            return await self._ask(request)
                        finally:
                            tasks.cancel_all()
                # Not declined: the user has not answered. The approval of a call, for one, can be given elsewhere.
                way = await self._elsewhere(request)
                say(f"{_asks(request)} (Not answered: there is no terminal to ask on.{way and f' {way}'})")
                return ElicitAnswer("cancel")
            except EOFError:
                return _DECLINED
            except PromptEnded:
                self.unanswered = request.message
                return ElicitAnswer("cancel")
            finally:
                self._pause(False)

    def end(self) -> None:
        """Ask nothing more: the call is over."""
        self._keyboard.end()

    async def _end_when_answered(self, request: ElicitRequest) -> None:
        await self._answered(request)
        self._keyboard.end_line()

    async def _ask(self, request: ElicitRequest) -> ElicitAnswer:
        form = whole(request.schema)
        fields = form.members if request.mode != "url" else {}
        asked = _asks(request)
        # Below a question of several lines, it would look like a part of the last one.
        hint = ("\n  " if "\n" in asked else " ") + "(Ctrl+D declines)" if fields else ""
        click.echo(asked + hint, err=True)
        if request.mode == "url":
            click.echo(f"  Open this page, if you trust it: {clean(request.url or '')}", err=True)
            return ElicitAnswer("accept") if await self._keyboard.confirm("  Have you?") else _DECLINED
        if not fields:
            return ElicitAnswer("accept", {}) if await self._keyboard.confirm("  Agree?") else _DECLINED
        content: dict[str, object] = {}
        for name, field in fields.items():
            if name == "reason" and _is_approval(request) and content.get("answer") != "no":
                continue  # It is the reason for a no.
            answer = await self._fill_in(PromptField(field))
            if answer is not None:
                content[name] = answer
        return ElicitAnswer("accept", content)

    async def _fill_in(self, field: "PromptField") -> object:
        """The value for one field, asked until it is valid; None if it is left empty."""
        for line in field.introduction():
            click.echo(f"  {line}", err=True)
        if field.is_switch:
            return await self._keyboard.confirm(f"  {field.label}", default=field.default is True)
        while True:
            try:
                return field.value(await self._keyboard.line(f"  {field.prompt()}"))
            except Wrong as problem:
                click.echo(f"  {problem}", err=True)


class PromptField:
    """One field of a form: what to print about it, and what a typed line means for it."""

    def __init__(self, field: Field) -> None:
        title = field.schema.get("title")
        self.label = one_line(title if isinstance(title, str) and title else field.name)
        self._field = field.named(self.label)
        self._is_list = "array" in field.types
        self._choices = self._field.items.choices if self._is_list else self._field.choices
        self.is_switch = field.types == frozenset({"boolean"})
        """Whether it is answered with yes or no."""
        self.default = field.schema.get("default")
        form = as_object(field.document.root) or {}
        shared = {key: form[key] for key in _SHARED if key in form}
        self._checker = Checker({**shared, "properties": {self.label: field.schema}}, "field", formats=True)

    def introduction(self) -> list[str]:
        """Lines to print before the prompt."""
        lines: list[str] = []
        if text := self._field.description:
            lines.append(clean(text))
        if self._is_list:
            counts = [
                f"{words} {count}"
                for words, key in (("at least", "minItems"), ("at most", "maxItems"))
                if (count := self._field.schema.get(key))
            ]
            what = "Any of these" if self._choices else "Several"
            limits = f" ({clean(', '.join(counts))})" if counts else ""
            lines.append(f"{what}, separated by commas{limits}{': ' if self._choices else ''}{self._all()}")
        elif self._choices and not self.is_switch:
            lines.append(f"One of: {self._all()}")
        return lines

    def prompt(self) -> str:
        """The text before the cursor."""
        if self.default in (None, ""):
            return f"{self.label} " if self.label.endswith("?") else f"{self.label}: "
        items = as_array(self.default)
        shown = plain(self.default) if items is None else ", ".join(map(plain, items))
        return f"{self.label} [{one_line(shown)}]: "

    def value(self, line: str) -> object:
        """The value that a line means; None if the field is left out.

        Raises:
            Wrong: the field may not have it.
        """
        if line:
            value = self._read(line)
        elif self.default is None or (self.default == "" and not self._field.is_required):
            if self._field.is_required:
                raise Wrong(f"{self.label} is required.")
            return None
        else:
            value = self._read(self.default) if isinstance(self.default, str) else self.default
        if problems := self._checker.problems({self.label: value}):
            raise Wrong(f"{one_line(problems)}.")
        return value

    def _read(self, line: str) -> object:
        if not self._is_list:
            return self._one(line, self._field)
        items = self._field.items
        if line.lstrip().startswith("["):
            try:
                given = cast(list[object], json.loads(line))
            except ValueError as problem:
                raise Wrong(f"{self.label} is not JSON: {problem}.") from None
            return [self._one(item, items) if isinstance(item, str) else item for item in given]
        if self._chosen(line) is not None:  # A title may contain a comma.
            return [self._one(line, items)]
        return [self._one(part.strip(), items) for part in line.split(",") if part.strip()]

    def _one(self, text: str, field: Field) -> object:
        if not self._choices:
            return field.value([text])
        choice = self._chosen(text)
        if choice is None:
            allowed = "accepts only" if self._is_list else "must be one of"
            raise Wrong(f"{self.label} {allowed} {self._all()}; not {text!r}.")
        return choice.value

    def _chosen(self, text: str) -> Choice | None:
        """The choice with that value, or else with that title: the value of one may be the title of another."""
        text = text.strip()
        by_title = {choice.title: choice for choice in reversed(self._choices)}
        by_value = {plain(choice.value): choice for choice in self._choices}
        if (exact := by_value.get(text) or by_title.get(text)) is not None:
            return exact
        # The number of a choice, or its beginning if only one begins so.
        if text.isdecimal() and 1 <= int(text) <= len(self._choices):
            return self._choices[int(text) - 1]
        begun = [each for each in self._choices if text and plain(each.value).lower().startswith(text.lower())]
        return begun[0] if len(begun) == 1 else None

    def _all(self) -> str:
        return ", ".join(map(_shown, self._choices))


def _asks(request: ElicitRequest) -> str:
    """The question, with its origin in front. Those of the gateway itself say so already."""
    message = clean(request.message)
    return message if _is_approval(request) else f"The server asks: {message}"


def _is_approval(request: ElicitRequest) -> bool:
    """Whether it is the gateway's own question whether a call may run."""
    from sluicegate.gate.approval_text import ASKS  # Imported late: few calls ask.

    return request.message.startswith(ASKS)


def _shown(choice: Choice) -> str:
    value = plain(choice.value)
    return one_line(value if choice.title == value else f"{value} ({choice.title})")
