"""Judges calls by the access rules: the first rule that matches decides. `Policy` is the step that does so.

It enforces nothing: the steps behind it do. All but that step is pure.

A suspicious argument or URI (missing, nested, too long, or spelled so that it could mean something else) matches every
rule that denies or asks and none that allows: where two readers could disagree, the stricter rule wins (T15).
"""

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar, cast
from urllib.parse import unquote

import msgspec

from sluicegate.errors import Refused
from sluicegate.exchange import Action, Caller, Exchange, Handler, Target, Verdict
from sluicegate.gate.rules import GROUP, KINDS, PolicyConfig, Rule, Subject, readings_of
from sluicegate.protocol.message import Reply
from sluicegate.protocol.methods import JUDGED, UNJUDGED
from sluicegate.protocol.tasks import REQUESTS as TASK_REQUESTS
from sluicegate.protocol.uri_normalize import is_plain_host, plain
from sluicegate.text.globs import BadGlob, Glob, glob, name_glob
from sluicegate.text.tool_names import spellings

log = logging.getLogger("sluicegate")

MAX_ARGUMENT: Final = 16 * 1024
"""Bytes of an argument that a glob reads; of a list, of all its elements together."""
_REMEMBERED: Final = 10_000
"""Callers and targets for which the matching rules are remembered."""
_MAX_NUMBER: Final = 1024
"""Bits of a number that is compared as text."""

_DOTS: Final = re.compile(r"(?:^|/)\.\.?(?:/|$)")
_EMPTY: Final = re.compile(r"(?<!:)(?<!:/)//")
"""An empty segment, except behind a scheme."""
_ESCAPES: Final = re.compile(
    r"%(?:25)*(?:[01][0-9A-Fa-f]|2[DdEeFf]|3[0-9]|4[1-9A-Fa-f]|5[0-9AaCcFf]|6[1-9A-Fa-f]|7[0-9AaEeFf])"
)
"""A separator, a control character, or one that needs no escape (RFC 3986 §2.3); escaped once or more."""
# ASCII only: without it, capitals and small letters are compared as Unicode does, and U+017F is an s.
_SCHEME: Final = re.compile(r"(?ai:https?|wss?|ftp|file):")
_URL: Final = re.compile(r"((?ai:https?|wss?|ftp|file))://([^/]*)")
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)(?::([1-9][0-9]*))?")
"""A host as it is compared: no user, no capitals, no dot at its end, and nothing that ends it for some readers only."""
_PORTS: Final = {"http": "80", "ws": "80", "https": "443", "wss": "443", "ftp": "21"}
_ANY_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_URL_GLOB: Final = re.compile(r"[A-Za-z*{][A-Za-z0-9+.,*?{}-]*://")
_NOT_PLACES: Final = frozenset({"command", "query", "sql"})
"""Arguments that are text for another program, in which paths and URLs may be anywhere."""

_STRICTNESS: Final[Mapping[Action, int]] = {"allow": 0, "ask": 1, "deny": 2}

K = TypeVar("K")
V = TypeVar("V")
_FAULTS: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_NOT_NAMED: Final = "No rule names it."
_FREE: Final = Verdict("allow", "the management tools")
_CAREFUL: Final = "No rule names it, and it can do anything on this machine."


