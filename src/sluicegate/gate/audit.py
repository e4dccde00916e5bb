"""The audit step: writes one row before a call is sent and one before its result is returned (threats A1, A2).

The rows about approvals are made here too.

Arguments are recorded by their names, their size and a keyed digest; their values only where a rule says so, with
secrets masked. Results are recorded by their size, errors by their reason and code, never by their text.
"""

import asyncio
import os
import re
import time
from typing import Final

import msgspec

from sluicegate.errors import (
    ApprovalDeclined,
    AuditUnavailable,
    Delivered,
    ErrorObject,
    Refused,
    RpcError,
    SluicegateError,
)
from sluicegate.exchange import Exchange, Handler, Target, Verdict
from sluicegate.protocol.canonical_json import canonical_json
from sluicegate.protocol.message import Params, Reply, Result, ToolText, as_object, may_escape_names, mentions
from sluicegate.store.base import Approval, AuditLog, Grant, Row
from sluicegate.text.masking import masked_members, masked_url

_MAX_LENGTH: Final = 200
"""Characters of a name that a client chooses."""
_MAX_NAMES: Final = 32
"""Arguments whose names are recorded."""
MAX_VALUES: Final = 64 * 1024
"""Bytes of arguments whose values are recorded; of longer ones, only the digest is."""
_NOTHING: Final[Params] = {}
REFUSAL: Final = "dev.sluicegate/reason"
"""In the `_meta` of a result with which we refuse a call: the reason."""
_NO_TARGET: Final = Target("", "tool", "")
_NO_RULES: Final = Verdict("allow")
_trace: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}").match


