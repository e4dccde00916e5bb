"""What we say to servers, as bytes."""

from collections.abc import Mapping

from sluicegate.errors import LocalProtocolError
from sluicegate.protocol.message import Message, Response, encode, encode_plain


def encoded(message: Message | Mapping[str, object]) -> bytes:
    """The bytes of a message of ours, or of a part of one.

    Raises:
        LocalProtocolError: it holds something that JSON cannot express.
    """
    try:
        return encode(message) if type(message) is Response else encode_plain(message)
    except (TypeError, ValueError, RecursionError) as problem:
        raise LocalProtocolError(f"The request cannot be written as JSON: {problem}") from None
