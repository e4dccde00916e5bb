"""What recorded calls say about rules: rules that would allow them, and what other rules would have said. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

from sluicegate.exchange import Action, Caller, Target
from sluicegate.gate.policy import Rules, judge, possible_verdicts
from sluicegate.gate.rules import Kind, Permission, full_name
from sluicegate.protocol.methods import JUDGED, Judged
from sluicegate.text.globs import MAX_SIZE, escape

_KINDS: Final[Mapping[Judged, Kind]] = {
    "tool": "tool",
    "task": "tool",
    "prompt": "prompt",
    "resource": "resource",
    "filter": "resource",
}


class Recorded(Protocol):
    """A row of the audit log."""

    @property
    def kind(self) -> str: ...
    @property
    def request(self) -> str: ...
    @property
    def caller(self) -> str: ...
    @property
    def server(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def body(self) -> Mapping[str, object]: ...


class Suggestion(msgspec.Struct, frozen=True):
    """A rule that allows calls which succeeded."""

    permission: Permission
    calls: int
    callers: tuple[str, ...]


class Difference(msgspec.Struct, frozen=True):
    """Calls that other rules would have judged in another way."""

    caller: str
    target: Target
    was: str
    action: Action | None
    """What the rules say now; None if that depends on arguments, which the log does not have."""
    rule: str
    calls: int


def suggestions(rows: Iterable[Recorded]) -> list[Suggestion]:
    """A rule for each tool, prompt and resource of which calls succeeded, the most used first.

    What was refused, by a rule or by a person, has no successful outcome.
    """
    decided: dict[str, Target] = {}
    callers: dict[Target, Counter[str]] = {}
    for row in rows:
        if row.kind == "decision" and (target := target_of(row)) is not None:
            decided[row.request] = target
        elif row.kind == "outcome":
            target = decided.pop(row.request, None)
            if target is not None and row.verdict == "ok":
                callers.setdefault(target, Counter())[row.caller] += 1
    found: list[Suggestion] = []
    for target, each in callers.items():
        written = full_name(target.server, escape(target.name))
        if len(written) <= MAX_SIZE and "%" not in written:
            permission = msgspec.convert({target.kind: written, "action": "allow"}, Permission)
            found.append(Suggestion(permission, each.total(), tuple(sorted(each))))
    return sorted(found, key=lambda each: -each.calls)


def differences(rows: Iterable[Recorded], rules: Rules, groups: Mapping[str, tuple[str, ...]]) -> list[Difference]:
    """What other rules would have said about recorded calls, where it differs, the most frequent first.

    The log has no groups of callers, so `groups` gives those of each.
    """
    counts: Counter[tuple[str, Target, str, Action | None, str]] = Counter()
    for row in rows:
        target = target_of(row) if row.kind == "decision" else None
        if target is None:
            continue
        caller = Caller(row.caller, groups.get(row.caller, ()))
        possible = possible_verdicts(rules, caller, target)
        if "arguments" not in row.body:
            possible = [judge(rules, caller, target, {})]
        if any(each.action != row.verdict for each in possible):
            is_sure = len({each.action for each in possible}) == 1
            action = possible[0].action if is_sure else None
            place = possible[0].rule or "[policy] default"
            counts[row.caller, target, row.verdict, action, place] += 1
    return [Difference(*key, calls=calls) for key, calls in counts.most_common()]


def target_of(row: Recorded) -> Target | None:
    """What a recorded call was about; None if that is not a tool, a prompt or a resource."""
    kind = _KINDS.get(JUDGED.get(str(row.body.get("method")), "reference"))
    return None if kind is None or not row.server else Target(row.server, kind, row.name)
