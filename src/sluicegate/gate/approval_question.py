"""The question about a call: what a person sees of it, and what an answer covers (T18). Pure but for the clock."""

import hashlib
import time
from collections.abc import Collection
from typing import Final

import msgspec

from sluicegate.errors import Refused
from sluicegate.exchange import Exchange, Target, Verdict
from sluicegate.gate.approval_text import name_of
from sluicegate.protocol.message import Params, as_object
from sluicegate.protocol.methods import METHODS
from sluicegate.runtime.process_key import process_key
from sluicegate.store.base import Approval, ApprovalAnswer, new_id

MAX_CALL: Final = 1 << 20
"""Bytes of params of a call that a person is asked about. Nobody reads more."""
_ROUNDS: Final = ("inputResponses", "requestState", "_meta")
_PROTOCOL: Final = ("io.modelcontextprotocol/", "dev.sluicegate/")
_CARRIED: Final = frozenset({"progressToken", "traceparent", "tracestate", "baggage"})
"""Members of `_meta` that differ from call to call and mean nothing to a server's work."""


def bind(exchange: Exchange, target: Target, rules: str) -> str:
    """A digest of all that an approval covers: an equal call by the same caller under the same rules has an equal one.

    Its key is that of this process, so that nothing about the arguments can be guessed from it.
    """
    rounds = _rounds(exchange)
    params = {name: value for name, value in exchange.params.items() if name not in rounds}
    params["_meta"] = _own_meta(exchange)
    parts = (exchange.caller.id, exchange.method, target.server, target.kind, target.name, target.definition, rules)
    data = msgspec.json.encode((*parts, params), order="deterministic")
    return hashlib.blake2b(data, key=process_key(), digest_size=32, person=b"approval").hexdigest()


def _rounds(exchange: Exchange) -> Collection[str]:
    """The members that differ from round to round. Answers to no question are part of the call like its arguments."""
    return _ROUNDS if exchange.is_continued else _ROUNDS[1:]


def _own_meta(exchange: Exchange) -> Params:
    """What the client adds to a call besides its arguments; without what the protocol itself puts there."""
    meta = as_object(exchange.params.get("_meta")) or {}
    return {k: v for k, v in meta.items() if k not in _CARRIED and not k.startswith(_PROTOCOL)}


def question_of(exchange: Exchange, target: Target, verdict: Verdict, binding: str, run: str, wait: float) -> Approval:
    """The question about a call that the process `run` asks, open for `wait` seconds.

    Raises:
        Refused: the call is too long to be shown.
    """
    now = time.time_ns()
    arguments = msgspec.json.encode(as_object(exchange.params.get("arguments")) or {}).decode()
    row = METHODS.get(exchange.method)
    shown = ("arguments", row.target if row is not None else None, *_rounds(exchange))
    rest = {k: value for k, value in exchange.params.items() if k not in shown}
    if meta := _own_meta(exchange):
        rest["_meta"] = meta
    others = msgspec.json.encode(rest).decode()
    if len(arguments) + len(others) > MAX_CALL:
        name = name_of(target.server, target.name)
        raise Refused(f"{name} needs the approval of a person, and is too long to be shown to one.")
    return Approval(
        id=new_id(),
        run=run,
        binding=binding,
        caller=exchange.caller.id,
        client=_client_name(exchange),
        method=exchange.method,
        server=target.server,
        kind=target.kind,
        name=target.name,
        definition=target.definition,
        arguments=arguments,
        others=others,
        rule=verdict.rule,
        why=verdict.why,
        asked=now,
        deadline=now + int(wait * 10**9),
    )


def _client_name(exchange: Exchange) -> str:
    info = exchange.profile.client_info or {}
    return " ".join(str(info[part])[:200] for part in ("name", "version") if part in info)


def with_answer(question: Approval, answer: ApprovalAnswer) -> Approval:
    """The question with an answer that its own call uses."""
    state = "declined" if answer.scope is None else "approved"
    values = msgspec.structs.asdict(answer)
    return msgspec.structs.replace(question, **values, state=state, taken=True, decided=time.time_ns())
