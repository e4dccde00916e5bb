"""Translation of the parts of results: content blocks, definitions, and the schemas in them.

The one rule: a value may be raw JSON at any level. It is decoded one level at a time and only where needed, so that a
long text is never decoded. A value that need not change is returned as the same object.
"""

from collections.abc import Callable, Collection, Mapping
from functools import cache
from operator import attrgetter
from typing import Final, cast

import msgspec

from sluicegate.protocol.headers import MARK, NESTED_SCHEMAS, SCHEMAS_BY_NAME, is_mark
from sluicegate.protocol.json_limits import has_many_marks
from sluicegate.protocol.message import Params, ToolText, as_object
from sluicegate.protocol.versions import Revision

Change = Callable[[Params], Params]

# -------------------------------------------------------------------------------------------------------------- content

Substitutes = Mapping[str, tuple[Callable[[Revision], bool], Change]]
"""For types of content blocks: whether a revision has the type, and the replacement if not."""


def block_for_session(block: Params, revision: Revision, substitutes: Substitutes | None = None) -> Params:
    """A content block for an older revision; by default one of a tool's result or of a prompt."""
    row = (_IN_RESULTS if substitutes is None else substitutes).get(_text(block.get("type")))
    if row is not None and not row[0](revision):
        block = row[1](block)
    block = without(block, _unknown_members(revision) - {"title"})
    return inside(_annotated(block, revision), "resource", lambda contents: contents_for_session(contents, revision))


def message_for_session(message: Params, revision: Revision) -> Params:
    """A prompt's message for an older revision."""
    return inside(message, "content", lambda block: block_for_session(block, revision))


def contents_for_session(contents: Params, revision: Revision) -> Params:
    """A resource's contents for an older revision."""
    return contents if revision.definition_meta else without(contents, ("_meta",))


def tool_result_for_session(result: Params, revision: Revision) -> Params:
    """A tool's result without a `structuredContent` that the revision does not allow; a text block then repeats it."""
    if revision.any_structured_content or "structuredContent" not in result:
        return result
    structured = result["structuredContent"]
    if revision.structured_content and _is_object(structured):
        return result
    rest = without(result, ("structuredContent",))
    content = _items_of(result.get("content")) or []
    said = _encode(structured)
    if any(_says(members_of(block) or {}, value) for value in _values(said) for block in content):
        return rest
    return {**rest, "content": [*content, {"type": "text", "text": msgspec.json.format(said, indent=-1).decode()}]}


_MAX_COMPARED: Final = 1024 * 1024


def _values(structured: bytes) -> list[object]:
    """The value, and the value under `result`: servers wrap values that are not objects, and show the inner as text.

    Nothing if there is too much to compare.
    """
    if len(structured) > _MAX_COMPARED or has_many_marks(structured):
        return []
    try:
        value: object = msgspec.json.decode(structured)
    except (msgspec.DecodeError, RecursionError):
        return []
    members = as_object(value)
    return [value, members["result"]] if members is not None and members.keys() == {"result"} else [value]


def _says(block: Params, value: object) -> bool:
    """Whether a content block is the text of the same JSON value, or the same text."""
    if _text(block.get("type")) != "text":
        return False
    text = _text(block.get("text"))
    if text == value:
        return True
    try:
        said = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    # Compared as JSON, because in Python 1 == 1.0 == True.
    return _encode_sorted(value) == _encode_sorted(said)


def link_as_text(link: Params) -> Params:
    """A text block in place of a resource link."""
    name, uri, kind, description = (_text(link.get(key)) for key in ("name", "uri", "mimeType", "description"))
    text = f"{_text(link.get('title')) or name}: {uri}" + (f" ({kind})" if kind else "")
    kept = {key: link[key] for key in ("annotations",) if key in link}
    return {"type": "text", "text": f"{text}\n{description}" if description else text, **kept}


def _audio_as_resource(block: Params) -> Params:
    from hashlib import blake2b  # Imported here because it loads OpenSSL and is rarely needed.

    data = block.get("data")
    # Each audio gets its own URI, the same each time.
    uri = f"sluicegate:audio/{blake2b(_encode(data), digest_size=8).hexdigest()}"
    kind = {key: block[key] for key in ("mimeType",) if key in block}
    return {**without(block, ("data", "mimeType")), "type": "resource", "resource": {"uri": uri, **kind, "blob": data}}


_IN_RESULTS: Final[Substitutes] = {
    "audio": (attrgetter("audio"), _audio_as_resource),
    "resource_link": (attrgetter("resource_links"), link_as_text),
}

# ---------------------------------------------------------------------------------------------------------- definitions


def tool_for_session(tool: Params, revision: Revision) -> Params:
    """A tool's definition for an older revision."""
    gone = {"execution", *_unknown_members(revision)}
    if not revision.tool_annotations:
        gone.add("annotations")
    elif not revision.titles and "title" in tool:
        tool = {**tool, "annotations": {**(members_of(tool.get("annotations")) or {}), "title": tool["title"]}}
    output = members_of(tool.get("outputSchema")) or {}
    # Strict clients refuse the whole list for one schema whose root is not an object.
    if not revision.structured_content or _text(output.get("type")) != "object":
        gone.add("outputSchema")
    # `x-mcp-header` stays: it is an annotation that older clients ignore, and gateways behind this one need.
    tool = without(tool, gone)
    return inside(inside(tool, "inputSchema", _without_booleans), "outputSchema", _without_booleans)


