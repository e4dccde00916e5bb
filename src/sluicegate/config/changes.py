"""What is different between two configurations, as what a reload must touch."""

from typing import Final

import msgspec

from sluicegate.config.values import GatewayConfig, Http, ServerConfig, ServerSettings, Stdio

_CONNECTION: Final = ("era", "start_timeout", "probe_timeout", "stop_grace", "roots")
"""Settings of a server that a connection has from its beginning."""

_NEED_RESTART: Final = (
    "http.",
    "control.",
    "limits.body",
    "limits.hold",
    "limits.in_flight",
    "limits.streams",
    "limits.session",
)
"""Settings that the fronts, or what they hold for clients, have from their beginning."""


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What a reload must touch; what is not named here stays as it runs. Servers are given by name."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    reconnect: tuple[str, ...] = ()
    """Another command, URL or era, switched on or off, longer calls by HTTP, or messages of another length: the
    connection is made anew."""
    adjusted: tuple[str, ...] = ()
    """Other names, limits or times: the connection stays."""
    order: bool = False
    """Whether the servers that stayed are in another order."""
    settings: tuple[str, ...] = ()
    """Keys of the gateway's own settings that can be applied as it runs."""
    restart: tuple[str, ...] = ()
    """Keys that take effect when the gateway is started the next time."""

    def __bool__(self) -> bool:
        return self != Changes()


def changes(old: GatewayConfig, new: GatewayConfig) -> Changes:
    """What is to be done to get from one configuration to the other. Where an entry stands in its file is no matter."""
    both = [name for name in new.servers if name in old.servers]
    pairs = {name: (old.servers[name], new.servers[name]) for name in both}
    is_for_all = old.limits.message != new.limits.message
    reconnect = tuple(
        name
        for name, (was, now) in pairs.items()
        if _connects_anew(was, now) or (is_for_all and now.enabled and isinstance(now.source, Stdio | Http))
    )
    keys = _changed_keys(old, new)
    return Changes(
        added=tuple(name for name in new.servers if name not in old.servers),
        removed=tuple(name for name in old.servers if name not in new.servers),
        reconnect=reconnect,
        adjusted=tuple(name for name, (was, now) in pairs.items() if name not in reconnect and _differs(was, now)),
        order=[name for name in old.servers if name in new.servers] != both,
        settings=tuple(key for key in keys if not key.startswith(_NEED_RESTART)),
        restart=tuple(key for key in keys if key.startswith(_NEED_RESTART)),
    )


def _connects_anew(was: ServerConfig, now: ServerConfig) -> bool:
    if was.enabled != now.enabled:
        return True
    if not now.enabled:
        return False
    if was.source != now.source or was.opens_within != now.opens_within:
        return True
    if isinstance(now.source, Http) and _longest(was.settings) != _longest(now.settings):
        return True  # How long its answers may keep us waiting is a matter of the connection.
    return any(getattr(was.settings, name) != getattr(now.settings, name) for name in _CONNECTION)


def _longest(settings: ServerSettings) -> float:
    """Seconds that the longest of a server's calls may take."""
    return max(settings.longest_call, settings.timeout, *settings.tool_timeouts.values())


def _differs(was: ServerConfig, now: ServerConfig) -> bool:
    if not now.enabled:  # How it would be treated is no matter while it does not run.
        return (was.source, was.disabled) != (now.source, now.disabled)
    return (was.key, was.source, was.disabled, was.settings) != (now.key, now.source, now.disabled, now.settings)


def _changed_keys(old: GatewayConfig, new: GatewayConfig) -> list[str]:
    keys = ["naming"] if old.naming != new.naming else []
    for section in ("http", "control", "catalog", "limits"):
        was, now = getattr(old, section), getattr(new, section)
        keys += [f"{section}.{name}" for name in now.__struct_fields__ if getattr(was, name) != getattr(now, name)]
    names = [*old.profiles, *(name for name in new.profiles if name not in old.profiles)]
    keys += [f"profiles.{name}" for name in names if old.profiles.get(name) != new.profiles.get(name)]
    return keys
