"""How commands print: tables and colours on a terminal, lines with tabs elsewhere, JSON where --json asks for it.

Text of servers and files never moves the cursor: control characters are replaced, and escaped in JSON.
Rich is imported in functions, because it takes longer to import than most commands take to run.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click
import msgspec

from sluicegate.protocol.visible_text import CONTROLS

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

STATES: Final = {
    "ready": "green",
    "starting": "yellow",
    "installing": "yellow",
    "degraded": "red",
    "failed": "bold red",
    "disabled": "dim",
}
_GAP: Final = 3  # Characters between two columns of a table.


def say(sentence: str) -> None:
    """Print a sentence to stderr, which is not part of the command's result."""
    tell(f"sluicegate: {sentence}")


def tell(line: str) -> None:
    """Write one line to stderr. If that fails, because the disk is full or the reader gone, the work goes on (R33)."""
    with suppress(OSError):
        click.echo(one_line(line), err=True)


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()  # pyright: ignore[reportUnnecessaryComparison] - may be closed


def on_terminal(*, err: bool = False) -> "Console":
    """A Rich console; it has colours if it is a terminal that supports them and NO_COLOR is not set."""
    from rich.console import Console

    return Console(stderr=err, highlight=False, emoji=False, markup=False)


def clean(text: str) -> str:
    """The text with every character replaced that controls a terminal or hides text (T23); line ends are \\n."""
    return CONTROLS.sub("\ufffd", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """The text as one clean line, so that no part of it looks like a line of ours."""
    return clean(re.sub(r"[\r\n]\s*", " ", text.strip("\r\n")))


def first_line(text: str | None) -> str:
    """The first line of a description."""
    return (text or "").strip().partition("\n")[0].strip()


def first_sentence(text: str | None) -> str:
    """The first sentence of a description, or its whole first paragraph if no sentence ends in it."""
    paragraph = " ".join((text or "").strip().partition("\n\n")[0].split())
    for end in re.finditer(r"[.!?](?= )", paragraph):
        if not paragraph[: end.end()].endswith(("e.g.", "i.e.", "etc.", "vs.")):
            return paragraph[: end.end()]
    return paragraph


def as_sentence(details: str) -> str:
    """The details of a failure, which are written as the end of another sentence, as a sentence of their own."""
    text = " ".join(details.strip(" ;:").split())
    return f"{text[:1].upper()}{text[1:]}"


def about(name: str, sentence: str) -> str:
    """A sentence with the name of its subject in front, unless it begins with that already."""
    return sentence if sentence.startswith((f"{name} ", f"{name}:")) else f"{name}: {sentence}"


def counted(number: int, what: str) -> str:
    """A number with its noun: 1 tool, 2 tools."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def times(number: int) -> str:
    """How often something happened: once, 2 times."""
    return "once" if number == 1 else f"{number} times"


def show_json(value: object) -> None:
    """Print a value as indented JSON."""
    click.echo(_escaped(msgspec.json.format(msgspec.json.encode(value), indent=2)))


def show_json_line(value: object) -> None:
    """Print a value as one line of JSON."""
    click.echo(_escaped(msgspec.json.encode(value)))


def _escaped(encoded: bytes) -> str:
    """JSON in which control characters, which are inside strings only, are escaped."""
    return CONTROLS.sub(lambda found: json.dumps(found[0])[1:-1], encoded.decode())


def show_text(text: str) -> None:
    """Print a text that is not ours, cleaned: what is in a pipe is often shown on a terminal later."""
    click.echo(clean(text))


def show_rows(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Print a table on a terminal, else one line per row with tabs and no head; `numbers` are right-aligned columns."""
    if is_terminal():
        show(table(head, rows, numbers=numbers))
        return
    for row in rows:
        click.echo("\t".join(clean(" ".join(cell.split())) for cell in row))


def show(renderable: "RenderableType") -> None:
    """Print a Rich object to stdout."""
    on_terminal().print(renderable)


def show_styled(*parts: tuple[str, str]) -> None:
    """Print texts with their Rich styles, as one line."""
    from rich.text import Text

    show(Text.assemble(*parts))


def fitting(
    head: Sequence[str], rows: Sequence[Sequence[str]], spared: Sequence[str], width: int
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The columns that fit into the width: those in `spared` are dropped in order until no word has to be broken."""
    kept = list(range(len(head)))
    needed = [
        max(len(head[column]), *(len(row[column]) for row in rows)) if rows else len(head[column]) for column in kept
    ]
    for title in spared:
        if sum(needed[column] for column in kept) + _GAP * (len(kept) - 1) <= width:
            break
        kept.remove(head.index(title))
    return [head[column] for column in kept], [[row[column] for column in kept] for row in rows]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> "Table":
    """A Rich table. Cells of a column called "state" have the colour of the state."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for number, title in enumerate(head):
        made.add_column(title, justify="right" if title in numbers else "left", no_wrap=number == 0, overflow="fold")
    for row in rows:
        cells = [
            Text(one_line(cell), style=STATES.get(cell, "") if title == "state" else "")
            for title, cell in zip(head, row, strict=True)
        ]
        made.add_row(*cells)
    return made
