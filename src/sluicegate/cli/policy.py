"""`sluicegate policy`: what the access rules say, and where rules come from. Nothing is started."""

import os
import sys
from collections.abc import Mapping
from typing import Literal

import click
import msgspec

from sluicegate.cli.command import Failure, Group, NotStarted, places_of, with_places
from sluicegate.cli.configuration import loaded_from, show_problems
from sluicegate.cli.files import text_of
from sluicegate.cli.gateway_client import own_names
from sluicegate.cli.key_values import input_text, json_arguments, reader, typed_arguments
from sluicegate.cli.output import counted, say, show_json, show_rows, tell
from sluicegate.cli.policy_history import replay, suggest
from sluicegate.config.foreign_rules import imported_rules
from sluicegate.config.jsonc import SyntaxFault
from sluicegate.config.model import GatewayConfig, ServerConfig
from sluicegate.config.paths import Places, catalogs_folder
from sluicegate.config.resource_tools import with_resource_tools
from sluicegate.config.settings_toml import lines_of, parse_toml
from sluicegate.exchange import Action, Caller, Target
from sluicegate.gate.policy import CompiledRule, Rules, is_hidden, judge, mismatch
from sluicegate.gate.rules import KINDS, Kind, to_toml
from sluicegate.gateway.governance import rules_of
from sluicegate.hub.catalog import SALIENT, Offer
from sluicegate.protocol.message import Params
from sluicegate.schemas.fields import Wrong
from sluicegate.serve.catalog_cache import CatalogCache
from sluicegate.text.similar import did_you_mean


@click.group(cls=Group)
def policy() -> None:
    """Explain, test and write access rules.

    Rules are the tables [[permissions]] of sluicegate.toml; the first one that matches a call decides.

    \b
    Examples:
      sluicegate policy explain mcp__github__delete_repo repo=acme/site
      sluicegate policy test rules-test.toml
      sluicegate policy replay new-rules.toml --since 7d
      sluicegate policy import .claude/settings.json >> sluicegate.toml

    Exit status: 0 done, 1 something differs from what is expected, 3 the configuration has errors
    """


policy.add_command(suggest)
policy.add_command(replay)

# ------------------------------------------------------------------------------------------------------------- explain


@policy.command()
@click.argument("tool")
@click.argument("words", metavar="[KEY=VALUE]...", nargs=-1)
@click.option(
    "--input",
    "--args",
    "json_text",
    metavar="JSON",
    help="All arguments as one JSON object; @FILE reads a file, - stdin.",
)
@click.option("--kind", type=click.Choice(["tool", "prompt", "resource"]), default="tool", help="What TOOL names.")
@click.option("--caller", default="local", show_default=True, help="The caller.")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="A group of the caller; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the rules and the verdict as JSON.")
@with_places
def explain(
    tool: str,
    words: tuple[str, ...],
    json_text: str | None,
    kind: Kind,
    caller: str,
    groups: tuple[str, ...],
    as_json: bool,
    config: str | None,
    folder: str | None,
) -> None:
    """Show which rule decides about a call, and why the rules before it do not.

    The rules are those of the files, also while a gateway runs. TOOL is mcp__SERVER__TOOL, SERVER__TOOL or
    NAMESPACE.METHOD; with --kind, a prompt, or SERVER__URI of a resource.

    \b
    Examples:
      sluicegate policy explain mcp__github__delete_repo repo=acme/site
      sluicegate policy explain files__read_file path=/srv/a --group ops
      sluicegate policy explain files__file:///srv/a.txt --kind resource

    Exit status: 0 explained, 3 the rules have errors
    """
    catalog = KnownTools.of(places_of(config, folder))
    if json_text is not None and words:
        raise click.UsageError("--input holds all arguments; leave the others out.")
    try:
        if json_text is None:
            arguments = typed_arguments(words, {}, reader(words))
        else:
            arguments = json_arguments(input_text(json_text))
    except Wrong as problem:
        raise click.UsageError(str(problem)) from None
    target = catalog.target(tool, kind, arguments)
    for warning in catalog.warnings(target):
        say(warning)
    _explain(rules_of(catalog.config), Caller(caller, groups), target, arguments, as_json=as_json)


def _doubt(rule: CompiledRule, target: Target, arguments: Params) -> str:
    """Which argument is missing or doubtful, so that a rule that denies or asks counts as matching it."""
    doubtful = [each for each in rule.conditions if each.texts(target, arguments) is None]
    names = [".".join(each.path) or target.salient or "the salient argument" for each in doubtful]
    return f" ({', '.join(names)} is missing or doubtful, so it counts as matching)" if names else ""


