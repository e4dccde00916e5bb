"""`sluicegate`: finds the command that is meant, and loads no other."""

from importlib import import_module

import click

from sluicegate import __version__

# What each command does, as its own help begins: said without loading it, and a test keeps both in step. The command
# NAME is the function of that name in `cli/NAME.py`.
COMMANDS = {
    "serve": "Serve the MCP server in FILE.py, over HTTP or stdio.",
}


class Commands(click.Group):
    """The group of all commands; each is imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        command: object = getattr(import_module(f"sluicegate.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command), cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table into the help."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sluicegate", message="%(prog)s %(version)s")
def sluicegate() -> None:
    """MCP servers out of Python files, for clients of every revision of the protocol.

    \b
    Examples:
      sluicegate serve server.py            at http://127.0.0.1:4747/mcp
      sluicegate serve server.py --stdio    for a client that starts it
    """


def main() -> None:
    """Run the command that the program's arguments name, and exit with its status."""
    sluicegate(prog_name="sluicegate")
