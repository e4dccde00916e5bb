"""The status of each server: its state, its figures, and why it does not run.

It imports nothing that runs a gateway, so that a command which only asks a running one loads quickly.
"""

import re
import time
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

import msgspec

from sluicegate.config.model import ServerConfig
from sluicegate.errors import UpstreamError, UpstreamUnavailable

if TYPE_CHECKING:
    from sluicegate.gateway.server_logs import ServerLog
    from sluicegate.hub.mount import Mount


class HeldItem(msgspec.Struct, frozen=True, kw_only=True):
    """A tool, prompt or resource that is not offered until a person approves its definition."""

    server: str
    kind: str
    """`tools`, `prompts`, `resources` or `templates`."""
    name: str
    """As clients would see it."""
    why: str
    """Why, and what to do."""

    @property
    def sentence(self) -> str:
        return f"{self.server}: {self.name} is not offered. {self.why}"


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one server, for the user of the gateway."""

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
    p50_ms: float = 0.0
    """Of the last answered calls, half took no longer than this. Calls that ran into their time-out do not count."""
    p95_ms: float = 0.0
    in_flight: int = 0
    waiting: int = 0
    restarts: int = 0
    hangs: int = 0
    """How many of the restarts were because it answered neither calls nor pings."""
    unfetched: Sequence[str] = ()
    """The lists that it did not return, where it is connected and everything else of it works."""
    seconds: float = 0.0
    """How long it has been in this state."""
    details: str = ""
    """What the server itself wrote before it ended; not for clients."""
    lost: Mapping[str, int] = {}
    """What could not be translated between its era and its callers' eras, with counts."""
    lost_at: float = 0.0
    """When that happened last, in seconds since 1970."""
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


def status_of(
    mount: "Mount", server: ServerConfig, offered: Mapping[str, int], server_log: "ServerLog"
) -> ServerStatus:
    """The status of a server that is mounted; `offered` counts by kind what clients see of it."""
    condition, calls = mount.condition(), mount.calls
    figures, problem = calls.figures, condition.problem
    return ServerStatus(
        name=mount.name,
        state=condition.state.value,
        sentence=condition.sentence,
        kind=server.kind,
        transport=mount.transport or _transport_of(server),
        key=server.key,
        version=mount.discovery.version if mount.discovery is not None else "",
        session_version=mount.session_version,
        prefix=mount.prefix,
        tools=offered["tools"],
        prompts=offered["prompts"],
        resources=offered["resources"],
        calls=figures.calls,
        errors=figures.errors,
        p50_ms=_percentile(figures.recent, 50),
        p95_ms=_percentile(figures.recent, 95),
        in_flight=calls.limit.in_use,
        waiting=calls.limit.waiting,
        restarts=figures.restarts,
        hangs=figures.hangs,
        unfetched=condition.unfetched,
        seconds=round(time.monotonic() - condition.since, 1),
        details=problem.details.strip() if problem is not None else "",
        lost=dict(calls.losses),
        lost_at=calls.lost_at,
        printed=server_log.printed,
        printed_line=server_log.last_printed,
    )


