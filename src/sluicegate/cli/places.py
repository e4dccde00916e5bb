"""Which folder and which files a command is about: the options that all of them share."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from sluicegate.config import Loaded, Places

F = TypeVar("F", bound=Callable[..., Any])

CLIENT_NAMES: Final = ("claude-desktop", "claude-code", "cursor", "vscode", "codex", "gemini")
"""The programs that `sluicegate connect` knows."""
_DEMO_NAMES: Final = ("demo", "sluicegate-demo")

_folder = click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False),
    help="The folder that the gateway is for, instead of this one.",
)
_config = click.option(
    "--config",
    type=click.Path(dir_okay=False),
    help="This file instead of the folder's .mcp.json; or of sluicegate.toml, if it ends in .toml.",
)


def with_folder(command: F) -> F:
    """Give a command the option --folder."""
    return _folder(command)


def with_places(command: F) -> F:
    """Give a command the options --config and --folder."""
    return _config(_folder(command))


def places_of(config: str | None, folder: str | None) -> "Places":
    """The places that these options mean."""
    from sluicegate.config import Places

    return Places.here(config, folder)


def loaded_from(places: "Places", *, demo: bool = False) -> "Loaded":
    """What the files say; where there is none of them, or it is asked for, with the demo server."""
    from sluicegate.config import load

    return with_demo(load(places), places, always=demo)


def with_demo(loaded: "Loaded", places: "Places", *, always: bool = False) -> "Loaded":
    """The configuration with the demo server in it if nothing is configured at all, or always."""
    config = loaded.config
    if config is None or not (always or not any(os.path.exists(file) for file in places.files)):
        return loaded

    from msgspec.structs import replace

    import sluicegate
    from sluicegate.config import PythonFile, ServerConfig

    name = next((name for name in _DEMO_NAMES if _is_free(name, config.servers)), None)
    if name is None:
        return loaded
    file = os.path.join(os.path.dirname(sluicegate.__file__), "demo.py")
    demo = ServerConfig(name=name, key=name, source=PythonFile(file=file))
    return replace(loaded, config=replace(config, servers={**config.servers, name: demo}))


def _is_free(name: str, servers: "dict[str, Any]") -> bool:
    return all(name not in (server.name, server.key, server.prefix) for server in servers.values())


def show_problems(loaded: "Loaded", *, notes: bool = True) -> None:
    """Print what is wrong with the files to stderr, a line each: file:line:column: severity: sentence."""
    from sluicegate.cli.render import tell

    for problem in loaded.problems:
        if notes or problem.severity != "note":
            tell(str(problem))