def tool_from_session(tool: Params) -> Params:
    """A session-era server's tool without invalid header marks, for which clients would drop it.

    `execution` stays, although only 2025-11-25 has it: the hub must know that a call has to be a task.
    """
    schema = tool.get("inputSchema")
    if isinstance(schema, msgspec.Raw) and MARK.encode() not in bytes(schema):
        return tool
    schema = plain(schema)
    marked = _marked(schema, set())
    return tool if marked == schema else {**tool, "inputSchema": marked}


def prompt_for_session(prompt: Params, revision: Revision) -> Params:
    """A prompt's definition for an older revision."""
    unknown = _unknown_members(revision)
    return each(without(prompt, unknown), "arguments", lambda argument: without(argument, unknown))


def resource_for_session(resource: Params, revision: Revision) -> Params:
    """The definition of a resource or a template for an older revision."""
    return _annotated(without(resource, _unknown_members(revision)), revision)


@cache
def _unknown_members(revision: Revision) -> frozenset[str]:
    known = {"icons": revision.icons, "title": revision.titles, "_meta": revision.definition_meta}
    return frozenset(name for name, is_known in known.items() if not is_known)


def _annotated(value: Params, revision: Revision) -> Params:
    """The value without `lastModified`, which was added later than the other annotations, together with `_meta`."""
    annotations = None if revision.definition_meta else members_of(value.get("annotations"))
    if annotations is None or "lastModified" not in annotations:
        return value
    kept = without(annotations, ("lastModified",))
    return {**value, "annotations": kept} if kept else without(value, ("annotations",))


def _without_booleans(schema: Params) -> Params:
    """A schema whose properties are all objects: in the session era `true` and `false` are not schemas."""
    properties = members_of(schema.get("properties")) or {}
    flags = {name: plain(value) for name, value in properties.items() if not _is_object(value)}
    instead: Params = {name: {} if flag else {"not": {}} for name, flag in flags.items() if isinstance(flag, bool)}
    return {**schema, "properties": {**properties, **instead}} if instead else schema


# --------------------------------------------------------------------------------------------- header marks in a schema


def _marked(schema: object, names: set[str] | None) -> object:
    """The schema with only the valid `x-mcp-header` marks, or with none if `names` is None."""
    # A mark is valid only if it is reachable by `properties` alone, so `names` is passed down only there. A property of
    # that name, or such a member of a default value, is not a mark.
    if isinstance(schema, list):
        return [_marked(item, None) for item in cast(list[object], schema)]
    if not isinstance(schema, dict):
        return schema
    members, kept = cast(Params, schema), cast(Params, {})
    for key, value in members.items():
        if key == MARK:
            if names is None or not is_mark(value, members.get("type"), names):
                continue
            names.add(value.lower())
        elif (key == "properties" or key in SCHEMAS_BY_NAME) and isinstance(value, dict):
            below = names if key == "properties" else None
            value = {name: _marked(item, below) for name, item in cast(Params, value).items()}
        elif key in NESTED_SCHEMAS:
            value = _marked(value, None)
        kept[key] = value
    return kept


# ---------------------------------------------------------------------------------------------- decoding level by level

_encode: Final = msgspec.json.Encoder().encode
_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode
decode_members: Final = cast(Callable[[msgspec.Raw], Params], msgspec.json.Decoder(dict[str, msgspec.Raw]).decode)
"""The raw members of a raw object."""
_items_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])


def without(members: Params, names: Collection[str]) -> Params:
    """The members without these names; the same dict if there are none."""
    if members.keys().isdisjoint(names):
        return members
    return {name: value for name, value in members.items() if name not in names}


def each(value: Params, field: str, change: Change) -> Params:
    """The value with every object in the array `field` changed."""
    items = _items_of(value.get(field)) or []
    opened = [members_of(item) for item in items]
    changed = [item if item is None else change(item) for item in opened]
    if all(new is old for new, old in zip(changed, opened, strict=True)):
        return value
    return {**value, field: [old if new is None else new for new, old in zip(changed, items, strict=True)]}


def inside(value: Params, field: str, change: Change) -> Params:
    """The value with the object `field` changed."""
    inner = members_of(value.get(field))
    changed = inner if inner is None else change(inner)
    return value if changed is inner else {**value, field: changed}


def members_of(value: object) -> Params | None:
    """The members of an object, each raw if the object is; None for anything else."""
    if isinstance(value, ToolText):
        value = value.to_raw()
    if not isinstance(value, msgspec.Raw):
        return as_object(value)
    if len(value) > 4096 and not _is_object(value):
        return None  # A long string would be parsed to its end first.
    try:
        return decode_members(value)
    except msgspec.ValidationError:
        return None


def plain(value: object) -> object:
    """A value decoded in full, if it is raw."""
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value


def _items_of(value: object) -> list[object] | None:
    if isinstance(value, msgspec.Raw):
        return cast(list[object], _items_decoder.decode(value)) if bytes(memoryview(value)[:1]) == b"[" else None
    return cast(list[object], value) if isinstance(value, list) else None


def _is_object(value: object) -> bool:
    return bytes(memoryview(value)[:1]) == b"{" if isinstance(value, msgspec.Raw) else isinstance(value, dict)


def _text(value: object) -> str:
    value = plain(value)
    return value if isinstance(value, str) else ""
