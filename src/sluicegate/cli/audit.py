"""`sluicegate audit`: reads, verifies and exports the record of all calls. It needs no running gateway."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import click
import msgspec

from sluicegate.cli.command import Failure, Group, NotStarted, confirmed, places_of, with_places
from sluicegate.cli.configuration import loaded_from, show_problems
from sluicegate.cli.output import counted, say, show_json, show_json_line, show_rows
from sluicegate.config.paths import audit_folder
from sluicegate.store.audit_check import erase as erase_values
from sluicegate.store.audit_check import prove as prove_request
from sluicegate.store.audit_check import verify as verify_log
from sluicegate.store.audit_files import log_files
from sluicegate.store.audit_index import open_audit_reader
from sluicegate.store.base import AuditFilter, AuditReader, AuditRow
from sluicegate.store.chain import Verifier

P = ParamSpec("P")
T = TypeVar("T")

_POLL: Final = 0.5
_PAGE: Final = 5000
_SECOND: Final = 1_000_000_000
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_HEAD: Final = ("time", "kind", "caller", "server", "name", "verdict", "ms", "request")


class Log(msgspec.Struct, frozen=True):
    """The log that a command is about."""

    folder: str
    anchors: tuple[str, ...] = ()
    keys: Mapping[str, str] = {}
    """The keys of servers, under which they are recorded, by their keys, names and prefixes."""

    def recorded(self, where: AuditFilter) -> AuditFilter:
        """The conditions with the keys of servers in place of their names and prefixes."""
        prefix, rest = (where.name or "").removeprefix("mcp__").partition("__")[::2]
        return msgspec.structs.replace(
            where,
            server=None if where.server is None else self.keys.get(where.server, where.server),
            name=f"{self.keys[prefix]}__{rest}" if rest and prefix in self.keys else where.name,
        )


def moment(text: str) -> int:
    """A time in nanoseconds since 1970, given as a date or as how long ago it was."""
    if found := re.fullmatch(r"(\d{1,9})([smhdw])", text):
        return time.time_ns() - int(found[1]) * _UNITS[found[2]] * _SECOND
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time; write 2026-11-30, 2026-11-30T12:00, 2h or 7d.") from None
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


class Reading:
    """Reads a log in a command, which has no event loop of its own."""

    def __init__(self, folder: str) -> None:
        self._indexed = open_audit_reader(folder)
        self.reader: AuditReader = self._indexed
        self._runner = asyncio.Runner()

    def __enter__(self) -> "Reading":
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()
        self._indexed.close()

    def wait(self, result: Awaitable[T]) -> T:
        """A result of the reader; the command fails if the log cannot be read."""

        async def awaited() -> T:
            return await result

        try:
            return self._runner.run(awaited())
        except OSError as problem:
            raise Failure(f"the audit log cannot be read: {problem}.") from None


def recorded_rows(folder: str, where: AuditFilter, problems: list[str]) -> Iterator[AuditRow]:
    """The rows of a log that match, the oldest first. `problems` gets a sentence for each part that cannot be read."""
    with Reading(folder) as log_rows:
        page = log_rows.wait(log_rows.reader.rows(where, limit=_PAGE))
        yield from page.rows
        while page.has_more:
            page = log_rows.wait(log_rows.reader.rows(where, after=page.position, limit=_PAGE))
            yield from page.rows
        problems += page.problems


def _with_filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command an `AuditFilter`, made of its options."""

    @wraps(command)
    def filtered(**options: Any) -> object:
        names = ("since", "until", "caller", "server", "name", "verdict", "kind")
        return command(where=AuditFilter(**{name: options.pop(name) for name in names}), **options)

    for option in reversed(_FILTERS):
        filtered = option(filtered)
    return filtered


def _with_log(command: Callable[Concatenate[Log, P], object]) -> Callable[..., Any]:
    """Give a command the log that its options select."""

    @wraps(command)
    def opened(
        config: str | None, folder: str | None, audit_folder_: str | None, *args: P.args, **kwargs: P.kwargs
    ) -> object:
        log = Log(audit_folder_) if audit_folder_ is not None else _configured(config, folder)
        if not log_files(log.folder):
            raise Failure(f"there is no audit log in {log.folder}.")
        if isinstance(where := kwargs.get("where"), AuditFilter):
            kwargs["where"] = log.recorded(where)
        return command(log, *args, **kwargs)

    given = click.option(
        "--audit-folder",
        "audit_folder_",
        type=click.Path(exists=True, file_okay=False),
        help="Read this log instead of that of the gateway's folder.",
    )
    return with_places(given(opened))


def _configured(config: str | None, folder: str | None) -> Log:
    places = places_of(config, folder)
    loaded = loaded_from(places)
    if loaded.config is None:
        show_problems(loaded.problems, notes=False)
        raise NotStarted("the configuration has errors, so the folder of the log is not known; give --audit-folder.")
    # A key stands for its own server, whatever others are called; a name counts more than a prefix.
    servers = loaded.config.servers.values()
    keys = {server.prefix: server.key for server in servers if server.prefix}
    keys |= {server.name: server.key for server in servers} | {server.key: server.key for server in servers}
    return Log(audit_folder(loaded.config, places.environ), loaded.config.audit.anchors, keys)


