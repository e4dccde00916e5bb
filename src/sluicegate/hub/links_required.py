"""A server of 2025-11-25 that wants a page visited first says so by an error; here it is asked for (§3.4.7).

Clients of that very revision know the error themselves and get it as it is; those of older ones are told in words.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from sluicegate.errors import INTERNAL_ERROR, URL_ELICITATION_REQUIRED, ErrorObject, InputRefused
from sluicegate.exchange import Exchange
from sluicegate.hub.losses import ABANDONED, PAGES, revision_of
from sluicegate.hub.mount import Mount
from sluicegate.hub.relay import labelled
from sluicegate.protocol.input_required import Question, missing_capability
from sluicegate.protocol.message import Params, Reply, Result, as_array, as_object
from sluicegate.protocol.modern import complete

LONGEST_WAIT: Final = 60.0
"""Seconds that the server has to say that it saw the visit."""

_KNOWS_THE_ERROR: Final = "2025-11-25"


async def settle_links(mount: Mount, exchange: Exchange, params: Params, error: ErrorObject) -> Reply:
    """The reply after the client has visited the pages; the request is sent again, with these params, once they are."""
    if exchange.profile.version == _KNOWS_THE_ERROR:
        return error
    wanted = [as_object(entry) or {} for entry in as_array((as_object(error.data) or {}).get("elicitations")) or []]
    if not wanted:
        return _declined(exchange, f"{mount.name} needs a page to be visited first, and does not say which.")
    elicitation = as_object(exchange.profile.capabilities.get("elicitation")) or {}
    if "url" not in elicitation:
        if revision_of(exchange.profile.version).modern:
            return missing_capability({"elicitation": {"url": {}}})
        # It could not say that it can: its revision has no such thing. A person can still read where to go.
        mount.calls.lost(PAGES)
        return _declined(exchange, _said(mount, wanted))
    questions = {str(number): _question(entry, mount) for number, entry in enumerate(wanted, 1)}
    try:
        answers = await exchange.request_input(questions)
    except InputRefused as refusal:
        return _declined(exchange, refusal.message)
    if any(answer.get("action") != "accept" for answer in answers.values()):
        return _declined(exchange, f"{mount.name} needs a page to be visited, which was declined.")
    ids = {entry["elicitationId"] for entry in wanted if isinstance(entry.get("elicitationId"), str)}
    await mount.visits.completed({str(known) for known in ids}, LONGEST_WAIT)
    reply = await mount.calls.make(exchange, params)
    if isinstance(reply, ErrorObject) and reply.code == URL_ELICITATION_REQUIRED:
        return _declined(exchange, _said(mount, wanted))  # Asked once; whoever wants to go there may call again.
    mount.calls.count(reply)
    return reply


def _question(entry: Params, mount: Mount) -> Question:
    shown = {key: value for key, value in entry.items() if key in ("message", "url")}
    abandoned = partial(mount.calls.lost, ABANDONED)
    return labelled(Question("elicitation/create", {"mode": "url", **shown}, abandoned=abandoned), mount.prefix)


def _said(mount: Mount, wanted: Sequence[Params]) -> str:
    pages = "\n".join(f"{entry.get('message', '')} {entry.get('url', '')}".strip() for entry in wanted)
    return f"{mount.name} needs a page to be visited first; then call again.\n{pages}"


def _declined(exchange: Exchange, sentence: str) -> Reply:
    if exchange.method == "tools/call":
        return Result(complete({"content": [{"type": "text", "text": sentence}], "isError": True}))
    return ErrorObject(INTERNAL_ERROR, sentence)
