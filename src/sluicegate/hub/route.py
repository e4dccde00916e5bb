"""`Route`: where one request goes, looked up once and carried by its exchange."""

from collections.abc import Awaitable, Callable

import msgspec

from sluicegate.errors import Refused
from sluicegate.exchange import Exchange, Target
from sluicegate.hub.context import HubContext
from sluicegate.hub.mount import Mount
from sluicegate.protocol.message import Params, Reply

FindTarget = Callable[[], Target]
"""The target of a request as it is now; raises UnknownTarget if it is gone."""


class Outdated(Refused):
    """Rules or definition have changed between the decision and the moment of sending; nothing was sent."""

    reason = "outdated"


class Route(msgspec.Struct):
    """The mount of a request, and what the request is about.

    It is the handler that sends the exchange, behind the steps of the governor.
    """

    context: HubContext
    mount: Mount
    own: Params
    """The members of the params that the server gets in place of the client's: its own names."""
    target: Target
    find: FindTarget
    check: Callable[[], None] | None = None
    """Raises if the request may not be sent any more, whatever the rules say."""
    version: object = None
    """The version of the rules by which it is decided."""
    revision: int = -1
    """The revision of the lists in which its target was found."""

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        """The reply of the server. It is sent the params that the exchange has now, which were decided on."""
        return self.mount.calls.call_typed(exchange, {**exchange.params, **self.own}, self.check_decision)

    def check_decision(self) -> None:
        """Called right before sending, since the request may have waited since it was decided on.

        Raises:
            Outdated: it has to be decided on again.
            UnknownTarget: its target is gone.
        """
        if self.check is not None:
            self.check()
        context = self.context
        if context.governor is None:
            return
        if context.governor.version != self.version:
            raise Outdated("It is decided on again.")
        if context.revision != self.revision and self.find() != self.target:
            raise Outdated("It is decided on again.")