def _explain(rules: Rules, caller: Caller, target: Target, arguments: Params, *, as_json: bool) -> None:
    verdict = judge(rules, caller, target, arguments)
    rows: list[tuple[str, str, str, str]] = []
    for rule in rules.rules:
        is_too_general = rules.is_too_general(rule, target)
        why_not = "it is too general" if is_too_general else mismatch(rules, rule, caller, target, arguments)
        says = why_not or "decides" + _doubt(rule, target, arguments)
        rows.append((rule.rule.place, rule.verdict.action, rule.rule.written.subject[1], says))
        if not why_not:
            break
    else:
        rows.append(("default", rules.default_for(target).action, "", "decides"))
    if verdict.action != rows[-1][1]:  # Another file of the user, or its default, is stricter.
        rows[-1] = (*rows[-1][:3], "would decide")
        rows.append((verdict.rule, verdict.action, "", "decides, because it is stricter"))
    hidden = is_hidden(rules, caller, target)
    if as_json:
        keys = ("rule", "action", "for", "says")
        shown = {"action": verdict.action, "rule": verdict.rule, "why": verdict.why, "hidden": hidden}
        show_json({**shown, "rules": [dict(zip(keys, row, strict=True)) for row in rows]})
        return
    show_rows(("rule", "action", "for", "says"), rows)
    said = {"allow": "is allowed", "deny": "is denied", "ask": "must be approved by a person"}[verdict.action]
    why = f": {verdict.why}" if verdict.why else "."
    say(f"{target} {said}{why}{' It is not listed either.' if hidden else ''}")


class KnownTools:
    """The configuration, and what its servers offered last."""

    def __init__(self, config: GatewayConfig, places: Places) -> None:
        self.config = config
        self._cache = CatalogCache(catalogs_folder(config.root, places.environ))
        self._offers: dict[str, Offer | None] = {}

    @classmethod
    def of(cls, places: Places) -> "KnownTools":
        """Raises NotStarted if the files have errors."""
        loaded = loaded_from(places)
        # What is wrong with single servers does not concern rules.
        show_problems([problem for problem in loaded.problems if not problem.server], notes=False)
        if loaded.config is None:
            raise NotStarted("the configuration has errors, so there are no rules to look at.")
        return cls(with_resource_tools(loaded.config), places)

    def target(self, text: str, kind: Kind, arguments: Mapping[str, object]) -> Target:
        """What a name means. The salient argument is that of the tool, if it is remembered, else the first given."""
        plain = text.removeprefix("mcp__")
        server, separator, name = plain.partition("__")
        if not separator and kind != "resource":
            server, separator, name = text.partition(".")
        if not server or not name:
            raise click.UsageError(f"{text!r} is not the name of a {kind}: write mcp__SERVER__NAME.")
        found = self._server(server)
        if found is None:  # Names that users give to servers may contain `__`.
            heads = ((f"{name}__", each) for each in self.config.servers.values() for name in each.names)
            head, found = next(((head, each) for head, each in heads if plain.startswith(head)), ("", None))
            name = plain.removeprefix(head) if head else name
        offer = self._offer(found) if found is not None and kind == "tool" else None
        if found is not None and offer is not None and all(each.own != name for each in offer.tools):
            # Of an activation, which calls its tools by their whole names.
            whole = own_names(found, text)
            name = next((each.own for each in offer.tools if each.own in whole), name)
        salient = next((each.salient for each in offer.tools if each.own == name), None) if offer is not None else None
        if salient is None:
            salient = next((each for each in SALIENT if each in arguments), "") if kind == "tool" else ""
        return Target(server if found is None else found.key, kind, name, "", salient)

    def warnings(self, target: Target) -> list[str]:
        """Sentences about a target that does not exist."""
        server = self._server(target.server)
        if server is None:
            keys = [each.key for each in self.config.servers.values()]
            return [f'there is no server "{target.server}".{did_you_mean(target.server, keys)}']
        offer = self._offer(server) if target.kind == "tool" else None
        names = [each.own for each in offer.tools] if offer is not None else []
        if not names or target.name in names:
            return []
        return [f'{server.name} had no tool "{target.name}" when it last ran.{did_you_mean(target.name, names)}']

    def _server(self, name: str) -> ServerConfig | None:
        servers = self.config.servers.values()
        by_key = next((each for each in servers if each.key == name), None)
        return by_key or next((each for each in servers if name in each.names), None)

    def _offer(self, server: ServerConfig) -> Offer | None:
        if server.name not in self._offers:
            self._offers[server.name] = self._cache.load(server)
        return self._offers[server.name]


