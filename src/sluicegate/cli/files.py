"""Files of the user's that we change: whole or not at all, with the mode they had, and never without a way back."""

import os
import tempfile

from sluicegate.cli.failure import Failure
from sluicegate.config.load import read_text
from sluicegate.config.problems import Problem


def text_of(file: str) -> str | None:
    """What a file holds; None if there is none.

    Raises:
        Failure: it is there and cannot be read.
    """
    text = read_text(file)
    if isinstance(text, Problem):
        raise Failure(f"{file}: {text.sentence}")
    return text


def replace_file(file: str, text: str, *, backup: str | None = None) -> str | None:
    """Give a file another content, in one step; where the old one was kept, if there was one and it was to be.

    Raises:
        Failure: it cannot be written; then it is as it was.
    """
    # A link stays one: what it leads to is changed, as an editor would.
    real = os.path.realpath(file)
    try:
        os.makedirs(os.path.dirname(real), exist_ok=True)
        try:
            mode = os.stat(real).st_mode & 0o777
        except FileNotFoundError:
            # Lists of servers may hold keys; who wants to share one can say so.
            mode, backup = 0o644 if os.path.basename(real) == "sluicegate.toml" else 0o600, None
        if backup is not None:
            with open(real, "rb") as old:
                _write(backup, old.read(), mode)
        _write(real, text.encode("utf-8"), mode)
    except OSError as problem:
        raise Failure(f"{file} cannot be written: {problem.strerror}.") from None
    return backup


def _write(file: str, data: bytes, mode: int) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(file) or os.curdir, prefix=".sluicegate-")
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(descriptor)
        os.chmod(temporary, mode)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
