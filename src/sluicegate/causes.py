"""Why a server does not run, recognised from what it said, with the way out: a sentence for each known cause."""

import re
from functools import cache
from typing import Final

from sluicegate.errors import UpstreamError, UpstreamUnavailable

LAST_WORDS: Final = "its last words:"
"""What stands in an error's details before the end of what the server wrote to its stderr."""
LONG_AGO: Final = " before)"
"""How those details end if it wrote that long before its end: then it is hardly the cause."""

_NO_HANDSHAKE: Final = "did not answer the handshake within"
_MORE_TIME: Final = (
    " If it is an MCP server that needs longer, raise start_timeout, or install_timeout if it has to be fetched first."
)
_LOG_SAYS: Final = "; its log says which"

# What 2.0 of the Python SDK took away, as servers of 1.x die of it (tests/test_causes.py runs them), and brought.
_DECORATORS: Final = (
    "list_tools|call_tool|list_prompts|get_prompt|list_resources|list_resource_templates|read_resource"
    "|subscribe_resource|unsubscribe_resource|set_logging_level|progress_notification"
)
_OF_SERVERS: Final = "completion|request_context|request_handlers|notification_handlers|experimental"
_FIELDS: Final = "inputSchema|outputSchema|isError|structuredContent|mimeType|uriTemplate"
_SINCE_2: Final = "(?-i:MCPServer|MCPError)"  # What is gone is McpError.

# Looked for in the end of the server's stderr; the first that fits counts, so the more exact ones come first. What is
# said must be safe to show to a client, so nothing of what was found is repeated.
_KNOWN: Final = (
    (
        r"No module named 'mcp\.\S*; 'mcp' is not a package",
        "A file mcp.py of its own is found in the place of the Python SDK: give that file another name.",
    ),
    (
        rf"No module named '(mcp\.server\.mcpserver|mcp_types)\b|cannot import name '({_SINCE_2})' from 'mcp\b"
        rf"|module 'mcp\b[^']*' has no attribute '({_SINCE_2})'|unexpected keyword argument 'on_(list|call|get|read)_",
        'It is written for 2.x of the Python SDK, and an older one was installed: ask for "mcp>=2" in its command, for'
        ' instance uvx --with "mcp>=2".',
    ),
    (
        r"No module named 'mcp\.|cannot import name '\w+' from 'mcp(\.[\w.]+)?'|module 'mcp\b[^']*' has no attribute"
        rf"|'(?!NoneType')\w+' object has no attribute '({_DECORATORS})'"
        rf"|'Server' object has no attribute '({_OF_SERVERS})'|'[A-Z]\w+' object has no attribute '({_FIELDS})'",
        'It does not run with the Python SDK that was installed (2.0 broke with 1.x): pin "mcp<2" in its command, for'
        ' instance uvx --with "mcp<2".',
    ),
    (
        r"No module named 'httpx(_sse)?'",
        "It needs httpx, which came with the Python SDK before 2.0: add it to its command, for instance uvx --with"
        ' httpx, or pin "mcp<2".',
    ),
    (
        r"can't open file|Cannot find module '[/.]|Error: ENOENT|spawn \S+ ENOENT",
        "A file or program that its arguments name does not exist: look at its entry.",
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
        "It could not reach the network, which its package may have to be fetched from.",
    ),
    (
        r"KeyError: '[A-Z][A-Z0-9_]*'|environment variable|\benv(ironment)? var"
        r"|[A-Z]_(KEY|TOKEN) (is )?(required|missing|not set)",
        "A variable that it needs is not set: give it in env.",
    ),
    (r"EADDRINUSE|address already in use", "A port that it needs is taken."),
    (r"permission denied|\bEACCES\b|\bEPERM\b", "It may not use a file that it needs: look at who owns it."),
    (r"command not found|: not found$", "A program that it starts itself is not installed."),
    (r"No such file or directory", "A file that it needs does not exist: look at its arguments and its folder."),
    (
        r"\b401\b|Unauthorized|invalid api key|authentication failed",
        "What it talks to does not accept its credentials: look at its variables.",
    ),
    (r"ECONNREFUSED|connection refused", "What it talks to is not running."),
    (r"CERT_|certificate", "It does not trust a certificate that it was shown."),
    (r"out of memory|MemoryError|heap limit|bad_alloc", "It ran out of memory."),
    (
        r"EBADENGINE|Unsupported engine|requires (a )?(different )?(Python|Node)",
        "It needs another version of its runtime.",
    ),
)


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    # When they are first needed: to compile them takes milliseconds, and most gateways have no server that fails.
    return [(re.compile(pattern, re.IGNORECASE), sentence) for pattern, sentence in _KNOWN]


def explain(name: str, problem: UpstreamError, *, has_log: bool = True) -> str:
    """A sentence that names the server, the cause and the way out; safe to show to a client.

    Where nobody can look into its log, because it is gone with the server, nobody is told to.
    """
    if problem.reason == "backend_auth":
        return f"{problem.message} Set its headers."
    is_old = problem.details.endswith(LONG_AGO)
    for pattern, sentence in () if is_old else _patterns():
        if pattern.search(problem.details):
            return f"{name} does not run. {sentence if has_log else sentence.replace(_LOG_SAYS, '')}"
    if isinstance(problem, UpstreamUnavailable):
        # Our own sentence, which has the way out in it, though perhaps not the name.
        message = problem.message if problem.message.endswith((".", "?", "!")) else f"{problem.message}."
        if _NO_HANDSHAKE in message:
            message += _MORE_TIME
        return message if name in message else f"{name} does not run. {message}"
    message = problem.message.rstrip(".")
    # Only one that said something has a log to look into; one at a URL has none here.
    has_log = has_log and LAST_WORDS in problem.details
    return f"{message}; see `sluicegate logs {name}`." if has_log else f"{message}."
