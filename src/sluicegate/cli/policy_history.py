"""`sluicegate policy suggest` and `replay`: rules and the calls that the audit log has recorded.

The running gateway of the folder is asked for the rows; without one, the files are read.
"""

from collections.abc import Callable

import click
from msgspec.structs import replace

from sluicegate.cli.audit import moment
from sluicegate.cli.audit_reading import LogChoice, opened_log
from sluicegate.cli.command import NotStarted, places_of, with_places
from sluicegate.cli.files import text_of
from sluicegate.cli.gateway_client import result_of
from sluicegate.cli.output import counted, one_line, say, show_json, show_rows, tell
from sluicegate.config.load import load
from sluicegate.config.paths import Places
from sluicegate.config.resource_tools import with_resource_tools
from sluicegate.config.settings_toml import read_settings, rules_of
from sluicegate.gate.history import Replay, SuccessfulCalls
from sluicegate.gate.policy import Rules
from sluicegate.gate.rules import RulesFile, policy_of, to_toml
from sluicegate.gateway.governance import rules_of as of_gateway
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

    The gateway that runs for this folder is asked for them; if none runs, the files are read.

    There is a rule for each tool, prompt and resource of which a call succeeded, the most used first. What was refused
    is left out. Read them before you use them: that something was called does not mean that it should be.

    \b
    Examples:
      sluicegate policy suggest --since 7d
      sluicegate policy suggest > rules.toml

    Exit status: 0 printed, 1 there is no audit log, 3 no gateway runs and the configuration has errors
    """
    calls = SuccessfulCalls()
    _read(config, folder, since, calls.add)
    found = calls.suggestions()
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

    FILE is a sluicegate.toml. The recorded calls come from the gateway that runs for this folder, or from the files if
    none runs. Only calls that its rules judge in another way are printed, equal ones once. The audit
    log has no values of arguments; where they decide, the verdict is printed as "?". It has no groups either.

    \b
    Examples:
      sluicegate policy replay new-rules.toml --since 7d
      sluicegate policy replay new-rules.toml --group ada=ops

    Exit status: 0 printed, 1 there is no audit log, 3 FILE has errors, or the configuration has and no gateway runs
    """
    other = Replay(_rules_in(file, places_of(config, folder)), _groups(groups))
    _read(config, folder, since, other.add)
    found = other.differences()
    head = ("calls", "caller", "call", "was", "would be", "rule")
    rows = [(str(each.calls), each.caller, str(each.target), each.was, each.action or "?", each.rule) for each in found]
    if as_json:
        show_json([dict(zip(head, (each.calls, *row[1:]), strict=True)) for each, row in zip(found, rows, strict=True)])
    else:
        show_rows(head, rows, numbers=("calls",))
    calls = sum(each.calls for each in found)
    say(f"{counted(calls, 'recorded call')} would be judged in another way." if calls else "nothing would change.")


def _read(config: str | None, folder: str | None, since: int | None, use: Callable[[list[AuditRow]], None]) -> None:
    """Call `use` with all rows of the audit log, page by page."""

    async def read() -> list[str]:
        async with opened_log(LogChoice(places_of(config, folder))) as log:
            return (await log.read(AuditFilter(since=since), use)).problems

    for problem in result_of(read()):
        say(problem)


def _rules_in(file: str, places: Places) -> Rules:
    text = text_of(file)
    if text is None:
        raise NotStarted(f"{file} does not exist.")
    read = read_settings(text, file)
    for problem in read.problems:
        tell(str(problem))
    if read.problems:
        raise NotStarted(f"{file} has errors.")
    rules, default = rules_of(read, file)
    policy = policy_of([RulesFile(tuple(rules), default)])
    config = load(places).config
    return Rules(policy) if config is None else of_gateway(replace(with_resource_tools(config), policy=policy))


def _groups(words: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for word in words:
        caller, equals, group = word.partition("=")
        if not caller or not equals or not group:
            raise click.UsageError(f"{word!r} is not CALLER=NAME.")
        found[caller] = (*found.get(caller, ()), group)
    return found
