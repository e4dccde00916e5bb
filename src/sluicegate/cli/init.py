"""`sluicegate init`: a sluicegate.toml to begin with."""

import os

import click

from sluicegate.cli.failure import Failure
from sluicegate.cli.places import with_folder


@click.command()
@click.option("--force", is_flag=True, help="Write over one that is there; it is kept as sluicegate.toml.bak.")
@click.option("--stdout", is_flag=True, help="Print it instead.")
@with_folder
def init(force: bool, stdout: bool, folder: str | None) -> None:
    """Write a commented sluicegate.toml that changes nothing yet.

    \b
    Examples:
      sluicegate init
      sluicegate init --stdout | less

    \b
    Exit status: 0 written, 1 there is one already, or it cannot be written
    """
    from sluicegate.cli.files import replace_file
    from sluicegate.cli.render import say
    from sluicegate.config.template import template

    if stdout:
        click.echo(template(), nl=False)
        return
    file = os.path.join(folder or os.curdir, "sluicegate.toml")
    if os.path.lexists(file) and not force:
        raise Failure(f"{file} is there already; --force writes over it, --stdout shows what would be written.")
    kept = replace_file(file, template(), backup=f"{file}.bak")
    say(f"wrote {file}{f', and kept the old one as {kept}' if kept else ''}.")
    say("which servers there are stands in .mcp.json; `sluicegate import` fills it from your other programs.")