# ---------------------------------------------------------------------------------------------------------------- test


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call, and what the rules should say about it: `[[cases]]`."""

    tool: str | None = None
    prompt: str | None = None
    resource: str | None = None
    args: dict[str, object] = {}
    caller: str = "local"
    groups: tuple[str, ...] = ()
    expect: Action | Literal["hidden"]

    @property
    def subject(self) -> tuple[Kind, str]:
        """What it is about. Raises ValueError if that is nothing, or several things."""
        named: list[Kind] = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(named) != 1:
            raise ValueError("A case needs exactly one of tool, prompt and resource")
        return named[0], getattr(self, named[0])


@policy.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print all cases as JSON.")
@with_places
def test(file: str, as_json: bool, config: str | None, folder: str | None) -> None:
    """Compare the rules with what you expect of them.

    FILE is TOML with a table [[cases]] for each call. It has tool, prompt or resource; args, caller and groups, if they
    matter; and expect, which is "allow", "deny", "ask", or "hidden" for what is denied whatever the arguments. Cases
    that differ are printed.

    \b
    Examples:
      sluicegate policy test rules-test.toml

    Exit status: 0 all as expected, 1 some differ, 3 FILE or the rules have errors
    """
    cases = _cases(file)
    catalog = KnownTools.of(places_of(config, folder))
    rules = rules_of(catalog.config)
    rows: list[dict[str, object]] = []
    for line, case, (kind, name) in cases:
        target = catalog.target(name, kind, case.args)
        caller = Caller(case.caller, case.groups)
        verdict = judge(rules, caller, target, case.args)
        is_right = is_hidden(rules, caller, target) if case.expect == "hidden" else verdict.action == case.expect
        rows.append(
            {
                "case": f"{file}:{line}",
                "call": str(target),
                "caller": case.caller,
                "expected": case.expect,
                "got": verdict.action,
                "rule": verdict.rule or "default",
                "ok": is_right,
            }
        )
    wrong = [row for row in rows if not row["ok"]]
    if as_json:
        show_json(rows)
    elif wrong:
        head = ("case", "call", "caller", "expected", "got", "rule")
        show_rows(head, [[str(row[key]) for key in head] for row in wrong])
    if wrong:
        raise Failure(f"{len(wrong)} of {counted(len(rows), 'case')} {'differs' if len(wrong) == 1 else 'differ'}.")
    say(f"{counted(len(rows), 'case')}, all as expected.")


def _cases(file: str) -> list[tuple[int, Case, tuple[Kind, str]]]:
    """The cases of a file, each with its line and what it is about."""
    text = text_of(file)
    if text is None:
        raise NotStarted(f"{file} does not exist.")
    table = parse_toml(text)
    if isinstance(table, SyntaxFault):
        raise NotStarted(f"{file}: {table.sentence}")
    lines = lines_of(text)
    found: list[tuple[int, Case, tuple[Kind, str]]] = []
    rows = table.get("cases")
    if not isinstance(rows, list) or set(table) != {"cases"}:
        raise NotStarted(f"{file} should have tables [[cases]] and nothing else.")
    for number, row in enumerate(rows):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        line = lines.get(("cases", str(number)), 0)
        try:
            case = msgspec.convert(row, Case)
            found.append((line, case, case.subject))
        except ValueError as problem:  # Also of msgspec.
            raise NotStarted(f"{file}:{line}: {problem}.") from None
    return found


# -------------------------------------------------------------------------------------------------------------- import


@policy.command("import")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
def import_(file: str) -> None:
    """Print rules of another program as tables [[permissions]].

    FILE is JSON: a list of {"tool": ..., "action": ...} in the order in which the rules count, or a settings file of
    Claude Code, whose lists count in the order deny, ask, allow. - reads stdin.

    \b
    Examples:
      sluicegate policy import .claude/settings.json
      sluicegate policy import rules.json >> sluicegate.toml

    Exit status: 0 printed, 1 FILE or a rule in it cannot be read; then nothing is printed
    """
    text = sys.stdin.read() if file == "-" else text_of(file)
    if text is None:
        raise Failure(f"{file} does not exist.")
    try:
        found = imported_rules(text)
    except ValueError as problem:
        raise Failure(f"{os.path.basename(file)}: {problem}") from None
    click.echo("\n".join(to_toml(each) for each in found.permissions), nl=False)
    for note in found.notes:
        tell(note)
    say(f"{counted(len(found.permissions), 'rule')}; add them to sluicegate.toml.")
