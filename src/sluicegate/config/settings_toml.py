"""Reads `sluicegate.toml`: checks each key against the Structs, so that every mistake is reported with its line."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from sluicegate.config.jsonc import SyntaxFault, line_column
from sluicegate.config.model import Globs, Settings
from sluicegate.config.problems import Problem, glob_faults
from sluicegate.gate.rules import Action, Permission, PolicySettings, Rule, faults
from sluicegate.text.similar import did_you_mean

Table = dict[str, object]
T = TypeVar("T")

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
_ENTRY_KEYS: Final = frozenset({"command", "args", "env", "url", "headers", "cwd", "type"})
_at: Final = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)")


class SettingsFile(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one file and the problems in it. A file with problems is not used."""

    table: Table = {}
    problems: tuple[Problem, ...] = ()
    lines: dict[tuple[str, ...], int] = {}


def parse_toml(text: str) -> Table | SyntaxFault:
    """The values of a TOML text, or the error with its position."""
    import tomllib  # Not at the top: many folders have no such file, and it would delay every start.

    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except ValueError as error:  # Also for a number with too many digits.
        message, offset = str(error), len(text)
        if (found := _at.search(message)) and found[1]:
            lines = text.split("\n")[: int(found[1]) - 1]
            offset = sum(len(line) + 1 for line in lines) + int(found[2]) - 1
        return SyntaxFault(f"The file is not valid TOML: {_at.sub('', message).rstrip('.')}.", offset)
    except RecursionError:
        return SyntaxFault("The file is nested too deeply.", 0)


def read_settings(text: str, file: str) -> SettingsFile:
    """The checked table of a file. Pure; never raises."""
    table = parse_toml(text)
    if isinstance(table, SyntaxFault):
        line, column = line_column(text, table.offset)
        problem = Problem(severity="error", file=file, line=line, column=column, sentence=table.sentence)
        return SettingsFile(problems=(problem,))
    check = _Check(file, lines_of(text))
    check.table(table, Settings, ())
    return SettingsFile(table=table, problems=tuple(check.problems), lines=check.lines)


def rules_of(read: SettingsFile, shown: str) -> tuple[list[Rule], Action | None]:
    """The access rules of a file without problems, and its default; `shown` is the path that is shown of it."""
    written = msgspec.convert(read.table.get("permissions", ()), tuple[Permission, ...])
    settings = msgspec.convert(read.table.get("policy", {}), PolicySettings)
    lines = [line_of(read.lines, ("permissions", str(number))) for number in range(len(written))]
    return [Rule(each, shown, line or 0) for each, line in zip(written, lines, strict=True)], settings.default


def line_of(lines: Mapping[tuple[str, ...], T], path: tuple[str, ...]) -> T | None:
    """The line of a key, or of the nearest table around it."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)


_part: Final = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_dotted: Final = rf"{_part}(?:\s*\.\s*{_part})*"
_header: Final = re.compile(rf"\s*\[\[?\s*({_dotted})\s*\]\]?")
_pair: Final = re.compile(rf"\s*({_dotted})\s*=")
_parts: Final = re.compile(_part)


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """The line of every key, for messages. Keys of an inline table are not found."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    counts: dict[tuple[str, ...], int] = {}
    """Tables seen of each array of tables."""
    for number, line in enumerate(text.split("\n"), 1):
        if found := _header.match(line):
            path = _path(found[1])
            if line.lstrip().startswith("[["):
                counts[path] = counts.get(path, 0) + 1
            # The index of the table in its array belongs to the path: [permissions.args] is about the last one.
            array = next((path[:end] for end in range(1, len(path) + 1) if path[:end] in counts), ())
            path = table = (*array, str(counts[array] - 1), *path[len(array) :]) if array else path
        elif found := _pair.match(line):
            path = (*table, *_path(found[1]))
        else:
            continue
        for end in range(1, len(path) + 1):
            lines.setdefault(path[:end], number)
    return lines


def _path(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _parts.findall(dotted))


