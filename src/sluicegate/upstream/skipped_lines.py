"""Lines of a server that are not messages: counted, and logged at a limited rate."""

import logging
from collections.abc import Callable
from typing import Final

from sluicegate.upstream.server_messages import RateCounter

log = logging.getLogger("sluicegate")

SKIPPED_LOGGED_A_MINUTE: Final = 5


class SkippedLines:
    """Logs the first skipped lines of each minute (threats R3). Outlives the connection: servers may restart often."""

    def __init__(
        self,
        name: str,
        on_printed: Callable[[bytes], object] | None = None,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        """`on_printed` gets lines that are not JSON-RPC at all; others are logged, with secrets masked by `redact`."""
        self._name = name
        self._on_printed = on_printed
        self._redact = redact or str
        self._rate = RateCounter()

    def skip(self, line: bytes, problem: str, *, is_answer: bool) -> None:
        """Report a line that cannot be read; `is_answer` if it seems to answer a request."""
        if self._on_printed is not None and not is_answer and b'"jsonrpc"' not in line:
            self._on_printed(line)
        else:
            self.log(f"{problem}: {ascii(self._redact(line[:200].decode(errors='backslashreplace')))}")

    def log(self, problem: str) -> None:
        if self._rate.count() <= SKIPPED_LOGGED_A_MINUTE:
            log.warning("%s: a line is skipped because it %s", self._name, problem)
