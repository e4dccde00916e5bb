"""`sluicegate approvals`, `approve`, `deny` and `grants`: what waits for a person, the answers, and what they allow.

The gateway that runs for the folder is asked; without one, its record is used, for gateways that clients have started
for themselves.
"""

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Final, NoReturn

import click
import msgspec

from sluicegate.cli.command import Failure, Group, places_of, with_folder
from sluicegate.cli.gateway_client import NotNow, result_of
from sluicegate.cli.operations import acting_person, ask, operations_of
from sluicegate.cli.output import say, show_json, show_json_line, show_rows, show_text
from sluicegate.config.paths import Places
from sluicegate.gate.approval_text import MAX_REASON, as_lines, outcome, unshown
from sluicegate.gate.rules import GROUP
from sluicegate.store.base import Approval, ApprovalAnswer, Grant, Scope
from sluicegate.text.globs import escape
from sluicegate.text.visible_text import HIDDEN

RETRY_AFTER: Final = 0.2
"""Seconds until a gateway that has just stopped is looked for again."""


@click.command()
@click.option("--watch", "-w", is_flag=True, help="Go on printing new questions, until Ctrl+C.")
@click.option("--link", is_flag=True, help="Print a link that opens the page for approvals, once, within five minutes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch one line for each question.")
@with_folder
def approvals(watch: bool, link: bool, as_json: bool, folder: str | None) -> None:
    """Show the calls that wait for approval.

    The gateway that runs for this folder is asked; if none runs, the record of the folder is read, where gateways that
    clients started for themselves put their questions.

    A call waits if a rule says "ask". Everything about it is shown, with invisible characters named. The first answer
    counts, wherever it is given: here, on the page, or in the client that made the call.

    \b
    Examples:
      sluicegate approvals
      sluicegate approvals --watch
      sluicegate approvals --link
      sluicegate approve k3f9qa
      sluicegate deny k3f9qa --why "Use the staging database."

    Exit status: 0 printed, 1 the record cannot be read, or there is no page to link to
    """
    places = places_of(None, folder)
    if link:
        click.echo(_login_link(places))
        return
    if watch:
        result_of(_watch(places, as_json))
    found = ask(places, lambda operations: operations.approvals())
    if as_json:
        show_json([_as_json(question) for question in found])
        return
    for question in found:
        _show(question)
    if not found:
        say("nothing waits for approval.")


async def _watch(places: Places, as_json: bool) -> NoReturn:
    """Print each new question. A gateway that starts or stops meanwhile changes nothing."""
    known: set[str] = set()
    while True:
        with suppress(NotNow):  # The gateway stops; its successor, or the record, is asked.
            async with operations_of(places, waits=True) as operations:
                while True:
                    for question in await operations.wait_approvals(known):
                        known.add(question.id)
                        show_json_line(_as_json(question)) if as_json else _show(question)
        await asyncio.sleep(RETRY_AFTER)


