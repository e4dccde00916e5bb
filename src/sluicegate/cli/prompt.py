"""Questions that a server asks during a call, asked on the terminal; declined if there is none.

An answer is checked against the server's own schema, because a server rejects the whole form for one wrong field.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, cast

import click

from sluicegate.activations.validation_errors import Checker
from sluicegate.cli.key_values import Wrong, one_value, resolved, types_of
from sluicegate.cli.output import clean, one_line, say
from sluicegate.client.handlers import ElicitAnswer, ElicitRequest
from sluicegate.protocol.message import Params, as_array, as_object
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.runtime.terminal import Keyboard, PromptEnded

_DECLINED: Final = ElicitAnswer("decline")
_SHARED: Final = ("$schema", "$defs", "definitions")


Answered = Callable[[ElicitRequest], Awaitable[None]]
"""Returns when a question has been answered elsewhere; never, if that cannot be."""


class Terminal:
    """Answers questions of servers. `pause` is called with True before a person uses the terminal, and False after."""

    def __init__(self, pause: Callable[[bool], None], answered: Answered) -> None:
        self._pause = pause
        self._answered = answered
        self._keyboard = Keyboard()
        self._turn = asyncio.Lock()

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
                say(f"{_asks(request)} (Not answered: there is no terminal to ask on.)")
                return ElicitAnswer("cancel")
            except EOFError:
                return _DECLINED
            except PromptEnded:
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
        fields = as_object(request.schema.get("properties")) or {} if request.mode != "url" else {}
        asked = _asks(request)
        # Below a question of several lines, it would look like a part of the last one.
        hint = ("\n  " if "\n" in asked else " ") + "(Ctrl+D declines)" if fields else ""
        click.echo(asked + hint, err=True)
        if request.mode == "url":
            click.echo(f"  Open this page, if you trust it: {clean(request.url or '')}", err=True)
            return ElicitAnswer("accept") if await self._keyboard.confirm("  Have you?") else _DECLINED
        if not fields:
            return ElicitAnswer("accept", {}) if await self._keyboard.confirm("  Agree?") else _DECLINED
        required = as_array(request.schema.get("required")) or []
        content: dict[str, object] = {}
        for name, schema in fields.items():
            answer = await self._fill_in(Field(name, schema, request.schema, is_required=name in required))
            if answer is not None:
                content[name] = answer
        return ElicitAnswer("accept", content)

    async def _fill_in(self, field: "Field") -> object:
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


class Choice(NamedTuple):
    """One of the values that a field may have, and its title."""

    value: object
    title: str

    def __str__(self) -> str:
        plain = _plain(self.value)
        return one_line(plain if self.title == plain else f"{plain} ({self.title})")


class Field:
    """One field of a form: what to print about it, and what a typed line means for it."""

    def __init__(self, name: str, schema: object, form: Params, *, is_required: bool) -> None:
        self._schema = resolved(schema, form)
        self._form = form
        self._is_required = is_required
        types = types_of(self._schema, form)
        self._is_list = "array" in types
        self._items = resolved(self._schema.get("items"), form)
        self._choices = _choices(self._items if self._is_list else self._schema)
        title = self._schema.get("title")
        self.label = one_line(title if isinstance(title, str) and title else name)
        self.is_switch = types == frozenset({"boolean"})
        """Whether it is answered with yes or no."""
        self.default = self._schema.get("default")
        shared = {key: form[key] for key in _SHARED if key in form}
        self._checker = Checker({**shared, "properties": {self.label: self._schema}}, "field", formats=True)

    def introduction(self) -> list[str]:
        """Lines to print before the prompt."""
        lines: list[str] = []
        if isinstance(text := self._schema.get("description"), str):
            lines.append(clean(text))
        if self._is_list:
            counts = [
                f"{words} {count}"
                for words, key in (("at least", "minItems"), ("at most", "maxItems"))
                if (count := self._schema.get(key))
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
        shown = _plain(self.default) if items is None else ", ".join(map(_plain, items))
        return f"{self.label} [{one_line(shown)}]: "

    def value(self, line: str) -> object:
        """The value that a line means; None if the field is left out.

        Raises:
            Wrong: the field may not have it.
        """
        if line:
            value = self._read(line)
        elif self.default is None or (self.default == "" and not self._is_required):
            if self._is_required:
                raise Wrong(f"{self.label} is required.")
            return None
        else:
            value = self._read(self.default) if isinstance(self.default, str) else self.default
        if problems := self._checker.problems({self.label: value}):
            raise Wrong(f"{one_line(problems)}.")
        return value

    def _read(self, line: str) -> object:
        if not self._is_list:
            return self._one(line, self._schema)
        if line.lstrip().startswith("["):
            try:
                given = cast(list[object], json.loads(line))
            except ValueError as problem:
                raise Wrong(f"{self.label} is not JSON: {problem}.") from None
            return [self._one(item, self._items) if isinstance(item, str) else item for item in given]
        if self._chosen(line) is not None:  # A title may contain a comma.
            return [self._one(line, self._items)]
        return [self._one(part.strip(), self._items) for part in line.split(",") if part.strip()]

    def _one(self, text: str, schema: Params) -> object:
        if not self._choices:
            return one_value(self.label, text, schema, self._form)
        choice = self._chosen(text)
        if choice is None:
            allowed = "accepts only" if self._is_list else "must be one of"
            raise Wrong(f"{self.label} {allowed} {self._all()}; not {text!r}.")
        return choice.value

    def _chosen(self, text: str) -> Choice | None:
        """The choice with that value, or else with that title: the value of one may be the title of another."""
        text = text.strip()
        by_title = {choice.title: choice for choice in reversed(self._choices)}
        by_value = {_plain(choice.value): choice for choice in self._choices}
        if (exact := by_value.get(text) or by_title.get(text)) is not None:
            return exact
        # The number of a choice, or its beginning if only one begins so.
        if text.isdecimal() and 1 <= int(text) <= len(self._choices):
            return self._choices[int(text) - 1]
        begun = [each for each in self._choices if text and _plain(each.value).lower().startswith(text.lower())]
        return begun[0] if len(begun) == 1 else None

    def _all(self) -> str:
        return ", ".join(map(str, self._choices))


def _asks(request: ElicitRequest) -> str:
    """The question, with its origin in front. Those of the gateway itself say so already."""
    from sluicegate.gate.approval_text import ASKS  # Imported late: few calls ask.

    message = clean(request.message)
    return message if message.startswith(ASKS) else f"The server asks: {message}"


def _choices(schema: Params) -> list[Choice]:
    """The values that a schema lists, in any of the ways that the revisions of the protocol have."""
    values = as_array(schema.get("enum"))
    if values is not None:
        titles = as_array(schema.get("enumNames")) or []
        if len(titles) != len(values):
            titles = values
        return [Choice(value, _plain(title)) for value, title in zip(values, titles, strict=True)]
    found: list[Choice] = []
    for each in as_array(schema.get("oneOf")) or as_array(schema.get("anyOf")) or []:
        option = as_object(each) or {}
        if "const" not in option:
            return []
        found.append(Choice(option["const"], _plain(option.get("title", option["const"]))))
    return found


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
