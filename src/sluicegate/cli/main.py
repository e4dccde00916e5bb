"""`sluicegate`: imports the module of the command that is used, and no other.

For `sluicegate --help` to be quick, this module imports nothing but click.
"""

import errno
import os
import sys
from contextlib import suppress
from importlib import import_module

import click

from sluicegate import __version__

# The first line of each command's help, printed without importing the command; a test compares them.
COMMANDS = {
    "serve": "Serve all servers of this folder as one, or the one in FILE.py.",
    "status": "Show the state of each server, and why one is not ready.",
    "clients": "Show which clients are connected to the running gateway.",
    "tools": "List the tools of all servers, under the names that clients see.",
    "resources": "List the resources and resource templates of all servers.",
    "prompts": "List prompts of all servers, under the names that clients see.",
    "call": "Call a tool and print the text of its result.",
    "shell": "Use the tools of all servers in an interactive terminal.",
    "generate": "Write typed TypeScript or Python that calls the tools.",
    "logs": "Print what servers, or one of them, wrote to stderr last.",
    "restart": "Restart a server of the running gateway.",
    "audit": "Read, verify and export the record of all calls.",
    "check": "Show what would run, and the problems of the configuration.",
    "doctor": "Find problems, and say what to do about them.",
    "approvals": "Show the calls that wait for approval.",
    "approve": "Let a call run that waits for approval.",
    "deny": "Refuse a call that waits for approval.",
    "grants": "Show what callers may do without a question, and until when.",
    "pins": "Show which tool definitions are approved, and which have changed.",
    "policy": "Explain, test and write access rules.",
    "init": "Write a commented sluicegate.toml that changes nothing yet.",
    "import": "Import servers of other programs into .mcp.json.",
    "connect": "Add this gateway to the configuration of a client.",
}
_MODULES = {
    "import": "import_",
    "init": "files",
    **dict.fromkeys(("tools", "resources", "prompts"), "list"),
    **dict.fromkeys(("logs", "restart"), "one_server"),
    **dict.fromkeys(("approve", "deny", "grants"), "approvals"),
}
"""The module in `cli/` that has the command, where it is not named like the command."""
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class Commands(click.Group):
    """The group of all commands. Each is imported when it is used."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept `sluicegate help` and `sluicegate help COMMAND`, which many users try first."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"sluicegate.cli.{_MODULES.get(cmd_name, cmd_name)}")
        command: object = getattr(module, "import_" if cmd_name == "import" else cmd_name)
        assert isinstance(command, click.Command), cmd_name
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the words begin with; the error for an unknown one names a similar one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as problem:
            from sluicegate.text.similar import close_matches  # Only needed for this error.

            meant = close_matches(args[0], COMMANDS)
            if not meant or "Did you mean" in problem.message:
                raise
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {meant[0]!r}?", ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sluicegate", message="%(prog)s %(version)s")
def sluicegate() -> None:
    """One MCP endpoint in front of every MCP server you have.

    Servers are listed in .mcp.json, settings are in sluicegate.toml; neither has to exist. Both are looked for in this
    folder and in those above it, .mcp.json also in your home folder.

    \b
    Examples:
      sluicegate serve                              at http://127.0.0.1:4747/mcp
      sluicegate call demo__echo text=hello
      sluicegate connect cursor
      sluicegate serve server.py --stdio            the server in a Python file
    """


def main() -> None:
    """Run the command that the program's arguments name, and exit with its status."""
    try:
        status: object = sluicegate.main(prog_name="sluicegate", standalone_mode=False)  # click handles closed pipes.
    except click.UsageError as problem:
        _report_usage(problem)
        sys.exit(problem.exit_code)
    except click.ClickException as problem:
        problem.show()
        sys.exit(problem.exit_code)
    except click.Abort:
        sys.exit(130)  # Ctrl+C. Click itself would print "Aborted!".
    except OSError as problem:
        # Failures to write other files have a filename, and are reported where they happen.
        if problem.errno not in _DISK_FULL or problem.filename is not None:
            raise
        _report_full_stdout(problem)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)


def _report_usage(problem: click.UsageError) -> None:
    """Print what is wrong in one sentence, as other errors are. Click itself would print three lines before it."""
    from sluicegate.cli.output import say_error  # Only errors need it.

    if isinstance(problem, click.exceptions.NoArgsIsHelpError):
        problem.show()
        return
    sentence = problem.format_message()
    # Our own sentences say what is right, unlike those of click.
    is_ours = type(problem) is click.UsageError and not sentence.startswith(("Got ", "No such "))
    if not is_ours and problem.ctx is not None:
        ended = sentence if sentence.endswith("?") else f"{sentence.rstrip('.')}."
        sentence = f"{ended} `{problem.ctx.command_path} --help` shows what is right."
    say_error(f"{sentence[:1].lower()}{sentence[1:]}")


def _report_full_stdout(problem: OSError) -> None:
    # Python would try to flush stdout once more at exit, and print a traceback.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    done = "".join(f"{note}, but " for note in getattr(problem, "__notes__", ()))
    with suppress(OSError):  # stderr may go to the same disk.
        click.echo(
            f"sluicegate: {done}stdout cannot be written: {problem.strerror}; the output is incomplete.", err=True
        )
