"""All exceptions of sluicegate and the JSON-RPC errors they become.

The one rule: messages are safe to show to any peer: no path of the host, no secret, no traceback.
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
TOOL_QUARANTINED: Final = 1005
APPROVAL_DECLINED: Final = 1011
APPROVAL_EXPIRED: Final = 1012
AUDIT_UNAVAILABLE: Final = 1030
SHUTTING_DOWN: Final = 1031

Delivered = Literal["no", "yes", "unknown"]


class ErrorObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """The `error` member of a JSON-RPC response."""

    code: int
    message: str
    data: object = msgspec.UNSET


STOPPED: Final = ErrorObject(
    SHUTTING_DOWN,
    "The server is about to stop; the request was cancelled and may have run in part.",
    {"source": "sluicegate", "reason": "shutting_down", "delivered": "unknown", "retryable": False},
)
"""The reply to a request that was in progress when we stopped (R29)."""


UNREAD: Final = ErrorObject(
    OVERLOADED,
    "More than 32 MiB of answers wait for this client, so this result was dropped.",
    {"source": "sluicegate", "reason": "overloaded", "delivered": "yes", "retryable": False},
)
"""The reply in place of a result for a client that does not read its answers (R24)."""


class SluicegateError(Exception):
    """Base class: `reason` is a stable name of the cause, `delivered` whether the call may have run."""

    code: int = INTERNAL_ERROR
    reason: str = "internal"
    delivered: Delivered = "no"

    def __init__(self, message: str, *, data: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.data: dict[str, object] = dict(data or {})


class ToolError(SluicegateError):
    """Raised by a tool that failed; the caller sees the message as it is. Also raised for it by a client, if asked to.

    `result` is the whole result that the client got.
    """

    delivered = "yes"
    result: object = None


class ConfigError(SluicegateError):
    """The configuration is invalid. The message says where, and what would be right."""

    reason = "config"


class ProtocolError(SluicegateError):
    """A message that breaks the protocol."""

    code = INVALID_REQUEST
    reason = "invalid_request"


class LocalProtocolError(ProtocolError):
    """We were about to break the protocol: a bug of ours, or a wrong use of the API."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol. `request_id` is the id to answer with, if it could be read."""

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
    """The params are invalid: an unknown name, a bad cursor, a missing field."""

    code = INVALID_PARAMS
    reason = "invalid_params"


class UnknownTarget(InvalidParams):
    """No server offers a tool, prompt or resource of that name.

    `hidden` is what a rule hides from the caller under that name: for the record, and never shown.
    """

    hidden: object = None


class MethodNotFound(SluicegateError):
    """The method does not exist, or not in this revision, or its capability is not offered."""

    code = METHOD_NOT_FOUND
    reason = "method_not_found"


class MissingCapability(SluicegateError):
    """The request needs a capability that the client did not declare."""

    code = MISSING_CAPABILITY
    reason = "missing_capability"


class Refused(SluicegateError):
    """The request is valid but not allowed."""

    code = POLICY_DENIED
    reason = "policy_denied"


class Quarantined(Refused):
    """The definition of what the request names has changed, or hides something, and must be approved first."""

    code = TOOL_QUARANTINED
    reason = "tool_quarantined"


class ApprovalDeclined(Refused):
    """A person was asked and declined."""

    code = APPROVAL_DECLINED
    reason = "approval_declined"


class ApprovalExpired(Refused):
    """A person was asked and did not answer in time."""

    code = APPROVAL_EXPIRED
    reason = "approval_expired"


class AuditUnavailable(Refused):
    """The audit log cannot be written, so nothing may run."""

    code = AUDIT_UNAVAILABLE
    reason = "audit_unavailable"


class StateUnavailable(AuditUnavailable):
    """The record of approvals and definitions cannot be read or written, so nothing that depends on it may run."""


class LimitExceeded(Refused):
    """Too many requests at once; the same request may pass later."""

    code = OVERLOADED
    reason = "overloaded"


class RateLimited(LimitExceeded):
    """Too many requests of one caller; the same request may pass later."""

    code = RATE_LIMITED
    reason = "rate_limited"


class ThreadsBusy(LimitExceeded):
    """All threads for plain functions are busy, so the function was not called."""


class ShuttingDown(Refused):
    """The gateway is stopping and accepts no new requests."""

    code = SHUTTING_DOWN
    reason = "shutting_down"


class InputRefused(Refused):
    """The client did not answer a question during a call; `error` is its refusal, if any."""

    reason = "input_refused"
    delivered = "yes"

    def __init__(self, message: str, *, error: ErrorObject | None = None) -> None:
        super().__init__(message)
        self.error = error


class UpstreamError(SluicegateError):
    """A server could not answer; `delivered` says whether the call may have run.

    `details` are the server's own words, for the operator only: part of the exception's text, not of its message.
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
    """The server's answer is invalid, or does not answer the request."""

    reason = "backend_protocol"
    delivered = "yes"


class Truncated(UpstreamProtocolError):
    """The server's answer ended before it was complete: the call may have run."""

    delivered = "unknown"


class RpcError(SluicegateError):
    """A peer answered with a JSON-RPC error. Only `Client` raises it; elsewhere an error is a normal answer."""

    reason = "rpc_error"
    delivered = "yes"

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.code = error.code
        self.error = error
        data = error.data
        # A gateway of ours says whether the server behind it may have run the call.
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


def reason_of(error: ErrorObject) -> str:
    """The stable name of the cause of one of our own errors."""
    data = error.data
    if isinstance(data, dict) and isinstance(data.get("reason"), str):  # pyright: ignore[reportUnknownMemberType]
        return str(data["reason"])  # pyright: ignore[reportUnknownArgumentType]
    return _REASONS.get(error.code, "invalid_request")


_MAY_PASS_LATER: Final = frozenset(
    {"overloaded", "rate_limited", "shutting_down", "backend_unavailable", "audit_unavailable"}
)


def error_object(exc: BaseException) -> ErrorObject:
    """The JSON-RPC error for an exception. The text of a foreign exception is not shown: it may contain secrets."""
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
