"""A question to a person about a call: what it covers, and its text for the page, the terminal and the client (T18).

Hidden characters are named, and lines of a value are marked, so that none of them looks like a line of ours. Everything
is shown in full up to `MAX_SHOWN`; the rest is counted, is not even rendered, and has to be accepted by the person who
says yes. What is cut is the same on the page, the terminal and in the client. Pure but for the clock.
"""

import hashlib
import re
import time
from collections.abc import Callable, Collection, Iterator
from typing import Final, Literal

import msgspec

from sluicegate.errors import ApprovalDeclined, ApprovalExpired, Refused
from sluicegate.exchange import NETWORK, Exchange, Target, Verdict
from sluicegate.protocol.input_required import Question
from sluicegate.protocol.message import Params, as_object
from sluicegate.protocol.methods import METHODS
from sluicegate.runtime.process_key import process_key
from sluicegate.store.base import Approval, ApprovalAnswer, Scope, new_id
from sluicegate.text.visible_text import visible

LONG: Final = 200
"""Characters from which on the length of a value is shown as well."""

MAX_SHOWN: Final = 64 * 1024
"""Characters of one question that are shown; a hidden one counts as the eight of its name. Clients are asked only about
calls that are shown in full."""
MAX_NAME: Final = 200
"""Characters of a name in a sentence."""
MAX_REASON: Final = 1000

ASKS: Final = "sluicegate asks: may this call run? (question "
"""How a question begins; its id and a bracket follow.

Questions of servers begin with their name in brackets, so no server can ask in these words.
"""
ANSWERS: Final[dict[str, Scope | None]] = {
    "once": "once",
    "this tool for ten minutes": "minutes",
    "this tool always": "always",
    "no": None,
}
"""What a person can answer, and how far that reaches."""

_NOT_GRANTED: Final = (
    f"It can be allowed once only: so are calls of {NETWORK.id}, which is every other machine, and questions of an "
    "agent, since a longer permission would hold for all its tools."
)
_AGENT_ASKS: Final = "permission"
"""The end of the names of tools by which agents ask, as in `claude --permission-prompt-tool`."""

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class ShownArgument(msgspec.Struct, frozen=True):
    """One argument: its name and value as a person sees them."""

    name: str
    value: str
    note: str = ""
    """The length of a long value, and how much of it is not shown."""


class ShownQuestion(msgspec.Struct, frozen=True):
    """A question as a person sees it."""

    facts: list[tuple[str, str]]
    """What a person needs to know beside the arguments: labels and values, each on one line."""
    arguments: list[ShownArgument]
    unshown: str = ""
    """A sentence that counts what is not shown; empty if everything is."""


Show = Callable[[str], str]
"""Makes a text safe to show, such as `visible`."""


class _Space:
    """The space that a question has left on a page."""

    STEP: Final = 256
    LAYOUT: Final = 32
    """What a label and its line take, beside their texts."""
    SPARE: Final = 8 * 1024
    """What a name leaves for the facts behind it, such as the caller."""

    def __init__(self) -> None:
        self.left = MAX_SHOWN
        self.unshown = 0
        """Characters that had no space."""

    def has_line(self) -> bool:
        """Whether another line has space, which is used."""
        self.left -= self.LAYOUT
        return self.left > 0

    def fit(self, text: str, spare: int = 0) -> str:
        """The beginning of a text that has space. What is behind it is counted, and never rendered."""
        for start in range(0, len(text), self.STEP):
            size = len(visible(text[start : start + self.STEP]))
            if size > self.left - spare:
                self.left = min(self.left, spare)
                self.unshown += len(text) - start
                return text[:start]
            self.left -= size
        return text


def shown_question(question: Approval, show: Show = visible) -> ShownQuestion:
    """The question with hidden characters named, cut where it is too long to be read."""
    space = _Space()
    facts: list[tuple[str, str]] = []
    arguments: list[ShownArgument] = []
    left_out = 0
    for label, text in _facts(question):
        if space.has_line():
            spare = space.SPARE if label == question.kind else 0
            facts.append((_fitted(label, space, show), _fitted(text, space, show, spare)))
        else:
            space.unshown += len(label) + len(text)
    for name, value in _decode(question.arguments).items():
        if space.has_line():
            arguments.append(_shown_argument(name, value, space, show))
        else:
            left_out += 1
            space.unshown += len(name) + len(_json(value))
    among = f", {left_out:,} whole arguments among them" if left_out else ""
    sentence = f"Not all of this call is shown: {space.unshown:,} characters are left out{among}."
    return ShownQuestion(facts, arguments, sentence if space.unshown else "")


def answers_to(question: Approval) -> dict[str, Scope | None]:
    """What a person can answer to a question."""
    if not is_once_only(question.caller, question.name, _decode(question.arguments)):
        return ANSWERS
    return {said: scope for said, scope in ANSWERS.items() if scope in ("once", None)}


