"""Pages of a list, and the cursors between them."""

from collections.abc import Sequence
from typing import TypeVar

from sluicegate.errors import InvalidParams
from sluicegate.protocol.seal import Sealer

T = TypeVar("T")


def page(items: Sequence[T], cursor: object, kind: str, size: int, sealer: Sealer) -> tuple[Sequence[T], str | None]:
    """One page of a list, and the cursor of the next page or None at the end. No cursor asks for the first page.

    Raises:
        InvalidParams: the cursor is not one that this list gave.
    """
    start = 0
    if cursor is not None:
        payload = sealer.open(cursor, (kind,))
        if payload is None:
            raise InvalidParams("Invalid params: the cursor is not one that this list gave; start again without it.")
        start = int.from_bytes(payload, "big")
    end = start + size
    following = sealer.seal(end.to_bytes(8, "big"), (kind,)) if end < len(items) else None
    return items[start:end], following