def _percentile(seconds: Collection[float], percent: int) -> float:
    """The time, in milliseconds, that this percentage of calls did not exceed; 0 without calls."""
    ordered = sorted(seconds)
    return round(1000 * ordered[(len(ordered) - 1) * percent // 100], 1) if ordered else 0.0


def unmounted_status(server: ServerConfig, broken: str) -> ServerStatus:
    """The status of a server that is not mounted; `broken` says why it could not be created."""
    return ServerStatus(
        name=server.name,
        state="failed" if broken else "wrong" if server.is_wrong else "disabled",
        sentence=broken or server.disabled or "It is being removed.",
        kind=server.kind,
        transport=_transport_of(server),
        key=server.key,
    )


def _transport_of(server: ServerConfig) -> str:
    """The transport of a server, if its entry determines it."""
    return server.kind if server.kind in ("stdio", "python") else ""


# --------------------------------------------------------------------- known causes, recognised from the last output

LAST_OUTPUT_MARK: Final = "its last output:"
"""What precedes the end of the server's stderr in the details of an error."""
OLD_OUTPUT_MARK: Final = " before)"
"""How those details end if the server wrote them long before it ended: then they are hardly the cause."""

_NO_HANDSHAKE: Final = "did not answer the handshake within"
_MORE_TIME: Final = (
    " If it is an MCP server that needs longer, raise start_timeout, or install_timeout if it has to be fetched first."
)
_LOG_SAYS: Final = " (its log says which)"

# Names that 2.0 of the Python SDK removed, as servers for 1.x fail with it (tests/test_causes.py runs them).
_DECORATORS: Final = (
    "list_tools|call_tool|list_prompts|get_prompt|list_resources|list_resource_templates|read_resource"
    "|subscribe_resource|unsubscribe_resource|set_logging_level|progress_notification"
)
_OF_SERVERS: Final = "completion|request_context|request_handlers|notification_handlers|experimental"
_FIELDS: Final = "inputSchema|outputSchema|isError|structuredContent|mimeType|uriTemplate"
_SINCE_2: Final = "(?-i:MCPServer|MCPError)"  # New in 2.0; the removed one is McpError.

# Searched in the end of the server's stderr. The first match wins, so the more exact patterns come first. The sentences
# are shown to clients, so they repeat nothing of what was found.
_KNOWN: Final = (
    (
        r"No module named 'mcp\.\S*; 'mcp' is not a package",
        "A file mcp.py of its own is imported instead of the Python SDK: rename that file.",
    ),
    (
        rf"No module named '(mcp\.server\.mcpserver|mcp_types)\b|cannot import name '({_SINCE_2})' from 'mcp\b"
        rf"|module 'mcp\b[^']*' has no attribute '({_SINCE_2})'|unexpected keyword argument 'on_(list|call|get|read)_",
        'It is written for 2.x of the Python SDK, but an older one is installed: require "mcp>=2" in its command, for'
        ' instance uvx --with "mcp>=2".',
    ),
    (
        r"No module named 'mcp\.|cannot import name '\w+' from 'mcp(\.[\w.]+)?'|module 'mcp\b[^']*' has no attribute"
        rf"|'(?!NoneType')\w+' object has no attribute '({_DECORATORS})'"
        rf"|'Server' object has no attribute '({_OF_SERVERS})'|'[A-Z]\w+' object has no attribute '({_FIELDS})'",
        'It does not run with the installed Python SDK (2.0 is incompatible with 1.x): pin "mcp<2" in its command, for'
        ' instance uvx --with "mcp<2".',
    ),
    (
        r"No module named 'httpx(_sse)?'",
        "It needs httpx, which came with the Python SDK before 2.0: add it to its command, for instance uvx --with"
        ' httpx, or pin "mcp<2".',
    ),
    (
        r"can't open file|Cannot find module '[/.]|Error: ENOENT|spawn \S+ ENOENT",
        "A file or program in its arguments does not exist: check its entry.",
    ),
    (
        r"ModuleNotFoundError|No module named",
        f"A package that it needs is not installed for the Python that runs it{_LOG_SAYS}: install it there, or add it"
        " to its command, for instance uvx --with PACKAGE.",
    ),
    (
        r"Cannot find (module|package)|ERR_MODULE_NOT_FOUND",
        f"A package that it needs is not installed for the program that runs it{_LOG_SAYS}: run npm install in its"
        " folder.",
    ),
    (
        r"\bE404\b|404 Not Found.*npm|No solution found|not found in the package registry|No matching distribution",
        "Its package does not exist under that name and version.",
    ),
    (
        r"\bETIMEDOUT\b|\bEAI_AGAIN\b|\bENOTFOUND\b|network is unreachable|Could not resolve|getaddrinfo",
        "It could not reach the network, which may be needed to fetch its package.",
    ),
    (
        r"KeyError: '[A-Z][A-Z0-9_]*'|environment variable|\benv(ironment)? var"
        r"|[A-Z]_(KEY|TOKEN) (is )?(required|missing|not set)",
        "A variable that it needs is not set: set it in env.",
    ),
    (r"EADDRINUSE|address already in use", "A port that it needs is in use."),
    (
        r"permission denied|\bEACCES\b|\bEPERM\b",
        "It has no permission for a file that it needs: check the owner of that file.",
    ),
    (r"command not found|: not found$", "A program that it starts itself is not installed."),
    (r"No such file or directory", "A file that it needs does not exist: check its arguments and its folder."),
    (
        r"\b401\b|Unauthorized|invalid api key|authentication failed",
        "The service that it uses does not accept its credentials: check its variables.",
    ),
    (r"ECONNREFUSED|connection refused", "The service that it uses is not running."),
    (r"CERT_|certificate", "It does not trust the certificate of a service that it uses."),
    (r"out of memory|MemoryError|heap limit|bad_alloc", "It ran out of memory."),
    (
        r"EBADENGINE|Unsupported engine|requires (a )?(different )?(Python|Node)",
        "It needs another version of its runtime.",
    ),
)


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    # Compiled when first needed: that takes milliseconds, and most gateways have no failing server.
    return [(re.compile(pattern, re.IGNORECASE), sentence) for pattern, sentence in _KNOWN]


def explain(name: str, problem: UpstreamError, *, has_log: bool = True) -> str:
    """A sentence with the server's name, the cause and what to do; safe to show to a client.

    Without `has_log`, it does not refer to the server's log.
    """
    if problem.reason == "backend_auth":
        return f"{problem.message} Set its headers."
    is_old = problem.details.endswith(OLD_OUTPUT_MARK)
    for pattern, sentence in () if is_old else _patterns():
        if pattern.search(problem.details):
            return f"{name} does not run. {sentence if has_log else sentence.replace(_LOG_SAYS, '')}"
    if isinstance(problem, UpstreamUnavailable):
        # Our own sentence, which says what to do, but may lack the name.
        message = problem.message if problem.message.endswith((".", "?", "!")) else f"{problem.message}."
        if _NO_HANDSHAKE in message:
            message += _MORE_TIME
        return message if name in message else f"{name} does not run. {message}"
    message = problem.message.rstrip(".")
    # Only a server that wrote something has a log; one at a URL has none here.
    has_log = has_log and LAST_OUTPUT_MARK in problem.details
    return f"{message}; see `sluicegate logs {name}`." if has_log else f"{message}."
