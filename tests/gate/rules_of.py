"""Rules from TOML, as the configuration reads them."""

import tomllib

import msgspec

from sluicegate.exchange import Caller, Target
from sluicegate.gate.policy import Rules
from sluicegate.gate.rules import Action, Permission, PolicyConfig, Rule, RulesFile, faults, policy_of


def policy(text: str, default: Action | None = None) -> PolicyConfig:
    """The policy of a file with this text."""
    rows = msgspec.convert(tomllib.loads(text).get("permissions", []), list[Permission])
    assert not [fault for row in rows for fault in faults(row)]
    rules = [Rule(row, "sluicegate.toml", number) for number, row in enumerate(rows, 1)]
    return policy_of([RulesFile(tuple(rules), default)])


def rules(text: str, default: Action | None = None) -> Rules:
    """The same, compiled. A rule's line is its number."""
    return Rules(policy(text, default))


def rule(**written: object) -> Rules:
    """One rule, and deny for all else if it allows, allow for all else if it does not."""
    made = msgspec.convert(written, Permission)
    assert not list(faults(made))
    return Rules(PolicyConfig((Rule(made, "sluicegate.toml", 1),), "deny" if made.action == "allow" else "allow"))


ADA = Caller("ada", ("ops",))
BOB = Caller("bob")


def tool(name: str, salient: str = "") -> Target:
    """A tool, given as SERVER NAME."""
    server, _, own = name.partition(" ")
    return Target(server, "tool", own, "", salient)


def resource(uri: str) -> Target:
    """A resource of the server `files`."""
    return Target("files", "resource", uri)
