"""Permission for an agent's calls: what the program around a toolbox answers when the rules say that a person is asked.

The answer is in the audit log, and what it allows from now on is a grant, as with a gateway.
"""

import asyncio
import getpass
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Final, Literal, TypeVar

import msgspec

from sluicegate.errors import ApprovalDeclined, Refused
from sluicegate.exchange import Exchange
from sluicegate.gate.approval_text import as_lines
from sluicegate.gate.rules import Permission, full_name, to_toml
from sluicegate.protocol.message import Params, as_object
from sluicegate.runtime.terminal import Keyboard
from sluicegate.store.base import Approval, ApprovalAnswer, Decisions
from sluicegate.text.globs import escape

log = logging.getLogger("sluicegate")

T = TypeVar("T")

MAX_CHANGES: Final = 10
"""How often the arguments of one call may be changed."""

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


class Amended(msgspec.Struct, frozen=True):
    """The answer with which a call began again, and what it is about: it covers no other call that this one makes."""

    answer: Allow
    server: str
    kind: str
    name: str

    def covers(self, question: Approval, arguments: Params) -> bool:
        """Whether a question is about the call that began again."""
        about = (question.server, question.kind, question.name, arguments)
        return about == (self.server, self.kind, self.name, self.answer.arguments)


class ArgumentsChanged(Exception):
    """The call was allowed with other arguments, so it begins again with these."""

    def __init__(self, answer: Allow, question: Approval) -> None:
        super().__init__("the arguments were changed")
        self.change = Amended(answer, question.server, question.kind, question.name)
        self.arguments: Params = answer.arguments or {}


class Batch:
    """The calls of one reply."""

    def __init__(self) -> None:
        self.is_stopped = False


batch: Final[ContextVar[Batch | None]] = ContextVar("batch", default=None)
"""The batch that the current task belongs to."""
amended: Final[ContextVar[Amended | None]] = ContextVar("amended", default=None)
"""The answer with which the current call began again."""


async def with_changes(call: Callable[[Params], Awaitable[T]], arguments: Params) -> T:
    """What a call returns, made again each time it is allowed with other arguments.

    Raises:
        Refused: they were changed too often.
    """
    change: Amended | None = None
    for _ in range(MAX_CHANGES):
        token = amended.set(change)
        try:
            return await call(arguments)
        except ArgumentsChanged as changed:
            change, arguments = changed.change, changed.arguments
        finally:
            amended.reset(token)
    raise Refused("The arguments of this call were changed too often; nothing was run.")


class Permissions:
    """Answers the questions of a gateway by callbacks."""

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
        self._allowed: set[tuple[str, ...]] = set()
        """What may be called while the toolbox is open."""
        self._terminal = asyncio.Lock()
        self._user = _user()

    async def ask(self, exchange: Exchange, question: Approval) -> ApprovalAnswer | Refused:
        """The answer to a question, or a refusal with a sentence for the model.

        Raises:
            ArgumentsChanged: the call is allowed with other arguments.
        """
        agent, callback = self._callback_of(exchange.caller.id)
        key = (question.caller, question.server, question.kind, question.name, question.definition)
        if question.server == self._own() or key in self._allowed:
            return self._answer(key, Allow())
        current = batch.get()
        if callback == "allow" and _stopped(current) is None:
            return self._answer(key, Allow())
        ask = self._asked(exchange, question, agent)
        again = amended.get()
        if again is not None and again.covers(question, ask.arguments):
            return self._answer(key, again.answer)
        if callback == "terminal":
            async with self._terminal:  # One question at a time; an earlier answer may cover this one.
                is_covered = key in self._allowed or await self._decisions.find_grant(*key) is not None
                said = Allow() if is_covered else _stopped(current) or await ask_on_terminal(ask)
        else:
            said = _stopped(current) or await _said(callback, ask)
        if isinstance(said, Deny):
            if said.stop and current is not None:
                current.is_stopped = True
            return ApprovalDeclined(said.message or f"{ask.tool} was not allowed; nothing was run.")
        if said.arguments is not None and said.arguments != ask.arguments:
            raise ArgumentsChanged(said, question)
        return self._answer(key, said)

    def _answer(self, key: tuple[str, ...], said: Allow) -> ApprovalAnswer:
        if said.remember == "session":
            self._allowed.add(key)
        return ApprovalAnswer(scope="always" if said.remember == "always" else "once", by=self._user, way="client")

    def _asked(self, exchange: Exchange, question: Approval, agent: str) -> PermissionRequest:
        name = exchange.name or question.name
        where = f" ({question.rule})" if question.rule else ""
        return PermissionRequest(
            tool=name,
            server=question.server,
            kind=question.kind,
            arguments=as_object(exchange.params.get("arguments")) or {},
            reason=f"{question.why or 'A rule says that a person is asked.'}{where}",
            annotations=as_object(self._about(name).get("annotations")) or {},
            agent=agent,
            own=question.name,
            lines=tuple(as_lines(question)),
        )


def _stopped(current: Batch | None) -> Deny | None:
    if current is None or not current.is_stopped:
        return None
    return Deny("Another call of the same reply was refused and ended all of them; nothing was run.")


async def _said(callback: OnPermission | None, ask: PermissionRequest) -> Allow | Deny:
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