def is_once_only(caller: str, name: str, arguments: Collection[str]) -> bool:
    """Whether a yes to a call is for this one only.

    Clients on other machines get no grants (T38), nor do agents that ask: a grant would be for all tools of the agent.
    """
    return caller == NETWORK.id or (name.endswith(_AGENT_ASKS) and "tool_name" in arguments)


def refusal_of(question: Approval, answer: ApprovalAnswer, *, accepts_unshown: bool) -> str:
    """Why an answer does not count, as a sentence; empty if it does."""
    if answer.scope not in answers_to(question).values():
        return _NOT_GRANTED
    return "" if answer.scope is None or accepts_unshown else unshown(question)


def unshown(question: Approval) -> str:
    """A sentence that counts what a person does not see of a question; empty if everything is shown."""
    return shown_question(question).unshown


def _facts(question: Approval) -> Iterator[tuple[str, str]]:
    note = "no call waits now: its client has given up, and may make the same call again" if question.abandoned else ""
    own = (
        ("server", question.server),
        (question.kind, question.name),
        ("caller", question.caller),
        ("client", question.client),
        ("repeated", f"{question.repeated}; a yes allows all of these calls" if question.repeated else ""),
        ("note", note),
        ("rule", question.rule or "no rule names it; the default is to ask"),
        ("why", question.why),
    )
    yield from ((label, text) for label, text in own if text)
    for name, value in _decode(question.others).items():
        yield f"member {_json(name)}", _json(value)


def _fitted(text: str, space: _Space, show: Show, spare: int = 0) -> str:
    line = _one_line(text)
    fitting = space.fit(line, spare)
    return show(fitting) + _rest(len(line) - len(fitting))


def _rest(length: int) -> str:
    return f" … [{length:,} more characters]" if length else ""


def _shown_argument(name: str, value: object, space: _Space, show: Show) -> ShownArgument:
    label = name if _PLAIN_NAME.fullmatch(name) else _json(name)
    # A text with several lines is easier to read as such; all other values are shown as JSON, which is exact.
    lines = value.count("\n") + 1 if isinstance(value, str) else 1
    text = value if isinstance(value, str) and lines > 1 else _json(value)
    length = len(value) if isinstance(value, str) else len(text)
    notes = [f"{lines:,} lines"] if lines > 1 else []
    notes += [f"{length:,} characters"] if lines > 1 or length > LONG else []
    shown_name, fitting = _fitted(label, space, show), space.fit(text)
    if len(fitting) < len(text):
        notes.append(f"{len(text) - len(fitting):,} of them not shown")
    return ShownArgument(shown_name, show(fitting), ", ".join(notes))


_decode: Final = msgspec.json.Decoder(dict[str, object]).decode


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n")


def as_lines(question: Approval) -> list[str]:
    """The question as lines of text."""
    asked = shown_question(question)
    lines = [f"{label}: {text}" for label, text in asked.facts]
    lines.append("arguments:" if asked.arguments or asked.unshown else "arguments: none")
    for shown in asked.arguments:
        if "\n" in shown.value:
            lines.append(f"  {shown.name} ({shown.note}):")
            lines += [f"    | {line}" for line in shown.value.split("\n")]
        else:
            note = f" ({shown.note})" if shown.note else ""
            lines.append(f"  {shown.name}{note}: {shown.value}")
    return [*lines, asked.unshown] if asked.unshown else lines


def name_of(server: str, name: str) -> str:
    """What a call is about, in a sentence."""
    return f"{server}: {visible(_one_line(name[:MAX_NAME]))}{_rest(max(0, len(name) - MAX_NAME))}"


def outcome(question: Approval) -> str:
    """What became of a question, as a sentence."""
    what = f"{name_of(question.server, question.name)} (question {question.id})"
    match question.state:
        case "approved" | "declined":
            said = next(said for said, scope in ANSWERS.items() if scope == question.scope)
            return f"{what}: {visible(question.by)} answered “{said}”."
        case "void":
            return f"{what}: it was withdrawn, and nothing was run."
        case "pending":
            return f"{what}: it was not answered in time, and nothing was run."


# ------------------------------------------------------------------------------------------------- asking the client


def form(question: Approval, abandoned: Callable[[], None]) -> Question | None:
    """The question for a client; None if it is too long to be shown in full. `abandoned` as in `Question`."""
    if unshown(question):
        return None
    message = "\n".join([f"{ASKS}{question.id})", "", *as_lines(question)])
    schema: Params = {
        "type": "object",
        "properties": {
            "answer": {"type": "string", "title": "May it run?", "enum": list(answers_to(question))},
            "reason": {"type": "string", "title": "Reason, if not", "description": "The model sees it."},
        },
        "required": ["answer"],
    }
    params: Params = {"message": message, "requestedSchema": schema}
    return Question("elicitation/create", params, abandoned=abandoned)


def read_answer(question: Approval, answer: Params) -> ApprovalAnswer | None:
    """What the user of a client answered; None if the question was closed, or the answer is not one of ours."""
    by, answers = question.caller, answers_to(question)
    content = as_object(answer.get("content")) or {}
    chosen, reason = content.get("answer"), content.get("reason")
    match answer.get("action"):
        case "decline":
            return ApprovalAnswer(scope=None, by=by, way="client")
        case "accept" if isinstance(chosen, str) and chosen in answers:
            scope = answers[chosen]
            said = reason[:MAX_REASON] if scope is None and isinstance(reason, str) else ""
            return ApprovalAnswer(scope=scope, by=by, way="client", reason=said)
        case _:
            return None


