"""docs/bridge.md, made of what came of a run: a table cannot say more than was seen."""

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

Made by `python -m tests.bridge.matrix`; `tests/bridge` fails when it is not what a run gives.

A client and a server that speak different revisions of the protocol meet through the gateway, over whatever transport
each of them has. Rows are clients, columns are servers. All of these speak exactly one revision; they are written by
hand, and each message that a client gets is held against the official schema of its revision.

✓ means that everything in the list below was tried and came out as it should. A letter behind it is something that
the two revisions do not have in common; what comes of it is said under the table, and seen in every run.
"""

_TRIED: Final = """\
## What is tried

"""

_NOTES: Final = """\
## What the letters mean

What is in italics is counted for each server, under these words; `sluicegate status` shows it.

"""

TASKS: Final = """\
## Tasks

In 2025-11-25 tasks are part of the protocol, for 2026-07-28 they are an extension (`io.modelcontextprotocol/tasks`).
The two have the word in common, and no message. What comes of a call, by what client and server have of them:

| client ↓ server → | 2025-11-25, a tool that takes a task only | 2026-07-28 with the extension | without |
| --- | --- | --- | --- |
| 2026-07-28 that declares the extension | a plain call | a plain call, or a task that passes | a plain call |
| every other | a plain call | a plain call, or the server's word that it cannot | a plain call |

A task that passes is begun, asked about, answered, cancelled and listened to by the client itself, under an id that is
good for its caller only. A tool that takes a task only is called as one by the gateway, which fetches the result.
Counted where it is lost: *progress of tasks*, *extensions that the caller does not know*.
"""

_SDKS: Final = """\
## Official SDKs

The SDKs for Python and TypeScript, each before and from 2.0 on, as clients and as servers, with each other and with
those of our own hand; that for Python can be made to speak any revision from 2.0 on. Clients over stdio start the
gateway themselves. With each pair these were tried: a list, a call, progress, a log line, cancelling, a form, a
model's answer, a resource, an update of one that is subscribed to (told once, of that one only, and not after the
subscription has ended) and a change of the list of tools. The letters are those above.

All four have all of it. What they leave to whoever writes a server or a client:

- In the session era a server answers `resources/subscribe` only by a handler of its own, on the low-level server: none
  of `FastMCP`, `MCPServer` and `McpServer` has one. Python 1.x moreover says that it has no subscriptions, whatever
  handlers there are; the server here says that it does. Those of 2026-07-28 answer `subscriptions/listen` themselves.
- A server of TypeScript 2.x without sessions can in the session era neither ask nor tell: here it has sessions.
- Clients of both TypeScript SDKs do not show their caller what arrives in one piece with the result: over stdio and
  HTTP+SSE that is progress. What is compared is what has arrived.
"""


def raw_part(matrix: Matrix) -> str:
    """The part of the page that is about servers and clients of our own hand."""
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
    tried.append("Changes: an update of a resource and a change of a list, told to each client that wants it, once.")
    notes = [_wrapped(f"- **{mark}** {_note(mark)}") for mark in sorted(NOTES) if mark in used]
    return "\n".join(
        [_HEAD, table, "", _NOTES.rstrip(), "", *notes, "", _TRIED.rstrip(), "", *(f"- {line}" for line in tried), ""]
    )


def sdk_part(matrix: SdkMatrix) -> str:
    """The part of the page that is about the official SDKs."""
    sdks = [client.title for client in CLIENTS]
    all_clients = [*(by_hand(side) for side in SIDES), *sdks]
    python, typescript = ([server for server in THEIRS if server.is_python is wanted] for wanted in (True, False))
    parts = {
        "Servers made with the Python SDK": _sdk_table(matrix, all_clients, python),
        "Servers made with the TypeScript SDK": _sdk_table(matrix, all_clients, typescript),
        "Servers written by hand, by HTTP": _sdk_table(matrix, sdks, OURS),
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
    """Run everything and write the page; a failure is shown and leaves the page as it was."""
    with tempfile.TemporaryDirectory() as raw, tempfile.TemporaryDirectory() as sdks:
        matrix = asyncio.run(run_matrix(Path(raw)))
        strangers = asyncio.run(run_sdks(Path(sdks)))
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
