"""Pinned definitions: a tool that changes after it was approved may not be used until a person has approved it (T21).

What a server offers is approved when it is first seen, unless it hides something. `sluicegate.lock`, where there is
one, decides alone: what it does not list, or lists with another hash, waits for approval. Resources and templates are
only scanned for hidden text: they come and go with the user's files, and no lock file lists them.
"""

import logging
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from sluicegate.errors import StateUnavailable
from sluicegate.exchange import BEING_REVIEWED, Target
from sluicegate.gate.lock_file import LOCK_NAME, Locked
from sluicegate.protocol.definition_digest import is_of_earlier_rule, is_same
from sluicegate.protocol.message import Params, as_array, as_object
from sluicegate.store.base import AuditLog, Pin, Pins, Row
from sluicegate.text.masking import MASK
from sluicegate.text.visible_text import HIDDEN

log = logging.getLogger("sluicegate")

Mode = Literal["pin", "warn", "off"]
"""What a changed definition means: it waits for approval, it is reported, nothing."""

MAX_DECIDED: Final = 50_000
"""Definitions that are remembered: a server may change its own all the time."""

_STORE_FAILED: Final = "The record of approved definitions cannot be read."


# ---------------------------------------------------------------------------------------------------------- hidden text

# What a definition hides from people: characters that are not visible, and names that look like others (T20). Text that
# reads like an instruction to a model is only pointed out: no list of phrases tells an attack from a manual.

_JOINERS: Final = frozenset("\u200c\u200d\u2800") | {chr(code) for code in range(0xFE00, 0xFE10)}
"""Needed in emoji and in some scripts, so only suspicious behind ASCII."""

_INSTRUCTION: Final = re.compile(
    r"<\s*/?\s*(important|system|secret|instructions?)\s*>"
    r"|\bignore (all|any|the|previous|prior)\b[^.]{0,40}\binstructions?\b"
    r"|\bdo not (tell|mention|inform|reveal)\b[^.]{0,30}\b(the )?user\b",
    re.IGNORECASE,
)

_ALIKE: Final = frozenset({"Latin", "Greek", "Cyrillic", "Armenian", "Cherokee", "Coptic", "Lisu"})
"""Scripts whose letters are easily confused."""

MAX_FINDINGS: Final = 5
"""Findings about one definition."""


class Findings(msgspec.Struct, frozen=True):
    """What was found: `hidden` calls for approval, `hints` are only reported."""

    hidden: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


def scan(name: str, definition: Params) -> Findings:
    """What a definition hides. `name` is the server's own name of it."""
    hidden: list[str] = []
    hints: list[str] = []
    if not name.isascii() and (odd := lookalike(name)):
        hidden.append(odd)
    for place, text in _texts(definition):
        if len(hidden) < MAX_FINDINGS and (char := hidden_character(text)):
            hidden.append(f"its {place} contains the invisible character {_named(char)}")
        if len(hints) < MAX_FINDINGS and _INSTRUCTION.search(text):
            hints.append(f"its {place} reads like an instruction to a model")
    return Findings(tuple(hidden), tuple(hints))


def hidden_character(text: str) -> str:
    """The first character that people do not see; empty if there is none."""
    if text.isascii() and text.isprintable():
        return ""
    for found in HIDDEN.finditer(text):
        char, start = found[0], found.start()
        is_joined = char in _JOINERS and (not text[max(0, start - 1) : start].isascii() or _is_keycap(text, start))
        if char not in "\t\r" and not is_joined:
            return char
    return ""


def _is_keycap(text: str, start: int) -> bool:
    # "1️⃣" is a digit with a variation selector.
    return text[start] == "\ufe0f" and text[start - 1 : start] in "0123456789#*©®" and start > 0


def lookalike(name: str) -> str:
    """Why a name may be taken for another one; empty if it is plainly itself."""
    folded = unicodedata.normalize("NFKC", name)
    if folded != name and folded.isascii():
        return f"its name looks like {folded!r} and is another"
    scripts = {_script(char) for char in name if char.isalpha()} & _ALIKE
    if len(scripts) > 1:
        return f"its name mixes letters of several scripts ({', '.join(sorted(scripts))})"
    return ""


def _script(char: str) -> str:
    return unicodedata.name(char, "UNKNOWN").split()[0].capitalize()


