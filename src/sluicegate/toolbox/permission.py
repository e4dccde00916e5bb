"""Permission for an agent's calls: what the program around a toolbox answers when the rules say that a person is asked.

The answer is in the audit log, and what it allows from now on is a grant, as with a gateway.
"""

import asyncio
import getpass
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Final, Literal

import msgspec

from sluicegate.errors import ApprovalDeclined, Refused
from sluicegate.exchange import Exchange, Handler, Step
from sluicegate.gate.approval_text import as_lines, is_once_only
from sluicegate.gate.approvals import ApprovalStep
from sluicegate.gate.policy import Policy
from sluicegate.gate.rules import Permission, full_name, to_toml
from sluicegate.protocol.message import Params, Reply, as_object
from sluicegate.runtime.terminal import Keyboard
from sluicegate.store.base import Approval, ApprovalAnswer, Decisions
from sluicegate.text.globs import escape

log = logging.getLogger("sluicegate")

Remember = Literal["once", "session", "always"]


class PermissionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call that no rule allows or denies."""

    tool: str
    """Its name, as the model knows it; of a resource, its URI."""
    server: str
    kind: str
    """`tool`, `prompt` or `resource`."""
    arguments: Params
    reason: str
    """Why it is asked: what the rule says, and where it is."""
    rule: str = ""
    """The rule that asks, and where it is; empty if no rule names the call."""
    annotations: Mapping[str, object]
    """What the server says about the tool, such as `readOnlyHint`. It may be wrong."""
    agent: str
    """The view that calls it; empty for the toolbox itself."""
    own: str
    """The server's own name of it, which rules use."""
    lines: tuple[str, ...]
    """All of it as text, in full, with hidden characters named."""


class Allow(msgspec.Struct, frozen=True):
    """The call may run: with other arguments, if there are any, which the rules judge again."""

    arguments: Params | None = None
    remember: Remember = "once"
    """How far it reaches: this call, this tool while the toolbox is open, or this tool always."""


class Deny(msgspec.Struct, frozen=True):
    """The call may not run; the model is told the message."""

    message: str = ""
    stop: bool = False
    """Whether the other calls of the same reply are refused as well, and `answer` says that the agent should stop."""


OnPermission = (
    Callable[[PermissionRequest], "Awaitable[Allow | Deny] | Allow | Deny"] | Literal["allow", "deny", "terminal"]
)


class Batch:
    """The calls of one reply."""

    def __init__(self) -> None:
        self.is_stopped = False


batch: Final[ContextVar[Batch | None]] = ContextVar("batch", default=None)
"""The batch that the current task belongs to."""


class Permissions:
    """A step that answers the questions of a gateway by callbacks.

    It stands in front of the audit log. If an answer changes the arguments, the changed ones are judged and recorded.
    """

    def __init__(
        self,
        decisions: Decisions,
        callback_of: Callable[[str], tuple[str, OnPermission | None]],
        about: Callable[[str], Params],
        own: Callable[[], str],
    ) -> None:
        """`callback_of` gives a caller's agent and callback; `about` gives the definition of a tool by its name.

        `own` is the server of the management tools, which need no permission: what they call does.
        """
        self._own = own
        self._decisions = decisions
        self._callback_of = callback_of
        self._about = about
        self._policy: Policy
        self._approvals: ApprovalStep
        self._allowed: set[tuple[str, ...]] = set()
        """What may be called while the toolbox is open."""
        self._terminal = asyncio.Lock()
        self._user = _user()

    def step(self, policy: Policy, approvals: ApprovalStep) -> Step:
        """This step, in a gateway with these rules and approvals."""
        self._policy, self._approvals = policy, approvals
        return self

    def __call__(self, exchange: Exchange, proceed: Handler) -> Awaitable[Reply]:
        """The reply of what is behind it; the exchange has the answer to its question, if there is one."""
        exchange.answer = None  # It may be decided on again.
        is_asked = exchange.verdict is not None and exchange.verdict.action == "ask"
        return self._ask(exchange, proceed) if is_asked else proceed(exchange)

    async def _ask(self, exchange: Exchange, proceed: Handler) -> Reply:
        try:
            question = await self._approvals.question_for_program(exchange)
            if question is not None:
                answer = await self._approvals.in_time(question, self._answer_of(exchange, question))
                exchange.answer = answer if isinstance(answer, Refused) else self._use(exchange, question, answer)
        except Refused as refusal:
            exchange.answer = refusal  # It is refused behind the audit log, so that it is on record.
        return await proceed(exchange)

    def _use(self, exchange: Exchange, question: Approval, answer: Allow) -> ApprovalAnswer:
        arguments = as_object(exchange.params.get("arguments")) or {}
        if answer.arguments is not None and answer.arguments != arguments:
            exchange.original = exchange.params if exchange.original is None else exchange.original
            exchange.params = {**exchange.params, "arguments": answer.arguments}
            self._policy.judge(exchange)
        is_asked = exchange.verdict is not None and exchange.verdict.action == "ask"
        is_always = answer.remember == "always"
        if is_once_only(question.caller, question.name, arguments):
            is_asked = is_always = False
        if answer.remember == "session" and is_asked:
            self._allowed.add(_key(question))
        return ApprovalAnswer(scope="always" if is_always else "once", by=self._user, way="client")

    async def _answer_of(self, exchange: Exchange, question: Approval) -> Allow | Refused:
        """The answer to a question, or a refusal with a sentence for the model."""
        agent, callback = self._callback_of(exchange.caller.id)
        key = _key(question)
        if question.server == self._own() or key in self._allowed:
            return Allow()
        current = batch.get()
        if callback == "allow" and _stopped(current) is None:
            return Allow()
        request = self._request(exchange, question, agent)
        if callback == "terminal":
            async with self._terminal:  # One question at a time; an earlier answer may cover this one.
                is_covered = key in self._allowed or await self._decisions.find_grant(*key) is not None
                answer = Allow() if is_covered else _stopped(current) or await ask_on_terminal(request)
        else:
            answer = _stopped(current) or await _answer_of_callback(callback, request)
        if isinstance(answer, Deny):
            if answer.stop and current is not None:
                current.is_stopped = True
            return ApprovalDeclined(answer.message or f"{request.tool} was not allowed; nothing was run.")
        return answer

    def _request(self, exchange: Exchange, question: Approval, agent: str) -> PermissionRequest:
        name = exchange.name or question.name
        where = f" ({question.rule})" if question.rule else ""
        repeated = f" It is a poll: {question.repeated}." if question.repeated else ""
        return PermissionRequest(
            tool=name,
            server=question.server,
            kind=question.kind,
            arguments=as_object(exchange.params.get("arguments")) or {},
            reason=f"{question.why or 'A rule says that a person is asked.'}{where}{repeated}",
            rule=question.rule,
            annotations=as_object(self._about(name).get("annotations")) or {},
            agent=agent,
            own=question.name,
            lines=tuple(as_lines(question)),
        )