class ArgumentCondition(msgspec.Struct, frozen=True):
    """A glob on one argument."""

    path: tuple[str, ...]
    """Names of members, and `*` for all of a list or an object; empty for the salient argument of the tool."""
    glob: Glob
    below: Glob | None = None
    """What the glob matches below any folder, if it is a relative path: an absolute path may be the same."""

    def texts(self, target: Target, arguments: Mapping[str, object]) -> list[str] | None:
        """The texts of the argument; None if it is suspicious."""
        path = self.path or ((target.salient,) if target.salient else ())
        texts = texts_of(arguments, path) if path else None
        if texts is None or "/" not in self.glob.source:
            return texts
        return None if any(is_suspicious(text) or self._is_elsewhere(path, text) for text in texts) else texts

    def holds(self, target: Target, arguments: Mapping[str, object], *, allows: bool) -> bool:
        """Whether the argument matches: of a list, every element for a rule that allows, any for others."""
        texts = self.texts(target, arguments)
        if texts is None:
            return not allows
        matches = self.glob.matches
        if allows:
            return all(map(matches, texts))
        return any(map(matches, texts)) or ("/" in self.glob.source and any(map(self._matches_otherwise, texts)))

    def _is_elsewhere(self, path: Sequence[str], text: str) -> bool:
        """Whether only the server knows what a text is: a relative path for an absolute one, a URL without a scheme."""
        if path[-1] in _NOT_PLACES or (path == ("*",) and (" " in text or ("/" not in text and "." not in text))):
            return False  # Not a place, as it seems.
        if self.glob.is_rooted:
            return not text.startswith("/")
        return _URL_GLOB.match(self.glob.source) is not None and _ANY_SCHEME.match(text) is None

    def _matches_otherwise(self, text: str) -> bool:
        """Whether it matches another spelling of a text that is not suspicious."""
        others = list(other_spellings(text))
        if any(map(self.glob.matches, others)):
            return True
        if self.below is None or not (text.startswith("/") or any(each.startswith("file:") for each in others)):
            return False
        return any(each.startswith("/") and self.below.matches(each) for each in others)


class CompiledRule(msgspec.Struct, frozen=True):
    """A rule, ready to be compared with calls."""

    rule: Rule
    subject: Subject
    verdict: Verdict
    conditions: tuple[ArgumentCondition, ...]
    callers: tuple[Glob, ...] = ()
    groups: tuple[Glob, ...] = ()
    by_name: Mapping[str, tuple[Subject, ...]] = {}
    """Keys of servers that it calls by another of their names, each with what it names there."""

    @property
    def allows(self) -> bool:
        return self.verdict.action == "allow"

    def is_for(self, caller: Caller) -> bool:
        """Whether it is for this caller."""
        if not self.callers and not self.groups:
            return True
        return any(each.matches(caller.id) for each in self.callers) or any(
            each.matches(group) for each in self.groups for group in caller.groups
        )

    def subjects_of(self, server: str) -> tuple[Subject, ...]:
        """What it names of a server, given by its key; nothing if it is not for this server."""
        own = (self.subject,) if self.subject.server.matches(server) else ()
        return (*own, *self.by_name[server]) if server in self.by_name else own

    def names(self, target: Target, forms: Sequence[str]) -> bool:
        """Whether it names the target; `forms` are the spellings of its name, none if that is suspicious."""
        for subject in self.subjects_of(target.server):
            # All kinds include those that no rule names alone, such as instructions.
            if subject.kinds == KINDS or target.kind in subject.kinds:
                if subject.name is None or (any(map(subject.name.matches, forms)) if forms else not self.allows):
                    return True
                if not self.allows and target.kind == "resource":
                    if any(subject.name.matches(each) for form in forms for each in _with_either_end(form)):
                        return True
                # Clients see `a__b` of a tool `a.b`; only rules that deny or ask take the one for the other (T15).
                if not self.allows and target.kind != "resource" and "." in target.name:
                    if subject.name.matches(target.name.replace(".", "__")):
                        return True
        return False

    def holds(self, target: Target, arguments: Mapping[str, object]) -> bool:
        """Whether all its conditions on arguments are met."""
        allows = self.allows
        return all(condition.holds(target, arguments, allows=allows) for condition in self.conditions)


class Careful(msgspec.Struct, frozen=True):
    """Tools of a server that a rule for all servers does not allow, because they can do anything on this machine."""

    tools: str = ""
    """The end of their names; empty for all tools."""
    argument: str = ""
    """The argument that a rule needs a condition on to allow them; empty if it only has to name the server."""
    needs_client: bool = False
    """Whether a call is refused if its own client cannot be asked."""


class Applicable(msgspec.Struct, frozen=True):
    """The rules that can decide about calls of one target by one caller."""

    conditional: tuple[CompiledRule, ...]
    """Rules with conditions on arguments, in order."""
    otherwise: Verdict
    """What the first rule without conditions says, or the default."""


