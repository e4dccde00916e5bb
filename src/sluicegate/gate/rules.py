"""Access rules as they are written in `sluicegate.toml`, and what is wrong with them. Plain values.

The configuration is read before servers are started, so this module must stay quick to import.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from sluicegate.text.globs import BadGlob, Glob, glob, name_glob
from sluicegate.text.tool_names import spellings

Action = Literal["allow", "deny", "ask"]
Kind = Literal["tool", "prompt", "resource"]

KINDS: Final[tuple[Kind, ...]] = ("tool", "prompt", "resource")
STRICTEST: Final[tuple[Action, ...]] = ("deny", "ask", "allow")
"""From the strictest to the most generous."""
GROUP: Final = "group:"
_HEAD: Final = "mcp__"
_URL: Final = re.compile(r"[A-Za-z*{][A-Za-z0-9+.,*?{}-]*://[^/]*")
"""The scheme and the host of a glob on URLs."""
_DOT_AT_END: Final = re.compile(r"\.(?::[0-9]*)?$")
_MAX_COMPARISONS: Final = 50_000


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to calls that no rule names: `[policy]`."""

    default: Action | None = None
    """For calls that no rule names: "allow", "deny" or "ask"; by default "ask", and "allow" if there are no rules."""


class Permission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A rule for some calls; the first one that matches decides: `[[permissions]]`."""

    tool: str | None = None
    """Glob on `mcp__SERVER__TOOL`; `mcp__SERVER` alone means all of a server, with its prompts and resources."""
    prompt: str | None = None
    """Glob on `mcp__SERVER__PROMPT`, instead of `tool`."""
    resource: str | None = None
    """Glob on `mcp__SERVER__URI`, instead of `tool`."""
    args: dict[str, str] = {}
    """Globs on arguments, which must all match: a key, or a path as in `files.*.path`, and a glob."""
    pattern: str | None = None
    """Glob on the first of the arguments command, path, file_path, uri, url, query and sql that the tool has."""
    caller: tuple[str, ...] = ()
    """Callers it is for: globs on their names, and `group:NAME`; empty for all."""
    action: Action
    """What happens: "allow", "deny" or "ask" (required)."""
    why: Annotated[str, Meta(max_length=1000)] = ""
    """The reason, which the model is told."""
    record: Literal["digest", "values"] = "digest"
    """What the audit log keeps of the arguments: "digest" or "values"."""
    optional: bool = False
    """Whether its server may be missing; otherwise a rule that denies or asks must name a server that is configured."""

    @property
    def subject(self) -> tuple[Kind, str]:
        """What it names, and the key it does that with."""
        for kind in KINDS:
            if (written := getattr(self, kind)) is not None:
                return kind, written
        raise BadGlob("names nothing")


class Rule(msgspec.Struct, frozen=True):
    """A rule and its place."""

    written: Permission
    file: str = "rules"
    line: int = 0

    @property
    def place(self) -> str:
        """FILE:LINE"""
        return f"{self.file}:{self.line}" if self.line else self.file


class PolicyConfig(msgspec.Struct, frozen=True):
    """All rules in order, those of the user's own file first, and the action for what none of them names."""

    rules: tuple[Rule, ...] = ()
    default: Action = "allow"
    has_default: bool = False
    """Whether a file says what the default is."""
    floors: "tuple[PolicyConfig, ...]" = ()
    """Policies of single files of the user. Each holds besides the rules above: the strictest verdict counts."""
    file: str = ""
    """The file of such a single policy."""

    @property
    def can_ask(self) -> bool:
        """Whether a person may have to be asked."""
        if self.default == "ask" or any(rule.written.action == "ask" for rule in self.rules):
            return True
        return any(floor.can_ask for floor in self.floors)

    @property
    def version(self) -> str:
        """A digest of what the rules say, wherever they are written."""
        said = msgspec.json.encode(
            (self.default, [rule.written for rule in self.rules], *(floor.version for floor in self.floors)),
            order="deterministic",
        )
        return hashlib.blake2b(said, digest_size=16).hexdigest()


class RulesFile(msgspec.Struct, frozen=True):
    """The rules of one file."""

    rules: tuple[Rule, ...] = ()
    default: Action | None = None
    is_users: bool = False
    """Whether it is the user's own file, not that of a project."""
    file: str = ""


def policy_of(files: Sequence[RulesFile]) -> PolicyConfig:
    """The policy of several files, those of the user first: a project must not loosen what the user's say (T36).

    The strictest of their defaults holds. What two files of the user say differently is as strict as the stricter one.
    Where the user's file has a default, the rules of a project can only be stricter than it.
    """
    rules = tuple(rule for file in files for rule in file.rules)
    written = {file.default for file in files}
    users = [file for file in files if file.is_users]
    floors = tuple(
        PolicyConfig(file.rules, file.default or "allow", file=file.file)
        for file in users
        if len(files) > 1 and (file.default in ("deny", "ask") or (file.rules and len(users) > 1))
    )
    for default in STRICTEST:
        if default in written:
            return PolicyConfig(rules, default, has_default=True, floors=floors)
    return PolicyConfig(rules, "ask" if rules else "allow", floors=floors)