def _show(question: Approval) -> None:
    left = max(0, (question.deadline - time.time_ns()) // 10**9)
    show_text("\n".join([f"question {question.id}, open for {left} s", *(f"  {line}" for line in as_lines(question))]))
    option = " --unseen" if unshown(question) else ""
    show_text(f"  answer: sluicegate approve {question.id}{option} | sluicegate deny {question.id}\n")


def _as_json(question: Approval) -> dict[str, object]:
    hidden = ("run", "binding", "state", "taken", "scope", "by", "way", "reason", "decided")
    shown = {name: value for name, value in msgspec.structs.asdict(question).items() if name not in hidden}
    return {**shown, "arguments": msgspec.Raw(question.arguments.encode())}


def _login_link(places: Places) -> str:
    link = ask(places, lambda operations: operations.login_link(by=acting_person()))
    if link is None:
        raise Failure("no gateway of this folder has a page now; it is there while one runs with rules that ask.")
    return link


# ----------------------------------------------------------------------------------------------------------- answers


@click.command()
@click.argument("question", metavar="ID")
@click.option("--ten-minutes", "is_short", is_flag=True, help="Allow this tool to this caller for ten minutes.")
@click.option("--always", "is_lasting", is_flag=True, help="Allow this tool to this caller from now on.")
@click.option("--unseen", is_flag=True, help="Allow it though it is too long to be shown in full.")
@with_folder
def approve(question: str, is_short: bool, is_lasting: bool, unseen: bool, folder: str | None) -> None:
    """Let a call run that waits for approval.

    Without an option this very call runs once. The options allow all calls of the tool, whatever their arguments, until
    its definition changes; `sluicegate grants` lists what they allow.

    Of a very long call only a part is shown, and the rest is counted; `sluicegate approvals --json` prints all of it.
    Such a call needs --unseen.

    \b
    Examples:
      sluicegate approve k3f9qa
      sluicegate approve k3f9qa --ten-minutes
      sluicegate approve k3f9qa --always

    Exit status: 0 this was the first answer, 1 it was not, there is no such question, or it needs --unseen
    """
    if is_short and is_lasting:
        raise click.UsageError("--ten-minutes and --always exclude each other.")
    scope: Scope = "always" if is_lasting else "minutes" if is_short else "once"
    answer = ApprovalAnswer(scope=scope, by=acting_person(), way="command")
    _decide(places_of(None, folder), question, answer, accepts_unshown=unseen)


@click.command()
@click.argument("question", metavar="ID")
@click.option("--why", default="", help="The reason, which the model sees.")
@with_folder
def deny(question: str, why: str, folder: str | None) -> None:
    """Refuse a call that waits for approval.

    \b
    Examples:
      sluicegate deny k3f9qa
      sluicegate deny k3f9qa --why "Use the staging database."

    Exit status: 0 this was the first answer, 1 it was not, or there is no such question
    """
    answer = ApprovalAnswer(scope=None, by=acting_person(), way="command", reason=why[:MAX_REASON])
    _decide(places_of(None, folder), question, answer)


def _decide(places: Places, question_id: str, answer: ApprovalAnswer, *, accepts_unshown: bool = False) -> None:
    decided = ask(places, lambda operations: operations.decide(question_id, answer, accepts_unshown=accepts_unshown))
    if decided.question is None:
        raise Failure(f"there is no question {question_id}; `sluicegate approvals` shows those that are open.")
    if decided.refusal:
        how = ""
        if unshown(decided.question) and not accepts_unshown:
            how = f" See it with `sluicegate approvals --json`; `sluicegate approve {question_id} --unseen` accepts it."
        raise Failure(f"nothing was approved. {decided.refusal}{how}")
    if not decided.is_first:
        raise Failure(f"too late: {outcome(decided.question)}")
    say(outcome(decided.question))


# ------------------------------------------------------------------------------------------------------------ grants


@click.group(cls=Group, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_folder
@click.pass_context
def grants(context: click.Context, as_json: bool, folder: str | None) -> None:
    """Show what callers may do without a question, and until when.

    A grant comes from an answer such as "this tool always". It covers one caller and one tool, whatever the arguments,
    and ends when the definition of the tool, or the command or URL of its server, changes. A rule that denies a call
    counts more.

    \b
    Examples:
      sluicegate grants
      sluicegate grants revoke k3f9qa
      sluicegate grants toml >> sluicegate.toml    turn lasting grants into rules

    Exit status: 0 done, 1 there is no such grant, or the record cannot be read
    """
    context.obj = places_of(None, folder)
    if context.invoked_subcommand is not None:
        return
    found = ask(context.obj, lambda operations: operations.grants())
    if as_json:
        show_json(found)
        return
    rows = [(each.id, each.caller, _rule_name(each), _until(each), f"{each.by} ({each.way})") for each in found]
    if found:
        show_rows(("id", "caller", "may use", "until", "by"), rows)
    else:
        say("nothing is granted.")


@grants.command()
@click.argument("grant", metavar="ID")
@click.pass_obj
def revoke(places: Places, grant: str) -> None:
    """End a grant. The next call is asked about again."""
    if not ask(places, lambda operations: operations.revoke_grant(grant, by=acting_person())):
        raise Failure(f"there is no grant {grant}; `sluicegate grants` lists them.")
    say(f"revoked {grant}.")


@grants.command()
@click.pass_obj
def toml(places: Places) -> None:
    """Print rules for sluicegate.toml that allow what is granted without an end."""
    lasting = ask(places, lambda operations: operations.grants())
    found = [each for each in lasting if each.until is None and each.origin]
    click.echo("\n".join(_permissions(found)), nl=bool(found))
    if not found:
        say("nothing is granted without an end.")


def _permissions(found: Iterable[Grant]) -> Iterable[str]:
    for each in found:
        yield "[[permissions]]"
        yield f"{each.kind} = {_toml_string(escape(_rule_name(each)))}"
        caller = escape(each.caller)
        # A caller whose name looks like a group is no group.
        yield f"caller = [{_toml_string(chr(92) + caller if caller.startswith(GROUP) else caller)}]"
        yield 'action = "allow"'
        yield ""


def _toml_string(text: str) -> str:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{HIDDEN.sub(lambda found: f"{chr(92)}U{ord(found[0]):08X}", quoted)}"'


def _rule_name(grant: Grant) -> str:
    return f"mcp__{grant.server}__{grant.name}"


def _until(grant: Grant) -> str:
    if not grant.origin:
        return "ended: of an earlier version"
    if grant.until is None:
        return "always"
    return datetime.fromtimestamp(grant.until / 10**9).astimezone().strftime("%Y-%m-%d %H:%M:%S")
