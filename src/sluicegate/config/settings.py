"""`sluicegate.toml`: checked key by key against the Structs, so that a slip is told with its line and its way out."""

import re
from typing import Final, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from sluicegate.config.problems import Problem, nearest
from sluicegate.config.values import Settings

Table = dict[str, object]
S = TypeVar("S", bound=msgspec.Struct)

_PROFILE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]{0,31}")
_EXPECTED: Final = re.compile(r"Expected `([^`]+)`( [^,]+)?(?:, got `([^`]+)`)?")
_WORDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text in quotes",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
_OF_ENTRIES: Final = frozenset({"command", "args", "env", "url", "headers", "cwd", "type"})
_at: Final = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)")


class SettingsFile(msgspec.Struct, frozen=True, kw_only=True):
    """What one file says, and what is wrong with it. It counts only if nothing is."""

    table: Table = {}
    problems: tuple[Problem, ...] = ()
    lines: dict[tuple[str, ...], int] = {}


def read_settings(text: str, file: str) -> SettingsFile:
    """The checked table of a file. Pure; never raises."""
    import tomllib  # Here and not above: many folders have no such file, and it would delay every start.

    try:
        table: Table = tomllib.loads(text.removeprefix("\ufeff"))
    except ValueError as error:  # Also for a number that is too long to be one.
        return SettingsFile(problems=(_unreadable(str(error), text, file),))
    except RecursionError:
        return SettingsFile(problems=(Problem(severity="error", file=file, line=1, sentence="Nested too deep."),))
    check = _Check(file, lines_of(text))
    check.table(table, Settings, ())
    return SettingsFile(table=table, problems=tuple(check.problems), lines=check.lines)


def merged(first: Table, second: Table) -> Table:
    """Both tables in one; where they disagree, the second one counts."""
    both = dict(first)
    for key, value in second.items():
        old = both.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            both[key] = merged(cast(Table, old), cast(Table, value))
        else:
            both[key] = value
    return both


def line_of(lines: dict[tuple[str, ...], int], path: tuple[str, ...]) -> int | None:
    """The line of a key, or of the nearest one around it."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)


_part: Final = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_dotted: Final = rf"{_part}(?:\s*\.\s*{_part})*"
_header: Final = re.compile(rf"\s*\[\[?\s*({_dotted})\s*\]\]?")
_pair: Final = re.compile(rf"\s*({_dotted})\s*=")
_parts: Final = re.compile(_part)


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """The line of every key. Good for messages: a key inside of an inline table is on the line of its table."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), 1):
        if found := _header.match(line):
            table = _path(found[1])
            lines.setdefault(table, number)
        elif found := _pair.match(line):
            path = (*table, *_path(found[1]))
            for end in range(len(table) + 1, len(path) + 1):
                lines.setdefault(path[:end], number)
    return lines


def _path(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _parts.findall(dotted))


def _unreadable(message: str, text: str, file: str) -> Problem:
    found = _at.search(message)
    line, column = (int(found[1]), int(found[2])) if found and found[1] else (text.count("\n") + 1, None)
    sentence = f"This is no TOML: {_at.sub('', message).rstrip('.')}."
    return Problem(severity="error", file=file, line=line, column=column, sentence=sentence)


class _Check:
    def __init__(self, file: str, lines: dict[tuple[str, ...], int]) -> None:
        self._file = file
        self.lines = lines
        self.problems: list[Problem] = []

    def _wrong(self, sentence: str, path: tuple[str, ...]) -> None:
        self.problems.append(
            Problem(
                severity="error", file=self._file, line=line_of(self.lines, path), key=".".join(path), sentence=sentence
            )
        )

    def table(self, table: Table, struct: type[msgspec.Struct], path: tuple[str, ...]) -> None:
        """Note whatever in the table is not as the Struct has it."""
        types = get_type_hints(struct, include_extras=True)
        where = f" of [{'.'.join(path)}]" if path else ""
        for key, value in table.items():
            here = (*path, key)
            if key not in types:
                hint = nearest(key, set(types)) or f" Known{where} are: {', '.join(types)}."
                if path[:1] == ("servers",) and key in _OF_ENTRIES:
                    hint = " What a server is stands in .mcp.json; here is how it is treated."
                self._wrong(f'The key "{".".join(here)}" is not known.{hint}', here)
            else:
                self._value(value, types[key], here)
        for field in msgspec.structs.fields(struct):
            if field.required and field.name not in table:
                self._wrong(f'[{".".join(path)}] needs a "{field.name}".', path)

    def _value(self, value: object, kind: object, path: tuple[str, ...]) -> None:
        inner = get_args(kind)[1] if get_origin(kind) is dict else None
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            self._nested(value, kind, path)
        elif isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            if not isinstance(value, dict):
                self._wrong(f'"{".".join(path)}" should be a table of tables: [{".".join(path)}.NAME].', path)
                return
            for name, each in cast(Table, value).items():
                self._named(name, path)
                self._nested(each, inner, (*path, name))
        elif get_origin(kind) is Literal:
            choices = [str(choice) for choice in get_args(kind)]
            if value not in choices:
                hint = nearest(str(value), choices)
                listed = ", ".join(f'"{choice}"' for choice in choices)
                self._wrong(f'"{".".join(path)}" is one of {listed}, not {value!r}.{hint}', path)
        else:
            self._plain(value, cast(object, kind), path)

    def _nested(self, value: object, struct: type[msgspec.Struct], path: tuple[str, ...]) -> None:
        if isinstance(value, dict):
            self.table(cast(Table, value), struct, path)
        else:
            self._wrong(f'"{".".join(path)}" should be a table: [{".".join(path)}].', path)

    def _named(self, name: str, path: tuple[str, ...]) -> None:
        if path == ("profiles",) and not _PROFILE_NAME.fullmatch(name):
            self._wrong(
                f'The profile "{name}" is part of a URL: small letters, digits, - and _, 63 at most.', (*path, name)
            )

    def _plain(self, value: object, kind: object, path: tuple[str, ...]) -> None:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            self._wrong(f'"{".".join(path)}" {_in_plain_words(str(error).partition(" - at `$")[0])}.', path)
            return
        if path[:1] == ("servers",) and path[2:] == ("prefix",) and not _PREFIX.fullmatch(str(value)):
            self._wrong("A prefix is letters, digits, - and _, 31 at most.", path)
        elif isinstance(value, float) and value != value:
            self._wrong(f'"{".".join(path)}" is not a number.', path)


def _in_plain_words(said: str) -> str:
    """What a value should be, as the rest of a sentence, by what msgspec says of it in the words of Python."""
    found = _EXPECTED.fullmatch(said)
    if found is None:
        return f"is not right: {said[:1].lower()}{said[1:]}"
    wanted, limit, got = found.groups(default="")
    instead = f", not {_kinds(got)}" if got else ""
    return f"should be {_kinds(wanted)}{limit}{instead}"


def _kinds(names: str) -> str:
    return " or ".join(_WORDS.get(name, name) for name in names.split(" | ") if name != "null") or "nothing"