# ------------------------------------------------------------------------------------------- what the caller is told


def not_allowed(target: Target, verdict: Verdict) -> str:
    """A sentence that names the rule and its reason."""
    # The file without its folder: callers may be elsewhere.
    rule = f"the rule at {verdict.rule.rpartition('/')[2]}" if verdict.rule else "the default of the rules"
    why = f" {verdict.why}" if verdict.why else ""
    return f"{name_of(target.server, target.name)} is not allowed by {rule}; nothing was run.{why}"


def declined(target: Target, decided: Approval) -> Refused:
    """The refusal after a person said no."""
    why = f" The reason: {visible(decided.reason)}" if decided.reason else ""
    return ApprovalDeclined(
        f"A person was asked whether {name_of(target.server, target.name)} may run and said no; nothing was run.{why}"
    )


def unaskable(target: Target) -> Refused:
    """The refusal where only the client itself could be asked, and cannot be."""
    sentence = f"{name_of(target.server, target.name)} asks before it runs, and this client cannot be asked."
    return Refused(f"{sentence} {_how_to_allow(target.server, target.name)}")


def _how_to_allow(server: str, name: str) -> str:
    which = f'tool = "mcp__{server}"'
    if name.endswith(_AGENT_ASKS):
        which = f'tool = "mcp__{server}__{_AGENT_ASKS}", args = {{ tool_name = "TOOL" }}'
    return f'It runs without a question if a rule allows it: {which}, action = "allow".'


Unanswered = Literal["gone", "replaced", "waits", "closed", "failed", "unseen"]

_UNANSWERED: Final[dict[Unanswered, str]] = {
    "gone": "The client did not come back with an answer to the question whether {name} may run; nothing was run.",
    "replaced": "The same call of {name} was made again and waits for the answer; this one ended and ran nothing.",
    "waits": "{name} needs the approval of a person, who has not answered yet; nothing was run.",
    "closed": "{name} asks before it runs, and this client closed the question; nothing was run.",
    "failed": "{name} asks before it runs, and asking this client failed; nothing was run.",
    "unseen": "{name} asks before it runs, and is too long for this client to show; nothing was run.",
}


def unanswered(why: Unanswered, question: Approval, *, is_open: bool) -> Refused:
    """The refusal of a call that ends before there is an answer; `is_open` if the question outlives it."""
    sentence = _UNANSWERED[why].format(name=name_of(question.server, question.name))
    if why in ("closed", "failed"):
        sentence += f" {_how_to_allow(question.server, question.name)}"
    if is_open:
        sentence += f" Question {question.id} stays open: make the same call again to wait for the answer."
    return ApprovalExpired(sentence)


def rules_changed(question: Approval) -> Refused:
    """The refusal of a call whose answer came under other rules than its question."""
    name = name_of(question.server, question.name)
    return ApprovalExpired(f"The rules changed while {name} waited for approval; nothing was run.")


def too_late(question: Approval, seconds: float) -> Refused:
    """The refusal of a call whose question was not answered in time."""
    name = name_of(question.server, question.name)
    return ApprovalExpired(
        f"{name} needs the approval of a person, who did not answer within {seconds:g} s; nothing was run."
    )


# ----------------------------------------------------------------------------------------------- the question of a call

MAX_CALL: Final = 1 << 18
"""Bytes of a call that a person is asked about. It is kept until it is answered, and people read far less."""
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
    what = (target.server, target.kind, target.name, target.definition, target.origin)
    parts = (exchange.caller.id, exchange.method, *what, _repeated(exchange), rules, params)
    data = msgspec.json.encode(parts, order="deterministic")
    return hashlib.blake2b(data, key=process_key(), digest_size=32, person=b"approval").hexdigest()


def _repeated(exchange: Exchange) -> str:
    return "" if exchange.repetition is None else exchange.repetition.about


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
    arguments = msgspec.json.encode(as_object(exchange.params.get("arguments")) or {})
    row = METHODS.get(exchange.method)
    shown = ("arguments", row.target if row is not None else None, *_rounds(exchange))
    rest = {k: value for k, value in exchange.params.items() if k not in shown}
    if meta := _own_meta(exchange):
        rest["_meta"] = meta
    others = msgspec.json.encode(rest)
    size = len(arguments) + len(others) + len(target.name.encode("utf-8", "surrogatepass"))
    if size > MAX_CALL:
        raise Refused(
            f"{name_of(target.server, target.name)} needs the approval of a person, and with {size:,} bytes is too "
            f"long to be shown to one; at most {MAX_CALL:,} are. Nothing was run."
        )
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
        origin=target.origin,
        repeated=_repeated(exchange),
        arguments=arguments.decode(),
        others=others.decode(),
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
