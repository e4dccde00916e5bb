"""All that stands in front of the servers of a gateway: limits, rules, the audit log, approvals, pinned definitions."""

from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from typing import Final

from sluicegate.errors import SluicegateError, UnknownTarget
from sluicegate.exchange import Caller, Exchange, Step, Target, behind, send
from sluicegate.gate.approvals import ApprovalSettings, ApprovalStep
from sluicegate.gate.audit import Audit
from sluicegate.gate.limits import Ceilings, RateLimit, RateLimits, SizeLimit
from sluicegate.gate.lock_file import Locked
from sluicegate.gate.pins import Mode, PinnedDefinitions
from sluicegate.gate.policy import Policy, Rules, is_hidden
from sluicegate.protocol.message import Params
from sluicegate.store.base import Approval, AuditLog, Decisions, Row
from sluicegate.text.masking import masked_url

MAX_NOTED: Final = 200
"""Characters of a text that a client or a server chose, in a row."""


MakePermission = Callable[[Policy, ApprovalStep], Step]
"""A step between the rules and the audit log, which may change the arguments of a call: these are judged again."""


class Governance:
    """A `Governor` made of steps, in this order: rates, rules, audit log, sizes, approvals.

    What is too frequent is refused before anything is written; what is refused by a rule is on record.
    """

    def __init__(
        self,
        rules: Rules,
        audit: AuditLog,
        decisions: Decisions,
        *,
        mode: Callable[[str], Mode],
        secrets: Callable[[str], Collection[str]],
        approvals: ApprovalSettings,
        is_recorded: bool = True,
        is_shared: bool = True,
        notify: Callable[[Approval], Awaitable[None]] | None = None,
        permission: MakePermission | None = None,
    ) -> None:
        """`mode` says of a server, by its key, what a changed definition means, `secrets` which texts of its
        configuration are never written down; `notify` tells people of a question. `permission` makes
        a step in front of the audit log, which answers for the program around this gateway.

        Without `is_recorded` only approvals are noted in the audit log. `is_shared` is whether commands and the page
        can answer questions.
        """
        self.audit = audit
        self.decisions = decisions
        self.policy = Policy(rules)
        self.pins = PinnedDefinitions(decisions, mode, secrets=secrets, audit=audit)
        self.approvals = ApprovalStep(
            decisions,
            audit,
            approvals,
            rules_version=lambda: self.policy.rules.version,
            notify=notify,
            is_shared=is_shared,
        )
        asking: Sequence[Step] = () if permission is None else (permission(self.policy, self.approvals),)
        recorder: Sequence[Step] = (Audit(audit),) if is_recorded else ()
        self._deciding: Sequence[Step] = (self.policy, *asking, *recorder)
        self._rate_limit = RateLimit()
        self.version: object = rules.version
        """A digest of the rules."""
        self.can_hide = rules.can_hide
        """Whether a rule hides anything from any caller."""
        self.limit(RateLimits(), {})

    def limit(self, rates: RateLimits, ceilings: Mapping[str, Ceilings]) -> None:
        """Apply other limits to new calls. A step that has nothing to limit is left out."""
        self._rate_limit.rates = rates
        rarely: Sequence[Step] = (self._rate_limit,) if rates.per_caller or rates.per_server or rates.per_tool else ()
        small: Sequence[Step] = (SizeLimit(ceilings),) if ceilings else ()
        self.decide = behind((*rarely, *self._deciding, *small, self.approvals), send)
        """The reply of the server, or a refusal."""

    def adjust(
        self,
        rules: Rules,
        rates: RateLimits,
        ceilings: Mapping[str, Ceilings],
        approvals: ApprovalSettings,
        locked: Locked | None,
    ) -> None:
        """Apply other settings. The hub has to review its entries afterwards."""
        self.policy.rules = rules  # Also if they say the same: their lines may have moved.
        self.version, self.can_hide = rules.version, rules.can_hide
        self.limit(rates, ceilings)
        self.approvals.settings = approvals
        self.approvals.wake()  # Questions end with the rules that asked them.
        self.pins.locked = locked
        self.pins.forget()

    @property
    def allows_unlisted(self) -> bool:
        """Only where neither rules nor a lock file name what may be used."""
        return not self.policy.rules.rules and self.pins.locked is None

    def class_of(self, caller: Caller) -> Hashable:
        """Equal for callers to whom the same rules apply."""
        return self.policy.rules.class_of(caller)

    def hides(self, caller: Caller, target: Target) -> bool:
        """Whether the rules deny the target to the caller outright."""
        return is_hidden(self.policy.rules, caller, target)

    def review(self, definitions: Mapping[Target, Params]) -> Awaitable[Mapping[Target, str]]:
        """Which definitions may not be used until a person has approved them, and why."""
        return self.pins.review(definitions)

    def reviewed(self, definitions: Mapping[Target, Params]) -> Mapping[Target, str]:
        """What `review` decided; those that it has not decided on are `BEING_REVIEWED`."""
        return self.pins.reviewed(definitions)

    def note_refusal(self, exchange: Exchange, problem: SluicegateError) -> None:
        """Record a request that was refused before it was decided on."""
        name = exchange.name
        body: Params = {"method": exchange.method[:MAX_NOTED], "code": problem.code}
        hidden = problem.hidden if isinstance(problem, UnknownTarget) else None
        caller, verdict = exchange.caller.id, problem.reason
        if isinstance(hidden, Target):
            row = Row(kind="reject", caller=caller, server=hidden.server, name=hidden.name, verdict="deny", body=body)
            self.audit.note(row)
            return
        if (target := exchange.target) is not None:  # Known, but refused before the decision: by a rate, mostly.
            shown = target.name if target.kind != "resource" else masked_url(target.name)
            self.audit.note(
                Row(kind="reject", caller=caller, server=target.server, name=shown, verdict=verdict, body=body)
            )
            return
        if name is not None:
            body["name"] = name[:MAX_NOTED]
        self.audit.note(Row(kind="reject", caller=caller, verdict=verdict, body=body))

    def note_reject(self, reason: str, source: str) -> None:
        """Record a message that was refused before it was read as a request; `source` is an address or a caller."""
        self.audit.note(Row(kind="reject", verdict=reason, body={"source": source}))

    def note_backend(self, server: str, state: str, sentence: str) -> None:
        """Record that a server is in another state."""
        self.audit.note(Row(kind="backend", server=server, verdict=state, body={"sentence": sentence[:MAX_NOTED]}))
