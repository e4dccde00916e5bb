"""The marks by which a gateway shows that it speaks itself; a server that uses them speaks with a forged voice (T39).

These are `source: sluicegate` in the data of an error, with the reason beside it, and names in `_meta` that begin with
`dev.sluicegate/`. Servers made with this toolkit use some of these names, too: they describe streams and tools, and say
nothing in the name of a gateway.
"""

from collections.abc import Collection
from typing import Final

from msgspec import UNSET

from sluicegate.errors import ErrorObject
from sluicegate.protocol.message import Params, as_object
from sluicegate.protocol.types import DATA_KEY, EVENT_KEY, EVENTS_KEY, STREAMED_KEY, STREAMING_KEY

PREFIX: Final = "dev.sluicegate/"
SOURCE: Final = "sluicegate"

_OF_SERVERS: Final = frozenset({DATA_KEY, EVENT_KEY, EVENTS_KEY, STREAMED_KEY, STREAMING_KEY, f"{PREFIX}tags"})
_IN_ERRORS: Final = frozenset({"source", "reason", "delivered", "retryable", "request"})


def without_own_marks(value: Params, besides: Collection[str] = ()) -> Params:
    """A server's value without the names in its `_meta` that only a gateway uses, except those in `besides`."""
    meta = as_object(value.get("_meta"))
    if meta is None or not any(name.startswith(PREFIX) for name in meta):
        return value
    kept = {
        name: member
        for name, member in meta.items()
        if not name.startswith(PREFIX) or name in _OF_SERVERS or name in besides
    }
    rest = {name: member for name, member in value.items() if name != "_meta"}
    return {**rest, "_meta": kept} if kept else rest


def error_of_server(error: ErrorObject) -> ErrorObject:
    """A server's error, which does not pass for one of a gateway."""
    data = as_object(error.data)
    rest = None if data is None else data_of_server(data)
    return error if rest is data else ErrorObject(error.code, error.message, rest or UNSET)


def data_of_server(data: Params) -> Params:
    """The data of a server's error, which does not pass for one of a gateway."""
    rest = without_own_marks(data)
    if data.get("source") == SOURCE:
        rest = {name: member for name, member in rest.items() if name not in _IN_ERRORS}
    return rest