class RequestIds:
    """Ids for requests: they sort by time, and no two processes give the same one."""

    def __init__(self) -> None:
        self._last = 0
        self._process = os.urandom(5).hex()

    def next(self) -> str:
        """A new id: 13 hexadecimal digits of microseconds since 1970, and 10 of this process."""
        # Counting on from the last one keeps them unique and in order, also if the clock is set back.
        self._last = max(self._last + 1, time.time_ns() // 1000)
        return f"{self._last:013x}-{self._process}"


class Audit:
    """A step that records what passes it."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log
        self._ids = RequestIds()

    async def __call__(self, exchange: Exchange, proceed: Handler) -> Reply:
        """The reply, once its outcome is recorded.

        Raises:
            AuditUnavailable: the decision or the outcome cannot be recorded.
        """
        # An exchange that was judged again keeps its id: it is one request for its client.
        request = exchange.request_id = exchange.request_id or self._ids.next()
        log = self._log
        began = time.perf_counter_ns()
        try:
            await log.append(self._decision(exchange, request))
        except AuditUnavailable as problem:
            problem.data["request"] = request
            raise
        except asyncio.CancelledError:
            # The row may be written all the same; nothing was sent.
            log.note(_outcome(exchange, request, "cancelled", began, {"delivered": "no"}))
            raise
        try:
            reply = await proceed(exchange)
        except asyncio.CancelledError:
            # Nothing is answered, so nothing needs to wait for the row.
            log.note(_outcome(exchange, request, "cancelled", began, {}))
            raise
        except SluicegateError as problem:
            problem.data["request"] = request
            body: Params = {"reason": problem.reason, "code": problem.code, "delivered": problem.delivered}
            await self._record(exchange, request, "error", began, body, problem.delivered)
            raise
        except BaseException:  # Raised again, after its row.
            await self._record(exchange, request, "error", began, {"reason": "internal"}, "unknown")
            raise
        if isinstance(reply, Result):
            verdict = _verdict_of(exchange.method, reply)
            delivered: Delivered = "no" if verdict == "refused" else "yes"
            await self._record(exchange, request, verdict, began, {"bytes": _size(reply)}, delivered)
            return reply
        await self._record(exchange, request, "error", began, _about(reply), RpcError(reply).delivered)
        return _with_request(reply, request)

    async def _record(
        self, exchange: Exchange, request: str, verdict: str, began: int, body: Params, delivered: Delivered
    ) -> None:
        try:
            await self._log.append(_outcome(exchange, request, verdict, began, body))
        except AuditUnavailable as problem:
            problem.data["request"] = request
            problem.delivered = delivered  # Its answer is withheld; the call may have run all the same.
            raise

    def _decision(self, exchange: Exchange, request: str) -> Row:
        target, verdict = exchange.target or _NO_TARGET, exchange.verdict or _NO_RULES
        params = exchange.params
        body: Params = {"method": exchange.method}
        arguments = as_object(params.get("arguments")) or _NOTHING
        if arguments:
            data = canonical_json(arguments)
            names = [name[:_MAX_LENGTH] for name in arguments]
            body["arguments"] = names if len(names) <= _MAX_NAMES else [*names[:_MAX_NAMES], "…"]
            body["bytes"] = len(data)
            body["digest"] = self._log.digest(data)
            if verdict.records_values and len(data) > MAX_VALUES:
                body["values_omitted"] = f"more than {MAX_VALUES} bytes"
        if verdict.rule:
            body["rule"] = verdict.rule
        if target.definition:
            body["definition"] = target.definition
        if exchange.profile.client_info is not None:
            info = exchange.profile.client_info
            body["client"] = f"{info.get('name', '')} {info.get('version', '')}".strip()[:_MAX_LENGTH]
        if exchange.is_continued:
            body["continued"] = True
        if exchange.original is not None:
            body["amended"] = True
        if "_meta" in params and (trace := _trace_id(params)):
            body["trace"] = trace
        return Row(
            kind="decision",
            request=request,
            caller=exchange.caller.id,
            server=target.server,
            name=target.name if target.kind != "resource" else masked_url(target.name),
            verdict=verdict.action,
            body=body,
            values=masked_members(arguments)
            if verdict.records_values and arguments and "values_omitted" not in body
            else None,
        )


def _outcome(exchange: Exchange, request: str, verdict: str, began: int, body: Params) -> Row:
    target = exchange.target or _NO_TARGET
    body["ms"] = (time.perf_counter_ns() - began) // 1000 / 1000
    return Row(
        kind="outcome",
        request=request,
        caller=exchange.caller.id,
        server=target.server,
        name=target.name if target.kind != "resource" else masked_url(target.name),
        verdict=verdict,
        body=body,
    )


def _trace_id(params: Params) -> str:
    """The id of the trace that the request belongs to, by the W3C's `traceparent`."""
    meta = as_object(params.get("_meta"))
    parent = meta.get("traceparent") if meta is not None else None
    found = _trace(parent) if isinstance(parent, str) else None
    return found[1] if found is not None else ""


# ---------------------------------------------------------------------------------------------------------- approvals


def decided_row(exchange: Exchange, target: Target, question: Approval, refusal: Refused | None) -> Row:
    """What became of a question."""
    if refusal is None:
        verdict = "approved"
    else:
        verdict = "declined" if isinstance(refusal, ApprovalDeclined) else "expired"
    body: Params = {"id": question.id, "binding": question.binding, "rule": question.rule, "asked": question.asked}
    if question.decided:
        body |= {"by": question.by, "way": question.way, "scope": question.scope, "at": question.decided}
    return _approval_row(exchange, target, verdict, body)


def granted_row(exchange: Exchange, target: Target, grant: Grant) -> Row:
    """A call that a grant covers."""
    body: Params = {"grant": grant.id, "by": grant.by, "way": grant.way, "at": grant.since, "until": grant.until}
    return _approval_row(exchange, target, "granted", body)


def covered_row(exchange: Exchange, target: Target) -> Row:
    """A call of a poll, for which a person was asked when it began."""
    name = exchange.repetition.name if exchange.repetition is not None else ""
    return _approval_row(exchange, target, "granted", {"by": name})


def _approval_row(exchange: Exchange, target: Target, verdict: str, body: Params) -> Row:
    return Row(
        kind="approval",
        request=exchange.request_id,
        caller=exchange.caller.id,
        server=target.server,
        name=target.name if target.kind != "resource" else masked_url(target.name),
        verdict=verdict,
        body=body,
    )


# ------------------------------------------------------------------------------------------------------------ replies


class _Said(msgspec.Struct):
    isError: object = False  # noqa: N815 - the name on the wire
    resultType: object = "complete"  # noqa: N815 - the name on the wire


_decode_said: Final = msgspec.json.Decoder(_Said).decode


def _verdict_of(method: str, reply: Result) -> str:
    """What a result says of the call: ok, tool_error, refused (by us), or that more is asked for."""
    value = reply.value
    if isinstance(value, dict) and REFUSAL in (as_object(value.get("_meta")) or _NOTHING):
        return "refused"
    if isinstance(value, ToolText):
        return "tool_error" if value.isError is True else "ok"
    if isinstance(value, msgspec.Raw):
        data = bytes(value)
        # Most results have neither; to search for the names is faster than to decode.
        if not mentions(data, (b'"isError"', b'"input_required"')) and not may_escape_names(data):
            return "ok"
        try:
            said = _decode_said(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return "ok"
    else:
        said = _Said(value.get("isError", False), value.get("resultType", "complete"))
    if said.resultType == "input_required":
        return "input_required"
    return "tool_error" if said.isError is True and method == "tools/call" else "ok"


def _size(reply: Result) -> int:
    """Bytes of a result: of its texts, where it has nothing else."""
    value = reply.value
    if isinstance(value, ToolText):
        structured = value.structuredContent
        size = 0 if structured is msgspec.UNSET else len(memoryview(structured))
        for block in value.content:
            size += len(memoryview(block.text))
        return size
    if isinstance(value, msgspec.Raw):
        return len(memoryview(value))
    try:
        return len(canonical_json(value))
    except (TypeError, ValueError, RecursionError):  # It is refused later, where it is encoded for the client.
        return 0


def _about(error: ErrorObject) -> Params:
    """The reason and the code of an error. The text of a server is not recorded: it may repeat arguments."""
    data = as_object(error.data)
    is_ours = data is not None and data.get("source") == "sluicegate"
    return {"code": error.code, "reason": data.get("reason") if data is not None and is_ours else "answered"}


def _with_request(error: ErrorObject, request: str) -> ErrorObject:
    """An error that a part of this gateway has made, with the id of the request; one of a server as it is."""
    data = as_object(error.data)
    if data is None or data.get("source") != "sluicegate" or "request" in data:
        return error
    return ErrorObject(error.code, error.message, {**data, "request": request})
