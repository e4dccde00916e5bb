"""The way back to a client, as the eras see it: a pipe is one way for all requests, HTTP has one for each."""

from typing import Protocol

from sluicegate.protocol.message import Reply, RequestId


class Stream(Protocol):
    """Messages on their way to a client, in order."""

    async def send(self, message: bytes) -> None:
        """Send a message; waits while the client is slow."""
        ...

    def send_now(self, message: bytes) -> None:
        """Send a message without waiting: for the little that must be said when there is no time left."""
        ...


class PushStream(Stream, Protocol):
    """The way of what belongs to no request."""

    async def send_in_passing(self, message: bytes) -> None:
        """Send a message that nobody would come back for: to a client that does not listen now it is lost."""
        ...


class RequestStream(Stream, Protocol):
    """The way back of one request: what is said ahead, then its reply."""

    @property
    def id(self) -> RequestId:
        """The id that the client gave the request."""
        ...

    async def reply(self, reply: Reply) -> None:
        """Send the reply, after which nothing more is sent."""
        ...
