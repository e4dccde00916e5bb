"""The rows of the audit log about approvals: what a person decided, and what an earlier decision covered."""

from sluicegate.errors import ApprovalDeclined, Refused
from sluicegate.exchange import Exchange, Target
from sluicegate.protocol.message import Params
from sluicegate.store.base import Approval, Grant, Row
from sluicegate.text.masking import masked_url


def decided_row(exchange: Exchange, target: Target, question: Approval, refusal: Refused | None) -> Row:
    """What became of a question."""
    if refusal is None:
        verdict = "approved"
    else:
        verdict = "declined" if isinstance(refusal, ApprovalDeclined) else "expired"
    body: Params = {"id": question.id, "binding": question.binding, "rule": question.rule, "asked": question.asked}
    if question.decided:
        body |= {"by": question.by, "way": question.way, "scope": question.scope, "at": question.decided}
    return _row(exchange, target, verdict, body)


def granted_row(exchange: Exchange, target: Target, grant: Grant) -> Row:
    """A call that a grant covers."""
    body: Params = {"grant": grant.id, "by": grant.by, "way": grant.way, "at": grant.since, "until": grant.until}
    return _row(exchange, target, "granted", body)


def _row(exchange: Exchange, target: Target, verdict: str, body: Params) -> Row:
    return Row(
        kind="approval",
        request=exchange.request_id,
        caller=exchange.caller.id,
        server=target.server,
        name=target.name if target.kind != "resource" else masked_url(target.name),
        verdict=verdict,
        body=body,
    )


def covered_row(exchange: Exchange, target: Target) -> Row:
    """A call that belongs to another one, for which a person was asked."""
    return _row(exchange, target, "granted", {"by": exchange.approved})
