"""The results of the operations, and the sockets by which commands ask for them.

It imports nothing of the gateway, so that a command which only asks a running one loads quickly.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from sluicegate.config.model import Naming
from sluicegate.config.problems import Problem
from sluicegate.exchange import Action
from sluicegate.protocol.message import Params
from sluicegate.store.base import Approval

Kind = Literal["tools", "prompts", "resources", "templates"]


def hub_socket(control: str) -> str:
    """The path of the socket that serves the hub itself, next to the control socket."""
    return control.removesuffix(".sock") + ".mcp.sock"


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one server, for the user who runs the gateway."""

    name: str
    state: str
    sentence: str
    kind: str
    """What the entry names: a command ("stdio"), a URL ("http") or a file ("python")."""
    transport: str = ""
    """What carries its messages; for a URL "http" or "sse", once that is known."""
    version: str = ""
    session_version: str = ""
    """The revision used for callers of the session era, if the server has a session for them."""
    prefix: str = ""
    key: str = ""
    """The name that sluicegate.toml may use for it."""
    tools: int = 0
    prompts: int = 0
    resources: int = 0
    calls: int = 0
    errors: int = 0
    latency_ms: float = 0.0
    in_flight: int = 0
    waiting: int = 0
    restarts: int = 0
    seconds: float = 0.0
    """How long it has been in this state."""
    details: str = ""
    """What the server itself wrote before it ended; not for clients."""
    lost: Mapping[str, int] = {}
    """What could not be translated between its era and its callers' eras, with counts."""
    printed: int = 0
    """Lines on its stdout that are no messages."""
    printed_line: str = ""
    """The last one of them."""

    def printed_sentence(self) -> str:
        """What it printed to stdout, as a predicate; empty if nothing."""
        if not self.printed:
            return ""
        lines, last = ("a line", "the line") if self.printed == 1 else (f"{self.printed} lines", "the last one")
        return f'printed {lines} to stdout, which is for MCP messages only; {last}: "{self.printed_line}".'


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
    left_out: list[str] = []
    """Entries of its files that point to this gateway itself."""
    stopping: bool = False
    """Whether it is shutting down; then it accepts no new requests and has no address."""

    def sentences(self) -> list[str]:
        """Everything to report apart from the state of each server."""
        left_out = [f"{name} is this gateway itself, and left out." for name in self.left_out]
        stopping = [f"The gateway {self.stopping_sentence()}"] if self.stopping else []
        return [*stopping, *map(str, self.problems), *self.findings, *left_out]

    def stopping_sentence(self) -> str:
        """The rest of a sentence about a gateway that is shutting down."""
        calls = sum(server.in_flight for server in self.servers)
        rest = f"; {calls} {'call is' if calls == 1 else 'calls are'} still in progress" if calls else ""
        return f"is shutting down and accepts no new requests{rest}."


class LogLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line that a server wrote."""

    number: int
    at: float
    """Seconds since 1970."""
    server: str
    text: str
    is_stdout: bool = False
    """Whether it was printed to stdout, where only messages belong."""


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
