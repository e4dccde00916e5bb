"""`sluicegate doctor`: what is wrong with the gateway of this folder, and what to do about it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from sluicegate.cli.findings import (
    Finding,
    has_nothing_to_run,
    of_absence,
    of_files,
    of_modes,
    of_port,
    of_servers,
    of_tools,
)
from sluicegate.cli.places import loaded_from, places_of, with_places

if TYPE_CHECKING:
    from sluicegate.config import GatewayConfig, Loaded, Places, Problem

_SIGNS: Final = {"error": ("✗", "bold red"), "warning": ("!", "yellow"), "note": ("·", "dim")}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@with_places
def doctor(as_json: bool, config: str | None, folder: str | None) -> None:
    """Look for what is wrong, and say what to do about it.

    Looks at the files, at the port, and at every server: the one of the running gateway, or where none runs, started
    for this and ended. Finds servers that are not ready and why, variables that are not set, versions that are not
    fixed, names that are too long, tools that two servers have, rules that fit no tool, slow starts, and what gets
    lost between the eras of the protocol.

    \b
    Examples:
      sluicegate doctor
      sluicegate doctor --json | jq '.[] | select(.severity == "error")'

    \b
    Exit status: 0 nothing is wrong (there may be notes), 1 something is, 3 the configuration has errors
    """
    from sluicegate.cli.running import run

    run(_work(places_of(config, folder), as_json, folder or ""))


async def _work(places: "Places", as_json: bool, folder: str) -> int:
    from sluicegate.cli.unanswered import NoAnswer

    loaded = loaded_from(places)
    findings = list(of_modes(places))
    try:
        if loaded.config is None:
            findings += of_files(loaded.problems, await _held_back(places))
        else:
            findings += await _looked_at(places, loaded, loaded.config, folder)
    except NoAnswer as problem:
        findings += of_files(loaded.problems)
        findings.append(Finding("error", "gateway", f"one {problem.sentence}.", problem.remedy))
    _show(findings, as_json=as_json)
    if loaded.config is None:
        return 3
    return 1 if any(each.severity != "note" for each in findings) else 0


async def _looked_at(places: "Places", loaded: "Loaded", config: "GatewayConfig", folder: str) -> "list[Finding]":
    """All that can be found of a configuration that can be run, or runs; `folder` is what the user called it, if so."""
    from sluicegate.cli.check import what_runs
    from sluicegate.cli.reaching import reached
    from sluicegate.cli.unmatched import of_rules

    async with reached(places) as gateway:
        report = await gateway.report()
        tools = await gateway.offers("tools")
        away = {server.name for server in report.servers if server.state not in ("ready", "disabled")}
        causes = {name for name in away if has_nothing_to_run(config.servers.get(name))}
        findings = [*of_files(loaded.problems, report.problems, causes), *of_absence(places)]
        if report.stopping:
            findings.append(Finding("warning", "gateway", f"gateway {report.end()}"))
        if not gateway.is_running:
            findings += await of_port(config.http, places.environ)
        known = {each.about for each in findings}
        findings += of_servers(
            [server for server in report.servers if server.name not in causes],
            gateway.seconds,
            known,
            commands=None if gateway.is_running else {each.name: what_runs(each) for each in config.servers.values()},
            folder=folder,
        )
        findings += of_tools(tools, report, config)
        own = {name: each.tools for name, each in (await gateway.own_tools()).items()}
        findings += of_rules(places, config, own, tools)
    return findings


async def _held_back(places: "Places") -> "Sequence[Problem]":
    """What the gateway that runs for the folder, if one does, says of files that it could not take over."""
    from sluicegate.cli.failure import Failure
    from sluicegate.cli.reaching import running
    from sluicegate.cli.unanswered import NoAnswer
    from sluicegate.errors import UpstreamError

    if places.config is not None:
        return ()
    try:
        async with running(places) as gateway:
            return (await gateway.report()).problems
    except NoAnswer:
        raise
    except (UpstreamError, Failure):
        return ()


def _show(findings: Sequence[Finding], *, as_json: bool) -> None:
    from sluicegate.cli.render import about, clean, is_terminal, say, show, show_json

    order = list(_SIGNS)
    findings = sorted(findings, key=lambda each: order.index(each.severity))
    if as_json:
        show_json(findings)
        return
    for each in findings:
        text = about(each.about, each.sentence)
        if is_terminal():
            from rich.text import Text

            sign, style = _SIGNS[each.severity]
            remedy = f"\n  {clean(each.remedy)}" if each.remedy else ""
            show(Text.assemble((f"{sign} ", style), clean(text), (remedy, "green")))
        else:
            click.echo(" ".join(f"{each.severity}: {text} {each.remedy}".split()))
    wrong = sum(each.severity != "note" for each in findings)
    say("nothing is wrong." if not wrong else f"{wrong} {'thing is' if wrong == 1 else 'things are'} wrong.")
