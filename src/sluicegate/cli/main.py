"""`sluicegate`: finds the command that is meant, and loads no other."""

import sys
from importlib import import_module
from keyword import iskeyword

import click

from sluicegate import __version__

# What each command does, as its own help begins: said without loading it, and a test keeps both in step. The command
# NAME is the function of that name in `cli/NAME.py`; where Python has that word for itself, with a `_` behind it.
COMMANDS = {
    "serve": "Serve all servers of this folder as one, or the one in FILE.py.",
    "status": "Show how each server is, and why one is not ready.",
    "tools": "List the tools of all servers, with the names that clients see.",
    "resources": "List the resources of all servers, and the templates of others.",
    "prompts": "List the prompts of all servers, with the names that clients see.",
    "call": "Call a tool and print the text of its result.",
    "logs": "Print what a server wrote to its stderr: its last 1,000 lines.",
    "restart": "Start a server of the running gateway anew, now.",
    "check": "Show what would run, and what is wrong with the configuration.",
    "doctor": "Look for what is wrong, and say what to do about it.",
    "init": "Write a commented sluicegate.toml that changes nothing yet.",
    "import": "Take over servers from other programs into .mcp.json.",
    "connect": "Write this gateway into a client's own configuration.",
}


class Commands(click.Group):
    """The group of all commands; each is imported when it is used."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the words apart; `help` is what many try first, alone or with a command behind it."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command: object = getattr(import_module(f"sluicegate.cli.{name}"), name)
        assert isinstance(command, click.Command), cmd_name
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the words begin with; one that is not there is told with what may be meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as problem:
            from sluicegate.config.likeness import near

            meant = near(args[0], COMMANDS)
            if not meant or "Did you mean" in problem.message:
                raise
            raise click.UsageError(f"{problem.message} Did you mean {meant[0]!r}?", ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table into the help."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sluicegate", message="%(prog)s %(version)s")
def sluicegate() -> None:
    """One MCP endpoint in front of every MCP server you have.

    Servers come from .mcp.json, and what is done with them from sluicegate.toml; neither has to exist.

    \b
    Examples:
      sluicegate serve                              at http://127.0.0.1:4747/mcp
      sluicegate call demo__echo text=hello
      sluicegate connect cursor
      sluicegate serve server.py --stdio            one server out of a Python file
    """


def main() -> None:
    """Run the command that the program's arguments name, and exit with its status."""
    try:
        status = _status()
    except click.ClickException as problem:
        problem.show()
        sys.exit(problem.exit_code)
    except click.Abort:
        # Click would say "Aborted!"; whoever pressed Ctrl+C knows.
        sys.exit(130)
    sys.exit(status if isinstance(status, int) else 0)


def _status() -> object:
    try:
        return sluicegate.main(prog_name="sluicegate", standalone_mode=False)  # It knows what to do when a pipe closes.
    except OSError as problem:
        from sluicegate.cli.failure import unprinted

        raise unprinted(problem) from None
