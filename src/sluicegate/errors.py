"""Every exception of sluicegate and the JSON-RPC error it becomes, on one page.

The one rule: a message here is a sentence that is safe to show to anybody: no path of the host, no secret, no trace.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
NOT_INITIALIZED: Final = -32002
# The session era uses the same number for two things; 2026-07-28 must not emit either of them.
RESOURCE_NOT_FOUND: Final = -32002
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022
URL_ELICITATION_REQUIRED: Final = -32042
POLICY_DENIED: Final = 1001
RATE_LIMITED: Final = 1003
OVERLOADED: Final = 1004
SHUTTING_DOWN: Final = 1031

Delivered = Literal["no", "yes", "unknown"]


class ErrorObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """The `error` member of a JSON-RPC response: an answer like any other, ours or a peer's."""

    code: int
    message: str
    data: object = msgspec.UNSET


class SluicegateError(Exception):
    """Anything sluicegate raises: `reason` is the cause's stable name, `delivered` whether a call may have run."""

    code: int = INTERNAL_ERROR
    reason: str = "internal"
    delivered: Delivered = "no"

    def __init__(self, message: str, *, data: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.data: dict[str, object] = dict(data or {})


class ConfigError(SluicegateError):
    """Something was set up wrongly, found before serving: says where, and what would be right."""

    reason = "config"


class ProtocolError(SluicegateError):
    """A message that breaks the protocol."""

    code = INVALID_REQUEST
    reason = "invalid_request"


class LocalProtocolError(ProtocolError):
    """We were about to break the protocol: our own bug, or a wrong use of the API."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol. `request_id` is the id to answer with, where it could be read."""

    def __init__(
        self,
        message: str,
        *,
        code: int = INVALID_REQUEST,
        request_id: str | int | None = None,
        data: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message, data=data)
        self.code = code
        self.reason = _REASONS.get(code, "invalid_request")
        self.request_id = request_id


class InvalidParams(SluicegateError):
    """The request's parameters are wrong: an unknown name, a bad cursor, a missing field."""

    code = INVALID_PARAMS
    reason = "invalid_params"


class UnknownTarget(InvalidParams):
    """Nothing offers a tool, prompt or resource of that name."""


class MethodNotFound(SluicegateError):
    """The method does not exist, or not in this revision, or its capability is not offered."""

    code = METHOD_NOT_FOUND
    reason = "method_not_found"


class MissingCapability(SluicegateError):
    """The client must be able to do something that it did not declare."""

    code = MISSING_CAPABILITY
    reason = "missing_capability"


class Refused(SluicegateError):
    """The request is well formed and was not let through."""

    code = POLICY_DENIED
    reason = "policy_denied"


class LimitExceeded(Refused):
    """Too much at once; the same request may pass later."""

    code = OVERLOADED
    reason = "overloaded"


class ThreadsBusy(LimitExceeded):
    """Every thread for plain functions is at work, so that this one was not begun."""


class ShuttingDown(Refused):
    """We are about to stop and take no new work."""

    code = SHUTTING_DOWN
    reason = "shutting_down"


class InputRefused(Refused):
    """The client was asked something in the middle of a call and did not answer; `error` is its refusal, if any."""

    reason = "input_refused"
    delivered = "yes"

    def __init__(self, message: str, *, error: ErrorObject | None = None) -> None:
        super().__init__(message)
        self.error = error


class UpstreamError(SluicegateError):
    """A server could not answer; `delivered` says whether the call may have run.

    `details` is what the server itself said of it, in its log: for whoever runs it, and for nobody at the other end
    of a wire. It is part of the exception's text, not of its message.
    """

    reason = "backend_unavailable"

    def __init__(
        self,
        message: str,
        *,
        details: str = "",
        delivered: Delivered | None = None,
        data: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message, data=data)
        self.details = details
        if delivered is not None:
            self.delivered = delivered

    def __str__(self) -> str:
        return self.message + self.details


class UpstreamUnavailable(UpstreamError):
    """The server could not be started or reached: nothing was sent."""


class UpstreamClosed(UpstreamError):
    """The server went away while we waited for it."""

    reason = "backend_crashed"
    delivered = "unknown"


class UpstreamTimeout(UpstreamError):
    """The server did not answer in time."""

    reason = "backend_timeout"
    delivered = "unknown"


class UpstreamProtocolError(UpstreamError):
    """The server's answer cannot be read, or is not an answer to what was asked."""

    reason = "backend_protocol"
    delivered = "yes"


class Truncated(UpstreamProtocolError):
    """The server's answer began, and ended before it was complete: what it answers may have run."""

    delivered = "unknown"


class RpcError(SluicegateError):
    """A peer answered with a JSON-RPC error. Only `Client` raises it: elsewhere an error is an answer and passes."""

    reason = "rpc_error"
    delivered = "yes"

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.code = error.code
        self.error = error
        data = error.data
        # A gateway of ours knows more than that it answered: whether the server behind it may have run the call.
        if isinstance(data, dict) and data.get("source") == "sluicegate":  # pyright: ignore[reportUnknownMemberType]
            for known in _DELIVERED:
                if known == data.get("delivered"):  # pyright: ignore[reportUnknownMemberType]
                    self.delivered = known


_DELIVERED: Final[tuple[Delivered, ...]] = ("no", "yes", "unknown")


_REASONS: Final = {
    PARSE_ERROR: "parse_error",
    INVALID_REQUEST: "invalid_request",
    METHOD_NOT_FOUND: "method_not_found",
    INVALID_PARAMS: "invalid_params",
    HEADER_MISMATCH: "header_mismatch",
    MISSING_CAPABILITY: "missing_capability",
    UNSUPPORTED_VERSION: "unsupported_version",
    NOT_INITIALIZED: "not_initialized",
    OVERLOADED: "overloaded",
}


_MAY_PASS_LATER: Final = frozenset({"overloaded", "rate_limited", "shutting_down", "backend_unavailable"})


def error_object(exc: BaseException) -> ErrorObject:
    """The JSON-RPC error for an exception: the only place where exceptions are written for the wire.

    An exception that is not ours says nothing about itself: its text may hold paths and secrets.
    """
    if isinstance(exc, RpcError):
        return exc.error
    if not isinstance(exc, SluicegateError):
        return ErrorObject(
            INTERNAL_ERROR,
            "Internal error: the request could not be completed; the log of the server has the cause.",
            {"source": "sluicegate", "reason": "internal", "delivered": "unknown", "retryable": False},
        )
    data: dict[str, object] = {
        **exc.data,
        "source": "sluicegate",
        "reason": exc.reason,
        "delivered": exc.delivered,
        "retryable": exc.delivered == "no" and exc.reason in _MAY_PASS_LATER,
    }
    return ErrorObject(exc.code, exc.message, data)
