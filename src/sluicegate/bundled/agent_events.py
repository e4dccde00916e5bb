"""Reads the lines of JSON that an agent prints, by rules that say which line means what. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, cast

import msgspec
from msgspec import Meta

from sluicegate.activations.values import Data, ToolUse

Line = Mapping[str, object]


class EventRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a line means. A path names a member by the members above it: `item.text`."""

    when: dict[str, str | int | bool | None]
    """Paths and the values that they must have."""
    each: str = ""
    """The path of a list: `where` and the paths below are then those of its items."""
    where: dict[str, str | int | bool | None] = {}
    """Paths of an item of the list, and the values that they must have."""
    session: str = ""
    """The path of the session's id."""
    text: str = ""
    """The path of a piece of the answer."""
    tool: str = ""
    """The path of the name of a tool that the agent uses."""
    input: str = ""
    """The path of that tool's input."""
    output: str = ""
    """The path of a tool's result: a string, or a list of objects with a `text`."""
    failed: str = ""
    """The path of whether that result is a failure."""
    error: str = ""
    """The path of a sentence that says why the agent failed. The answer has ended."""
    ends: bool = False
    """Whether the answer has ended."""
    keep: list[str] = []
    """Members that are part of the result of the call."""


class AgentToolResult(msgspec.Struct, frozen=True, tag="tool_result"):
    """The result of a tool that the agent has used."""

    text: Annotated[str, Meta(description="Its text.")]
    is_error: Annotated[bool, Meta(description="Whether the tool failed.")] = False


class SessionId(msgspec.Struct, frozen=True):
    """The agent's own id of the session."""

    id: str


class Ended(msgspec.Struct, frozen=True):
    """The end of an answer: members for the result, or why there is none."""

    kept: Mapping[str, object] = {}
    error: str = ""


AgentEvent = Data | ToolUse | AgentToolResult | SessionId | Ended

_MISSING: Final = object()


def events_of(line: Line, rules: Sequence[EventRule]) -> Iterator[AgentEvent]:
    """What a line means, by every rule that it matches."""
    for rule in rules:
        if not _has(line, rule.when):
            continue
        if not rule.each:
            yield from _events(line, rule)
            continue
        items = value_at(line, rule.each)
        for item in cast("list[object]", items) if isinstance(items, list) else ():
            if isinstance(item, dict) and _has(cast(Line, item), rule.where):
                yield from _events(cast(Line, item), rule)


def value_at(line: object, path: str) -> object:
    """The value at a path; a value that is not JSON if there is none."""
    for name in path.split("."):
        if not isinstance(line, dict):
            return _MISSING
        line = cast("dict[str, object]", line).get(name, _MISSING)
    return line


def _has(line: Line, values: Mapping[str, object]) -> bool:
    # By type, too: 1 == True.
    return all(type(found := value_at(line, path)) is type(value) and found == value for path, value in values.items())


def _events(item: Line, rule: EventRule) -> Iterator[AgentEvent]:
    if rule.session and isinstance(id := value_at(item, rule.session), str) and id:
        yield SessionId(id)
    if rule.text and isinstance(text := value_at(item, rule.text), str) and text:
        yield Data(text)
    if rule.tool and isinstance(name := value_at(item, rule.tool), str):
        given = value_at(item, rule.input) if rule.input else None
        yield ToolUse(name, None if given is _MISSING else given)
    if rule.output and (output := value_at(item, rule.output)) is not _MISSING:
        yield AgentToolResult(_text_of(output), value_at(item, rule.failed) is True if rule.failed else False)
    if rule.error and isinstance(error := value_at(item, rule.error), str) and error:
        yield Ended(error=error)
    if rule.ends:
        kept = {name: value for name in rule.keep if (value := value_at(item, name)) is not _MISSING}
        yield Ended(kept)


def _text_of(output: object) -> str:
    if isinstance(output, str):
        return output
    blocks = cast("list[object]", output) if isinstance(output, list) else []
    texts = [text for block in blocks if isinstance(text := value_at(block, "text"), str)]
    return "\n".join(texts) if texts else msgspec.json.encode(output).decode()
