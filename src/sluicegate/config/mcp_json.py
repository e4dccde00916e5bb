"""Reads the servers of a `.mcp.json` file, in any of the dialects that other programs write.

Accepted are `mcpServers` and VS Code's `servers`; `type`, `transport` and `transportType`; `url`, `httpUrl` and
`serverUrl`. A mistake in one entry disables that entry only: the others are read all the same.
"""

import os
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import msgspec

from sluicegate.config import commands, jsonc
from sluicegate.config.jsonc import JsonArray, JsonNode, JsonObject, Member, Scalar, SyntaxFault
from sluicegate.config.model import DISABLED_BY_ENTRY, MAX_TIME, Http, Source, Stdio, Transport
from sluicegate.config.problems import Problem, Severity, glob_faults, read_text
from sluicegate.config.secrets import Secret
from sluicegate.config.variables import Variables, parse_dotenv
from sluicegate.text.masking import masked_args, masked_text, masked_url
from sluicegate.text.similar import did_you_mean

MAX_STRING: Final = 128 * 1024
"""Characters; Linux accepts no longer argument."""

NOTHING_USED: Final = " No server of this file is used."
"""True at start-up only: after a reload the servers of a broken file keep running."""

_TYPES: Final[dict[str, Transport | None]] = {
    "stdio": None,
    "local": None,
    **dict.fromkeys(("http", "streamable-http", "streamablehttp", "streamable_http", "streamable", "remote"), "http"),
    "sse": "sse",
}
_TYPE_KEYS: Final = ("type", "transport", "transportType")
_URL_KEYS: Final = ("url", "httpUrl", "serverUrl")
_KNOWN_KEYS: Final = frozenset(
    (*_TYPE_KEYS, *_URL_KEYS, "command", "args", "env", "envFile", "cwd", "headers", "disabled", "enabled", "timeout")
    + ("includeTools", "excludeTools")
)
_IGNORED_KEYS: Final = frozenset(
    "alwaysAllow alwaysLoad authProviderType autoApprove description dev disabledTools displayName gallery icon id name"
    " note oauth sandbox sandboxEnabled title trust version $schema".split()
)
"""Keys that mean something to other programs and nothing to a gateway. They need no warning."""