class _Check:
    def __init__(self, file: str, lines: dict[tuple[str, ...], int]) -> None:
        self._file = file
        self.lines = lines
        self.problems: list[Problem] = []

    def _report(self, sentence: str, path: tuple[str, ...]) -> None:
        self.problems.append(
            Problem(
                severity="error", file=self._file, line=line_of(self.lines, path), key=".".join(path), sentence=sentence
            )
        )

    def table(self, table: Table, struct: type[msgspec.Struct], path: tuple[str, ...]) -> None:
        """Report everything in the table that does not match the Struct."""
        types = _types(struct)
        where = f" of {_header_of(path)}" if path else ""
        for key, value in table.items():
            here = (*path, key)
            if key not in types:
                hint = did_you_mean(key, set(types)) or f" The keys{where} are: {', '.join(types)}."
                if not path and (tables := _tables_with(key)):
                    hint = f" It belongs into a table: {' or '.join(f'[{each}] {key}' for each in tables)}."
                elif path[:1] == ("servers",) and key in _ENTRY_KEYS:
                    hint = " Servers are defined in .mcp.json; this table only has settings for them."
                self._report(f'The key "{_label(here)}" is unknown.{hint}', here)
            else:
                self._value(value, types[key], here)
        for name in _required(struct):
            if name not in table:
                self._report(f'{_header_of(path)} needs a "{name}".', path)

    def _value(self, value: object, kind: object, path: tuple[str, ...]) -> None:
        inner = get_args(kind)[1] if get_origin(kind) is dict else None
        choice = next((each for each in get_args(kind) if get_origin(each) is Literal), kind)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            self._nested(value, kind, path)
        elif kind == tuple[Permission, ...]:
            self._permissions(value, path)
        elif isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            if not isinstance(value, dict):
                self._report(f'"{".".join(path)}" should be a table of tables: [{".".join(path)}.NAME].', path)
                return
            for name, each in cast(Table, value).items():
                if path == ("profiles",) and not _PROFILE_NAME.fullmatch(name):
                    sentence = "is not valid: use at most 63 lower-case letters, digits, - and _."
                    self._report(f'The profile name "{name}" {sentence}', (*path, name))
                self._nested(each, inner, (*path, name))
        elif get_origin(choice) is Literal:
            choices = [str(each) for each in get_args(choice)]
            if value not in choices:
                hint = did_you_mean(str(value), choices)
                listed = ", ".join(f'"{choice}"' for choice in choices)
                self._report(f'"{_label(path)}" should be one of {listed}, not {value!r}.{hint}', path)
        else:
            self._plain(value, cast(object, kind), path)

    def _permissions(self, value: object, path: tuple[str, ...]) -> None:
        rows = cast(list[object], value) if isinstance(value, list) else []
        if not rows or not all(isinstance(row, dict) for row in rows):
            self._report("Rules should be tables: [[permissions]].", path)
            return
        for number, row in enumerate(rows):
            here, before = (*path, str(number)), len(self.problems)
            self.table(cast(Table, row), Permission, here)
            if len(self.problems) == before:
                for key, sentence in faults(msgspec.convert(row, Permission)):
                    self._report(sentence, (*here, key))

    def _nested(self, value: object, struct: type[msgspec.Struct], path: tuple[str, ...]) -> None:
        if isinstance(value, dict):
            self.table(cast(Table, value), struct, path)
        else:
            self._report(f'"{".".join(path)}" should be a table: [{".".join(path)}].', path)

    def _plain(self, value: object, kind: object, path: tuple[str, ...]) -> None:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            self._report(f'"{_label(path)}" {_in_plain_words(str(error).partition(" - at `$")[0])}.', path)
            return
        if kind == Globs or path[-1] in ("tool_timeouts", "calls_per_tool"):
            for fault in glob_faults(cast(Iterable[str], value)):
                self._report(f'"{".".join(path)}": {fault}', path)
        if path[:1] == ("servers",) and path[2:] == ("prefix",) and not _PREFIX.fullmatch(str(value)):
            self._report("A prefix has at most 31 letters, digits, - and _.", path)
        elif isinstance(value, float) and value != value:
            self._report(f'"{".".join(path)}" is not a number.', path)


def _label(path: tuple[str, ...]) -> str:
    """The path as users write it: rules have no number, but a line."""
    return ".".join(path[:1] + path[2:] if path[:1] == ("permissions",) else path)


@cache  # There may be a thousand rules.
def _types(struct: type[msgspec.Struct]) -> dict[str, object]:
    return get_type_hints(struct, include_extras=True)


def _tables_with(key: str) -> list[str]:
    """The tables of the file that have a key, for one that stands outside of them."""
    found: list[str] = []
    for name, kind in _types(Settings).items():
        is_named = get_origin(kind) is dict
        struct = get_args(kind)[1] if is_named else kind
        if isinstance(struct, type) and issubclass(struct, msgspec.Struct) and key in _types(struct):
            found.append(f"{name}.NAME" if is_named else name)
    return found


@cache
def _required(struct: type[msgspec.Struct]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(struct) if field.required]


def _header_of(path: tuple[str, ...]) -> str:
    return "[[permissions]]" if path[:1] == ("permissions",) else f"[{'.'.join(path)}]"


def _in_plain_words(message: str) -> str:
    """The requirement for a value, as the rest of a sentence, made from msgspec's message about Python types."""
    if "[smhd]" in message:
        return 'should be a number and s, m, h or d, such as "600/m"'
    found = _EXPECTED.fullmatch(message)
    if found is None:
        return f"is not valid: {message[:1].lower()}{message[1:]}"
    wanted, limit, got = found.groups(default="")
    instead = f", not {_kinds(got)}" if got else ""
    return f"should be {_kinds(wanted)}{limit}{instead}"


def _kinds(names: str) -> str:
    return " or ".join(_WORDS.get(name, name) for name in names.split(" | ") if name != "null") or "nothing"
