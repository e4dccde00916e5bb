"""What we say to servers, as bytes."""

from sluicegate.errors import LocalProtocolError
from sluicegate.protocol.message import Message, Params, encode


def encoded(message: Message | Params) -> bytes:
    """The bytes of a message of ours, or of a part of one.

    Raises:
        LocalProtocolError: it holds something that JSON cannot express.
    """
    try:
        return encode(message)
    except (TypeError, ValueError, RecursionError) as problem:
        raise LocalProtocolError(f"The request cannot be written as JSON: {problem}") from None
