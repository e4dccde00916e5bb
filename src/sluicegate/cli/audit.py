"""`sluicegate audit`: reads, verifies and exports the record of all calls.

`list`, `tail`, `show` and `stats` ask the gateway that runs for the folder; without one they read the files. `export`,
`verify`, `prove` and `erase` always work on the files.
"""

import re
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec

import click
import msgspec

from sluicegate.cli.audit_reading import LogChoice, LogFiles, OpenLog, follow, opened_log, recorded_filter
from sluicegate.cli.command import Failure, Group, confirmed, places_of, with_places
from sluicegate.cli.gateway_client import result_of
from sluicegate.cli.operations import acting_person
from sluicegate.cli.output import counted, say, show_json, show_json_line, show_rows
from sluicegate.control.audit_operations import AuditOperations
from sluicegate.store.audit_check import erase as erase_values
from sluicegate.store.audit_check import prove as prove_request
from sluicegate.store.audit_check import verify as verify_log
from sluicegate.store.audit_files import log_files
from sluicegate.store.audit_index import open_audit_reader
from sluicegate.store.base import AuditFilter, AuditRow
from sluicegate.store.chain import Verifier

P = ParamSpec("P")

_SECOND: Final = 1_000_000_000
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_HEAD: Final = ("time", "kind", "caller", "server", "name", "verdict", "ms", "request")


def moment(text: str) -> int:
    """A time in nanoseconds since 1970, given as a date or as how long ago it was."""
    if found := re.fullmatch(r"(\d{1,9})([smhdw])", text):
        return time.time_ns() - int(found[1]) * _UNITS[found[2]] * _SECOND
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time; use 2026-11-30, 2026-11-30T12:00, 2h or 7d.") from None
    return int((date if date.tzinfo else date.astimezone()).timestamp()) * _SECOND


_FILTERS: Final = (
    click.option("--since", type=moment, metavar="TIME", help="Not older than this: 2h, 7d, or a date."),
    click.option("--until", type=moment, metavar="TIME", help="Older than this."),
    click.option("--caller", metavar="GLOB", help="Only of these callers."),
    click.option("--server", metavar="GLOB", help="Only of these servers, by their keys, names or prefixes."),
    click.option(
        "--tool",
        "name",
        metavar="GLOB",
        help="Only of these tools, prompts or resources, by the server's name for it or as SERVER__NAME.",
    ),
    click.option("--verdict", metavar="GLOB", help="Only with this verdict: allow, deny, ask, ok, error and so on."),
    click.option("--kind", metavar="KIND", help="Only rows of this kind: decision, outcome, reject and so on."),
)


