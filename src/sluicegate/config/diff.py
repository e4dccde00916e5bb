"""Compares two configurations and says what a reload must change."""

from typing import Final

import msgspec

from sluicegate.config.model import GatewayConfig, Http, Installed, ServerConfig, ServerSettings, Stdio
from sluicegate.gate.rules import Action, Permission

_CONNECTION: Final = ("era", "start_timeout", "probe_timeout", "stop_grace", "roots")
"""Settings of a server that take effect when it connects."""

_NEED_RESTART: Final = (
    "http.",
    "control.",
    "audit.",
    "approvals.webhook",
    "catalog.start_wait",
    "limits.body",
    "limits.hold",
    "limits.in_flight",
    "limits.streams",
    "limits.session",
)
"""Settings that take effect when the gateway starts."""


class ConfigChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that a reload must make; everything else keeps running. Servers are given by name."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    reconnect: tuple[str, ...] = ()
    """Servers to disconnect, connect or reconnect: another command, URL or era, enabled or disabled, another limit for
    messages or for calls by HTTP."""
    adjusted: tuple[str, ...] = ()
    """Servers with other names, limits or timeouts, which stay connected."""
    order: bool = False
    """Whether the remaining servers are in another order."""
    settings: tuple[str, ...] = ()
    """Changed keys of the gateway's own settings that are applied at once."""
    restart: tuple[str, ...] = ()
    """Changed keys that take effect at the next start."""

    def __bool__(self) -> bool:
        return self != ConfigChanges()


def changes(old: GatewayConfig, new: GatewayConfig) -> ConfigChanges:
    """The changes between two configurations. The line of an entry in its file does not matter."""
    both = [name for name in new.servers if name in old.servers]
    pairs = {name: (old.servers[name], new.servers[name]) for name in both}
    is_new_limit = old.limits.message != new.limits.message
    reconnect = tuple(
        name
        for name, (was, now) in pairs.items()
        if _must_reconnect(was, now) or (is_new_limit and now.enabled and isinstance(now.source, Stdio | Http))
    )
    keys = _changed_keys(old, new)
    return ConfigChanges(
        added=tuple(name for name in new.servers if name not in old.servers),
        removed=tuple(name for name in old.servers if name not in new.servers),
        reconnect=reconnect,
        adjusted=tuple(name for name, (was, now) in pairs.items() if name not in reconnect and _differs(was, now)),
        order=[name for name in old.servers if name in new.servers] != both,
        settings=tuple(key for key in keys if not key.startswith(_NEED_RESTART)),
        restart=tuple(key for key in keys if key.startswith(_NEED_RESTART)),
    )


def _must_reconnect(was: ServerConfig, now: ServerConfig) -> bool:
    if was.enabled != now.enabled:
        return True
    if not now.enabled:
        return False
    if was.source != now.source or was.opens_within != now.opens_within:
        return True
    if isinstance(now.source, Http) and _longest(was.settings) != _longest(now.settings):
        return True  # The connection has the time limit for responses.
    if isinstance(now.source, Installed) and was.prefix != now.prefix:
        return True  # The prefix is part of the server's own names.
    return any(getattr(was.settings, name) != getattr(now.settings, name) for name in _CONNECTION)


def _longest(settings: ServerSettings) -> float:
    """Seconds that a call to the server may take at most."""
    return max(settings.longest_call, settings.timeout, *settings.tool_timeouts.values())


def _differs(was: ServerConfig, now: ServerConfig) -> bool:
    if not now.enabled:  # Settings do not matter while it does not run.
        return (was.source, was.disabled) != (now.source, now.disabled)
    return (was.key, was.source, was.disabled, was.settings) != (now.key, now.source, now.disabled, now.settings)


def _written(config: GatewayConfig) -> list[Permission]:
    return [rule.written for rule in config.policy.rules]


def _defaults(config: GatewayConfig) -> list[Action]:
    return [config.policy.default, *(floor.default for floor in config.policy.floors)]


def _changed_keys(old: GatewayConfig, new: GatewayConfig) -> list[str]:
    keys = ["naming"] if old.naming != new.naming else []
    for section in ("http", "control", "approvals", "catalog", "limits", "audit"):
        was, now = getattr(old, section), getattr(new, section)
        keys += [f"{section}.{name}" for name in now.__struct_fields__ if getattr(was, name) != getattr(now, name)]
    keys += ["policy.default"] if _defaults(old) != _defaults(new) else []
    keys += ["permissions"] if _written(old) != _written(new) else []
    names = [*old.profiles, *(name for name in new.profiles if name not in old.profiles)]
    keys += [f"profiles.{name}" for name in names if old.profiles.get(name) != new.profiles.get(name)]
    return keys
