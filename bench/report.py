"""The rows as one aligned table for people, or as JSON for programs."""

import datetime
import os
import platform
from collections.abc import Sequence

import msgspec

from bench.measure import Effort, Row

HEAD = ("", "× first", "middle half", "CPU µs", "of it server", "wall µs", "KiB", "")


def table(rows: Sequence[Row]) -> str:
    """Ratios first, each to the first line of its block; then the figures that they are made of."""
    lines: list[tuple[str, ...]] = [HEAD]
    benchmark = ""
    for row in rows:
        if row.benchmark != benchmark:
            benchmark = row.benchmark
            lines += [("",) * len(HEAD), (benchmark, *("",) * (len(HEAD) - 1))]
        lines.append(_cells(row))
    if all(row.kib is None for row in rows):
        lines = [(*line[:-2], line[-1]) for line in lines]
    # A benchmark's title may run over the columns, which are empty there; nothing else may.
    widths = [max(len(line[place]) for line in lines if place or line[1]) for place in range(len(lines[0]))]
    return "\n".join(_laid_out(line, widths) for line in lines)


def _cells(row: Row) -> tuple[str, ...]:
    between = "" if row.low is None or row.high is None else f"{_figure(row.low)}–{_figure(row.high)}"
    figures = (_figure(row.cpu_us), _figure(row.server_us), _figure(row.wall_us), _figure(row.kib))
    return (f"  {row.contestant}", _figure(row.ratio), between, *figures, row.remark)


def _laid_out(line: tuple[str, ...], widths: Sequence[int]) -> str:
    name, *figures, remark = line
    cells = [name.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(figures, widths[1:-1], strict=True)), remark]
    return "  ".join(cells).rstrip()


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    size = abs(value)  # what is net may be below nothing, and so show how large the noise is
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def as_json(rows: Sequence[Row], effort: Effort) -> str:
    """The same with what is needed to compare it with another run."""
    data = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "effort": effort,
        "rows": rows,
    }
    return msgspec.json.format(msgspec.json.encode(data)).decode()
