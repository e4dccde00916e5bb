"""Servers as other programs write them down: one reader for the dialects of `.mcp.json`.

Accepted are `mcpServers` and VS Code's `servers`; `type`, `transport` and `transportType`; `url`, `httpUrl` and
`serverUrl`. What one entry gets wrong is that entry's problem: the others are read all the same.
"""

import math
import os
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from sluicegate.config import commands, jsonc
from sluicegate.config.expand import Variables
from sluicegate.config.jsonc import Array, Fault, Member, Node, Object, Scalar
from sluicegate.config.problems import Problem, Severity, nearest
from sluicegate.config.secrets import Secret, masked_args, masked_text, masked_url
from sluicegate.config.values import Http, Source, Stdio, Transport

_TYPES: Final[dict[str, Transport | None]] = {
    "stdio": None,
    "local": None,
    **dict.fromkeys(("http", "streamable-http", "streamablehttp", "streamable_http", "streamable", "remote"), "http"),
    "sse": "sse",
}
_TYPE_KEYS: Final = ("type", "transport", "transportType")
_URL_KEYS: Final = ("url", "httpUrl", "serverUrl")
_KNOWN: Final = frozenset(
    (*_TYPE_KEYS, *_URL_KEYS, "command", "args", "env", "envFile", "cwd", "headers", "disabled", "enabled", "timeout")
    + ("includeTools", "excludeTools")
)
_OF_OTHERS: Final = frozenset(
    "alwaysAllow alwaysLoad authProviderType autoApprove description dev disabledTools displayName gallery icon id name"
    " note oauth sandbox sandboxEnabled title trust version $schema".split()
)
"""Keys of other programs that mean nothing to a gateway, and are no slip either."""

LONGEST_STRING: Final = 128 * 1024
"""Characters; no system gives a program a longer argument."""

DISABLED_BY_ENTRY: Final = "It is disabled in its file."

