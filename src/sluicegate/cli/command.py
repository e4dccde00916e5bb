"""What all commands share: their options, the folder and files they use, and how they fail.

Exit status: 0 done, 1 failed, 2 wrong command line (by click), 3 could not start.

`sluicegate serve` imports this module before it starts servers, so it must not import asyncio or logging.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from sluicegate.cli.output import say_error
from sluicegate.config.paths import Places, note_folders

F = TypeVar("F", bound=Callable[..., Any])

CLIENT_NAMES: Final = ("claude-desktop", "claude-code", "cursor", "vscode", "codex", "gemini")
"""The programs that `sluicegate connect` and `sluicegate import` know."""
INTERRUPTED: Final = 130
"""The exit status of a program ended by Ctrl+C, as shells have it."""
WHOLE: Final = 500
"""Characters of a short help that is not cut off."""
_PROJECT_FILES: Final = (".mcp.json", "sluicegate.toml")

_folder = click.option(
    "--folder",
    "--directory",
    "-C",
    "folder",
    type=click.Path(exists=True, file_okay=False),
    help="The gateway's folder, instead of this one or the nearest one above it that has a .mcp.json.",
)
_config = click.option(
    "--config",
    type=click.Path(dir_okay=False),
    help="This file instead of the folder's .mcp.json; or of sluicegate.toml, if it ends in .toml.",
)


class Failure(click.ClickException):
    """Ends the command with a sentence that says what failed and what to do."""

    exit_code = 1

    def show(self, file: object = None) -> None:
        say_error(self.message)


class NotStarted(Failure):
    """Ends a command that could not start the gateway."""

    exit_code = 3


class Group(click.Group):
    """A group that shows the whole first paragraph of each command's help. Click itself would cut it off."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(limit=WHOLE)) for name, each in commands if each])


def with_folder(command: F) -> F:
    """Give a command the option --folder."""
    return _folder(command)


def with_places(command: F) -> F:
    """Give a command the options --config and --folder."""
    return _config(_folder(command))


def places_of(config: str | None, folder: str | None) -> Places:
    """The files that these options select."""
    if folder is None and config is None:
        folder = project_folder(os.getcwd(), os.path.expanduser("~"))
    places = Places.here(config, folder)
    note_folders(places.environ)
    return places


def project_folder(folder: str, home: str) -> str:
    """The nearest folder, this one or one above it, that has a configuration; this one if none has.

    The home folder does not count when it is above: its .mcp.json applies to all folders anyway.
    """
    above = folder
    while True:
        if any(_is_ours(os.path.join(above, name)) for name in _PROJECT_FILES):
            return above
        above, below = os.path.dirname(above), above
        if above in (below, home):
            return folder


def _is_ours(file: str) -> bool:
    # A file that another user puts into a shared folder such as /tmp must not choose what we run.
    try:
        return sys.platform == "win32" or os.stat(file).st_uid == os.getuid()
    except OSError:
        return False


def confirmed(question: str, *, is_yes: bool) -> bool:
    """Whether the user agrees: by an option, or asked on the terminal; False if there is no terminal."""
    if is_yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        raise SystemExit(INTERRUPTED) from None


def command_as_called() -> str:
    """How the user can call us in the shell."""
    called = sys.argv[0]
    if os.path.basename(called) != "sluicegate":
        return f"{shlex.quote(sys.executable)} -m sluicegate"
    return "sluicegate" if shutil.which("sluicegate") else shlex.quote(called)
