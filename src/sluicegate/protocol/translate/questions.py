"""Translation of questions to a client and of their answers, to and from the session era."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Final, cast

import msgspec

from sluicegate.errors import InputRefused, InvalidParams
from sluicegate.protocol.input_required import Question
from sluicegate.protocol.json_limits import DEFAULT_LIMITS, is_deep
from sluicegate.protocol.message import Params
from sluicegate.protocol.translate.content import (
    Substitutes,
    block_for_session,
    link_as_text,
    tool_for_session,
    tool_from_session,
    tool_result_for_session,
    without,
)
from sluicegate.protocol.versions import Revision

ELICITATION: Final = "elicitation/create"
SAMPLING: Final = "sampling/createMessage"


# ------------------------------------------------------------------------------------------ asking a session-era client


def question_for_session(question: Question, revision: Revision, new_id: str) -> Question:
    """A question for a client of an older revision; `new_id` is used as the id of a URL elicitation without one."""
    params = question.params
    if revision.modern:
        return question
    if question.method == SAMPLING:
        params = _sampling_for_session(params, revision)
    elif question.method == ELICITATION:
        if params.get("mode") == "url":
            params = {**params, "elicitationId": question.elicitation or new_id}
        elif not revision.elicitation_modes:
            params = {**without(params, ("mode",)), "requestedSchema": _simple_form(_schema_of(params))}
    return Question(question.method, params)


def answer_from_session(question: Question, answer: Params, revision: Revision) -> Params:
    """A session-era client's answer in the form of 2026-07-28.

    Raises:
        InputRefused: it chose more or fewer options than the question allows, which its form cannot express.
    """
    answer = without(answer, ("_meta",))
    if question.method != ELICITATION:
        return answer
    content = answer.get("content")
    if not isinstance(content, dict):
        # Some clients write null for absent content, which must be an object in every revision.
        return without(answer, ("content",))
    if revision.elicitation_modes or answer.get("action") != "accept":
        return answer
    return {**answer, "content": _folded(_schema_of(question.params), cast(Params, content))}


def _sampling_for_session(params: Params, revision: Revision) -> Params:
    params = _without_context(params)
    if not revision.rich_sampling:
        params = without(params, ("tools", "toolChoice"))
    elif "tools" in params:
        params = {**params, "tools": [tool_for_session(tool, revision) for tool in _objects(params["tools"])]}
    messages = [said for message in _objects(params.get("messages")) for said in _said(message, revision)]
    return {**params, "messages": messages}


def _said(message: Params, revision: Revision) -> Iterator[Params]:
    """A message for an older revision: one message per block if it cannot have several blocks."""
    content = message.get("content")
    blocks = [_sampling_block(block, revision) for block in _blocks(content)]
    if revision.rich_sampling:
        yield {**message, "content": blocks if isinstance(content, list) or not blocks else blocks[0]}
    else:
        rest = without(message, ("_meta",))
        yield from ({**rest, "content": block} for block in blocks)


def _sampling_block(block: Params, revision: Revision) -> Params:
    if block.get("type") == "tool_result":
        block = tool_result_for_session(block, revision)
    return block_for_session(block, revision, _IN_SAMPLING)


def _as_text(block: Params) -> Params:
    return {"type": "text", "text": _words(block)}


def _words(block: Params) -> str:
    """A block as text."""
    kind = str(block.get("type"))
    match kind:
        case "text":
            return str(block.get("text"))
        case "tool_use":
            return f"[call of the tool {block.get('name')}: {msgspec.json.encode(block.get('input')).decode()}]"
        case "tool_result":
            return "\n".join(["[result of a tool]", *(_words(inner) for inner in _objects(block.get("content")))])
        case "resource" if isinstance(text := _object(block.get("resource")).get("text"), str):
            return text
        case "resource_link":
            return str(link_as_text(block)["text"])
        case _:
            about = block.get("mimeType")
            return f"[{kind} ({about}), left out]" if isinstance(about, str) else f"[{kind}, left out]"


_IN_SAMPLING: Final[Substitutes] = {
    "audio": (attrgetter("audio"), _as_text),
    "tool_use": (attrgetter("rich_sampling"), _as_text),
    "tool_result": (attrgetter("rich_sampling"), _as_text),
}

# ------------------------------------------------------------------------------------------------- forms for 2025-06-18


def _simple_form(schema: Params) -> Params:
    """A form of 2025-06-18: titles in `enumNames`, and a boolean field for each choice of a multiple choice."""
    fields: Params = {}
    switches = _switches(schema)
    for name, field in _fields(schema).items():
        if name not in switches:
            fields[name] = _simple_field(field)
            continue
        chosen = field.get("default")
        hint = " ".join(part for part in (field.get("description"), _bounds(field)) if isinstance(part, str))
        for key, value, label in switches[name]:
            switch: Params = {"type": "boolean", "title": f"{field.get('title', name)}: {label}"}
            if hint:
                switch["description"] = hint
            if isinstance(chosen, list):
                switch["default"] = value in cast(list[object], chosen)
            fields[key] = switch
    simple: Params = {**without(schema, ("$schema",)), "properties": fields}
    if "required" in schema:
        simple["required"] = [name for name in _list(schema["required"]) if name in fields]
    return simple


def _simple_field(field: Params) -> Params:
    if field.get("type") != "boolean":
        field = without(field, ("default",))
    if "oneOf" not in field:
        return field
    choices = _objects(field["oneOf"])
    names = {"enum": [c.get("const") for c in choices], "enumNames": [c.get("title", c.get("const")) for c in choices]}
    return {**without(field, ("oneOf",)), **names}


def _switches(schema: Params) -> dict[str, list[tuple[str, object, object]]]:
    """The multiple-choice fields: for each choice the name of its boolean field, its value and its label."""
    fields = _fields(schema)
    taken = set(fields)
    switches: dict[str, list[tuple[str, object, object]]] = {}
    for name, field in fields.items():
        if field.get("type") != "array":
            continue
        items = _object(field.get("items"))
        choices = [(value, value) for value in _list(items.get("enum"))]
        choices += [(choice.get("const"), choice.get("title")) for choice in _objects(items.get("anyOf"))]
        if choices:
            switches[name] = []
        for value, label in choices:
            key = f"{name}: {label}"
            # Two choices may have the same label, or a field the name of a choice; each needs its own name.
            while key in taken:
                key += "'"
            taken.add(key)
            switches[name].append((key, value, label))
    return switches


def _folded(schema: Params, content: Params) -> Params:
    """The content of a form with the boolean fields of choices turned back into arrays."""
    required = _list(schema.get("required"))
    for name, switches in _switches(schema).items():
        field = _fields(schema)[name]
        chosen = [value for key, value, _ in switches if content.get(key) is True]
        content = without(content, [key for key, _, _ in switches])
        least, most = _limit(field, "minItems"), _limit(field, "maxItems")
        if not chosen and least and name not in required:
            continue  # Nothing chosen for an optional field: left out, like any other empty field.
        if len(chosen) < (least or 0) or (most is not None and len(chosen) > most):
            raise InputRefused(f"The answer has {len(chosen)} choices for {name!r}. {_bounds(field)}")
        content = {**content, name: chosen}
    return content


def _bounds(field: Params) -> str | None:
    least, most = _limit(field, "minItems"), _limit(field, "maxItems")
    parts = [f"at least {least}"] * bool(least) + [f"at most {most}"] * (most is not None)
    return f"Choose {' and '.join(parts)}." if parts else None


def _limit(field: Params, name: str) -> int | None:
    limit = field.get(name)
    return limit if type(limit) is int else None


# ------------------------------------------------------------------------------------ questions of a session-era server


def question_from_session(method: str, params: Params) -> Question:
    """A session-era server's question in the form of 2026-07-28.

    Raises:
        InvalidParams: it is nested too deeply.
    """
    if _is_deep(params):
        raise InvalidParams(f"Invalid params: they are nested more than {DEFAULT_LIMITS.depth} levels deep.")
    params = without(params, ("_meta", "task"))
    elicitation = None
    if method == ELICITATION:
        if params.get("mode") == "url" and isinstance(said := params.get("elicitationId"), str):
            elicitation = said
        params = {"mode": "form", **without(params, ("elicitationId",))}
    elif method == SAMPLING:
        params = _without_context(params)
        if "tools" in params:
            tools = [without(tool, ("execution",)) for tool in _objects(params["tools"])]
            params = {**params, "tools": [tool_from_session(tool) for tool in tools]}
    return Question(method, params, elicitation)


def _is_deep(params: Params) -> bool:
    try:
        return is_deep(msgspec.json.encode([params]))  # The list counts for the message around the params.
    except RecursionError:
        return True


def asks_for_context(method: str, params: Params) -> bool:
    """Whether a server wants context to be included, which `_without_context` removes."""
    return method == SAMPLING and params.get("includeContext", "none") != "none"


def is_joined(question: Question, answer: Params, revision: Revision) -> bool:
    """Whether `answer_for_session` makes one text of several blocks."""
    return question.method == SAMPLING and not revision.rich_sampling and len(_blocks(answer.get("content"))) > 1


def answer_for_session(question: Question, answer: Params, revision: Revision) -> Params:
    """A client's answer for a session-era server: before 2025-11-25 it has one block."""
    if question.method != SAMPLING or revision.rich_sampling:
        return answer
    blocks = [_sampling_block(block, revision) for block in _blocks(answer.get("content"))]
    if len(blocks) != 1:
        blocks = [{"type": "text", "text": "\n".join(_words(block) for block in blocks)}]
    return {**answer, "content": blocks[0]}


def _without_context(params: Params) -> Params:
    # "thisServer" would mean the gateway, and "allServers" could reveal secrets of other servers.
    return {**params, "includeContext": "none"} if "includeContext" in params else params


# -------------------------------------------------------------------------------------------- reading the data of peers


def _schema_of(params: Params) -> Params:
    return _object(params.get("requestedSchema"))


def _fields(schema: Params) -> dict[str, Params]:
    properties = _object(schema.get("properties"))
    return {name: cast(Params, field) for name, field in properties.items() if isinstance(field, dict)}


def _blocks(content: object) -> list[Params]:
    return _objects(cast(object, content) if isinstance(content, list) else [content])


def _object(value: object) -> Params:
    return cast(Params, value) if isinstance(value, dict) else {}


def _objects(value: object) -> list[Params]:
    return [cast(Params, item) for item in _list(value) if isinstance(item, dict)]


def _list(value: object) -> list[object]:
    return cast(list[object], value) if isinstance(value, list) else []
