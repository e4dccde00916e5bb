"""Files of the user's that we change: whole or not at all, with the mode they had, and never without a way back."""

import codecs
import os
import tempfile
from collections.abc import Mapping

from sluicegate.cli.failure import Failure
from sluicegate.config.jsonc import Fault, line_column
from sluicegate.config.problems import Problem
from sluicegate.config.reading import read_text


def text_of(file: str) -> str | None:
    """What a file holds; None if there is none.

    Raises:
        Failure: it is there and cannot be read.
    """
    text = read_text(file)
    if isinstance(text, Problem):
        raise Failure(f"{file}{f':{text.line}' if text.line else ''}: {text.sentence}")
    return text


def wrong_in(file: str, text: str, fault: Fault) -> str:
    """What is wrong with a file that has this text, and where; if it is a place, that one has to be mended."""
    if not fault.offset:
        return f"{file}: {fault.sentence}"
    line, column = line_column(text, fault.offset)
    return f"{file}:{line}:{column}: {fault.sentence} Mend that, and try again."


def replace_file(file: str, text: str, *, backup: str | None = None) -> str | None:
    """Give a file another content, in one step; where the old one was kept, if there was one and it was to be.

    Raises:
        Failure: it cannot be written; then it is as it was, and so is what was kept before.
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
            old = b""
        else:
            with open(real, "rb") as opened:
                old = opened.read()
        # Who reads a file is not shown the mark at its beginning, and some programs want it there.
        mark = codecs.BOM_UTF8 if old.startswith(codecs.BOM_UTF8) else b""
        kept = {} if backup is None else {backup: old}
        _write({**kept, real: mark + text.encode("utf-8")}, mode)
    except OSError as problem:
        raise Failure(f"{file} cannot be written: {problem.strerror}; it is as it was.") from None
    return backup


def _write(contents: Mapping[str, bytes], mode: int) -> None:
    """Write files, all or none: what there is no room for is known before the first of them is touched."""
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
