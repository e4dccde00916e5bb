"""What a tool of this process may do for its caller: what the caller itself may do, and no more (T35)."""

from sluicegate.errors import ErrorObject, RpcError
from sluicegate.exchange import NOBODY, Caller, Exchange, Handler, Repetition
from sluicegate.hub.catalog import Catalog
from sluicegate.hub.router import Router
from sluicegate.protocol.message import Params, opened


class CallerAccess:
    """The servers as the caller of one request sees them, by the profile that the request came through.

    Each request is judged by the rules for the caller, and has its own rows in the audit log.
    """

    def __init__(self, caller: Caller, router: Router, handler: Handler) -> None:
        """`router` is that of the caller's profile; `handler` the same behind the limits of the gateway."""
        self.caller = caller
        self.router = router
        self.handler = handler

    @property
    def catalog(self) -> Catalog:
        """What the caller sees now."""
        return self.router.view(self.caller).catalog

    def exchange(self, method: str, params: Params, repetition: Repetition | None = None) -> Exchange:
        """A request of the caller, for `value`."""
        return Exchange(method, params, NOBODY, caller=self.caller, repetition=repetition)

    async def value(self, exchange: Exchange) -> Params:
        """The value of the result.

        Raises:
            SluicegateError: the caller does not see what the request is about, it was refused, or it failed.
        """
        reply = await self.handler(exchange)
        if isinstance(reply, ErrorObject):
            raise RpcError(reply)
        return opened(reply)
