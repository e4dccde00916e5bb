"""How commands print: tables and colours on a terminal, lines with tabs elsewhere, JSON where --json asks for it.

Text of servers and files never moves the cursor: control characters are replaced, and escaped in JSON.
Rich is imported in functions, because it takes longer to import than most commands take to run.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click
import msgspec

from sluicegate.runtime import standard_streams
from sluicegate.runtime.standard_streams import columns_of, has_colours, wrapped, write_line
from sluicegate.text.visible_text import CONTROLS

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

STATES: Final = {
    "ready": "green",
    "starting": "yellow",
    "installing": "yellow",
    "degraded": "red",
    "failed": "bold red",
    "wrong": "bold red",
    "disabled": "dim",
}
_GAP: Final = 3  # Characters between two columns of a table.
READABLE: Final = 40
"""Characters that the widest column of a table needs to be readable."""


def say(sentence: str, *, paint: Mapping[str, str] | None = None) -> None:
    """Print a sentence to stderr, which is not part of the command's result."""
    tell(f"sluicegate: {sentence}", paint=paint)


def say_error(sentence: str) -> None:
    """Print why a command failed, to stderr; on a terminal, in red."""
    say(sentence, paint={"": "red"})


def tell(line: str, *, hang: int = 4, paint: Mapping[str, str] | None = None) -> None:
    """Write one line to stderr, as `write_line` does. If that fails, the work goes on (R33)."""
    write_line(one_line(line), hang=hang, paint=paint)


def is_terminal(*, err: bool = False) -> bool:
    """Whether stdout is a terminal, or stderr."""
    stream = sys.stderr if err else sys.stdout
    return stream is not None and stream.isatty()  # pyright: ignore[reportUnnecessaryComparison] - may be closed


def painted(text: str, style: str) -> str:
    """The text in a style such as "bold red" if stdout has colours, else as it is."""
    return standard_streams.painted(text, style) if is_terminal() and has_colours(sys.stdout) else text


def on_terminal(*, err: bool = False) -> "Console":
    """A Rich console; it has colours if it is a terminal that supports them and NO_COLOR is not set."""
    from rich.console import Console

    return Console(stderr=err, highlight=False, emoji=False, markup=False)


@contextmanager
def waiting(what: str) -> Generator[None]:
    """On a terminal, show that the command works on something, and for how long; elsewhere, nothing."""
    if not is_terminal(err=True):
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=on_terminal(err=True), transient=True) as shown:
        shown.add_task(clean(what), total=None)
        yield


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


def when(at: float) -> str:
    """A time in seconds since 1970, for people: of today without the date."""
    local = time.localtime(at)
    is_today = local[:3] == time.localtime()[:3]
    return time.strftime("at %H:%M:%S" if is_today else "on %Y-%m-%d at %H:%M", local)


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


def show_rows(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Sequence[str] = (),
    with_head: bool = False,
    has_titles: bool = True,
    is_continued: bool = False,
    is_dense: bool = False,
) -> None:
    """Print a table on a terminal, else one line per row with tabs; there, only `with_head` prints the head.

    `numbers` are right-aligned columns. A table that `is_continued` follows another one and has no head. A terminal
    that is too narrow for the table gets several lines for each row, with the titles of the columns unless `has_titles`
    is False; with `is_dense`, as few as possible.
    """
    rows = list(rows)
    if not is_terminal():
        for row in [head, *rows] if with_head else rows:
            click.echo("\t".join(clean(" ".join(cell.split())) for cell in row))
        return
    if not rows:
        return  # A head above nothing says nothing.
    columns = columns_of(sys.stdout)
    *others, widest = sorted(_widths(head, rows))
    if sum(others) + _GAP * len(others) + min(widest, READABLE) <= columns:
        made = table(head, rows, numbers=numbers)
        made.show_header = not is_continued
        show(made)
        return
    for name, second, *rest in rows:
        line = wrapped(f"{one_line(name)}  {one_line(second)}".rstrip(), columns, 4)
        click.echo(line.replace(one_line(name), painted(one_line(name), "bold"), 1))
        cells = [(title, one_line(cell)) for title, cell in zip(head[2:], rest, strict=True) if cell]
        texts = [f"{title}: {cell}" if has_titles else cell for title, cell in cells]
        for text in [", ".join(texts)] if is_dense and texts else texts:
            click.echo(wrapped(f"    {text}", columns, 6 if has_titles and not is_dense else 4))


def _widths(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """The width of each column."""
    return [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]


def show(renderable: "RenderableType") -> None:
    """Print a Rich object to stdout."""
    on_terminal().print(renderable)


def fitting(
    head: Sequence[str], rows: Sequence[Sequence[str]], spared: Sequence[str], width: int
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The columns that fit into the width: those in `spared` are dropped in order until no word has to be broken."""
    kept, needed = list(range(len(head))), _widths(head, rows)
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


class LinesBelow:
    """What is printed below the address: held back until there is one."""

    def __init__(self) -> None:
        self._held: list[Callable[[], None]] = []
        self._is_open = False

    def add(self, show: Callable[[], None]) -> None:
        """Call `show` below the address."""
        if self._is_open:
            show()
        else:
            self._held.append(show)

    def print(self) -> None:
        """Print what was held back, and from now on everything at once."""
        self._is_open = True
        held, self._held = self._held, []
        for show in held:
            show()
