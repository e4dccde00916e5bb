"""What sub-agents may use: less than the view that they were made from, never more."""

from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Literal

from sluicegate.exchange import Caller, Handler, Target
from sluicegate.gate.governance import Governance
from sluicegate.gate.policy import Rules
from sluicegate.gate.rules import Permission, PolicyConfig, Rule, readings_of
from sluicegate.protocol.message import Params
from sluicegate.text.globs import BadGlob, Glob, name_glob
from sluicegate.text.tool_names import whole_names

Names = Mapping[str, Collection[str]]
"""All names of each server, by its key."""


class Narrowing:
    """Globs on what a sub-agent may use, as rules have them, or on the bare names of tools."""

    def __init__(
        self, caller: Caller, allow: Sequence[str] | None, deny: Sequence[str], above: "Narrowing | None"
    ) -> None:
        """`caller` and `above` are those of the view that is narrowed.

        Raises:
            ValueError: a glob cannot be read.
        """
        self.caller = caller
        self.above = above
        self._allow = None if allow is None else _Patterns(allow, "allow")
        self._deny = _Patterns(deny, "deny")

    def hides(self, target: Target, names: Names, own: str) -> bool:
        """Whether it leaves something out.

        The management tools, of the server `own`, are left out only by name.
        """
        if self.above is not None and self.above.hides(target, names, own):
            return True
        if self._deny.match(target, names):
            return True
        return self._allow is not None and target.server != own and not self._allow.match(target, names)


class NarrowingGovernor:
    """The governance of a gateway, with less for the callers that are sub-agents."""

    def __init__(self, inner: Governance, of: Callable[[str], Narrowing | None], own: Callable[[], str]) -> None:
        """`of` gives the narrowing of a caller, if it is a sub-agent."""
        self._inner = inner
        self._of = of
        self._own = own
        inner.policy.callers_above = self._callers_above

    def _callers_above(self, caller: Caller) -> Iterator[Caller]:
        narrowing = self._of(caller.id)
        while narrowing is not None:
            yield narrowing.caller
            narrowing = narrowing.above

    @property
    def decide(self) -> Handler:
        """Returns the reply, or a refusal."""
        return self._inner.decide

    @property
    def can_hide(self) -> bool:
        """Yes: a sub-agent may be made at any time."""
        return True

    @property
    def version(self) -> object:
        """A digest of the rules."""
        return self._inner.version

    @property
    def allows_unlisted(self) -> bool:
        """No: what no list has cannot be narrowed."""
        return False

    def class_of(self, caller: Caller) -> Hashable:
        """Equal for callers that see the same; None if they see everything."""
        narrowing = self._of(caller.id)
        by_rules = self._inner.class_of(caller) if self._inner.can_hide else None
        return by_rules if narrowing is None else (narrowing, by_rules)

    def hides(self, caller: Caller, target: Target) -> bool:
        """Whether a caller may never use the target."""
        narrowing = self._of(caller.id)
        names = self._inner.policy.rules.names
        if narrowing is not None and narrowing.hides(target, names, self._own()):
            return True
        return any(self._inner.hides(above, target) for above in (caller, *self._callers_above(caller)))

    def review(self, definitions: Mapping[Target, Params]) -> Awaitable[Mapping[Target, str]]:
        """Which definitions may not be used until a person has approved them, and why."""
        return self._inner.review(definitions)

    def reviewed(self, definitions: Mapping[Target, Params]) -> Mapping[Target, str]:
        """What `review` decided; those that it has not decided on are `BEING_REVIEWED`."""
        return self._inner.reviewed(definitions)


class _Patterns:
    """Globs that name the same as those of rules, and globs on the names of tools."""

    def __init__(self, written: Sequence[str], action: Literal["allow", "deny"]) -> None:
        self._globs: list[Glob] = []
        rules: list[Rule] = []
        for each in written:
            try:
                if each.startswith(("mcp__", "*")):
                    rules.append(Rule(Permission(tool=each, action=action)))
                    readings_of(rules[-1].written)
                else:
                    self._globs.append(name_glob(each))
            except BadGlob as problem:
                raise ValueError(f'the glob "{each}" {problem}') from None
        self._config = PolicyConfig(tuple(rules))
        self._names: Names = {}
        self._rules = Rules(self._config)

    def match(self, target: Target, names: Names) -> bool:
        """Whether one of them names the target."""
        if self._names is not names:  # The servers are others, since a file has changed.
            self._names, self._rules = names, Rules(self._config, names=names)
        if self._rules.name(target):
            return True
        if target.kind != "tool" or not self._globs:
            return False
        own = list(whole_names(names.get(target.server, (target.server,)), target.name))
        return any(any(map(each.matches, own)) for each in self._globs)
