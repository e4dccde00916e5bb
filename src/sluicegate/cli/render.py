"""How commands show things: tables and colours on a terminal, lines with tabs elsewhere, JSON where it is asked for.

The one rule: what a server or a file says never moves the cursor. On a terminal, characters that do not print are
replaced; in sentences on stderr always, for they are shown on one sooner or later.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click
import msgspec

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
    """Tell whoever runs the command something that is not its result."""
    tell(f"sluicegate: {sentence}")


def tell(line: str) -> None:
    """Write one line to stderr, if that can be: where its disk is full or its reader gone, the work goes on (R33)."""
    with suppress(OSError):
        click.echo(one_line(line), err=True)


def is_terminal() -> bool:
    """Whether a person reads what we write to stdout."""
    return sys.stdout is not None and sys.stdout.isatty()  # pyright: ignore[reportUnnecessaryComparison] - may be closed


def on_terminal(*, err: bool = False) -> "Console":
    """A console with colours if it is a terminal that has them and NO_COLOR is not set."""
    from rich.console import Console  # Rich takes longer to import than most commands take.

    return Console(stderr=err, highlight=False, emoji=False, markup=False)


def clean(text: str) -> str:
    """The text with every character replaced that does something else than print."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def one_line(text: str) -> str:
    """The text as one clean line: nobody can begin another, which would look as if we had said it."""
    return clean(re.sub(r"[\r\n]\s*", " ", text.strip("\r\n")))


def first_line(text: str | None) -> str:
    """What a description begins with."""
    return (text or "").strip().partition("\n")[0].strip()


def first_sentence(text: str | None) -> str:
    """The first sentence of a description, or all of its first paragraph if that has no end."""
    paragraph = " ".join((text or "").strip().partition("\n\n")[0].split())
    for end in re.finditer(r"[.!?](?= )", paragraph):
        if not paragraph[: end.end()].endswith(("e.g.", "i.e.", "etc.", "vs.")):
            return paragraph[: end.end()]
    return paragraph


def as_sentence(details: str) -> str:
    """What a server said of its end, which comes as the end of another sentence, as one of its own."""
    said = " ".join(details.strip(" ;:").split())
    return f"{said[:1].upper()}{said[1:]}"


def about(name: str, sentence: str) -> str:
    """A sentence with the name in front that it is about, unless it begins with that already."""
    return sentence if sentence.startswith((f"{name} ", f"{name}:")) else f"{name}: {sentence}"


def counted(number: int, what: str) -> str:
    """So many of a thing, in words: 1 tool, 2 tools."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def show_json(value: object) -> None:
    """Print a value as JSON that a person can read too."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def show_text(text: str) -> None:
    """Print a text that is not ours: as it is into a pipe or a file, harmless on a terminal."""
    # color=True: not a byte of it is taken out. On a terminal, there is nothing left that could be one.
    click.echo(clean(text) if is_terminal() else text, color=True)


def show_rows(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Print rows: a table on a terminal, else a line each with tabs between and no head.

    `numbers` are the columns that stand to the right.
    """
    if is_terminal():
        show(table(head, rows, numbers=numbers))
        return
    for row in rows:
        click.echo("\t".join(" ".join(cell.split()) for cell in row))


def show(renderable: "RenderableType") -> None:
    """Print something of Rich's to stdout."""
    on_terminal().print(renderable)


def fitting(
    head: Sequence[str], rows: Sequence[Sequence[str]], spared: Sequence[str], width: int
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The columns that there is room for: the `spared` ones go first, one by one, before any word would be broken."""
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
    """The rows under their heads. A column called "state" has the state's colour."""
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
