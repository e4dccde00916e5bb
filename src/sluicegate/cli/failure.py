"""How a command ends that could not do what it was asked: one sentence on stderr, and a status for scripts.

0 is done, 1 failed, 2 what click says of a wrong command line, 3 could not start.
"""

import errno
import os
import sys
from typing import Final

import click

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a write ends with when nothing can be written there any more."""


class Failure(click.ClickException):
    """Ends the command with a sentence that names what is wrong and the way out."""

    exit_code = 1

    def show(self, file: object = None) -> None:
        """Print the sentence to stderr."""
        from sluicegate.cli.render import say  # Here and not above: most commands do not fail.

        say(self.message)


class NotStarted(Failure):
    """Ends a command that was to serve and cannot."""

    exit_code = 3


def unprinted(problem: OSError) -> Failure:
    """The end of a command whose stdout takes no more; what its notes say that is done stands before it.

    Raises:
        OSError: it was another problem; it is that one. Files that we write have sentences of their own.
    """
    if problem.errno not in _NO_ROOM or problem.filename is not None:
        raise problem
    # Python would try once more at its end, and complain.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    done = "".join(f"{note}, but " for note in getattr(problem, "__notes__", ()))
    return Failure(f"{done}stdout cannot be written: {problem.strerror}; what is there is not all.")
