"""Files of the user: `sluicegate init`, and what `import` and `connect` share."""

import asyncio
import codecs
import os
import tempfile
from collections.abc import Mapping
from urllib.parse import urlsplit

import click
from msgspec.structs import replace

from sluicegate.cli.command import Failure, with_folder
from sluicegate.cli.gateway_client import running_address
from sluicegate.cli.output import say
from sluicegate.config.jsonc import SyntaxFault, line_column
from sluicegate.config.load import load
from sluicegate.config.model import GatewayConfig, HttpFront
from sluicegate.config.paths import Places
from sluicegate.config.problems import Problem, read_text
from sluicegate.config.template import template


@click.command()
@click.option("--force", is_flag=True, help="Replace an existing file; it is kept as sluicegate.toml.bak.")
@click.option("--stdout", is_flag=True, help="Print it instead.")
@with_folder
def init(force: bool, stdout: bool, folder: str | None) -> None:
    """Write a commented sluicegate.toml that changes nothing yet.

    \b
    Examples:
      sluicegate init
      sluicegate init --stdout | less

    Exit status: 0 written, 1 it exists already, or cannot be written
    """
    if stdout:
        click.echo(template(), nl=False)
        return
    file = os.path.join(folder or os.curdir, "sluicegate.toml")
    if os.path.lexists(file) and not force:
        raise Failure(f"{file} exists already; --force replaces it, --stdout shows what would be written.")
    kept = replace_file(file, template(), backup=f"{file}.bak")
    say(f"wrote {file}{f', and kept the old one as {kept}' if kept else ''}.")
    say("servers are listed in .mcp.json; `sluicegate import` imports those of your other programs.")


def text_of(file: str) -> str | None:
    """The text of a file; None if it does not exist.

    Raises:
        Failure: it exists but cannot be read.
    """
    text = read_text(file)
    if isinstance(text, Problem):
        raise Failure(f"{file}{f':{text.line}' if text.line else ''}: {text.sentence}")
    return text


def wrong_in(file: str, text: str, fault: SyntaxFault) -> str:
    """A sentence about a fault in a file with this text, with its place."""
    if not fault.offset:
        return f"{file}: {fault.sentence}"
    line, column = line_column(text, fault.offset)
    return f"{file}:{line}:{column}: {fault.sentence} Correct that and try again."


def replace_file(file: str, text: str, *, backup: str | None = None) -> str | None:
    """Replace the content of a file atomically; returns `backup` if the old content was kept there.

    Raises:
        Failure: it cannot be written; then the file and an earlier backup are unchanged.
    """
    # A symbolic link stays one: its target is changed, as an editor would do.
    real = os.path.realpath(file)
    try:
        os.makedirs(os.path.dirname(real), exist_ok=True)
        try:
            mode = os.stat(real).st_mode & 0o777
        except FileNotFoundError:
            # Lists of servers may contain keys, so they are private.
            mode, backup = 0o644 if os.path.basename(real) == "sluicegate.toml" else 0o600, None
            old = b""
        else:
            with open(real, "rb") as opened:
                old = opened.read()
        # Readers do not see the byte order mark, and some programs need it.
        mark = codecs.BOM_UTF8 if old.startswith(codecs.BOM_UTF8) else b""
        kept = {} if backup is None else {backup: old}
        _write({**kept, real: mark + text.encode("utf-8")}, mode)
    except OSError as problem:
        raise Failure(f"{file} cannot be written: {problem.strerror}; it is unchanged.") from None
    return backup


def _write(contents: Mapping[str, bytes], mode: int) -> None:
    """Write all files or none: all are written to temporary files before the first is replaced."""
    written: dict[str, str] = {}
    try:
        for file, data in contents.items():
            folder = os.path.dirname(file) or os.curdir
            descriptor, written[file] = tempfile.mkstemp(dir=folder, prefix=".sluicegate-")
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(data)
                opened.flush()
                os.fsync(descriptor)
            os.chmod(written[file], mode)
        for file in contents:
            os.replace(written.pop(file), file)
    finally:
        for temporary in written.values():
            os.unlink(temporary)


def gateway_fronts(places: Places) -> list[HttpFront]:
    """The HTTP addresses of the folder's gateway: as configured, and that of the running one if it differs."""
    http = (load(places).config or GatewayConfig(root=places.root)).http
    address = urlsplit(asyncio.run(running_address(places)) or "")
    return [http, replace(http, port=address.port, path=address.path)] if address.port else [http]
