"""Decisions in memory: for gateways inside another program, for those without a state folder, and for tests."""

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import asdict, replace

from sluicegate.runtime.task_scope import forever
from sluicegate.store.base import EXPIRED_FOR, KEPT, Approval, ApprovalAnswer, Grant, Observers, Pin, Seen, new_grant

_FORGOTTEN: Final = {"arguments": "{}", "others": "{}"}
"""Of a question that has ended, as in `SqliteDecisions`."""


class MemoryDecisions:
    """A `Decisions` that ends with its process."""

    is_shared = False

    def __init__(self, *, clock: Callable[[], int] = time.time_ns) -> None:
        self.run = secrets.token_hex(8)
        self._clock = clock
        self._observers = Observers()
        self.observe = self._observers.add
        self._approvals: dict[str, Approval] = {}
        self._grants: dict[str, Grant] = {}
        self._pins: dict[tuple[str, str, str], dict[str, Pin]] = {}
        """The approved and the pending definition of each server, kind and name."""
        self._page: str | None = None
        self._logins: dict[str, int] = {}
        """When each key expires."""

    # -------------------------------------------------------------------------------------------------- approvals

    async def ask(self, question: Approval, most: int) -> Approval | None:
        """The open question or unused answer with the same run and binding, else this one; see `Approvals`."""
        now, run = self._clock(), [each for each in self._approvals.values() if each.run == question.run]
        equal = [each for each in run if each.binding == question.binding and _is_unused(each, now)]
        if equal:
            return self._put(replace(max(equal, key=lambda each: each.asked), abandoned=False))
        self._approvals = {
            id: replace(each, state="void", **_FORGOTTEN) if _is_expired(each, now) else each
            for id, each in self._approvals.items()
            if each.deadline >= now - KEPT
        }
        self._grants = {id: each for id, each in self._grants.items() if not _has_ended(each, now)}
        if sum(each.caller == question.caller and _is_open(each, now) for each in run) >= most:
            return None
        self._put(question)
        self._observers.notify("approvals")
        return question

    async def decide(self, approval_id: str, answer: ApprovalAnswer) -> bool:
        """Answer an open question; whether this was the first answer, and in time. A wider yes also adds a grant."""
        now, found = self._clock(), self._approvals.get(approval_id)
        if found is None or not _is_open(found, now):
            return False
        state = "declined" if answer.scope is None else "approved"
        decided = self._put(replace(found, **asdict(answer), state=state, decided=now, **_FORGOTTEN))
        if answer.scope in ("minutes", "always"):
            self._add_grant(decided, answer)
        self._observers.notify("approvals")
        return True

    async def take(self, approval_id: str) -> bool:
        """Use an answer; whether it was unused, and still valid."""
        found = self._approvals.get(approval_id)
        if found is None or found.state == "pending" or not _is_unused(found, self._clock()):
            return False
        self._put(replace(found, taken=True))
        self._observers.notify("approvals")
        return True

    async def void(self, approval_id: str) -> bool:
        """End a question without an answer, or an answer that was not used; whether it was one of these."""
        found = self._approvals.get(approval_id)
        # Also after its deadline: that is when a call that waited in vain ends its question.
        if found is None or found.state == "void" or found.taken:
            return False
        self._put(replace(found, state="void", **_FORGOTTEN))
        self._observers.notify("approvals")
        return True

    async def abandon(self, approval_id: str) -> None:
        """Note that no call waits for a question any more."""
        found = self._approvals.get(approval_id)
        if found is not None and found.state == "pending":
            self._put(replace(found, abandoned=True))
            self._observers.notify("approvals")

    async def find(self, approval_id: str) -> Approval | None:
        """A question in any state. Old ones are removed."""
        return self._approvals.get(approval_id)

    async def open_questions(self) -> list[Approval]:
        """All that can be answered now, the oldest first."""
        now = self._clock()
        found = [each for each in self._approvals.values() if _is_open(each, now)]
        return sorted(found, key=lambda each: (each.asked, each.id))

    def _put(self, approval: Approval) -> Approval:
        self._approvals[approval.id] = approval
        return approval

    # ----------------------------------------------------------------------------------------------------- grants

    async def find_grant(
        self, caller: str, server: str, kind: str, name: str, definition: str, origin: str
    ) -> Grant | None:
        """The grant that covers a call now."""
        now, call = self._clock(), (caller, server, kind, name, definition, origin)
        for each in self._grants.values():
            if (each.caller, each.server, each.kind, each.name, each.definition, each.origin) == call:
                if each.since <= now and not _has_ended(each, now):
                    return each
        return None

    async def add_grant(self, question: Approval, answer: ApprovalAnswer) -> None:
        """Keep a wider yes to a question that is not in the store."""
        self._add_grant(question, answer)

    def _add_grant(self, question: Approval, answer: ApprovalAnswer) -> None:
        grant = new_grant(question, answer, self._clock())
        self._grants[grant.id] = grant

    async def grants(self) -> list[Grant]:
        """All that have not ended, the oldest first."""
        now = self._clock()
        found = [each for each in self._grants.values() if not _has_ended(each, now)]
        return sorted(found, key=lambda each: (each.since, each.id))

    async def revoke(self, grant_id: str) -> bool:
        """End a grant; whether there was one."""
        return self._grants.pop(grant_id, None) is not None

    # ------------------------------------------------------------------------------------------------------- pins

    async def see(self, pins: Sequence[Pin]) -> list[Seen]:
        """Compare definitions with the store, and say for each where it stands; see `Pins`."""
        return [self._see(pin) for pin in pins]

    def _see(self, pin: Pin) -> Seen:
        known = self._pins.setdefault((pin.server, pin.kind, pin.name), {})
        approved, pending = known.get("approved"), known.get("pending")
        if approved is not None and approved.hash == pin.hash:
            known.pop("pending", None)
            return Seen(approved)
        if pending is not None and pending.hash == pin.hash:
            return Seen(pending)
        is_first = not known
        kept = replace(pin, state=pin.state if is_first else "pending", seen=self._clock())
        known[kept.state] = kept
        return Seen(kept, "first" if is_first else "changed")

    async def pins(self, server: str | None = None) -> list[Pin]:
        """All pins, or those of one server."""
        found = [pin for known in self._pins.values() for pin in known.values() if server in (None, pin.server)]
        return sorted(found, key=lambda pin: (pin.server, pin.kind, pin.name, pin.state))

    async def approve_pin(self, server: str, kind: str, name: str, hash: str) -> bool:
        """Approve the definition that waits, if it still has this hash; whether it was so."""
        known = self._pins.get((server, kind, name), {})
        if "pending" not in known or known["pending"].hash != hash:
            return False
        known["approved"] = replace(known.pop("pending"), state="approved")
        self._observers.notify("pins")
        return True

    async def renew_pin(self, hash: str, pin: Pin) -> bool:
        """Replace the approved definition with this hash by one that is the same; whether it had this hash."""
        known = self._pins.get((pin.server, pin.kind, pin.name), {})
        approved = known.get("approved")
        if approved is None or approved.hash != hash:
            return False
        known["approved"] = replace(approved, hash=pin.hash, definition=pin.definition)
        return True

    async def forget_pin(self, server: str, kind: str, name: str) -> bool:
        """Forget what is known of one definition; whether there was anything."""
        if not self._pins.pop((server, kind, name), None):
            return False
        self._observers.notify("pins")
        return True

    # ----------------------------------------------------------------------------------------------------- logins

    async def set_page(self, url: str) -> None:
        """Note where the page of this process is."""
        self._page = url

    async def page(self) -> str | None:
        """Where the page of a running gateway is."""
        return self._page

    async def add_login(self, key: str, seconds: float) -> None:
        """Accept a key for a login once, within these seconds."""
        now = self._clock()
        self._logins = {known: end for known, end in self._logins.items() if now < end}
        self._logins[key] = now + int(seconds * 10**9)

    async def use_login(self, key: str) -> bool:
        """Use a key; whether it was accepted."""
        return self._clock() < self._logins.pop(key, 0)

    # -------------------------------------------------------------------------------------------------- lifetime

    async def follow(self) -> None:
        """Wait until cancelled: no other process can change anything."""
        await forever()

    async def aclose(self) -> None:
        """Void the open questions."""
        for each in list(self._approvals.values()):
            if each.run == self.run and not each.taken:
                self._put(replace(each, state="void"))


# A clock that was set back makes a question or a grant invalid rather than longer.


def _is_in_time(approval: Approval, now: int) -> bool:
    return approval.asked <= now < approval.deadline


def _is_expired(approval: Approval, now: int) -> bool:
    return approval.state == "pending" and approval.deadline <= now - EXPIRED_FOR


def _is_open(approval: Approval, now: int) -> bool:
    return approval.state == "pending" and _is_in_time(approval, now)


def _is_unused(approval: Approval, now: int) -> bool:
    return approval.state != "void" and not approval.taken and _is_in_time(approval, now)


def _has_ended(grant: Grant, now: int) -> bool:
    return grant.until is not None and grant.until <= now
