"""One field of a form that a server wants to be filled in: what to say of it, and what a typed line means for it. PURE.

The one rule: the server is sent nothing that its own schema refuses, for it would throw the whole form away.
"""

import json
from typing import Final, NamedTuple, cast

from sluicegate.activation.violations import Checker
from sluicegate.cli.arguments import Wrong, one_value, resolved, types_of
from sluicegate.cli.render import clean, one_line
from sluicegate.protocol.message import Params, as_array, as_object

_SHARED: Final = ("$schema", "$defs", "definitions")


class Choice(NamedTuple):
    """One of the values that a field may have, and what people call it."""

    value: object
    title: str

    def __str__(self) -> str:
        plain = _plain(self.value)
        return one_line(plain if self.title == plain else f"{plain} ({self.title})")


class Field:
    """A field of a form."""

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
        """Whether it is a matter of yes or no."""
        self.default = self._schema.get("default")
        within = {key: form[key] for key in _SHARED if key in form}
        self._checker = Checker({**within, "properties": {self.label: self._schema}}, "field", formats=True)

    def introduction(self) -> list[str]:
        """What a person should know before."""
        said: list[str] = []
        if isinstance(text := self._schema.get("description"), str):
            said.append(clean(text))
        if self._is_list:
            counts = [
                f"{words} {count}"
                for words, key in (("at least", "minItems"), ("at most", "maxItems"))
                if (count := self._schema.get(key))
            ]
            what = "Any of these" if self._choices else "Several"
            limits = f" ({clean(', '.join(counts))})" if counts else ""
            said.append(f"{what}, with commas between{limits}{': ' if self._choices else ''}{self._all()}")
        elif self._choices and not self.is_switch:
            said.append(f"One of: {self._all()}")
        return said

    def prompt(self) -> str:
        """What stands before the cursor."""
        if self.default in (None, ""):
            return f"{self.label}: "
        items = as_array(self.default)
        shown = _plain(self.default) if items is None else ", ".join(map(_plain, items))
        return f"{self.label} [{one_line(shown)}]: "

    def value(self, line: str) -> object:
        """What a line means; None if the field is left out.

        Raises:
            Wrong: it is nothing that the field may have.
        """
        if line:
            value = self._read(line)
        elif self.default is None or (self.default == "" and not self._is_required):
            if self._is_required:
                raise Wrong(f"{self.label} is needed.")
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
        if self._chosen(line) is not None:  # A title may have a comma itself.
            return [self._one(line, self._items)]
        return [self._one(part.strip(), self._items) for part in line.split(",") if part.strip()]

    def _one(self, text: str, schema: Params) -> object:
        if not self._choices:
            return one_value(self.label, text, schema, self._form)
        choice = self._chosen(text)
        if choice is None:
            raise Wrong(f"{self.label} {'takes only' if self._is_list else 'is one of'} {self._all()}; not {text!r}.")
        return choice.value

    def _chosen(self, text: str) -> Choice | None:
        """The choice of that value, or else of that title: what is a value of one may be the title of another."""
        text = text.strip()
        by_title = {choice.title: choice for choice in reversed(self._choices)}
        by_value = {_plain(choice.value): choice for choice in self._choices}
        return by_value.get(text) or by_title.get(text)

    def _all(self) -> str:
        return ", ".join(map(str, self._choices))


def _choices(schema: Params) -> list[Choice]:
    """The values that a schema allows, if it names them: in one of the ways that forms have had."""
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