class Subject(msgspec.Struct, frozen=True):
    """What a rule names, compiled: a pair of globs on a server's key and on the server's own name of something."""

    kinds: tuple[Kind, ...]
    server: Glob
    name: Glob | None
    """None for everything of the server."""

    @property
    def names_something(self) -> bool:
        """Whether it is about one server or some names, and not about all of many servers."""
        return self.server.literal is not None or (self.name is not None and not self.name.matches_all)

    def covers(self, other: "Subject") -> bool:
        """Whether it surely includes all that the other one does."""
        if self.kinds not in (KINDS, other.kinds) or not self.server.covers(other.server):
            return False
        return self.name is None or (other.name is not None and self.name.covers(other.name))


def subject_of(written: Permission) -> Subject:
    """What a rule names, if the first `__` behind `mcp__` ends the server's half, as it does for keys of servers.

    Raises:
        BadGlob: it cannot be read; the message is the end of a sentence.
    """
    return next(_readings(written))


def readings_of(written: Permission) -> list[Subject]:
    """All that a rule may name: the names that users give to servers may contain `__`, so any of them may end it.

    Raises:
        BadGlob: the first of them cannot be read.
    """
    return list(_readings(written))


def _readings(written: Permission) -> Iterator[Subject]:
    kind, text = written.subject
    is_whole_server = kind == "tool" and not written.args and written.pattern is None
    kinds = KINDS if is_whole_server else (kind,)
    if text in ("*", "**"):
        yield Subject(kinds, name_glob("*"), None)
        return
    server, name = _halves(kind, text)
    yield _subject(kinds, kind, server, name)
    while name is not None and text.startswith(_HEAD):
        more, separator, rest = name.partition("__")
        server, name = f"{server}__{more}", rest if separator else None
        if name == "" or (kind == "resource" and "/" in more):
            return  # The rest of a URI.
        with suppress(BadGlob):  # Such as the first half of `{a__b,c}`.
            yield _subject(kinds, kind, server, name)


def _subject(kinds: tuple[Kind, ...], kind: Kind, server: str, name: str | None) -> Subject:
    if name is None:
        return Subject(kinds, name_glob(server), None)
    if kind == "resource":
        if "%" in name:
            raise BadGlob("contains a %; URIs are compared with their escapes decoded, so write the character itself")
        check_host(name)
        return Subject((kind,), name_glob(server), glob(name))
    return Subject((kind,), name_glob(server), name_glob(name))


def _halves(kind: Kind, text: str) -> tuple[str, str | None]:
    """The globs on server and name. Keys of servers contain no `__`, so the first one ends the server's."""
    if text.startswith(_HEAD):
        server, separator, name = text.removeprefix(_HEAD).partition("__")
    elif kind != "resource" and "." in text and "__" not in text:
        server, separator, name = text.partition(".")
    elif "__" in text:
        raise BadGlob(f'should begin with mcp__: "mcp__{text}"')
    else:
        form = {"tool": "TOOL", "prompt": "PROMPT", "resource": "URI"}[kind]
        raise BadGlob(f"should be mcp__SERVER__{form}, or mcp__SERVER for all of a server")
    if not server or (separator and not name):
        raise BadGlob("lacks a name between or behind the underscores")
    return server, name if separator else None


def full_name(server: str, name: str) -> str:
    """What a rule writes for a tool, a prompt or a URI of a server; of an activation, without its namespace."""
    return f"{_HEAD}{server}__{spellings([server], name)[-1]}"


def full_names(servers: Collection[str], name: str) -> list[str]:
    """All that a rule may write for a tool or prompt of a server that has these names."""
    return [f"{_HEAD}{server}__{each}" for server in servers for each in spellings(servers, name)]


def faults(written: Permission) -> Iterator[tuple[str, str]]:
    """What is wrong with a rule: keys, each with a sentence."""
    named = [kind for kind in KINDS if getattr(written, kind) is not None]
    if len(named) != 1:
        yield (named[1] if named else "", "A rule needs exactly one of tool, prompt and resource.")
        return
    try:
        subject_of(written)
    except BadGlob as problem:
        yield named[0], f'"{getattr(written, named[0])}" {problem}.'
    if named[0] == "resource" and (written.args or written.pattern is not None):
        yield (
            "args" if written.args else "pattern",
            "Resources have no arguments; a rule for them has no args or pattern.",
        )
    elif named[0] == "prompt" and written.pattern is not None:
        yield "pattern", "Only a rule for tools has a pattern; name the argument of a prompt under args."
    globs = [("args", each) for each in written.args.values()]
    globs += [("pattern", written.pattern)] if written.pattern is not None else []
    globs += [("caller", each) for each in written.caller]
    for key, each in globs:
        try:
            glob(each)
            if key != "caller":
                check_host(each)
        except BadGlob as problem:
            yield key, f'The glob "{each}" {problem}.'
    for path in written.args:
        if "" in path.split("."):
            yield "args", f'"{path}" is not a path of arguments: write names with dots between them.'


