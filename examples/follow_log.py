"""An activation that follows a file, like `tail -f`. The file is closed when the client stops listening."""

import asyncio
from collections.abc import AsyncIterator

import msgspec

import sluicegate


class Line(msgspec.Struct, tag="line"):
    text: str


@sluicegate.activation("logs")
class Logs:
    """Files that grow."""

    async def follow(self, path: str, lines: int = 1000) -> AsyncIterator[Line | sluicegate.Structured]:
        """The lines of a file, also those that are written later.

        Args:
            path: The file.
            lines: How many lines to wait for.
        """
        try:
            file = await asyncio.to_thread(open, path, encoding="utf-8", errors="replace")
        except OSError as problem:
            raise sluicegate.ToolError(f"{path} cannot be read: {problem.strerror}.") from None
        line, seen = "", 0
        with file:
            while seen < lines:
                line += file.readline()
                if not line.endswith("\n"):  # Nothing new, or half a line.
                    await asyncio.sleep(0.1)
                    continue
                yield Line(line)
                line, seen = "", seen + 1
        yield sluicegate.Structured({"lines": seen})
