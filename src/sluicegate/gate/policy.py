"""The step that judges each request by the access rules. It enforces nothing: the steps behind it do."""

from collections.abc import Awaitable, Mapping
from typing import cast

from sluicegate.exchange import Exchange, Handler, Verdict
from sluicegate.gate.judge import Rules, judge
from sluicegate.protocol.message import Reply
from sluicegate.protocol.methods import JUDGED, UNJUDGED


class Policy:
    """Sets the verdict of each exchange. `rules` may be replaced at any time; the next exchange is judged by them."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def __call__(self, exchange: Exchange, proceed: Handler) -> Awaitable[Reply]:
        """The reply of what is behind it."""
        exchange.verdict = verdict_of(self.rules, exchange)
        return proceed(exchange)


def verdict_of(rules: Rules, exchange: Exchange) -> Verdict:
    """What the rules say about an exchange. What no table knows is denied, whatever the rules say (T16).

    A method of an extension is judged by rules about its whole server: no rule names it alone.
    """
    target, method = exchange.target, exchange.method
    if target is not None and (method in JUDGED or target.kind == "method"):
        arguments = exchange.params.get("arguments")
        is_object = isinstance(arguments, Mapping) and target.kind != "resource"
        return judge(rules, exchange.caller, target, cast(Mapping[str, object], arguments) if is_object else {})
    if target is None and method in UNJUDGED:
        return Verdict("allow")
    return Verdict("deny", why="No rule can name this request.")
