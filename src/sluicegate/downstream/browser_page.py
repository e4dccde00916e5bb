"""The page that a browser gets: what this is, the address of the endpoint, and how to connect."""

import json
from html import escape
from typing import Final

from sluicegate.runtime.identity import Fields, RequestHeaders

FIELDS: Final[Fields] = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>sluicegate</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.6 system-ui, sans-serif; max-width: 42rem; margin: 12vh auto 4rem; padding: 0 1.25rem; }}
h1 {{ font-size: 1.4rem; margin: 0 0 .5rem; }}
h2 {{ font-size: 1rem; margin: 2rem 0 .5rem; }}
p {{ margin: .5rem 0; }}
code, pre {{ font: .9rem/1.5 ui-monospace, monospace; }}
pre {{ padding: .75rem 1rem; border: 1px solid color-mix(in srgb, currentColor 25%, transparent);
  border-radius: 6px; overflow-x: auto; margin: .5rem 0; }}
</style>
</head>
<body>
<h1>sluicegate</h1>
<p>This is an MCP endpoint. It is for AI applications, not for browsers. Connect them to this address:</p>
<pre>{url}</pre>
<h2>Claude Code</h2>
<pre>claude mcp add --transport http sluicegate {url}</pre>
<h2>Applications with a JSON file of servers</h2>
<pre>{entry}</pre>
<h2>Applications that sluicegate knows</h2>
<pre>sluicegate connect</pre>
</body>
</html>
"""


def wants_page(headers: RequestHeaders) -> bool:
    """Whether a GET comes from a browser. Clients of MCP do not accept HTML."""
    return "text/html" in (headers.get("accept") or "").lower()


def page(host: str, path: str) -> bytes:
    """The page for an endpoint at this path."""
    url = f"http://{host}{path}"
    entry = json.dumps({"mcpServers": {"sluicegate": {"type": "http", "url": url}}}, indent=2)
    return _PAGE.format(url=escape(url), entry=escape(entry)).encode()