class Rules:
    """The rules of a configuration, compiled. Which of them can apply is remembered for each caller and target."""

    def __init__(
        self,
        config: PolicyConfig | None = None,
        careful: Mapping[str, Careful] | None = None,
        names: Mapping[str, Collection[str]] | None = None,
        free: Collection[str] = (),
    ) -> None:
        """Raises BadGlob if a rule cannot be read; the configuration has been checked.

        Calls of `careful` tools, given by the keys of their servers, are allowed only by rules that name the server.
        `names` are all names of servers by their keys: rules may use any of them, such as `my_server` for `my-server`.
        `free` servers, given by their keys, need no permission: only rules that name them or their tools apply, and
        not those about all servers. What their tools call is judged.
        """
        self.config = config or PolicyConfig()
        self.careful = dict(careful or {})
        self.free = frozenset(free)
        self.names = {key: tuple(sorted({key, *others})) for key, others in (names or {}).items()}
        others = ("=".join(each) for each in self.names.values() if len(each) > 1)
        self.version = "+".join([self.config.version, *sorted(self.careful), *sorted(others), *sorted(self.free)])
        """A digest of the rules; equal rules have the same one."""
        self.rules = tuple(_compiled(rule, self.names) for rule in self.config.rules)
        action = self.config.default
        self.default = Verdict(action, self.config.file, "" if action == "allow" else _NOT_NAMED)
        self.floors = tuple(Rules(each, names=names, free=free) for each in self.config.floors)
        """The rules of single files of the user: the strictest verdict counts."""
        self.can_hide = (
            action == "deny"
            or any(rule.verdict.action == "deny" for rule in self.rules)
            or any(floor.can_hide for floor in self.floors)
        )
        """Whether anything may be denied outright."""
        self._by_server: dict[str, tuple[CompiledRule, ...]] = {}
        self._has_callers = any(rule.callers or rule.groups for rule in self.rules)
        self._classes: dict[Caller, int] = {}
        self._applicable: dict[tuple[int, str, str, str], Applicable] = {}

    def class_of(self, caller: Caller) -> int:
        """A number that is equal for callers to whom the same rules of this object apply."""
        if not self._has_callers:
            return 0
        found = self._classes.get(caller)
        if found is None:
            found = sum(rule.is_for(caller) << number for number, rule in enumerate(self.rules))
            _remember(self._classes, caller, found)
        return found

    def applicable(self, caller: Caller, target: Target) -> Applicable:
        """The rules that can decide about calls of the target by the caller."""
        key = (self.class_of(caller) if self._has_callers else 0, target.kind, target.server, target.name)
        found = self._applicable.get(key)
        if found is None:
            found = self._find(caller, target)
            _remember(self._applicable, key, found)
        return found

    def _find(self, caller: Caller, target: Target) -> Applicable:
        forms = self.forms_of(target)
        conditional: list[CompiledRule] = []
        for rule in self._of_server(target.server):
            if self.is_too_general(rule, target):
                continue
            if rule.names(target, forms) and rule.is_for(caller):
                if not rule.conditions:
                    return Applicable(tuple(conditional), rule.verdict)
                conditional.append(rule)
        return Applicable(tuple(conditional), self.default_for(target))

    def is_too_general(self, rule: CompiledRule, target: Target) -> bool:
        """Whether a rule does not apply because it does not name a free server, or not what it allows (`Careful`)."""
        if target.server in self.free:
            return not any(each.names_something for each in rule.subjects_of(target.server))
        if not rule.allows or not self._is_careful(target):
            return False
        argument = self.careful[target.server].argument
        is_narrow = not argument or any(condition.path == (argument,) for condition in rule.conditions)
        return rule.subject.server.literal is None or not is_narrow

    def default_for(self, target: Target) -> Verdict:
        """What holds if no rule matches."""
        if target.server in self.free:
            return _FREE
        if self.default.action == "deny" or not self._is_careful(target):
            return self.default
        return Verdict("ask", why=_CAREFUL, needs_client=self.careful[target.server].needs_client)

    def _is_careful(self, target: Target) -> bool:
        careful = self.careful.get(target.server)
        return careful is not None and target.kind == "tool" and target.name.endswith(careful.tools)

    def forms_of(self, target: Target) -> tuple[str, ...]:
        """The spellings of its name that globs are compared with; none if it is a suspicious URI."""
        if target.kind == "resource":
            return forms_of_uri(target.name)
        return spellings(self.names.get(target.server, (target.server,)), target.name)

    def name(self, target: Target) -> bool:
        """Whether one of the rules names the target, whatever its arguments and its caller."""
        forms = self.forms_of(target)
        return any(rule.names(target, forms) for rule in self._of_server(target.server))

    def _of_server(self, server: str) -> tuple[CompiledRule, ...]:
        found = self._by_server.get(server)
        if found is None:
            found = tuple(rule for rule in self.rules if rule.subjects_of(server))
            _remember(self._by_server, server, found)
        return found