_header_name: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_header_value: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_variable_name: Final = re.compile(r"[^=\0]+")
_dotenv: Final = re.compile(
    r"\s*(?:export\s+)?([A-Za-z_][\w.-]*)\s*=\s*(?:'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|(.*?))\s*(?:#.*)?"
)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One server of one file."""

    name: str
    line: int
    source: Source | None
    disabled: str = ""
    settings: dict[str, object] = {}
    """What the entry says about how the server is treated: `timeout`, `tools`, `hide`."""


class ServerFile(msgspec.Struct, frozen=True, kw_only=True):
    """What one file says: its servers, and what is wrong with it."""

    entries: dict[str, Entry] = {}
    problems: tuple[Problem, ...] = ()
    broken: bool = False
    """Whether nothing of it could be read."""


def read_servers(text: str, file: str, variables: Variables) -> ServerFile:
    """The servers of a file in any of the dialects. Looks for programs and `envFile`s on the disk, and never raises."""
    document = jsonc.read(text)
    if isinstance(document, Fault):
        line, column = jsonc.line_column(text, document.offset)
        return _broken(file, document.sentence, line, column, ".".join(document.path))
    if not isinstance(document, Object):
        return _broken(file, 'The file is no JSON object: { "mcpServers": { … } } is what it should be.', 1, 1)
    page = _Page(text, file, variables)
    page.note_repeated(document, ())
    tables = list(_tables(document))
    if not tables and document.members:
        return _broken(file, 'The file has no "mcpServers" and no "servers".', 1, 1)
    entries: dict[str, Entry] = {}
    # Where no table is one, the file says nothing that can be read: at a reload it must not take every server away.
    is_broken = bool(tables) and not any(isinstance(table.value, Object) for _, table in tables)
    for path, table in tables:
        if not isinstance(table.value, Object):
            page.say("warning", f'"{path[-1]}" should be an object of servers.', table.value, path)
            continue
        page.note_repeated(table.value, path)
        for member in table.value.effective():
            if member.key in entries:
                page.say("warning", f'The server "{member.key}" is there twice; this one counts.', member, path)
            entries[member.key] = _EntryReader(page, member, (*path, member.key)).entry()
    return ServerFile(entries=entries, problems=tuple(page.problems), broken=is_broken)


NOTHING_USED: Final = " No server of this file is used."
"""True at a start only: at a reload the servers of a broken file stay as they are."""


def _broken(file: str, sentence: str, line: int, column: int, key: str = "") -> ServerFile:
    at = f" (at {key})" if key else ""
    problem = Problem(
        severity="warning",
        file=file,
        line=line,
        column=column,
        key=key,
        sentence=f"{sentence}{at}{NOTHING_USED}",
    )
    return ServerFile(problems=(problem,), broken=True)


def _tables(document: Object) -> Iterator[tuple[tuple[str, ...], Member]]:
    for key in ("mcpServers", "servers"):
        if table := document.get(key):
            yield (key,), table
    if (mcp := document.get("mcp")) and isinstance(mcp.value, Object):  # VS Code's settings.json.
        for key in ("servers", "mcpServers"):
            if table := mcp.value.get(key):
                yield ("mcp", key), table


class _Page:
    """A file under the eyes of its readers, and what they have to say about it."""

    def __init__(self, text: str, file: str, variables: Variables) -> None:
        self._text = text
        self.file = file
        self.folder = os.path.dirname(file)
        self.variables = variables
        self.problems: list[Problem] = []

    def line(self, offset: int) -> int:
        return jsonc.line_column(self._text, offset)[0]

    def say(
        self, severity: Severity, sentence: str, at: Node | Member, path: tuple[str, ...], server: str = ""
    ) -> None:
        line, column = jsonc.line_column(self._text, at.key_start if isinstance(at, Member) else at.start)
        self.problems.append(
            Problem(
                severity=severity,
                file=self.file,
                line=line,
                column=column,
                key=".".join(path),
                sentence=sentence,
                server=server,
            )
        )

    def note_repeated(self, node: Object, path: tuple[str, ...], server: str = "") -> None:
        for member in node.repeated():
            key = (*path, member.key)
            self.say("warning", f'The key "{member.key}" is there twice; the last one counts.', member, key, server)


class _EntryReader:
    """Reads one server's entry; each slip is told, and the first one that matters says why the server does not run."""

    def __init__(self, page: _Page, member: Member, path: tuple[str, ...]) -> None:
        self._page = page
        self._member = member
        self._name = member.key
        self._path = path
        self._body = Object(0, 0, [])
        self._why: str = ""
        self._invalid = False
        self._settings: dict[str, object] = {}

    def entry(self) -> Entry:
        source: Source | None = None
        if not self._name.strip() or not self._name.isprintable() or len(self._name) > 200:
            self._refuse("A server's name is a line of printable characters, 200 at most.", self._member)
        elif isinstance(self._member.value, Object):
            self._body = self._member.value
            self._page.note_repeated(self._body, self._path, self._name)
            self._note_unknown()
            source = self._source()
            self._read_switch()
            self._read_settings()
        else:
            self._refuse("The entry should be an object with a command or a url.", self._member.value)
        return Entry(
            name=self._name,
            line=self._page.line(self._member.key_start),
            source=None if self._invalid else source,
            disabled=self._why,
            settings=self._settings,
        )

    # What is said about it.

    def _say(self, severity: Severity, sentence: str, at: Node | Member, *keys: str) -> None:
        self._page.say(severity, f"{self._name}: {sentence}", at, (*self._path, *keys), self._name)

    def _refuse(self, sentence: str, at: Node | Member, *keys: str) -> None:
        """The entry cannot be read: the server does not run, and that is why."""
        self._say("warning", sentence, at, *keys)
        self._invalid = True
        self._why = self._why or sentence

    def _disable(self, sentence: str, at: Node | Member, *keys: str) -> None:
        """The entry is fine, and the server cannot run as things are."""
        self._say("warning", sentence, at, *keys)
        self._why = self._why or sentence

    def _note_unknown(self) -> None:
        for member in self._body.effective():
            if member.key not in _KNOWN and member.key not in _OF_OTHERS:
                hint = nearest(member.key, _KNOWN)
                self._say("note", f'The key "{member.key}" is not known, and ignored.{hint}', member, member.key)

    # Values, whatever they mean.

    def _string(self, node: Node, *keys: str) -> Secret | None:
        """The string with its variables put in, masked where they were; None if it is none."""
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            self._refuse(f'"{keys[0]}" should be a string.', node, *keys)
            return None
        if len(node.value) > LONGEST_STRING:
            self._refuse(f'"{keys[0]}" is longer than {LONGEST_STRING} characters.', node, *keys)
            return None
        expanded = self._page.variables.expand(node.value)
        for name in expanded.missing:
            self._disable(f"The variable {name} is not set; set it, or write a default: ${{{name}:-…}}.", node, *keys)
        for name in expanded.elsewhere:
            kind = name.partition(":")[0]
            what = "is asked of a person by the editor" if kind == "input" else "is known to another program alone"
            self._disable(f"${{{name}}} {what}; put a variable in its place, as ${{env:NAME}}.", node, *keys)
        if "\0" in expanded.value:
            self._refuse("A string holds a zero byte, which no command and no header can take.", node, *keys)
            return None
        return Secret(expanded.value, expanded.shown)

    def _text(self, key: str) -> Secret | None:
        member = self._body.get(key)
        return self._string(member.value, key) if member else None

    def _mapping(self, key: str) -> dict[str, Secret]:
        """An object of strings, every value a secret. Numbers and truth values are taken as they are written."""
        member = self._body.get(key)
        if member is None or (isinstance(member.value, Scalar) and member.value.value is None):
            return {}
        if not isinstance(member.value, Object):
            self._refuse(f'"{key}" should be an object of strings.', member.value, key)
            return {}
        self._page.note_repeated(member.value, (*self._path, key), self._name)
        found: dict[str, Secret] = {}
        for item in member.value.effective():
            match item.value:
                case Scalar(value=None):
                    continue
                case Scalar(value=bool(flag)):
                    found[item.key] = Secret("true" if flag else "false")
                case Scalar(value=int(number) | float(number)):
                    found[item.key] = Secret(str(number))
                case Scalar():
                    if value := self._string(item.value, key, item.key):
                        found[item.key] = Secret(value.reveal())
                case _:
                    self._refuse(f'"{key}.{item.key}" should be a string.', item.value, key, item.key)
        return found

    # What the server is.

    def _source(self) -> Source | None:
        transport, typed = self._type()
        has_url = next((key for key in _URL_KEYS if self._body.get(key)), None)
        has_command = self._body.get("command") is not None
        if self._invalid:
            return None
        if has_command and has_url and not typed:
            self._refuse(f'It has both a command and a {has_url}; leave one out, or give a "type".', self._member)
        elif has_url and (transport is not None or not typed):
            return self._http(has_url, transport)
        elif has_command and transport is None:
            return self._stdio()
        elif typed:
            self._refuse(f"It needs a {'command' if transport is None else 'url'}.", self._member)
        else:
            hint = next((near for key in self._keys() if (near := nearest(key, ("command", *_URL_KEYS)))), "")
            self._refuse(f"It has neither a command nor a url.{hint}", self._member)
        return None

    def _keys(self) -> list[str]:
        return [member.key for member in self._body.members if member.key not in _KNOWN]

    def _type(self) -> tuple[Transport | None, bool]:
        """How it is reached if it says so (None for a command), and whether it does."""
        for key in _TYPE_KEYS:
            if member := self._body.get(key):
                value = self._string(member.value, key)
                if value is None:
                    return None, True
                word = value.reveal().lower()
                if word in _TYPES:
                    return _TYPES[word], True
                if word in ("ws", "websocket"):
                    self._refuse("WebSocket servers are not supported; use its HTTP endpoint.", member.value, key)
                else:
                    hint = nearest(word, set(_TYPES)) or ' It is "stdio", "http" or "sse".'
                    self._refuse(f'The {key} "{value}" is not known.{hint}', member.value, key)
                return None, True
        return None, False

    def _http(self, key: str, transport: Transport | None) -> Http | None:
        member = self._body.get(key)
        assert member is not None
        url = self._string(member.value, key)
        headers = self._mapping("headers")
        for name, value in headers.items():
            if not _header_name.fullmatch(name) or not _header_value.fullmatch(value.reveal()):
                self._refuse(
                    f"The header {ascii(name)} cannot be sent: one line of printable Latin-1 can be.",
                    member,
                    "headers",
                    name,
                )
        if url is None:
            return None
        if not self._why and (wrong := _wrong_url(url.reveal())):
            self._refuse(wrong, member.value, key)
        if transport is None:
            transport = "http" if key == "httpUrl" else "auto"
        return Http(url=Secret(url.reveal(), masked_url(url.shown)), headers=headers, transport=transport)

    def _stdio(self) -> Stdio | None:
        member = self._body.get("command")
        assert member is not None
        node, extra = member.value, list[Node]()
        if isinstance(node, Array) and node.items:  # Some write the whole command line as one list.
            node, extra = node.items[0], node.items[1:]
        command = self._string(node, "command")
        args = self._args(extra)
        env = self._env_file() | self._mapping("env")
        for name in env:
            if not _variable_name.fullmatch(name):
                self._refuse(f"{ascii(name)} is no name of a variable.", member, "env", name)
        cwd = self._folder()
        if command is None:
            return None
        if not command.reveal().strip() and not self._why:
            self._refuse("The command is empty.", member.value, "command")
        program, words = self._home(command.reveal()), [arg.reveal() for arg in args]
        path = env["PATH"].reveal() if "PATH" in env else self._page.variables.environ.get("PATH", os.defpath)
        found = commands.find_program(program, cwd, path) if not self._why else None
        if found is None and not self._why:
            self._say("warning", commands.not_found(command.reveal(), words), member, "command")
        masks = masked_args([arg.shown for arg in args])
        if package := commands.floating(program, words):
            name = dict(zip(words, masks, strict=True)).get(package) or masked_text(package)
            self._say(
                "note",
                f"{name} comes without a fixed version, so that tomorrow it may be another program; name one.",
                self._body.get("args") or member,
                "args",
            )
        return Stdio(
            command=program,
            program=found,
            args=tuple(Secret(arg, mask) for arg, mask in zip(words, masks, strict=True)),
            env=env,
            cwd=cwd,
        )

    def _args(self, items: list[Node]) -> list[Secret]:
        member = self._body.get("args")
        if member is not None:
            if not isinstance(member.value, Array):
                self._refuse('"args" should be a list of strings.', member.value, "args")
                return []
            items = [*items, *member.value.items]
        found: list[Secret] = []
        for index, item in enumerate(items):
            if isinstance(item, Scalar) and isinstance(item.value, int | float) and not isinstance(item.value, bool):
                found.append(Secret(str(item.value), str(item.value)))
            elif value := self._string(item, "args", str(index)):
                found.append(value)
        return found

    def _folder(self) -> str:
        """Where the server runs: as its file says, from the file's own folder; else in the folder of the gateway."""
        member, root = self._body.get("cwd"), self._page.variables.root
        value = self._text("cwd")
        if member is None or value is None or not value.reveal():
            return root
        folder = self._from_here(value.reveal())
        if not self._why and not os.path.isdir(folder):
            self._say("warning", f'The folder "{value}" of its cwd does not exist.', member.value, "cwd")
        return folder

    def _env_file(self) -> dict[str, Secret]:
        member = self._body.get("envFile")
        value = self._text("envFile")
        if member is None or value is None or self._why:
            return {}
        try:
            with open(self._from_here(value.reveal()), encoding="utf-8-sig") as lines:
                text = lines.read(1 << 20)
        except (OSError, ValueError):
            self._disable(f'The envFile "{value}" cannot be read.', member.value, "envFile")
            return {}
        return {name: Secret(value) for name, value in dotenv(text)}

    def _from_here(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._page.folder, self._home(path)))

    def _home(self, path: str) -> str:
        return self._page.variables.home + path[1:] if path == "~" or path.startswith("~/") else path

    # How it is treated.

    def _read_switch(self) -> None:
        for key, runs in (("disabled", False), ("enabled", True)):
            if member := self._body.get(key):
                match member.value:
                    case Scalar(value=bool(flag)):
                        if flag is not runs:
                            self._why = self._why or DISABLED_BY_ENTRY
                    case _:
                        self._refuse(f'"{key}" should be true or false.', member.value, key)

    def _read_settings(self) -> None:
        if member := self._body.get("timeout"):
            match member.value:
                case Scalar(value=int(number) | float(number)) if (
                    not isinstance(number, bool) and 0 < number and math.isfinite(number)
                ):
                    # Claude Code, Gemini and others write milliseconds, Cline and Roo seconds; nobody waits for less
                    # than a second or for more than a quarter of an hour by writing so.
                    self._settings["timeout"] = float(number / 1000 if number >= 1000 else number)
                case _:
                    self._say(
                        "warning", '"timeout" should be a number above zero; it is ignored.', member.value, "timeout"
                    )
        for key, setting in (("includeTools", "tools"), ("excludeTools", "hide")):
            if member := self._body.get(key):
                names = jsonc.plain(member.value)
                if isinstance(names, list) and all(isinstance(name, str) for name in names):  # pyright: ignore[reportUnknownVariableType]
                    self._settings[setting] = names
                else:
                    self._refuse(f'"{key}" should be a list of names.', member.value, key)


def _wrong_url(url: str) -> str | None:
    """What is wrong with a server's URL, or None."""
    from urllib.parse import urlsplit

    if not (url.isascii() and url.isprintable()) or " " in url:
        return "The url holds blanks or characters that no URL has."
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "The url cannot be read; http://HOST:PORT/PATH is its form."
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        return "The url should begin with http:// or https:// and a host."
    if "@" in parts.netloc:
        return 'The url holds a user name or password; send it as a header: "Authorization".'
    return None


def dotenv(text: str) -> Iterator[tuple[str, str]]:
    """Names and values of an `.env` file."""
    for line in text.split("\n"):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if found := _dotenv.fullmatch(line.rstrip("\r")):
            name, single, double, bare = found[1], found[2], found[3], found[4]
            if double is not None:
                double = re.sub(
                    r"\\(.)", lambda escape: {"n": "\n", "t": "\t", "r": "\r"}.get(escape[1], escape[1]), double
                )
            yield name, single if single is not None else double if double is not None else bare