def check_host(source: str) -> None:
    """Raise BadGlob if a glob on URLs has a scheme or host in a spelling that no call is compared in.

    Calls that are spelled so are doubtful; a rule that denies must not miss the others.
    """
    found = _URL.match(source)
    if found is None:
        return
    if found[0] != found[0].lower() or not found[0].isascii() or _DOT_AT_END.search(found[0]) is not None:
        raise BadGlob("should have its scheme and host in lower case and ASCII, and no dot at the end of the host")


# --------------------------------------------------------------------------------------------------------- warnings


def unreachable(rules: Sequence[Rule], free: Collection[str] = ()) -> Iterator[tuple[Rule, Rule]]:
    """Rules that can never decide, each with an earlier rule that matches all it could match.

    Rules about all servers hide none about one of `free`, to which they do not apply.
    With very many rules some are missed: this is for a warning, which must not delay a start.
    """
    # Rules with conditions on arguments hide none but equal ones.
    seen: dict[bytes, Rule] = {}
    wide: dict[str | None, list[tuple[Rule, Subject]]] = {}
    """By the server that they are for; None for those that name several."""
    left = _MAX_COMPARISONS
    for rule in rules:
        subject = subject_of(rule.written)
        server = subject.server.literal
        content = msgspec.structs.replace(rule.written, why="", record="digest", optional=False)
        hiding = seen.setdefault(msgspec.json.encode(content, order="deterministic"), rule)
        if hiding is rule:
            general = () if server in free else wide.get(None, ())
            earlier = [*general, *(wide.get(server, ()) if server is not None else ())]
            left -= len(earlier)
            if left < 0:
                return
            hiding = next((each for each, it in earlier if _hides(each, it, rule, subject)), rule)
        if hiding is not rule:
            yield rule, hiding
        elif not rule.written.args and rule.written.pattern is None:
            wide.setdefault(server, []).append((rule, subject))


def _hides(earlier: Rule, wide: Subject, later: Rule, narrow: Subject) -> bool:
    callers = earlier.written.caller
    if callers and not (later.written.caller and set(later.written.caller) <= set(callers)):
        return False
    # A URI that is spelled in a suspicious way matches no glob that allows, so that a later rule may still decide.
    is_leaky = earlier.written.action == "allow" and wide.name is not None and "resource" in wide.kinds
    return not is_leaky and wide.covers(narrow)


def unknown_servers(rules: Sequence[Rule], keys: Iterable[str]) -> Iterator[tuple[Rule, str]]:
    """Rules whose server half matches none of these keys and other names of servers, each with that half.

    Optional rules are left out.
    """
    known = list(keys)
    for rule in rules:
        if rule.written.optional:
            continue
        halves = [reading.server for reading in readings_of(rule.written)]
        if not any(half.matches_all or any(map(half.matches, known)) for half in halves):
            yield rule, halves[0].source


def unknown_names(rules: Sequence[Rule], tools: Mapping[str, Iterable[str]]) -> Iterator[tuple[Rule, str, list[str]]]:
    """Rules for tools that match none of a server's tools: each with its glob and the names it could have meant.

    Only about servers whose tools are known; `tools` has them by the key of the server.
    """
    for rule in rules:
        subject = subject_of(rule.written)
        server = subject.server.literal
        if subject.name is None or "tool" not in subject.kinds or server is None or server not in tools:
            continue
        names = list(tools[server])
        if not any(subject.name.matches(each) for name in names for each in spellings([server], name)):
            yield rule, subject.name.source, names


# ------------------------------------------------------------------------------------------------------------- writing


def to_toml(written: Permission, comment: str = "") -> str:
    """A rule as it is written in sluicegate.toml."""
    lines = ["[[permissions]]", *(f"# {line}" for line in comment.splitlines())]
    for key, value in msgspec.to_builtins(written).items():
        lines.append(f"{key} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    match value:
        case dict():
            pairs: dict[str, object] = value  # pyright: ignore[reportUnknownVariableType]
            return "{ " + ", ".join(f"{_toml(key)} = {_toml(each)}" for key, each in pairs.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(map(_toml, value)) + "]"  # pyright: ignore[reportUnknownArgumentType]
        case _:
            # JSON, with hidden characters escaped: names of tools come from servers, and this is for terminals, too.
            encoded = msgspec.json.encode(value).decode()
            return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in encoded)