def judge(rules: Rules, caller: Caller, target: Target, arguments: Mapping[str, object]) -> Verdict:
    """What the rules say about a call: the verdict of the first rule that matches, else the default."""
    found = rules.applicable(caller, target)
    verdict = found.otherwise
    for rule in found.conditional:
        if rule.holds(target, arguments):
            verdict = rule.verdict
            break
    for floor in rules.floors:
        verdict = _stricter(verdict, judge(floor, caller, target, arguments))
    return verdict


def is_hidden(rules: Rules, caller: Caller, target: Target) -> bool:
    """Whether it is denied whatever the arguments: absent from lists, and unknown when called (T33)."""
    found = rules.applicable(caller, target)
    if found.otherwise.action == "deny" and all(rule.verdict.action == "deny" for rule in found.conditional):
        return True
    return any(is_hidden(floor, caller, target) for floor in rules.floors)


def possible_verdicts(rules: Rules, caller: Caller, target: Target) -> list[Verdict]:
    """All verdicts that calls of the target can get, depending on their arguments."""
    found = rules.applicable(caller, target)
    possible = [*(rule.verdict for rule in found.conditional), found.otherwise]
    for floor in rules.floors:
        possible = [_stricter(each, own) for own in possible_verdicts(floor, caller, target) for each in possible]
    return possible


def _stricter(verdict: Verdict, other: Verdict) -> Verdict:
    return other if _STRICTNESS[other.action] > _STRICTNESS[verdict.action] else verdict


def mismatch(rules: Rules, rule: CompiledRule, caller: Caller, target: Target, arguments: Mapping[str, object]) -> str:
    """Why one of the rules does not match a call, as the end of a sentence; empty if it matches."""
    kind, written = rule.rule.written.subject
    subjects = rule.subjects_of(target.server)
    if not any(each.kinds == KINDS or target.kind in each.kinds for each in subjects or (rule.subject,)):
        return f"it is for {kind}s"
    if not subjects:
        return f"{rule.subject.server.source} does not match the server {target.server}"
    forms = rules.forms_of(target)
    if not rule.names(target, forms):
        return f"{written} does not match" if forms else "the URI is suspicious, so no rule allows it"
    if not rule.is_for(caller):
        return f"it is for {', '.join(rule.rule.written.caller)}"
    for condition in rule.conditions:
        if not condition.holds(target, arguments, allows=rule.allows):
            name = ".".join(condition.path) or target.salient or "the salient argument"
            is_suspicious = condition.texts(target, arguments) is None
            said = "is missing or suspicious, so no rule allows it" if is_suspicious else "does not match"
            return f"{name} {said}" if is_suspicious else f"{name} {said} {condition.glob.source}"
    return ""


# -------------------------------------------------------------------------------------------------------- the step


