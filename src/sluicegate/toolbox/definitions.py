"""Tools in the shapes of model APIs: definitions that no API refuses, calls out of replies, answers to append. Pure.

`schemas/apis/` has one module for each API; its `rules` translate input schemas.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from sluicegate.protocol.message import Params, as_object
from sluicegate.protocol.types import Tool, ToolResult
from sluicegate.schemas.apis.anthropic import ANTHROPIC
from sluicegate.schemas.apis.gemini import GEMINI
from sluicegate.schemas.apis.messages import Api, Keep, ModelCall, cannot_show, entries, field, shown
from sluicegate.schemas.apis.openai import CHAT, RESPONSES
from sluicegate.schemas.apis.rules import Translation, accepted_names, translate

APIS: Final[Mapping[str, Api]] = {
    "anthropic": ANTHROPIC,
    "openai": RESPONSES,
    "openai-chat": CHAT,
    "gemini": GEMINI,
}
MCP: Final = "mcp"
"""The name of the definitions as MCP has them, which nothing changes."""


class Defined(msgspec.Struct, frozen=True):
    """A tool in the shape of an API."""

    tool: Tool
    name: str
    """Its name for the API."""
    definition: Params
    undo: Callable[[Params], Params]
    """Turns the arguments of a call into those for the server."""
    findings: tuple[str, ...] = ()


def define(tools: Iterable[Tool], api: str, *, strict: bool = False) -> dict[str, Defined]:
    """The tools in the shape of an API, by their names there, in the given order.

    Raises:
        ValueError: there is no such API.
    """
    tools = list(tools)
    if api == MCP:
        return {tool.name: Defined(tool, tool.name, _as_mcp(tool), dict) for tool in tools}
    chosen = api_named(api)
    names = accepted_names((tool.name for tool in tools), chosen.rules.name)
    return {names[tool.name]: _defined(tool, names[tool.name], chosen, strict) for tool in tools}


def tool_list(api: str, defined: Mapping[str, Defined], deferred: Collection[str] = ()) -> list[Params]:
    """What goes into a request as its tools. `deferred` names tools that the model has to search for first.

    An API with a search of its own gets them marked, and its search; for others they are left out.
    """
    search = APIS[api].search if api in APIS else None
    out: list[Params] = [dict(search)] if search is not None and deferred else []
    for name, entry in defined.items():
        if name not in deferred:
            out.append(entry.definition)
        elif search is not None:
            out.append({**entry.definition, "defer_loading": True})
    return out


def news(api: str, before: Mapping[str, Defined], after: Mapping[str, Defined]) -> list[Params]:
    """The messages that tell a model what has changed since a list of tools; none if nothing has.

    Raises:
        ValueError: there is no such API.
    """
    changed = {name for name in before.keys() & after.keys() if before[name].definition != after[name].definition}
    removed = [name for name in before if name not in after or name in changed]
    added = [entry.definition for name, entry in after.items() if name not in before or name in changed]
    return api_named(api).news(removed, added)


def tokens(definitions: Iterable[Params]) -> int:
    """About how many tokens definitions take: a quarter of their characters."""
    return sum(len(msgspec.json.encode(definition)) for definition in definitions) // 4


def api_named(name: str) -> Api:
    """The API with this name.

    Raises:
        ValueError: there is none.
    """
    if name == MCP:
        raise ValueError(f"{MCP!r} has definitions only; the APIs of models are {', '.join(APIS)}.")
    if name not in APIS:
        raise ValueError(f"There is no API {name!r}; there are {', '.join([*APIS, MCP])}.")
    return APIS[name]


def read_calls(api: str, reply: object) -> list[ModelCall]:
    """The calls in a model's reply, in order: as the wire has it, or an object of the API's SDK.

    Raises:
        ValueError: there is no such API.
    """
    return api_named(api).calls(reply)


def answers(api: str, results: Sequence[tuple[ModelCall, ToolResult]], keep: Keep = cannot_show) -> list[Params]:
    """The messages that answer calls, to append after the reply. `keep` stores what the API cannot show.

    Raises:
        ValueError: there is no such API.
    """
    chosen = api_named(api)
    return chosen.answers([(call, shown(result, chosen, keep), result.is_error) for call, result in results])


def blocks(api: str, result: ToolResult, keep: Keep = cannot_show) -> object:
    """What one answer says: the API's blocks, or text where it has none; for Gemini, a response that has no name yet.

    Raises:
        ValueError: there is no such API.
    """
    [message] = answers(api, [(ModelCall("", ""), result)], keep)
    first = next(iter(entries(field(message, "content", "parts"))), None)
    if field(first, "type") == "tool_result":
        return field(first, "content")
    response = as_object(field(first, "functionResponse"))
    if response is not None:
        return {member: value for member, value in response.items() if member != "name"}
    return field(message, "output", "content")


def _defined(tool: Tool, name: str, api: Api, strict: bool) -> Defined:
    translation: Translation = translate(tool.input_schema, api.rules, api.strict if strict else None)
    description = tool.description or tool.title or ""
    definition = api.define(name, description, translation)
    return Defined(tool, name, definition, translation.undo, translation.findings)


def _as_mcp(tool: Tool) -> Params:
    about: Params = {"description": tool.description} if tool.description else {}
    return {"name": tool.name, **about, "inputSchema": tool.input_schema}
