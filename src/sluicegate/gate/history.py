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


class SuccessfulCalls:
    """Calls that succeeded, from the rows of a log, which are added in their order and page by page."""

    def __init__(self) -> None:
        self._decided: dict[str, Target] = {}
        self._callers: dict[Target, Counter[str]] = {}

    def add(self, rows: Iterable[Recorded]) -> None:
        """Count the calls of these rows. What was refused, by a rule or by a person, has no successful outcome."""
        for row in rows:
            if row.kind == "decision" and (target := target_of(row)) is not None:
                self._decided[row.request] = target
            elif row.kind == "outcome":
                target = self._decided.pop(row.request, None)
                if target is not None and row.verdict == "ok":
                    self._callers.setdefault(target, Counter())[row.caller] += 1

    def suggestions(self) -> list[Suggestion]:
        """A rule for each tool, prompt and resource of which calls succeeded, the most used first."""
        found: list[Suggestion] = []
        for target, callers in self._callers.items():
            written = full_name(target.server, escape(target.name))
            if len(written) <= MAX_SIZE and "%" not in written:
                permission = msgspec.convert({target.kind: written, "action": "allow"}, Permission)
                found.append(Suggestion(permission, callers.total(), tuple(sorted(callers))))
        return sorted(found, key=lambda suggestion: -suggestion.calls)


class Replay:
    """What other rules would have said about recorded calls. Rows are added page by page."""

    def __init__(self, rules: Rules, groups: Mapping[str, tuple[str, ...]]) -> None:
        """The log has no groups of callers, so `groups` gives those of each."""
        self._rules = rules
        self._groups = groups
        self._counts: Counter[tuple[str, Target, str, Action | None, str]] = Counter()

    def add(self, rows: Iterable[Recorded]) -> None:
        """Judge the calls of these rows by the other rules."""
        for row in rows:
            target = target_of(row) if row.kind == "decision" else None
            if target is None:
                continue
            caller = Caller(row.caller, self._groups.get(row.caller, ()))
            possible = possible_verdicts(self._rules, caller, target)
            if "arguments" not in row.body:
                possible = [judge(self._rules, caller, target, {})]
            if any(verdict.action != row.verdict for verdict in possible):
                is_sure = len({verdict.action for verdict in possible}) == 1
                action = possible[0].action if is_sure else None
                place = possible[0].rule or "[policy] default"
                self._counts[row.caller, target, row.verdict, action, place] += 1

    def differences(self) -> list[Difference]:
        """The calls that are judged in another way, the most frequent first."""
        return [Difference(*key, calls=calls) for key, calls in self._counts.most_common()]


def target_of(row: Recorded) -> Target | None:
    """What a recorded call was about; None if that is not a tool, a prompt or a resource."""
    kind = _KINDS.get(JUDGED.get(str(row.body.get("method")), "reference"))
    return None if kind is None or not row.server else Target(row.server, kind, row.name)
