"""The results of the operations, and the sockets by which commands ask for them.

It imports nothing that runs a gateway, so that a command which only asks a running one loads quickly.
"""

from typing import Final, Literal

import msgspec

from sluicegate.config.model import Naming
from sluicegate.config.problems import Problem
from sluicegate.exchange import Action
from sluicegate.gateway.status import HeldItem, ServerStatus
from sluicegate.protocol.message import Params
from sluicegate.store.base import Approval

LOG_WAIT: Final = 30.0
"""Seconds that a request for new lines of servers waits, so that a command notices a gateway that hangs."""

Kind = Literal["tools", "prompts", "resources", "templates"]


def hub_socket(control: str) -> str:
    """The path of the socket that serves the hub itself, next to the control socket."""
    return control.removesuffix(".sock") + ".mcp.sock"


class GatewayReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a gateway."""

    address: str
    root: str
    profiles: list[str]
    servers: list[ServerStatus]
    findings: list[str]
    naming: Naming
    problems: list[Problem] = []
    """Parts of its files that it does not use because they are wrong, and what it does instead."""
    held: list[HeldItem] = []
    """What servers offer and clients do not get, because a person has not approved its definition."""
    stopping: bool = False
    """Whether it is shutting down; then it accepts no new requests and has no address."""

    def sentences(self) -> list[str]:
        """Everything to report apart from the state of each server."""
        stopping = [f"The gateway {self.stopping_sentence()}"] if self.stopping else []
        return [*stopping, *map(str, self.problems), *(each.sentence for each in self.held), *self.findings]

    def stopping_sentence(self) -> str:
        """The rest of a sentence about a gateway that is shutting down."""
        calls = sum(server.in_flight for server in self.servers)
        rest = f"; {calls} {'call is' if calls == 1 else 'calls are'} still in progress" if calls else ""
        return f"is shutting down and accepts no new requests{rest}."


class OfferedItem(msgspec.Struct, frozen=True, kw_only=True):
    """One tool, prompt or resource: its server, its name there, and its definition as clients see it."""

    server: str
    own: str
    definition: Params
    is_denied: bool = False
    """Whether the rules deny it to the local user outright, so that clients neither see nor reach it."""


class OwnTools(msgspec.Struct, frozen=True, kw_only=True):
    """All tools of a server under its own names, and the globs that show and hide them."""

    tools: list[str]
    only: list[str]
    hide: list[str]


class RuleVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules say about a call."""

    action: Action
    rule: str
    """Where the rule is, as FILE:LINE; empty if no rule matched."""
    why: str
    is_hidden: bool
    """Whether the caller neither sees nor reaches the tool."""


class DecidedQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an answer."""

    is_first: bool
    """Whether it was the first answer, and in time: then it counts."""
    question: Approval | None
    """The question with the answer that counts; None if there is no such question."""
    refusal: str = ""
    """Why it does not count, as a sentence: it reaches too far, or does not accept what is not shown of the call."""