_variable_name: Final = re.compile(r"[^=\0]+")
_header_name: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_header_value: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class ServerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One server of one file."""

    name: str
    line: int
    source: Source | None
    disabled: str = ""
    settings: dict[str, object] = {}
    """The settings that the entry contains: `timeout`, `tools`, `hide`."""


class ServerFile(msgspec.Struct, frozen=True, kw_only=True):
    """The servers of one file and the problems in it."""

    entries: dict[str, ServerEntry] = {}
    problems: tuple[Problem, ...] = ()
    broken: bool = False
    """Whether nothing in it could be read."""


def read_servers(text: str, file: str, variables: Variables) -> ServerFile:
    """Read a file in any dialect. Looks for programs and `envFile`s on disk; never raises."""
    document = jsonc.read(text)
    if isinstance(document, SyntaxFault):
        line, column = jsonc.line_column(text, document.offset)
        return _broken(file, document.sentence, line, column, ".".join(document.path))
    if not isinstance(document, JsonObject):
        return _broken(file, 'The file should be a JSON object: { "mcpServers": { … } }.', 1, 1)
    source = _File(text, file, variables)
    source.report_duplicates(document, ())
    tables = list(_tables(document))
    if not tables and document.members:
        return _broken(file, 'The file has no "mcpServers" and no "servers".', 1, 1)
    entries: dict[str, ServerEntry] = {}
    for path, table in tables:
        if not isinstance(table.value, JsonObject):
            source.report("warning", f'"{path[-1]}" should be an object of servers.', table.value, path)
            continue
        source.report_duplicates(table.value, path)
        for member in table.value.effective():
            if member.key in entries:
                sentence = f'The server "{member.key}" is defined twice; this definition is used.'
                source.report("warning", sentence, member, path)
            entries[member.key] = _EntryReader(source, member, (*path, member.key)).read()
    # A file without a readable table must not remove every server at a reload, so it counts as broken.
    is_broken = bool(tables) and not any(isinstance(table.value, JsonObject) for _, table in tables)
    return ServerFile(entries=entries, problems=tuple(source.problems), broken=is_broken)


def _broken(file: str, sentence: str, line: int, column: int, key: str = "") -> ServerFile:
    sentence += f" (at {key})" if key else ""
    problem = Problem(
        severity="warning", file=file, line=line, column=column, key=key, sentence=f"{sentence}{NOTHING_USED}"
    )
    return ServerFile(problems=(problem,), broken=True)


def _tables(document: JsonObject) -> Iterator[tuple[tuple[str, ...], Member]]:
    for key in ("mcpServers", "servers"):
        if table := document.get(key):
            yield (key,), table
    if (mcp := document.get("mcp")) and isinstance(mcp.value, JsonObject):  # VS Code's settings.json.
        for key in ("servers", "mcpServers"):
            if table := mcp.value.get(key):
                yield ("mcp", key), table


class _File:
    """The text of a file, and the problems found in it so far."""

    def __init__(self, text: str, file: str, variables: Variables) -> None:
        self.text = text
        self.folder = os.path.dirname(file)
        self.variables = variables
        self.problems: list[Problem] = []
        self._file = file

    def report(
        self, severity: Severity, sentence: str, at: JsonNode | Member, path: tuple[str, ...], server: str = ""
    ) -> None:
        line, column = jsonc.line_column(self.text, at.key_start if isinstance(at, Member) else at.start)
        key = ".".join(path)
        self.problems.append(
            Problem(
                severity=severity,
                file=self._file,
                line=line,
                column=column,
                key=key,
                sentence=sentence,
                server=server,
            )
        )

    def report_duplicates(self, node: JsonObject, path: tuple[str, ...], server: str = "") -> None:
        for member in node.repeated():
            sentence = f'The key "{member.key}" appears twice; the last one is used.'
            self.report("warning", sentence, member, (*path, member.key), server)


class _EntryReader:
    """Reads one entry. Reports every mistake; the first one that prevents the server from running is in `disabled`."""

    def __init__(self, file: _File, member: Member, path: tuple[str, ...]) -> None:
        self._file = file
        self._variables = file.variables
        self._member = member
        self._name = member.key
        self._path = path
        self._body = member.value if isinstance(member.value, JsonObject) else JsonObject(0, 0, [])
        self._disabled = ""
        self._is_invalid = False

    def read(self) -> ServerEntry:
        source: Source | None = None
        settings: dict[str, object] = {}
        if not self._name.strip() or not self._name.isprintable() or len(self._name) > 200:
            self._refuse("A server's name must be one line of at most 200 printable characters.", self._member)
        elif not isinstance(self._member.value, JsonObject):
            self._refuse("The entry should be an object with a command or a url.", self._member.value)
        else:
            self._file.report_duplicates(self._body, self._path, self._name)
            self._report_unknown_keys()
            source = self._source()
            self._read_switch()
            settings = self._settings()
        return ServerEntry(
            name=self._name,
            line=jsonc.line_column(self._file.text, self._member.key_start)[0],
            source=None if self._is_invalid else source,
            disabled=self._disabled,
            settings=settings,
        )

    # Problems.

    def _report(self, severity: Severity, sentence: str, at: JsonNode | Member, *keys: str) -> None:
        self._file.report(severity, f"{self._name}: {sentence}", at, (*self._path, *keys), self._name)

    def _refuse(self, sentence: str, at: JsonNode | Member, *keys: str) -> None:
        """The entry is invalid, so the server does not run."""
        self._disable(sentence, at, *keys)
        self._is_invalid = True

    def _disable(self, sentence: str, at: JsonNode | Member, *keys: str) -> None:
        """The entry is valid, but the server cannot run in this environment."""
        self._report("warning", sentence, at, *keys)
        self._disabled = self._disabled or sentence

    def _report_unknown_keys(self) -> None:
        for member in self._body.effective():
            if member.key not in _KNOWN_KEYS and member.key not in _IGNORED_KEYS:
                hint = did_you_mean(member.key, _KNOWN_KEYS)
                self._report("note", f'The key "{member.key}" is unknown and ignored.{hint}', member, member.key)

    # The transport.

    def _source(self) -> Source | None:
        transport, is_typed = self._type()
        if self._is_invalid:
            return None
        command = self._body.get("command")
        url = next((member for key in _URL_KEYS if (member := self._body.get(key))), None)
        if command and url and not is_typed:
            self._refuse(f'It has both a command and a {url.key}; remove one, or add a "type".', self._member)
        elif url and (transport is not None or not is_typed):
            return self._http(url, transport)
        elif command and transport is None:
            return self._stdio(command)
        elif is_typed:
            self._refuse(f"It needs a {'command' if transport is None else 'url'}.", self._member)
        else:
            unknown = (member.key for member in self._body.members if member.key not in _KNOWN_KEYS)
            hint = next((found for key in unknown if (found := did_you_mean(key, ("command", *_URL_KEYS)))), "")
            self._refuse(f"It has neither a command nor a url.{hint}", self._member)
        return None

    def _type(self) -> tuple[Transport | None, bool]:
        """The transport that the entry names (None for a command), and whether it names one."""
        member = next((member for key in _TYPE_KEYS if (member := self._body.get(key))), None)
        if member is None:
            return None, False
        value = self._string(member.value, member.key)
        word = value.reveal().lower() if value else ""
        if value is None or word in _TYPES:
            return _TYPES.get(word), True
        if word in ("ws", "websocket"):
            self._refuse("WebSocket servers are not supported; use its HTTP endpoint.", member.value, member.key)
        else:
            hint = did_you_mean(word, _TYPES) or ' Use "stdio", "http" or "sse".'
            self._refuse(f'The {member.key} "{value}" is unknown.{hint}', member.value, member.key)
        return None, True

    def _http(self, member: Member, transport: Transport | None) -> Http | None:
        url = self._string(member.value, member.key)
        headers = self._mapping("headers")
        for name, value in headers.items():
            if not _header_name.fullmatch(name) or not _header_value.fullmatch(value.reveal()):
                sentence = f"The header {ascii(name)} cannot be sent; its value must be one line of Latin-1 text."
                self._refuse(sentence, member, "headers", name)
        if url is None:
            return None
        if not self._disabled and (mistake := _mistake_in_url(url.reveal())):
            self._refuse(mistake, member.value, member.key)
        if transport is None:
            transport = "http" if member.key == "httpUrl" else "auto"
        return Http(url=Secret(url.reveal(), masked_url(url.shown)), headers=headers, transport=transport)

    def _stdio(self, member: Member) -> Stdio | None:
        node, first_args = member.value, list[JsonNode]()
        if isinstance(node, JsonArray) and node.items:  # Some clients write the whole command line as one list.
            node, first_args = node.items[0], node.items[1:]
        command = self._string(node, "command")
        args = self._args(first_args)
        env = self._env_file() | self._mapping("env")
        for name in env:
            if not _variable_name.fullmatch(name):
                self._refuse(f"{ascii(name)} is not a valid variable name.", member, "env", name)
        cwd = self._cwd()
        if command is None:
            return None
        if not command.reveal().strip() and not self._disabled:
            self._refuse("The command is empty.", member.value, "command")
        program, words = self._from_home(command.reveal()), [arg.reveal() for arg in args]
        path = env["PATH"].reveal() if "PATH" in env else self._variables.environ.get("PATH", os.defpath)
        found, missing = None, ""
        if not self._disabled:
            found = commands.find_program(program, cwd, path)
            if found is None:
                missing = commands.not_found(command.shown, words, program=program, cwd=cwd, path=path)
                self._report("warning", missing, member, "command")
        masks = masked_args([arg.shown for arg in args])
        if package := commands.floating(program, words):
            name = dict(zip(words, masks, strict=True)).get(package) or masked_text(package)
            sentence = f"{name} {commands.UNPINNED}, so a different version may run tomorrow; pin one."
            self._report("note", sentence, self._body.get("args") or member, "args")
        secrets = tuple(Secret(arg, mask) for arg, mask in zip(words, masks, strict=True))
        return Stdio(command=program, program=found, missing=missing, args=secrets, env=env, cwd=cwd)

    def _args(self, items: list[JsonNode]) -> list[Secret]:
        if member := self._body.get("args"):
            if not isinstance(member.value, JsonArray):
                self._refuse('"args" should be a list of strings.', member.value, "args")
                return []
            items = [*items, *member.value.items]
        found: list[Secret] = []
        for index, item in enumerate(items):
            if isinstance(item, Scalar) and isinstance(item.value, int | float) and not isinstance(item.value, bool):
                number = self._written(item)
                found.append(Secret(number, number))
            elif value := self._string(item, "args", str(index)):
                found.append(value)
        return found

    def _cwd(self) -> str:
        """The server's working directory: relative to its file if the entry has one, else the gateway's folder."""
        member = self._body.get("cwd")
        value = self._string(member.value, "cwd") if member else None
        if member is None or value is None or not value.reveal():
            return self._variables.root
        folder = self._from_file(value.reveal())
        if not self._disabled and not os.path.isdir(folder):
            self._report("warning", f'Its cwd "{value}" does not exist.', member.value, "cwd")
        return folder

    def _env_file(self) -> dict[str, Secret]:
        member = self._body.get("envFile")
        value = self._string(member.value, "envFile") if member else None
        if member is None or value is None or self._disabled:
            return {}
        text = read_text(self._from_file(value.reveal()))
        if isinstance(text, str):
            return {name: Secret(value) for name, value in parse_dotenv(text)}
        why = text.sentence if isinstance(text, Problem) else "There is no such file."
        self._disable(f'The envFile "{value}" cannot be used. {why}', member.value, "envFile")
        return {}

    # Settings.

    def _read_switch(self) -> None:
        for key, runs in (("disabled", False), ("enabled", True)):
            if member := self._body.get(key):
                if not isinstance(member.value, Scalar) or not isinstance(member.value.value, bool):
                    self._refuse(f'"{key}" should be true or false.', member.value, key)
                elif member.value.value is not runs:
                    self._disabled = self._disabled or DISABLED_BY_ENTRY

    def _settings(self) -> dict[str, object]:
        found: dict[str, object] = {}
        if member := self._body.get("timeout"):
            match member.value:
                case Scalar(value=int(number) | float(number)) if not isinstance(number, bool) and 0 < number:
                    # Claude Code and Gemini write milliseconds, Cline and Roo seconds. No timeout is meant to be
                    # shorter than a second or, in seconds, longer than a quarter of an hour.
                    seconds = float(number / 1000 if number >= 1000 else number)
                    if seconds > MAX_TIME:
                        most = f"{1000 * MAX_TIME:.0f} milliseconds (a year)"
                        self._report("warning", f'"timeout" is limited to {most}.', member.value, "timeout")
                    found["timeout"] = min(seconds, MAX_TIME)
                case _:
                    sentence = '"timeout" should be a number above zero; it is ignored.'
                    self._report("warning", sentence, member.value, "timeout")
        for key, setting in (("includeTools", "tools"), ("excludeTools", "hide")):
            if member := self._body.get(key):
                names = jsonc.plain(member.value)
                if not isinstance(names, list) or not all(isinstance(name, str) for name in names):  # pyright: ignore[reportUnknownVariableType]
                    self._refuse(f'"{key}" should be a list of names.', member.value, key)
                elif faults := list(glob_faults(names)):  # pyright: ignore[reportUnknownArgumentType]
                    self._refuse(f'"{key}": {faults[0]}', member.value, key)
                else:
                    found[setting] = names
        return found

    # Values.

    def _string(self, node: JsonNode, *keys: str) -> Secret | None:
        """The string with its variables expanded and masked; None if it is not a usable string."""
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            self._refuse(f'"{keys[0]}" should be a string.', node, *keys)
            return None
        if len(node.value) > MAX_STRING:
            self._refuse(f'"{keys[0]}" is longer than {MAX_STRING} characters.', node, *keys)
            return None
        expanded = self._variables.expand(node.value)
        for name in expanded.missing:
            env_file = " use envFile," if keys[0] == "env" else ""
            remedy = f"set it in the gateway's environment and restart the gateway,{env_file} or add a default"
            self._disable(f"The variable {name} is not set; {remedy}: ${{{name}:-…}}.", node, *keys)
        for name in expanded.elsewhere:
            sentence = f"Only another program can fill in ${{{name}}}; use a variable instead: ${{env:NAME}}."
            self._disable(sentence, node, *keys)
        if "\0" in expanded.value:
            self._refuse("A string contains a null byte; commands and headers cannot.", node, *keys)
            return None
        return Secret(expanded.value, expanded.shown)

    def _mapping(self, key: str) -> dict[str, Secret]:
        """An object of strings, every value a secret. Numbers, true and false are taken as they are written."""
        member = self._body.get(key)
        if member is None or (isinstance(member.value, Scalar) and member.value.value is None):
            return {}
        if not isinstance(member.value, JsonObject):
            self._refuse(f'"{key}" should be an object of strings.', member.value, key)
            return {}
        self._file.report_duplicates(member.value, (*self._path, key), self._name)
        found: dict[str, Secret] = {}
        for item in member.value.effective():
            match item.value:
                case Scalar(value=None):
                    continue
                case Scalar(value=bool() | int() | float()):
                    found[item.key] = Secret(self._written(item.value))
                case Scalar():
                    if value := self._string(item.value, key, item.key):
                        found[item.key] = Secret(value.reveal())
                case _:
                    self._refuse(f'"{key}.{item.key}" should be a string.', item.value, key, item.key)
        return found

    def _written(self, node: JsonNode) -> str:
        """A value as it is written: a number may be a version, and `1.10` is not `1.1`."""
        return self._file.text[node.start : node.end]

    def _from_file(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._file.folder, self._from_home(path)))

    def _from_home(self, path: str) -> str:
        return self._variables.home + path[1:] if path == "~" or path.startswith("~/") else path


def _mistake_in_url(url: str) -> str | None:
    """The problem with a server's URL, or None."""
    if not (url.isascii() and url.isprintable()) or " " in url:
        return "The url contains spaces or characters that are not allowed in a URL."
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "The url is not valid; write http://HOST:PORT/PATH."
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        return "The url should begin with http:// or https:// and a host."
    if "@" in parts.netloc:
        return 'The url contains a user name or password; send it in an "Authorization" header instead.'
    return None
