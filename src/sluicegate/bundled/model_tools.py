"""The tools of other servers that a model may call in a conversation of `cone`.

Each call is one of the person who chats: it is made in that caller's view, judged by the rules, and has rows of its own
in the audit log. If a rule asks, the client of the conversation is asked.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from sluicegate.activations.call import Call
from sluicegate.errors import ErrorObject, SluicegateError
from sluicegate.exchange import Exchange
from sluicegate.gate.policy import Rules
from sluicegate.gate.rules import BadGlob, Permission, PolicyConfig, Rule, subject_of
from sluicegate.gateway.caller_access import CallerAccess
from sluicegate.hub.catalog import Catalog
from sluicegate.protocol.message import Params, opened
from sluicegate.protocol.read_types import read_tool, read_tool_result
from sluicegate.protocol.types import TextContent, ToolResult
from sluicegate.runtime.input_rounds import settle
from sluicegate.schemas.apis.messages import ModelCall
from sluicegate.toolbox.definitions import Defined, answers, define, read_calls, tool_list

MAX_RESULT: Final = 100_000
"""Characters of a result that the model reads."""


def permissions_of(patterns: Sequence[str]) -> PolicyConfig:
    """Patterns such as `mcp__files__*`, which name the same as in rules that allow.

    Raises:
        ValueError: one of them cannot be read.
    """
    rules: list[Rule] = []
    for pattern in patterns:
        rules.append(Rule(Permission(tool=pattern, action="allow")))
        try:
            subject_of(rules[-1].written)
        except BadGlob as problem:
            raise ValueError(f"tools: {pattern!r} {problem}") from None
    return PolicyConfig(tuple(rules))


class ModelTools:
    """The tools that a model may call while it answers one request, in the shape of its API."""

    def __init__(self, api: str, call: Call, access: CallerAccess, patterns: PolicyConfig, own: str) -> None:
        """`patterns` name the tools; those of the server `own` are left out: a conversation must not call itself."""
        self._api = api
        self._call = call
        self._access = access
        catalog = access.catalog
        rules = Rules(patterns, names=_names_of(catalog))
        seen = {
            name: entry
            for name, entry in catalog.tools.items()
            if entry.target.server != own and rules.name(entry.target)
        }
        self._defined: Mapping[str, Defined] = define((read_tool(each.definition) for each in seen.values()), api)

    @property
    def definitions(self) -> list[Params]:
        """The tools, for a request to the API."""
        return tool_list(self._api, self._defined)

    def calls_in(self, message: Params) -> list[ModelCall]:
        """The calls in a message of the model, with the arguments and, where it is known, the name of the server."""
        return [self._own(call) for call in read_calls(self._api, message)]

    def _own(self, call: ModelCall) -> ModelCall:
        found = self._defined.get(call.name)
        if found is None:
            return msgspec.structs.replace(call, problem=call.problem or f"There is no tool {call.name[:100]}.")
        return msgspec.structs.replace(call, name=found.tool.name, arguments=found.undo(call.arguments))

    async def run(self, call: ModelCall) -> ToolResult:
        """The result of a call; a refusal or a failure is a result, so that the model can adapt."""
        if call.problem:
            return _failure(call.problem)
        outer = self._call.exchange
        # The client hears of the call by an event; progress and log lines of another tool would look like ours.
        profile = msgspec.structs.replace(outer.profile, progress_token=None, log_level=None)
        params: Params = {"name": call.name, "arguments": call.arguments}
        exchange = Exchange("tools/call", params, outer.sink, profile, outer.caller)
        try:
            reply = await settle(self._access.handler, exchange)
            if isinstance(reply, ErrorObject):
                return _failure(reply.message)
            return _shortened(read_tool_result(opened(reply)))
        except SluicegateError as problem:
            return _failure(problem.message)
        except msgspec.ValidationError:
            return _failure("The server's answer is not the result of a tool.")

    def answers(self, results: Sequence[tuple[ModelCall, ToolResult]]) -> list[Params]:
        """The messages that tell the model the results."""
        return answers(self._api, results)


def _names_of(catalog: Catalog) -> dict[str, set[str]]:
    """All names of each server, by its key."""
    keys = {mount: catalog.keys.get(mount) or mount for mount in catalog.prefixes}
    return {key: {mount, key, catalog.prefixes[mount]} - {""} for mount, key in keys.items()}


def _failure(sentence: str) -> ToolResult:
    return ToolResult(content=[TextContent(text=sentence)], is_error=True)


def _shortened(result: ToolResult) -> ToolResult:
    if len(result.text) <= MAX_RESULT:
        return result
    cut = TextContent(text=f"{result.text[:MAX_RESULT]}\n(The result is longer; {MAX_RESULT} characters are shown.)")
    return ToolResult(content=[cut], is_error=result.is_error)