def _with_filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an `AuditFilter`, made of its options."""

    @wraps(command)
    def filtered(**options: Any) -> object:
        names = ("since", "until", "caller", "server", "name", "verdict", "kind")
        return command(where=AuditFilter(**{name: options.pop(name) for name in names}), **options)

    for option in reversed(_FILTERS):
        filtered = option(filtered)
    return filtered


def _with_log(command: Callable[Concatenate[LogChoice, P], object]) -> Callable[..., Any]:
    """Give a command the log that its options select: the running gateway reads it, if there is one."""

    @wraps(command)
    def chosen(
        config: str | None, folder: str | None, audit_folder: str | None, *args: P.args, **kwargs: P.kwargs
    ) -> object:
        return command(LogChoice(places_of(config, folder), audit_folder), *args, **kwargs)

    given = click.option(
        "--audit-folder",
        type=click.Path(exists=True, file_okay=False),
        help="Read the files of this log instead of that of the gateway's folder.",
    )
    return with_places(given(chosen))


def _with_files(command: Callable[Concatenate[LogFiles, P], object]) -> Callable[..., Any]:
    """Give a command the files of the log that its options select, whether or not a gateway runs.

    What is proven must not depend on what a gateway says about its own log.
    """

    @wraps(command)
    def chosen(log: LogChoice, *args: P.args, **kwargs: P.kwargs) -> object:
        files = log.files()
        if isinstance(where := kwargs.get("where"), AuditFilter):
            kwargs["where"] = recorded_filter(where, files.keys)
        return command(files, *args, **kwargs)

    return _with_log(chosen)


@click.group(cls=Group)
def audit() -> None:
    """Read, verify and export the record of all calls.

    Each call has two rows: the decision before it leaves for the server, and the outcome before its answer is sent.
    Values of arguments are recorded only where a rule says so. list, tail, show and stats ask the gateway that runs for
    this folder, and read the files if none runs, or with --config or --audit-folder. The other commands always use the
    files.

    \b
    Examples:
      sluicegate audit tail --follow
      sluicegate audit list --since 2h --server files --verdict deny
      sluicegate audit verify
      sluicegate audit prove 1911f0a2b3c4d-0011223344 > proof.json

    Exit status: 0 done, 1 a row is bad or nothing was found
    """


# --------------------------------------------------------------------------------------------------------------- rows


@audit.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--last", "-n", type=click.IntRange(0), default=None, metavar="N", help="Only the last N rows.")
@_with_filters
@_with_log
def list_(log: LogChoice, where: AuditFilter, as_json: bool, last: int | None) -> None:
    """List rows, the oldest first.

    Without a terminal, a row is a line with tabs between time, kind, caller, server, name, verdict, milliseconds and
    request.

    \b
    Examples:
      sluicegate audit list --since 7d --tool 'delete_*'
      sluicegate audit list --tool github__delete_repo
      sluicegate audit list --kind decision --verdict deny --json
    """
    result_of(_list(log, where, as_json, last))


async def _list(choice: LogChoice, where: AuditFilter, as_json: bool, last: int | None) -> None:
    shown = _Shown(as_json)
    with _reporting() as problems:
        async with opened_log(choice) as log:
            if last is None:
                page = await log.read(where, shown.add)
            else:
                page = await log.last(where, last)
                shown.add(page.rows)
        problems += page.problems
        shown.print()
        if not shown.has_rows and last != 0:
            say("no rows match.")


@audit.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--follow", "-f", is_flag=True, help="Go on printing new rows, until Ctrl+C.")
@click.option("--last", "-n", type=click.IntRange(0), default=20, metavar="N", help="How many rows; 20 by default.")
@_with_filters
@_with_log
def tail(log: LogChoice, where: AuditFilter, as_json: bool, follow: bool, last: int) -> None:
    """Print the last rows, and new ones as they come.

    \b
    Examples:
      sluicegate audit tail --follow
      sluicegate audit tail -n 5 --verdict error
    """
    result_of(_tail(log, where, as_json, follow, last))


async def _tail(choice: LogChoice, where: AuditFilter, as_json: bool, is_followed: bool, last: int) -> None:
    shown = _Shown(as_json)
    with _reporting() as problems:
        async with opened_log(choice) as log:
            page = await log.last(where, last)
        problems += page.problems
        shown.add(page.rows)
        shown.print()
        if not shown.has_rows and last:
            say("no rows match yet." if is_followed else "no rows match.")

    def show_more(rows: list[AuditRow]) -> None:
        shown.add(rows)
        shown.print()

    if is_followed:
        await follow(choice, where, page.position, show_more)


@audit.command()
@click.argument("request")
@_with_log
def show(log: LogChoice, request: str) -> None:
    """Show all rows of a request as JSON, with the values that were recorded.

    \b
    Examples:
      sluicegate audit show 1911f0a2b3c4d-0011223344
    """
    result_of(_show_request(log, request))


async def _show_request(choice: LogChoice, request: str) -> None:
    with _reporting() as problems:
        async with opened_log(choice) as log:
            found = await log.operations.audit_request(request)
        problems += found.problems
        if not found.rows:
            raise Failure(f"the log has no request {request}.")
        shown: dict[str, object] = {"request": request, "rows": [_as_json(row) for row in found.rows]}
        if found.values:
            shown["values"] = found.values[0] if len(found.values) == 1 else found.values
        show_json(shown)


@audit.command()
@_with_filters
@_with_files
def export(log: LogFiles, where: AuditFilter) -> None:
    """Print all rows as JSON, one per line, with their hashes.

    It reads the files, also while a gateway runs.

    \b
    Examples:
      sluicegate audit export --since 2026-11-01 > november.jsonl
    """
    with _reporting() as problems:
        problems += _read_files(log, where, _Shown(as_json=True).add)


def _read_files(log: LogFiles, where: AuditFilter, use: Callable[[list[AuditRow]], object]) -> list[str]:
    """Call `use` with the rows of the files that match. Returns a sentence for each part that cannot be read."""

    async def read() -> list[str]:
        with closing(open_audit_reader(log.folder)) as reader:
            return (await OpenLog(AuditOperations(lambda: reader), {}).read(where, use)).problems

    return result_of(read())


@audit.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_with_filters
@_with_log
def stats(log: LogChoice, where: AuditFilter, as_json: bool) -> None:
    """Count the calls of each tool, how they ended and how long they took.

    \b
    Examples:
      sluicegate audit stats --since 24h
      sluicegate audit stats --server files --json
    """
    result_of(_show_stats(log, where, as_json))


async def _show_stats(choice: LogChoice, where: AuditFilter, as_json: bool) -> None:
    with _reporting() as problems:
        async with opened_log(choice) as log:
            found = await log.operations.audit_stats(log.filter(where))
        problems += found.problems
        if as_json:
            show_json(found.calls)
            return
        rows = [
            [
                call.server,
                call.name,
                ", ".join(f"{verdict} {count}" for verdict, count in call.verdicts.items()),
                f"{call.p50_ms:.1f}",
                f"{call.p95_ms:.1f}",
            ]
            for call in found.calls
        ]
        if not rows:
            say("no calls match.")
            return
        show_rows(("server", "name", "verdicts", "median ms", "95 % ms"), rows, numbers=("median ms", "95 % ms"))


# -------------------------------------------------------------------------------------------------------------- proof


@audit.command()
@click.option("--anchor", "anchors", multiple=True, type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="A copy of the checkpoints to compare with, besides those of [audit] anchors.")  # fmt: skip
@click.option("--key", metavar="KEY", help="The public key that you noted, instead of signing.pub of the folder.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_with_log
def verify(choice: LogChoice, anchors: tuple[str, ...], key: str | None, as_json: bool) -> None:
    """Check that no row was changed, removed or added, and name the first bad one. Missing rows are named first.

    It reads the files, also while a gateway runs: the result does not depend on what that gateway reports.

    Rows after the last checkpoint can be cut off without a trace; a checkpoint is written every 1,000 rows or 60
    seconds. The owner of the machine has the signing key: only copies elsewhere (--anchor) show that history was
    rewritten with it. Files that retention removed are not missing: a signed row says which rows they had.

    \b
    Examples:
      sluicegate audit verify
      sluicegate audit verify --anchor /mnt/other/checkpoints

    Exit status: 0 nothing is wrong, 1 rows are missing or wrong, or there is no log
    """
    try:
        verifier = Verifier.parse(key) if key is not None else None
    except ValueError as problem:
        raise Failure(f"the key cannot be used: {problem}.") from None
    log = choice.files(must_exist=False)
    try:
        report = verify_log(
            log.folder, key=verifier, anchors=(*anchors, *log.anchors), last_checkpoint=log.last_checkpoint
        )
    except ValueError as problem:
        raise Failure(str(problem) if log_files(log.folder) else f"there is no audit log in {log.folder}.") from None
    if as_json:
        show_json(report)
    else:
        for note in report.notes:
            say(note)
    if report.faults:
        if not as_json:
            for fault in report.faults:
                click.echo(str(fault))
        raise Failure("the log is not as it was written.")
    if not as_json:
        checkpoints = counted(report.checkpoints, "checkpoint")
        say(f"{counted(report.rows, 'row')} in {counted(report.files, 'file')} and {checkpoints} are as written.")


@audit.command()
@click.argument("request")
@_with_files
def prove(log: LogFiles, request: str) -> None:
    """Print a proof that a request is in the log, as JSON.

    It reads the files, also while a gateway runs. The proof shows the rows of this request and no other, and leads to a
    signed checkpoint. examples/verify_proof.py checks it without sluicegate.

    \b
    Examples:
      sluicegate audit prove 1911f0a2b3c4d-0011223344 > proof.json

    Exit status: 0 done, 1 a row is bad or nothing was found
    """
    try:
        show_json(prove_request(log.folder, request))
    except (LookupError, ValueError) as problem:
        raise Failure(str(problem.args[0])) from None
    except OSError as problem:
        raise Failure(f"the log cannot be read: {problem}.") from None


@audit.command()
@click.argument("request", required=False)
@click.option("--yes", "is_yes", is_flag=True, help="Do not ask.")
@_with_filters
@_with_files
def erase(log: LogFiles, where: AuditFilter, request: str | None, is_yes: bool) -> None:
    """Erase recorded values of a request, or of all rows that the options select.

    It changes the files, also while a gateway runs. The rows stay, with a digest from which the values cannot be
    guessed, so that the log remains valid. A new row says what was erased.

    \b
    Examples:
      sluicegate audit erase 1911f0a2b3c4d-0011223344
      sluicegate audit erase --caller ada --until 90d --yes
    """
    if request is not None:
        where = msgspec.structs.replace(where, request=_literal(request))
    elif where == AuditFilter():
        raise click.UsageError("Say which values: give a request, or options such as --caller or --until.")
    if not confirmed("Erase these values for good?", is_yes=is_yes):
        raise Failure("nothing was erased; confirm it, or give --yes.")
    selected: list[tuple[int, int]] = []

    def select(rows: list[AuditRow]) -> None:
        selected.extend((row.writer, row.seq) for row in rows if "values" in row.body)

    problems = _read_files(log, where, select)
    try:
        number = erase_values(log.folder, selected, by=acting_person())
    except (OSError, ValueError) as problem:
        raise Failure(f"the values could not be erased: {problem}.") from None
    say(f"erased the values of {counted(number, 'row')}.")
    if problems:
        raise Failure(f"rows that cannot be read may have more: {' '.join(problems)}")


# -------------------------------------------------------------------------------------------------------------- shown


class _reporting:  # noqa: N801 - used like a function
    """Collects files that cannot be read, and says so at the end; the command then fails."""

    def __enter__(self) -> list[str]:
        self._problems: list[str] = []
        return self._problems

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for problem in self._problems:
            say(problem)
        if self._problems and kind is None:
            raise Failure("rows are missing; `sluicegate audit verify` says more.")


def _literal(text: str) -> str:
    """A glob that matches only the text."""
    return re.sub(r"([*?\[])", r"[\1]", text)


class _Shown:
    """Prints rows: JSON lines at once, and a table when all of its rows are known."""

    def __init__(self, as_json: bool) -> None:
        self.has_rows = False
        self._as_json = as_json
        self._cells: list[list[str]] = []
        self._has_head = False

    def add(self, rows: Iterable[AuditRow]) -> None:
        """Take more rows."""
        for row in rows:
            self.has_rows = True
            if self._as_json:
                show_json_line(_as_json(row))
            else:
                self._cells.append(_cells(row))

    def print(self) -> None:
        """Print the table of the rows that were added since the last one; only the first table has a head."""
        if self._cells:
            show_rows(_HEAD, self._cells, numbers=("ms",), is_continued=self._has_head, is_dense=True)
            self._has_head = True
            self._cells = []


def _as_json(row: AuditRow) -> dict[str, object]:
    return {"time": _time(row.at), **msgspec.to_builtins(row)}


def _cells(row: AuditRow) -> list[str]:
    took = row.body.get("ms")
    milliseconds = f"{took:.1f}" if isinstance(took, float | int) else ""
    return [_time(row.at), row.kind, row.caller, row.server, row.name, row.verdict, milliseconds, row.request]


def _time(at: int) -> str:
    return datetime.fromtimestamp(at / _SECOND, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
