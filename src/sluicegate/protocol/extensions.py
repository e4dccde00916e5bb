"""Extensions of the protocol, known and unknown ones: what servers offer, and what clients declare."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from sluicegate.protocol.message import Params, as_object
from sluicegate.protocol.modern_era import ClientProfile, Discovery
from sluicegate.protocol.tasks import EXTENSION as TASKS
from sluicegate.protocol.tasks import offers_tasks

MAX_SIZE: Final = 16 * 1024
"""Bytes of all extensions that one server declares, with their settings."""

_OF_ONE_CONNECTION: Final = frozenset(
    {
        "io.modelcontextprotocol/enterprise-managed-authorization",
        "io.modelcontextprotocol/oauth-client-credentials",
    }
)
"""Extensions about the authorization of one connection, which say nothing about another one."""


def declared_in(capabilities: Mapping[str, object]) -> Params:
    """The extensions in the capabilities of a client or a server, with their settings."""
    found = as_object(capabilities.get("extensions")) or {}
    return {name: settings for name, settings in found.items() if as_object(settings) is not None}


def offered_by(discovery: Discovery) -> Params:
    """The extensions of a server that a client behind a gateway can use, with their settings."""
    found = declared_in(discovery.capabilities)
    others = {name: value for name, value in found.items() if name not in _OF_ONE_CONNECTION and name != TASKS}
    if offers_tasks(discovery):
        others[TASKS] = found[TASKS]
    return others if len(msgspec.json.encode(others)) <= MAX_SIZE else {}


def common(profile: ClientProfile, offered: Params) -> Params:
    """The extensions that both the client and the server declare. Tasks are left out: no list depends on them."""
    if not offered:
        return {}
    declared = declared_in(profile.capabilities)
    return {name: value for name, value in declared.items() if name in offered and name != TASKS}


def may_vary(offered: Params) -> bool:
    """Whether the lists of a server with these extensions may depend on what a client declares."""
    return bool(offered.keys() - {TASKS})


def merged(servers: Iterable[Params]) -> Params:
    """The extensions of several servers together: an optional feature is there if one of them has it."""
    found: dict[str, Params] = {}
    for offered in servers:
        for name, settings in offered.items():
            known = found.setdefault(name, {})
            known.update((key, value) for key, value in (as_object(settings) or {}).items() if not known.get(key))
    return dict(found)


def extension_named_like(method: str, offered: Params) -> bool:
    """Whether a server offers an extension that a method is named after: `skills/list` after `…/skills`."""
    namespace = method.partition("/")[0]
    return any(name.rpartition("/")[2] == namespace for name in offered if name != TASKS)
