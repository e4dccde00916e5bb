"""How a command does its work: in a loop of its own, quiet when it is interrupted, one sentence when it fails."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Final

import click

from sluicegate.cli.failure import Failure
from sluicegate.errors import SluicegateError

INTERRUPTED: Final = 130
"""The status of a program that Ctrl+C ended, as shells have it."""


def run(work: Coroutine[object, object, int]) -> None:
    """Do the work to its end, and exit with the status that it gives.

    Raises:
        Failure: something stood in its way.
    """
    # What the gateway's rooms log is said by the command itself, where it matters.
    logging.getLogger("sluicegate").addHandler(logging.NullHandler())
    try:
        status = asyncio.run(work)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except SluicegateError as problem:
        raise Failure(problem.message) from None
    if status:
        raise SystemExit(status)


def agreed(question: str, *, is_yes: bool) -> bool:
    """Whether a person wants it: said by an option, or asked on the terminal; without one, nobody is asked."""
    import sys

    if is_yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        raise SystemExit(INTERRUPTED) from None
