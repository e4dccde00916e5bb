"""`sluicegate policy suggest` and `replay`: rules and the calls that the audit log has recorded."""

from collections.abc import Iterator

import click

from sluicegate.cli.audit import moment, recorded_rows
from sluicegate.cli.command import Failure, NotStarted, places_of, with_places
from sluicegate.cli.configuration import loaded_from, show_problems
from sluicegate.cli.files import text_of
from sluicegate.cli.output import counted, one_line, say, show_json, show_rows, tell
from sluicegate.config.paths import audit_folder
from sluicegate.config.settings_toml import read_settings, rules_of
from sluicegate.gate.history import differences, suggestions
from sluicegate.gate.judge import Rules
from sluicegate.gate.rules import policy_of, to_toml
from sluicegate.store.audit_files import log_files
from sluicegate.store.base import AuditFilter, AuditRow

_with_since = click.option(
    "--since", type=moment, default=None, metavar="TIME", help="Only calls not older than this: 2h, 7d, or a date."
)


@click.command()
@_with_since
@click.option("--json", "as_json", is_flag=True, help="Print the rules as JSON.")
@with_places
def suggest(since: int | None, as_json: bool, config: str | None, folder: str | None) -> None:
    """Print rules that allow the calls which the audit log has recorded.

    There is a rule for each tool, prompt and resource of which a call succeeded, the most used first. What was refused
    is left out. Read them before you use them: that something was called does not mean that it should be.

    \b
    Examples:
      sluicegate policy suggest --since 7d
      sluicegate policy suggest > rules.toml

    Exit status: 0 printed, 1 there is no audit log, 3 the configuration has errors
    """
    found = suggestions(_recorded(config, folder, since))
    if as_json:
        show_json([{"rule": each.permission, "calls": each.calls, "callers": each.callers} for each in found])
    else:
        comments = [f"{counted(each.calls, 'call')} of {one_line(', '.join(each.callers))}" for each in found]
        rules = [to_toml(each.permission, comment) for each, comment in zip(found, comments, strict=True)]
        click.echo("\n".join(rules), nl=False)
    say(f"{counted(len(found), 'rule')}.")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@_with_since
@click.option("--group", "groups", multiple=True, metavar="CALLER=NAME", help="A group of a caller; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
@with_places
def replay(
    file: str, since: int | None, groups: tuple[str, ...], as_json: bool, config: str | None, folder: str | None
) -> None:
    """Show what recorded calls would have met under the rules of a file.

    FILE is a sluicegate.toml. Only calls that its rules judge in another way are printed, equal ones once. The audit
    log has no values of arguments; where they decide, the verdict is printed as "?". It has no groups either.

    \b
    Examples:
      sluicegate policy replay new-rules.toml --since 7d
      sluicegate policy replay new-rules.toml --group ada=ops

    Exit status: 0 printed, 1 there is no audit log, 3 FILE or the configuration has errors
    """
    rules = _rules_in(file)
    found = differences(_recorded(config, folder, since), rules, _groups(groups))
    head = ("calls", "caller", "call", "was", "would be", "rule")
    rows = [(str(each.calls), each.caller, str(each.target), each.was, each.action or "?", each.rule) for each in found]
    if as_json:
        show_json([dict(zip(head, (each.calls, *row[1:]), strict=True)) for each, row in zip(found, rows, strict=True)])
    else:
        show_rows(head, rows, numbers=("calls",))
    calls = sum(each.calls for each in found)
    say(f"{counted(calls, 'recorded call')} would be judged in another way." if calls else "nothing would change.")


def _recorded(config: str | None, folder: str | None, since: int | None) -> Iterator[AuditRow]:
    """The rows of the audit log."""
    places = places_of(config, folder)
    loaded = loaded_from(places)
    if loaded.config is None:
        show_problems(loaded.problems, notes=False)
        raise NotStarted("the configuration has errors, so the folder of the audit log is not known.")
    log = audit_folder(loaded.config, places.environ)
    if not log_files(log):
        raise Failure(f"there is no audit log in {log}.")
    problems: list[str] = []
    yield from recorded_rows(log, AuditFilter(since=since), problems)
    for problem in problems:
        say(problem)


def _rules_in(file: str) -> Rules:
    text = text_of(file)
    if text is None:
        raise NotStarted(f"{file} does not exist.")
    read = read_settings(text, file)
    for problem in read.problems:
        tell(str(problem))
    if read.problems:
        raise NotStarted(f"{file} has errors.")
    rules, default = rules_of(read, file)
    return Rules(policy_of(rules, [] if default is None else [default]))


def _groups(words: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for word in words:
        caller, equals, group = word.partition("=")
        if not caller or not equals or not group:
            raise click.UsageError(f"{word!r} is not CALLER=NAME.")
        found[caller] = (*found.get(caller, ()), group)
    return found