class Policy:
    """Sets the verdict of each exchange. `rules` may be replaced at any time; the next exchange is judged by them."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.callers_above: Callable[[Caller], Iterable[Caller]] | None = None
        """Gives the callers whose denials hold for a caller, too: the agents above a sub-agent."""

    def __call__(self, exchange: Exchange, proceed: Handler) -> Awaitable[Reply]:
        """The reply of what is behind it.

        Raises:
            Refused: the rules could not be applied. The audit log records refusals, and no other exceptions.
        """
        try:
            if self.callers_above is None:
                exchange.verdict = verdict_of(self.rules, exchange, exchange.caller)
            else:
                self.judge(exchange)
        except _FAULTS as problem:  # What a caller sends must not end a call without a row.
            log.exception("The rules could not be applied to %s.", exchange.method)
            sentence = "The rules could not be applied to this request, by a fault of sluicegate; nothing was run."
            raise Refused(f"{sentence} Its log says more.") from problem
        return proceed(exchange)

    def judge(self, exchange: Exchange) -> None:
        """Set the verdict of an exchange."""
        exchange.verdict = verdict_of(self.rules, exchange, exchange.caller)
        if self.callers_above is not None:
            above = (verdict_of(self.rules, exchange, caller) for caller in self.callers_above(exchange.caller))
            exchange.verdict = next((found for found in above if found.action == "deny"), exchange.verdict)


def verdict_of(rules: Rules, exchange: Exchange, caller: Caller) -> Verdict:
    """What the rules say about an exchange of a caller. What no table knows is denied, whatever the rules say (T16).

    A method of an extension needs both: what it names must be allowed, and the method itself, which only rules about
    the whole server name. A task is judged by its tool alone: the arguments were judged when it began.
    """
    target, method = exchange.target, exchange.method
    if target is not None and method in TASK_REQUESTS:
        return Verdict("deny" if is_hidden(rules, caller, target) else "allow")
    if target is not None and (method in JUDGED or exchange.is_extension):
        arguments = exchange.params.get("arguments")
        is_object = isinstance(arguments, Mapping) and target.kind != "resource"
        verdict = judge(rules, caller, target, cast(Mapping[str, object], arguments) if is_object else {})
        if exchange.is_extension and target.kind != "method":
            of_method = judge(rules, caller, Target(target.server, "method", method), {})
            return _stricter(verdict, of_method)
        return verdict
    if target is None and method in UNJUDGED:
        return Verdict("allow")
    return Verdict("deny", why="No rule can name this request.")


# ------------------------------------------------------------------------------------------- targets and arguments


def is_suspicious(text: str) -> bool:
    """Whether a text with segments could mean something else to some reader: by its segments, or hidden characters."""
    # Each search is behind a test that takes nanoseconds, since nearly all texts are harmless.
    return (
        not text.isprintable()
        or "\\" in text
        or text[:1] == " "
        or text[-1:] == " "
        or ("//" in text and _EMPTY.search(text) is not None)
        or (("/." in text or text.startswith(".")) and _DOTS.search(text) is not None)
        or ("%" in text and _ESCAPES.search(text) is not None)
        or (":" in text and not _is_plain_url(text))
        or (not text.isascii() and (wide := unicodedata.normalize("NFKC", text)) != text and is_suspicious(wide))
    )


def _is_plain_url(text: str) -> bool:
    """Whether all readers take a text for the same URL, or for none: `https:/host` is `https://host` to some."""
    if _SCHEME.match(text) is None:
        return True
    found = _URL.match(text)
    if found is None or not found[1].islower():
        return False
    scheme, host = found[1], found[2]
    if scheme == "file":
        return not host
    parts = _HOST.fullmatch(host)
    return parts is not None and parts[2] != _PORTS[scheme] and is_plain_host(parts[1])


def other_spellings(text: str) -> Iterator[str]:
    """Texts that mean the same as a text that is not suspicious, or may do: rules that deny or ask match them, too."""
    forms = {text}
    if "%" in text:
        forms.add(unquote(text))
    if not text.isascii() or len(forms) > 1:
        forms |= {unicodedata.normalize(form, each) for form in ("NFC", "NFD", "NFKC") for each in forms}
    for each in forms:
        if _ANY_SCHEME.match(each) is None:
            yield from _with_either_end(each)
            yield from _with_either_end(f"/{each.lstrip('/')}")
            continue
        bare = each.partition("#")[0].removesuffix("?")
        yield bare
        yield from _with_either_end(bare)
        if (found := _URL.match(bare)) is not None and found[1] in _PORTS and ":" not in found[2]:
            yield from _with_either_end(f"{found[0]}:{_PORTS[found[1]]}{bare[found.end() :]}")
        elif bare.startswith("file:///"):
            yield from _with_either_end(bare.removeprefix("file://"))


def _with_either_end(text: str) -> tuple[str, str]:
    """A path or URL without a slash at its end and with one: both are the same folder."""
    bare = text.rstrip("/")
    return bare or "/", f"{bare}/"


def forms_of_uri(uri: str) -> tuple[str, ...]:
    """The spellings of a URI that globs are compared with; none if it is suspicious."""
    if _size(uri) > MAX_ARGUMENT:
        return ()
    if uri[:17].lower() == "file://localhost/":
        uri = "file:///" + uri[17:]
    decoded = plain(uri)
    is_odd = not unicodedata.is_normalized("NFKC", uri) or not unicodedata.is_normalized("NFKC", decoded)
    if is_odd or is_suspicious(uri) or is_suspicious(decoded):
        return ()
    # `plain` takes http://host/ and http://host for the same.
    scheme, slashes, rest = decoded.partition("://")
    return (decoded, f"{decoded}/") if scheme and slashes and rest and "/" not in rest else (decoded,)


def texts_of(arguments: Mapping[str, object], path: Sequence[str]) -> list[str] | None:
    """The argument as texts, one for each element of a list; None if it is missing, nested, or too long."""
    if len(path) == 1 and path[0] != "*" and type(text := arguments.get(path[0])) is str:  # The usual case.
        return [text] if _size(text) <= MAX_ARGUMENT else None
    found: list[object] = [arguments]
    for part in path:
        inner: list[object] = []
        for value in found:
            if part == "*" and isinstance(value, list | tuple):
                inner += value  # pyright: ignore[reportUnknownArgumentType]
            elif part == "*" and isinstance(value, dict):
                inner += value.values()  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            elif isinstance(value, dict) and part in value:
                inner.append(value[part])  # pyright: ignore[reportUnknownArgumentType]
            else:
                return None
        found = inner
    texts: list[str] = []
    for value in found:
        elements = cast(Sequence[object], value) if isinstance(value, list | tuple) else (value,)
        known = [text for element in elements if (text := _text(element)) is not None]
        if not known or len(known) < len(elements):  # An empty list often means everything.
            return None
        texts += known
    # Each element counts, also if it is empty.
    is_short = len(texts) + sum(map(_size, texts)) <= MAX_ARGUMENT + 1
    return texts if texts and is_short else None


def _text(value: object) -> str | None:
    """A scalar as text; None for anything else. 1 and 1.0 are the same number to most servers, so also to us."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case float() if not value.is_integer() or abs(value) >= 1e21:
            return repr(value)
        case int() | float():
            number = int(value)
            return str(number) if number.bit_length() <= _MAX_NUMBER else None
        case _:
            return None


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


