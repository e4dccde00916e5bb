"""What can be done with the record of decisions of a folder, with and without a running gateway.

It imports nothing that runs a gateway, so that a command loads quickly.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import urlencode

from sluicegate.control.reports import DecidedQuestion
from sluicegate.gate.approval_text import refusal_of
from sluicegate.protocol.message import Params
from sluicegate.store.base import Approval, ApprovalAnswer, Change, Decisions, Grant, Pin, Row

Note = Callable[[Row], None]

LOGIN_SECONDS: Final = 300.0
"""Seconds within which a link to the page must be opened."""


class FolderOperations:
    """Operations on the record of decisions of a folder. Functions that change it get the acting person as `by`.

    All of them raise `StateUnavailable` if the record cannot be used.
    """

    def __init__(self, decisions: Decisions, note: Note | None = None) -> None:
        """`note` records a row of the audit log: what was changed, and who did it. Answers have rows of their own."""
        self._decisions = decisions
        self._note = note

    def _noted(self, operation: str, by: str, *, server: str = "", name: str = "", body: Params | None = None) -> None:
        if self._note is not None:
            self._note(Row(kind="admin", caller=by, server=server, name=name, verdict=operation, body=body or {}))

    # ------------------------------------------------------------------------------------------------- approvals

    async def approvals(self) -> Sequence[Approval]:
        """The questions that can be answered now, the oldest first."""
        return await self._decisions.open_questions()

    async def approval(self, approval_id: str) -> Approval | None:
        """A question in any state; None if it does not exist, or is too old."""
        return await self._decisions.find(approval_id)

    async def decide(
        self, approval_id: str, answer: ApprovalAnswer, *, accepts_unshown: bool = False
    ) -> DecidedQuestion:
        """Answer a question. The first answer wins, and wakes the call that waits for it.

        A yes to a call that is too long to be shown in full counts only with `accepts_unshown` (T18).
        """
        question = await self._decisions.find(approval_id)
        if question is not None and (refusal := refusal_of(question, answer, accepts_unshown=accepts_unshown)):
            return DecidedQuestion(is_first=False, question=question, refusal=refusal)
        is_first = await self._decisions.decide(approval_id, answer)
        return DecidedQuestion(is_first=is_first, question=await self._decisions.find(approval_id))

    async def wait_approvals(self, known: Collection[str]) -> Sequence[Approval]:
        """The open questions that are not among the known ones, as soon as there is one."""
        with _Changes(self._decisions) as changes:
            while True:
                found = [each for each in await self._decisions.open_questions() if each.id not in known]
                if found:
                    return found
                await changes.wait()

    async def wait_decided(self, approval_id: str) -> None:
        """Return when a question was answered or withdrawn, or has expired. One that does not exist yet is awaited."""
        with _Changes(self._decisions) as changes:
            while (found := await self._decisions.find(approval_id)) is None or found.state == "pending":
                # Its gateway may have been killed, so at the deadline there may be no change to wait for.
                left = None if found is None else (found.deadline - time.time_ns()) / 10**9
                if left is not None and left <= 0:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await changes.wait()

    # ---------------------------------------------------------------------------------------------------- grants

    async def grants(self) -> Sequence[Grant]:
        """What callers may do without a question, the oldest first."""
        return await self._decisions.grants()

    async def revoke_grant(self, grant_id: str, *, by: str) -> bool:
        """End a grant; whether there was one."""
        is_done = await self._decisions.revoke(grant_id)
        if is_done:
            self._noted("revoke_grant", by, body={"grant": grant_id})
        return is_done

    # ------------------------------------------------------------------------------------------------------ pins

    async def pins(self, server: str | None = None) -> Sequence[Pin]:
        """The definitions that are approved, and those that wait: of all servers, or of one."""
        return await self._decisions.pins(server)

    async def approve_pin(self, server: str, kind: str, name: str, hash: str, *, by: str) -> bool:
        """Approve the definition that waits, if it still has this hash; whether it was so. Gateways offer it then."""
        is_done = await self._decisions.approve_pin(server, kind, name, hash)
        if is_done:
            self._noted("approve_pin", by, server=server, name=name, body={"kind": kind, "hash": hash})
        return is_done

    async def forget_pin(self, server: str, kind: str, name: str, *, by: str) -> bool:
        """Forget what is known of one definition; whether there was anything."""
        is_done = await self._decisions.forget_pin(server, kind, name)
        if is_done:
            self._noted("forget_pin", by, server=server, name=name, body={"kind": kind})
        return is_done

    # -------------------------------------------------------------------------------------- the page for approvals

    async def login_link(self, *, by: str) -> str | None:
        """A link that opens the page for approvals, once, within five minutes; None if no gateway has a page."""
        page = await self._decisions.page()
        if page is None:
            return None
        key = secrets.token_urlsafe(32)
        await self._decisions.add_login(key, LOGIN_SECONDS)
        self._noted("login_link", by)
        return f"{page}?{urlencode({'key': key})}"

    async def use_login(self, key: str) -> bool:
        """Use the key of a link; whether it was valid."""
        return await self._decisions.use_login(key)

    async def set_page(self, url: str) -> None:
        """Note where the page of this process is."""
        await self._decisions.set_page(url)


class _Changes:
    """Waits for changes of approvals. Changes since the beginning of the `with` are not missed."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._is_changed = asyncio.Event()

    def __enter__(self) -> "_Changes":
        self._stop = self._decisions.observe(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def _note(self, change: Change) -> None:
        if change == "approvals":
            self._is_changed.set()

    async def wait(self) -> None:
        """Return after the next change since the last wait."""
        await self._is_changed.wait()
        self._is_changed.clear()
