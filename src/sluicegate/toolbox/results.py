"""Results of calls, for a model: texts that are too long are kept and read on piece by piece, bytes go to a file."""

import mimetypes
import os
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET

from sluicegate.protocol.message import Params
from sluicegate.protocol.types import TextContent, ToolResult
from sluicegate.schemas.apis.messages import Keep, cannot_show, text_of
from sluicegate.toolbox.definitions import blocks

MAX_RESULT: Final = 100_000
"""Characters of a result that a model is shown at once."""
MAX_KEPT: Final = 32 * 1024 * 1024
"""Characters of all long results that are kept; the oldest are dropped."""


class Outcome(ToolResult, frozen=True, kw_only=True):
    """The result of a call: `text`, `content`, `structured_content`, `is_error`."""

    save: Keep = cannot_show
    stop: bool = False
    """Whether the user wants the agent to stop."""

    def blocks(self, api: str) -> object:
        """The content of the answer in the shape of an API.

        Raises:
            ValueError: there is no such API.
        """
        return blocks(api, self, self.save)


class Answers(list[Params]):
    """The messages that answer a reply."""

    stop: bool = False
    """Whether the user wants the agent to stop."""


def error(sentence: str, *, stop: bool = False) -> Outcome:
    """The result of a call that failed."""
    return Outcome(content=[TextContent(text=sentence)], is_error=True, stop=stop)


class Files:
    """Saves bytes that a model cannot be shown, in a folder of the toolbox."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._number = 0

    def path_of(self, data: bytes, mime_type: str) -> str:
        """The path of a new file with these bytes. Raises OSError if it cannot be written."""
        self._number += 1
        ending = mimetypes.guess_extension(mime_type.partition(";")[0].strip()) or ".bin"
        path = os.path.join(self._folder, f"{self._number}{ending}")
        with open(path, "xb") as file:
            file.write(data)
        return path

    def save(self, data: bytes, mime_type: str) -> str:
        """A sentence that names a new file with these bytes."""
        kind = f"{mime_type or 'data'}, {len(data)} bytes"
        try:
            return f"[{kind}, saved to {self.path_of(data, mime_type)}]"
        except OSError as problem:
            return f"[{kind}, which could not be saved: {problem.strerror}]"


class LongTexts:
    """The rest of results that are too long to be shown at once. Each belongs to its caller."""

    def __init__(self, server: str, longest: int) -> None:
        """`server` is the one that has the rest."""
        self._server = server
        self.longest = longest
        self._texts: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._size = 0

    def shortened(self, result: ToolResult, caller: str) -> ToolResult:
        """The result itself if it is short, else its beginning and how to read on."""
        texts = [text for block in result.content if (text := text_of(block)) is not None]
        if not texts and result.structured_content is not UNSET:
            texts = [msgspec.json.encode(result.structured_content).decode()]
        whole = "\n".join(texts)
        if len(whole) <= self.longest:
            return result
        others = [block for block in result.content if text_of(block) is None]
        return msgspec.structs.replace(result, content=[TextContent(text=self.head(whole, caller)), *others])

    def head(self, text: str, caller: str) -> str:
        """The text itself if it is short, else its beginning and how to read on."""
        return text if len(text) <= self.longest else self.piece(self._keep(text, caller))

    def piece(self, key: str, start: int = 0, caller: str | None = None) -> str:
        """A part of a text, and how to read on. Raises KeyError if there is none, or it is another caller's."""
        owner, text = self._texts[key]
        if caller is not None and caller != owner:
            raise KeyError(key)
        end = start + self.longest
        if end >= len(text):
            return text[start:]
        more: Mapping[str, object] = {"server": self._server, "uri": f"sluicegate://result/{key}/{end}"}
        hint = (
            f"Characters {start} to {end} of {len(text)}. Read on: ReadMcpResource {msgspec.json.encode(more).decode()}"
        )
        return f"{text[start:end]}\n\n[{hint}]"

    def _keep(self, text: str, caller: str) -> str:
        key = secrets.token_hex(6)
        self._texts[key] = (caller, text)
        self._size += len(text)
        while self._size > MAX_KEPT and len(self._texts) > 1:
            _, (_, dropped) = self._texts.popitem(last=False)
            self._size -= len(dropped)
        return key


def outcome(result: ToolResult, save: Keep) -> Outcome:
    """A result with the way to save what cannot be shown."""
    fields: Params = msgspec.structs.asdict(result)
    return Outcome(**fields, save=save)  # pyright: ignore[reportArgumentType]
