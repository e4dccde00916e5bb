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
from tests.bridge.sdk import SdkMatrix, run_sdks
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

The Python SDK before and from 2.0 on as clients, which from 2.0 on can be made to speak any revision; and as servers.
With each pair a list, a call, progress, a log line, cancelling, a form, a model's answer and a resource were tried.

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
    servers = list(dict.fromkeys(server for _, server in matrix))
    clients = list(dict.fromkeys(client for client, _ in matrix))
    rows = {
        client: [
            "" if (found := matrix.get((client, server))) is None else _cell(found.failures, found.marks)
            for server in servers
        ]
        for client in clients
    }
    return "\n".join([_SDKS.rstrip(), "", _table("client ↓ server →", servers, rows), ""])


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
