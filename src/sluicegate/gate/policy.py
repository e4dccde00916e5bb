"""The step that judges each request by the access rules. It enforces nothing: the steps behind it do."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, cast

from sluicegate.exchange import Action, Caller, Exchange, Handler, Target, Verdict
from sluicegate.gate.judge import Rules, is_hidden, judge
from sluicegate.protocol.message import Reply
from sluicegate.protocol.methods import JUDGED, UNJUDGED
from sluicegate.protocol.tasks import REQUESTS as TASK_REQUESTS

_STRICTNESS: Final[Mapping[Action, int]] = {"allow": 0, "ask": 1, "deny": 2}


class Policy:
    """Sets the verdict of each exchange. `rules` may be replaced at any time; the next exchange is judged by them."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.callers_above: Callable[[Caller], Iterable[Caller]] | None = None
        """Gives the callers whose denials hold for a caller, too: the agents above a sub-agent."""

    def __call__(self, exchange: Exchange, proceed: Handler) -> Awaitable[Reply]:
        """The reply of what is behind it."""
        self.judge(exchange)
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
            return max(verdict, of_method, key=lambda each: _STRICTNESS[each.action])
        return verdict
    if target is None and method in UNJUDGED:
        return Verdict("allow")
    return Verdict("deny", why="No rule can name this request.")
