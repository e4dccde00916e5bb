"""Merges the settings of several files. Later files take precedence, but cannot loosen what the user's file tightens.

A project's file comes from a repository, so it may be written by someone else (T36). Settings about safety have a
direction: of two values the stricter one is used. All other settings are a matter of taste, and the later value counts.
"""

from collections.abc import Callable, Mapping
from typing import Final, cast

Table = dict[str, object]
Path = tuple[str, ...]
Stricter = Callable[[object, object], object]
"""Returns the value that is used, of the user's and a later one."""

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _ordered(*values: object) -> Stricter:
    """The values from the strictest to the loosest."""
    return lambda own, later: min(own, later, key=values.index)


def _least(own: object, later: object) -> object:
    return min(cast(float, own), cast(float, later))


def _least_rate(own: object, later: object) -> object:
    """The later rate, unless it allows more calls at once or more over time: all calls of a rate may come at once."""
    (own_calls, own_average), (calls, average) = _calls_and_average(str(own)), _calls_and_average(str(later))
    return later if calls <= own_calls and average <= own_average else own


def _calls_and_average(rate: str) -> tuple[int, float]:
    count, _, unit = rate.partition("/")
    return int(count), int(count) / _SECONDS[unit]


def _most_months(own: object, later: object) -> object:
    return 0 if 0 in (own, later) else max(cast(int, own), cast(int, later))


def _own(own: object, _later: object) -> object:
    """The user's value, also if it is empty: an empty list of origins admits none."""
    return own


def _own_list(own: object, later: object) -> object:
    """The user's list, unless it has everything. Two lists of globs have no list for what both match."""
    return later if "*" in cast(list[str], own) else own


def _both(own: object, later: object) -> object:
    return list(dict.fromkeys([*cast(list[str], own), *cast(list[str], later)]))


_PROFILE: Final[Mapping[str, Stricter]] = {"servers": _own_list, "tools": _own_list, "hide": _both}
_SERVER: Final[Mapping[str, Stricter]] = {
    "enabled": _ordered(False, True),
    "tools": _own_list,
    "hide": _both,
    "definitions": _ordered("pin", "warn", "off"),
    "calls": _least_rate,
    "max_arguments": _least,
    "max_result": _least,
    "env_pass": _own_list,
}
_SECTIONS: Final[Mapping[Path, Stricter]] = {
    ("http", "host"): _own,
    ("http", "allowed_hosts"): _own,
    ("http", "allowed_origins"): _own,
    ("http", "anyone_may_connect"): _ordered(False, True),
    ("approvals", "wait"): _least,
    ("approvals", "client"): _ordered("none", "local", "any"),
    ("approvals", "late"): _ordered("void", "keep"),
    ("approvals", "webhook"): _own,
    ("limits", "calls"): _least_rate,
    ("audit", "enabled"): _ordered(True, False),
    ("audit", "folder"): _own,
    ("audit", "sync"): _ordered("full", "normal"),
    ("audit", "on_failure"): _ordered("closed", "open"),
    ("audit", "keep"): _most_months,
    ("audit", "anchors"): _both,
}


def merged(own: Table, later: Table, kept: list[Path], path: Path = ()) -> Table:
    """Both tables merged; `own` is the user's. Paths of later values that are not used, being looser, go to `kept`.

    Tables of servers are merged by the later value alone: which of them apply to a server is known later on, and then
    `stricter_server` is used.
    """
    both = dict(own)
    for key, value in later.items():
        here = (*path, key)
        old = both.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            both[key] = merged(cast(Table, old), cast(Table, value), kept, here)
            continue
        stricter = _rule_for(here)
        both[key] = value if key not in both or stricter is None else stricter(both[key], value)
        if both[key] != value and stricter is not _both:
            kept.append(here)
    return both


def stricter_server(own: Table, written: Table) -> tuple[Table, list[str]]:
    """The settings of a server, made as strict as the user's own, and the keys for which that made a difference."""
    clamped = {key: _SERVER[key](value, written.get(key, value)) for key, value in own.items() if key in _SERVER}
    loosened = [key for key, value in clamped.items() if written.get(key, value) != value and key != "hide"]
    return {**written, **clamped}, loosened


def _rule_for(path: Path) -> Stricter | None:
    match path:
        case ("limits", "calls_per_tool", _):
            return _least_rate
        case ("limits", key) if key != "calls":
            return _least
        case ("profiles", _, key):
            return _PROFILE.get(key)
        case _:
            return _SECTIONS.get(path)