@click.group(cls=Group)
def audit() -> None:
    """Read, verify and export the record of all calls.

    Each call has two rows: the decision before it leaves for the server, and the outcome before its answer is sent.
    Values of arguments are recorded only where a rule says so.

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
def list_(log: Log, where: AuditFilter, as_json: bool, last: int | None) -> None:
    """List rows, the oldest first.

    Without a terminal, a row is a line with tabs between time, kind, caller, server, name, verdict, milliseconds and
    request.

    \b
    Examples:
      sluicegate audit list --since 7d --tool 'delete_*'
      sluicegate audit list --tool github__delete_repo
      sluicegate audit list --kind decision --verdict deny --json
    """
    with _reporting() as problems:
        if last is None:
            rows = recorded_rows(log.folder, where, problems)
        else:
            with Reading(log.folder) as log_rows:
                page = log_rows.wait(log_rows.reader.last(where, limit=last))
            rows, problems[:] = page.rows, page.problems
        if not _show(rows, as_json=as_json) and last != 0:
            say("no rows match.")


@audit.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--follow", "-f", is_flag=True, help="Go on printing new rows, until Ctrl+C.")
@click.option("--last", "-n", type=click.IntRange(0), default=20, metavar="N", help="How many rows; 20 by default.")
@_with_filters
@_with_log
def tail(log: Log, where: AuditFilter, as_json: bool, follow: bool, last: int) -> None:
    """Print the last rows, and new ones as they come.

    \b
    Examples:
      sluicegate audit tail --follow
      sluicegate audit tail -n 5 --verdict error
    """
    with Reading(log.folder) as log_rows:
        with _reporting() as problems:
            page = log_rows.wait(log_rows.reader.last(where, limit=last))
            problems += page.problems
            has_shown = _show(page.rows, as_json=as_json)
            if not has_shown and last:
                say("no rows match yet." if follow else "no rows match.")
        while follow:
            if not page.has_more:
                time.sleep(_POLL)
            page = log_rows.wait(log_rows.reader.rows(where, after=page.position))
            has_shown |= _show(page.rows, as_json=as_json, is_continued=has_shown)


@audit.command()
@click.argument("request")
@_with_log
def show(log: Log, request: str) -> None:
    """Show all rows of a request as JSON, with the values that were recorded.

    \b
    Examples:
      sluicegate audit show 1911f0a2b3c4d-0011223344
    """
    with _reporting() as problems:
        with Reading(log.folder) as log_rows:
            found = log_rows.wait(log_rows.reader.request(request))
        problems += found.problems
        if not found.rows:
            raise Failure(f"the log has no request {request}.")
        shown: dict[str, object] = {"request": request, "rows": [_as_json(row) for row in found.rows]}
        if found.values:
            shown["values"] = found.values[0] if len(found.values) == 1 else found.values
        show_json(shown)


@audit.command()
@_with_filters
@_with_log
def export(log: Log, where: AuditFilter) -> None:
    """Print all rows as JSON, one per line, with their hashes.

    \b
    Examples:
      sluicegate audit export --since 2026-11-01 > november.jsonl
    """
    with _reporting() as problems:
        _show(recorded_rows(log.folder, where, problems), as_json=True)


@audit.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_with_filters
@_with_log
def stats(log: Log, where: AuditFilter, as_json: bool) -> None:
    """Count the calls of each tool, how they ended and how long they took.

    \b
    Examples:
      sluicegate audit stats --since 24h
      sluicegate audit stats --server files --json
    """
    with _reporting() as problems:
        with Reading(log.folder) as log_rows:
            found = log_rows.wait(log_rows.reader.stats(where))
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
def verify(log: Log, anchors: tuple[str, ...], key: str | None, as_json: bool) -> None:
    """Check that no row was changed, removed or added, and name the first bad one.

    Rows after the last checkpoint can be cut off without a trace; a checkpoint is written every 1,000 rows or 60
    seconds. The owner of the machine has the signing key: only copies elsewhere (--anchor) show that history was
    rewritten with it.

    \b
    Examples:
      sluicegate audit verify
      sluicegate audit verify --anchor /mnt/other/checkpoints

    Exit status: 0 nothing is wrong, 1 a row is
    """
    try:
        verifier = Verifier.parse(key) if key is not None else None
    except ValueError as problem:
        raise Failure(f"the key cannot be used: {problem}.") from None
    try:
        report = verify_log(log.folder, key=verifier, anchors=(*anchors, *log.anchors))
    except ValueError as problem:
        raise Failure(str(problem)) from None
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
@_with_log
def prove(log: Log, request: str) -> None:
    """Print a proof that a request is in the log, as JSON.

    It shows the rows of this request and no other, and leads to a signed checkpoint. examples/verify_proof.py checks it
    without sluicegate.

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
@_with_log
def erase(log: Log, where: AuditFilter, request: str | None, is_yes: bool) -> None:
    """Erase recorded values of a request, or of all rows that the options select.

    The rows stay, with a digest from which the values cannot be guessed, so that the log remains valid. A new row says
    what was erased.

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
    try:
        problems: list[str] = []
        rows = recorded_rows(log.folder, where, problems)
        number = erase_values(log.folder, [(row.writer, row.seq) for row in rows if "values" in row.body])
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


def _show(rows: Iterable[AuditRow], *, as_json: bool, is_continued: bool = False) -> bool:
    """Print rows; whether there are any."""
    if as_json:
        has_rows = False
        for row in rows:
            has_rows = True
            show_json_line(_as_json(row))
        return has_rows
    cells = list(map(_cells, rows))
    if cells:
        show_rows(_HEAD, cells, numbers=("ms",), is_continued=is_continued, is_dense=True)
    return bool(cells)


def _as_json(row: AuditRow) -> dict[str, object]:
    return {"time": _time(row.at), **msgspec.to_builtins(row)}


def _cells(row: AuditRow) -> list[str]:
    took = row.body.get("ms")
    milliseconds = f"{took:.1f}" if isinstance(took, float | int) else ""
    return [_time(row.at), row.kind, row.caller, row.server, row.name, row.verdict, milliseconds, row.request]


def _time(at: int) -> str:
    return datetime.fromtimestamp(at / _SECOND, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