# ------------------------------------------------------------------------------------------------------------ compiling


def _compiled(rule: Rule, names: Mapping[str, Collection[str]]) -> CompiledRule:
    written = rule.written
    readings = readings_of(written)
    action: Action = written.action
    conditions = [_condition(tuple(path.split(".")), each) for path, each in written.args.items()]
    if written.pattern is not None:
        conditions.append(_condition((), written.pattern))
    return CompiledRule(
        rule,
        readings[0],
        Verdict(action, rule.place, written.why, written.record == "values"),
        tuple(conditions),
        # An id that begins like a group must not pass for one.
        tuple(name_glob(each) for each in written.caller if not each.startswith(GROUP)),
        tuple(name_glob(each.removeprefix(GROUP)) for each in written.caller if each.startswith(GROUP)),
        _by_name(readings, names, allows=action == "allow"),
    )


def _condition(path: tuple[str, ...], source: str) -> ArgumentCondition:
    below = None
    if "/" in source and source[0] not in "/*" and _URL_GLOB.match(source) is None:
        with suppress(BadGlob):  # It has become too long.
            below = glob(f"**/{source}")
    return ArgumentCondition(path, glob(source), below)


def _by_name(
    readings: Sequence[Subject], names: Mapping[str, Collection[str]], *, allows: bool
) -> dict[str, tuple[Subject, ...]]:
    """For servers that a rule calls by another name than their key: their keys, and what it names there.

    Where two servers could be meant, a rule that denies or asks is for both; one that allows is for the server with
    that key, and else for none (T15).
    """
    found: dict[str, tuple[Subject, ...]] = {}
    if not names or readings[0].server.matches_all:
        return found
    owners = Counter(name for of_server in names.values() for name in set(of_server))
    for reading in readings:
        matches = reading.server.matches
        for key, of_server in names.items():
            others = [name for name in of_server if name != key and not (allows and owners[name] > 1)]
            if any(map(matches, others)):
                found[key] = (*found.get(key, ()), reading)
        if allows and (found or any(map(matches, names))):
            break
    return found


def _remember(cache: dict[K, V], key: K, value: V) -> None:
    if len(cache) >= _REMEMBERED:  # Callers choose URIs, so they must not fill the memory.
        cache.clear()
    cache[key] = value
