"""Servers of a folder above this one, for whoever has gone down from it and finds none here."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

if TYPE_CHECKING:
    from sluicegate.config import Places

_FILES: Final = (".mcp.json", "sluicegate.toml")


def way_up(places: "Places", runs: "Callable[[Places], bool]", *, only_running: bool = False) -> str:
    """A sentence about the nearest folder above that has servers, with the option that names it; empty if none has.

    `runs` says whether a gateway does; with `only_running`, files alone are not enough.
    """
    for folder in _above(places.root):
        option = f"--folder {shlex.quote(os.path.relpath(folder))}"
        if runs(replace(places, root=folder)):
            return f"A gateway runs for {folder}, above this folder: add {option} to ask that one."
        name = next((name for name in _FILES if _is_ours(os.path.join(folder, name))), None)
        if name is not None and not only_running:
            return f"There is a {name} in {folder}, above this folder: add {option} to use it."
    return ""


def _above(folder: str) -> Iterator[str]:
    while (above := os.path.dirname(folder)) != folder:
        yield above
        folder = above


def _is_ours(file: str) -> bool:
    """Whether there is such a file, of this user: what somebody else puts into /tmp is nothing to propose."""
    try:
        return sys.platform == "win32" or os.stat(file).st_uid == os.getuid()
    except OSError:
        return False
