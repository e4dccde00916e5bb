"""Writes docs/bridge.md from the results of a run."""

import asyncio
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.bridge.checks import CHECKS, NOTES
from tests.bridge.matrix import Matrix, run_matrix
from tests.bridge.sdk import SdkMatrix, by_hand, run_sdks
from tests.bridge.sdk_sides import CLIENTS, OURS, THEIRS, Server
from tests.bridge.stage import ROOT, SIDES, Side

PAGE: Final = ROOT / "docs" / "bridge.md"

_HEAD: Final = """\
# Every revision with every other

`python -m tests.bridge.matrix` generates this page. `tests/bridge` fails if a run gives other results.

Clients and servers of different revisions communicate through the gateway, each over its own transport. Rows are
clients, columns are servers. Each of them speaks exactly one revision and is written by hand for these tests, and each
message that a client receives is validated against the official schema of its revision.

✓ means that everything in the list of tested features works. A letter stands for a feature that the two revisions do
not share; the notes below the table say what the gateway does then. Every run checks that, too.
"""

_TRIED: Final = """\
## Tested features

"""

_NOTES: Final = """\
## What the letters mean

`sluicegate status` counts losses for each server, under the words in italics.

"""

TASKS: Final = """\
## Tasks

In 2025-11-25 tasks are part of the protocol; for 2026-07-28 they are an extension (`io.modelcontextprotocol/tasks`).
The two share the name and no message. What a call becomes depends on what client and server support:

| client ↓ server → | 2025-11-25, a tool that must be called as a task | 2026-07-28 with the extension | without |
| --- | --- | --- | --- |
| 2026-07-28 that declares the extension | a plain call | a plain call, or a task of the client | a plain call |
| every other | a plain call | a plain call, or the server's error that it cannot | a plain call |

A client that controls a task polls, answers, cancels and listens itself. Only the caller that got the task's id can use
it. A tool that must be called as a task is called so by the gateway, which fetches the result. Losses are counted as
*progress of tasks* and *extensions that the caller does not know*.
"""

_SDKS: Final = """\
## Official SDKs

The official SDKs for Python and TypeScript, in versions before 2.0 and from 2.0 on, as clients and as servers, with
each other and with those written by hand. The Python SDK from 2.0 on can be made to speak any revision. Clients over
stdio start the gateway themselves. These features are tested with each pair: a list, a call, progress, a log message,
cancelling, a form, sampling, a resource, an update of a subscribed resource (once, of that resource only, and not after
the subscription has ended) and a change of the list of tools. The letters are those above.

All four SDKs support all of it, with these limits:

- In the session era a server needs a handler of its own for `resources/subscribe`, on the low-level server: `FastMCP`,
  `MCPServer` and `McpServer` have none. Python 1.x does not declare subscriptions whatever handlers there are; the
  gateway asks the server all the same. Servers of 2026-07-28 handle `subscriptions/listen` without such code.
- A server of TypeScript 2.x without sessions cannot send requests or notifications in the session era. Here it has
  sessions.
- Clients of both TypeScript SDKs do not report progress that arrives together with the result, over stdio and HTTP+SSE.
  The comparison is made with what arrived.
"""


def raw_part(matrix: Matrix) -> str:
    """The part of the page about servers and clients written by hand."""
    used = {mark for cell in matrix.values() for mark in cell.marks}
    table = _table(
        "client ↓ server →",
        [_title(side) for side in SIDES],
        {
            _title(client): [_cell(matrix[client, server].failures, matrix[client, server].marks) for server in SIDES]
            for client in SIDES
        },
    )
    tried = [check.__doc__ or "" for check in CHECKS.values()]
    tried.append("Changes: each client that subscribed gets an update of a resource and a change of a list once.")
    notes = [_wrapped(f"- **{mark}** {_note(mark)}") for mark in sorted(NOTES) if mark in used]
    return "\n".join(
        [_HEAD, table, "", _NOTES.rstrip(), "", *notes, "", _TRIED.rstrip(), "", *(f"- {line}" for line in tried), ""]
    )


def sdk_part(matrix: SdkMatrix) -> str:
    """The part of the page about the official SDKs."""
    sdks = [client.title for client in CLIENTS]
    all_clients = [*(by_hand(side) for side in SIDES), *sdks]
    python, typescript = ([server for server in THEIRS if server.is_python is wanted] for wanted in (True, False))
    parts = {
        "Servers made with the Python SDK": _sdk_table(matrix, all_clients, python),
        "Servers made with the TypeScript SDK": _sdk_table(matrix, all_clients, typescript),
        "Servers written by hand, over HTTP": _sdk_table(matrix, sdks, OURS),
    }
    tables = [line for title, table in parts.items() for line in ("", f"### {title}", "", table)]
    return "\n".join([_SDKS.rstrip(), *tables, ""])


def _sdk_table(matrix: SdkMatrix, clients: Sequence[str], servers: Sequence[Server]) -> str:
    cells = {client: [matrix[client, server.title] for server in servers] for client in clients}
    rows = {client: [_cell(cell.failures, cell.marks) for cell in row] for client, row in cells.items()}
    return _table("client ↓ server →", [server.title for server in servers], rows)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)


def _note(mark: str) -> str:
    note = NOTES[mark]
    return f"{note.sentence} *{note.loss}*" if note.loss else note.sentence


def _title(side: Side) -> str:
    return f"{side.revision} {side.transport}"


def _cell(failures: Sequence[str], marks: set[str]) -> str:
    return " ".join(["✗" if failures else "✓", *sorted(marks)])


def _table(corner: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    lines = [[corner, *columns], ["---"] * (len(columns) + 1), *([name, *cells] for name, cells in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_page() -> None:
    """Run everything and write the page. Failures are printed, and the page stays as it is."""
    with tempfile.TemporaryDirectory() as raw, tempfile.TemporaryDirectory() as sdks:
        matrix = asyncio.run(run_matrix(Path(raw)))
        strangers = asyncio.run(run_sdks(Path(sdks), every_pair=True))
    failures = {
        f"{client} → {server}": cell.failures
        for cells in (matrix, strangers)
        for (client, server), cell in cells.items()
        if cell.failures
    }
    for pair, found in failures.items():
        print(pair, *found, sep="\n", file=sys.stderr)
    if failures:
        sys.exit(1)
    PAGE.write_text("\n".join([raw_part(matrix), TASKS, sdk_part(strangers)]), encoding="utf-8")