def _key(question: Approval) -> tuple[str, str, str, str, str, str]:
    return question.caller, question.server, question.kind, question.name, question.definition, question.origin


def _stopped(current: Batch | None) -> Deny | None:
    if current is None or not current.is_stopped:
        return None
    return Deny("Another call of the same reply was refused and ended all of them; nothing was run.")


async def _answer_of_callback(callback: OnPermission | None, ask: PermissionRequest) -> Allow | Deny:
    if callback is None or isinstance(callback, str):
        return Deny(_rule_for(ask))
    try:
        answer = callback(ask)
        said = answer if isinstance(answer, Allow | Deny) else await answer
        if not isinstance(said, Allow | Deny):  # pyright: ignore[reportUnnecessaryIsInstance] - programs may not check
            raise TypeError(f"on_permission returns Allow or Deny, not {type(said).__name__}")
        if isinstance(said, Allow) and not isinstance(said.arguments, dict | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"the arguments of Allow are a dict, not {type(said.arguments).__name__}")
        return said
    except Exception:  # An edge: the code of the user may raise anything, and nothing may run because of that.
        log.exception("on_permission failed for %s, so it is refused.", ask.tool)
        return Deny(f"Whether {ask.tool} may be called could not be decided; nothing was run.")


def _rule_for(ask: PermissionRequest) -> str:
    name = full_name(ask.server, escape(ask.own))
    rule = Permission(
        tool=name if ask.kind == "tool" else None,
        prompt=name if ask.kind == "prompt" else None,
        resource=name if ask.kind == "resource" else None,
        action="allow",
    )
    return (
        f"{ask.tool} needs a permission, and there is nobody to ask; nothing was run. "
        f"This rule in sluicegate.toml would allow it:\n\n{to_toml(rule)}"
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "local"


# ------------------------------------------------------------------------------------------------------- on a terminal

_KEYS: Final[Mapping[str, Remember]] = {"y": "once", "s": "session", "a": "always"}


async def ask_on_terminal(ask: PermissionRequest) -> Allow | Deny:
    """The answer of the user at the terminal; a refusal if there is none."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return Deny(_rule_for(ask))
    # Imported late: only this needs it.
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    title = f"May {ask.agent} call {ask.tool}?" if ask.agent else f"Call {ask.tool}?"
    console.print(Panel(Text("\n".join(ask.lines or (ask.reason,))), title=Text(title), title_align="left"))
    keyboard = Keyboard()
    while True:
        console.print("[bold]y[/]es, for this [bold]s[/]ession, [bold]a[/]lways, [bold]n[/]o, [bold]q[/]uit: ", end="")
        try:
            key = (await keyboard.line("")).strip().lower()[:1]
        except EOFError:
            key = "q"
        if key in _KEYS:
            return Allow(remember=_KEYS[key])
        if key == "n":
            return Deny("The user did not allow this call; nothing was run.")
        if key == "q":
            return Deny("The user stopped the agent; nothing was run.", stop=True)