def _named(char: str) -> str:
    name = unicodedata.name(char, "")
    return f"U+{ord(char):04X}" + (f" ({name.lower()})" if name else "")


def _texts(definition: Params) -> Iterator[tuple[str, str]]:
    """All strings of a definition, names of members included, with the member of the definition they are in."""
    for member, value in definition.items():
        plain = msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
        for text in _strings(plain):
            yield member, text


def _strings(value: object) -> Iterator[str]:
    # Not recursive: definitions are nested as deeply as a server likes, within the limits of parsing.
    waiting: list[object] = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif (members := as_object(each)) is not None:
            waiting += [*members.values(), *members]
        elif (items := as_array(each)) is not None:
            waiting += items


# ----------------------------------------------------------------------------------------------------------------- pins


class PinnedDefinitions:
    """Decides which definitions may be used. What it decided is remembered until `forget`."""

    def __init__(
        self,
        store: Pins,
        mode: Callable[[str], Mode],
        *,
        secrets: Callable[[str], Collection[str]] = lambda server: (),
        locked: Locked | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        """`mode` is that of a server, by its key; `secrets` are texts of its configuration that are not written down.

        `locked` are the hashes of a lock file.
        """
        self.locked = locked
        self._store = store
        self._mode = mode
        self._secrets = secrets
        self._audit = audit
        self._decided: dict[Target, str] = {}
        self._hinted: set[Target] = set()
        """Definitions whose hints were reported."""

    def reviewed(self, definitions: Mapping[Target, Params]) -> Mapping[Target, str]:
        """Which of these may not be used, and why; `BEING_REVIEWED` if `review` has not decided on it."""
        decided = self._decided
        return {target: why for target in definitions if (why := decided.get(target, BEING_REVIEWED))}

    async def review(self, definitions: Mapping[Target, Params]) -> Mapping[Target, str]:
        """Which of these may not be used, and why. It waits for the store."""
        if len(self._decided) > MAX_DECIDED:
            self._decided = {}
            self._hinted.clear()
        while new := {target: each for target, each in definitions.items() if target not in self._decided}:
            known = self._decided
            whys = await self._decide(new)
            if self._decided is known:  # Else something was approved meanwhile, or the lock file has changed.
                known.update(whys)
        return self.reviewed(definitions)

    def forget(self) -> None:
        """Decide again: a definition was approved, or the lock file has changed."""
        self._decided = {}

    def forget_quarantined(self) -> bool:
        """Decide again on what may not be used; whether there is anything."""
        before = len(self._decided)
        self._decided = {target: why for target, why in self._decided.items() if not why}
        return len(self._decided) < before

    async def _decide(self, definitions: Mapping[Target, Params]) -> dict[Target, str]:
        """Why each definition may not be used; an empty reason if it may."""
        pinned: dict[Target, Pin] = {}
        renewed: list[tuple[str, Pin]] = []
        whys = dict.fromkeys(definitions, "")
        watched = [target for target in definitions if self._mode(target.server) != "off"]
        try:
            pins = await self._store.pins()
            known = {(pin.server, pin.kind, pin.name) for pin in pins}
            approved = {(pin.server, pin.kind, pin.name): pin for pin in pins if pin.state == "approved"}
        except StateUnavailable as problem:
            return whys | _failed(watched, problem)
        for target in watched:
            definition = definitions[target]
            findings = scan(target.name, definition)
            for hint in findings.hints if target not in self._hinted else ():
                log.warning("%s: %s: %s.", target.server, _title(target), hint)
            self._hinted.add(target)
            if target.kind == "resource" and not findings.hidden:
                continue
            place = (target.server, target.kind, target.name)
            is_known = place in known
            known.add(place)
            pin = pinned[target] = Pin(
                server=target.server,
                kind=target.kind,
                name=target.name,
                hash=target.definition,
                definition=_as_json(definition, self._secrets(target.server)),
                state="pending" if findings.hidden or is_known else "approved",
            )
            before = approved.get(place)
            if before is not None and is_of_earlier_rule(before.hash) and not findings.hidden:
                if is_same(before.hash, definition):
                    renewed.append((before.hash, pin))
            if findings.hidden:
                whys[target] = f"{_sentence(findings.hidden[0])} {_remedy(target)}"
        return whys | await self._compare(pinned, whys, renewed, definitions)

    async def _compare(
        self,
        pinned: Mapping[Target, Pin],
        findings: Mapping[Target, str],
        renewed: Sequence[tuple[str, Pin]],
        definitions: Mapping[Target, Params],
    ) -> dict[Target, str]:
        """Why each definition may not be used, compared with the store.

        `findings` say what it hides. `renewed` are definitions that were approved by a digest of the earlier rule, with
        that digest: they are the same by that rule, so that they stay approved, by a digest of everything.
        """
        whys: dict[Target, str] = {}
        try:
            for hash, pin in renewed:
                await self._store.renew_pin(hash, pin)
                self._note(pin, "renewed", "")
            seen = await self._store.see(list(pinned.values()))
        except StateUnavailable as problem:
            return _failed(pinned, problem)
        for (target, pin), found in zip(pinned.items(), seen, strict=True):
            why = findings[target]
            if found.pin.state == "approved":
                why = ""  # Also if it hides something: a person has seen it.
            elif not why:
                why = f"Its definition changed since it was approved. {_remedy(target)}"
            if self.locked is not None and target.kind != "resource":
                why = self._by_lock(self.locked, target, definitions[target])
            if self._mode(target.server) == "warn" and why:
                log.warning("%s: %s: %s", target.server, _title(target), why)
                why = ""
            whys[target] = why
            if found.news:
                self._report(target, pin, found.news, why)
        return whys

    def _by_lock(self, locked: Locked, target: Target, definition: Params) -> str:
        known = locked.get((target.server, target.kind, target.name))
        # Files of earlier versions have digests of the earlier rule; 'sluicegate pins lock' writes new ones.
        if known is not None and (known == target.definition or is_same(known, definition)):
            return ""
        if known is None:
            return f"It is not listed in {LOCK_NAME}; to allow it, run 'sluicegate pins lock'."
        approve = f"approve it with 'sluicegate pins approve {target.server}', then run 'sluicegate pins lock'"
        return (
            f"It is listed with another definition in {LOCK_NAME}; look at it with 'sluicegate pins diff', {approve}."
        )

    def _report(self, target: Target, pin: Pin, news: str, why: str) -> None:
        if why and (news == "changed" or pin.state == "pending"):
            log.warning("%s: not offered: %s. %s", target.server, _title(target), why)
        self._note(pin, news, why)

    def _note(self, pin: Pin, news: str, why: str) -> None:
        if self._audit is not None:
            body: Params = {"hash": pin.hash, "quarantined": why}
            self._audit.note(Row(kind="tool_def", server=pin.server, name=pin.name, verdict=news, body=body))


def _failed(targets: Iterable[Target], problem: StateUnavailable) -> dict[Target, str]:
    """Refuse definitions that cannot be compared: they may have changed."""
    log.error("%s %s", _STORE_FAILED, problem.message)
    return dict.fromkeys(targets, _STORE_FAILED)


def _title(target: Target) -> str:
    if target.kind == "instructions":
        return "the server's instructions"
    return f"{target.kind} {target.name!r}"


def _sentence(finding: str) -> str:
    return f"{finding[:1].upper()}{finding[1:]}."


def _remedy(target: Target) -> str:
    return f"Look at it with 'sluicegate pins diff', approve it with 'sluicegate pins approve {target.server}'."


def _as_json(definition: Params, secrets: Collection[str]) -> str:
    plain: object = msgspec.json.decode(msgspec.json.encode(definition))
    # The longest first: one secret may be a part of another.
    hidden = sorted(filter(None, secrets), key=len, reverse=True)
    shown = _masked(plain, hidden) if hidden else plain
    return msgspec.json.encode(shown, order="deterministic").decode()


def _masked(value: object, secrets: Sequence[str]) -> object:
    """The value with secrets masked in its texts; a mask over the JSON itself could leave something that is not."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, MASK)
        return value
    if (members := as_object(value)) is not None:
        found: dict[str, object] = {}
        for name, member in members.items():
            shown = str(_masked(name, secrets))
            while shown in found:  # Two names may differ in a secret only.
                shown += "*"
            found[shown] = _masked(member, secrets)
        return found
    if (items := as_array(value)) is not None:
        return [_masked(item, secrets) for item in items]
    is_secret = isinstance(value, int | float) and not isinstance(value, bool) and str(value) in secrets
    return MASK if is_secret else value
