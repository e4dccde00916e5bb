"""URIs of one server, made those of the endpoint wherever a message names them (protocol §4.3).

The one rule: what names a resource is rewritten, what is merely text is not; everything else stays as it is.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from sluicegate.errors import ErrorObject
from sluicegate.protocol.message import Params, Reply, Result, as_array, as_object, mentions, opened

Rewrite = Callable[[str], str]

# A reply without any of these names no resource, and passes as the bytes that came.
HINTS: Final = (b'"uri"', b'"resource', b'"ui')


def reply_rewritten(method: str, reply: Reply, rewrite: Rewrite) -> Reply:
    """The reply to a call, with every URI in it as clients know it."""
    if isinstance(reply, ErrorObject):
        data = as_object(reply.data)
        if data is None or not isinstance(data.get("uri"), str):
            return reply
        return ErrorObject(reply.code, reply.message, _member_rewritten(data, "uri", rewrite))
    if isinstance(reply.value, msgspec.Raw) and not mentions(bytes(reply.value), HINTS):
        return reply
    value = opened(reply)
    match method:
        case "tools/call":
            value = _blocks_rewritten(value, "content", rewrite)
        case "resources/read":
            value = _each(value, "contents", lambda entry: _member_rewritten(entry, "uri", rewrite))
        case "prompts/get":
            value = _each(value, "messages", lambda message: _blocks_rewritten(message, "content", rewrite))
        case _:
            return reply
    return Result(_app_rewritten(value, rewrite))


def definition_rewritten(definition: Params, rewrite: Rewrite) -> Params:
    """A tool, prompt, resource or template, with its URIs as clients know them; its icons are addresses of pictures."""
    for member in ("uri", "uriTemplate"):
        definition = _member_rewritten(definition, member, rewrite)
    return _app_rewritten(definition, rewrite)


def _app_rewritten(value: Params, rewrite: Rewrite) -> Params:
    """Tools and results of apps name the page that shows them, in one of two places."""
    meta = as_object(value.get("_meta"))
    if meta is None:
        return value
    app = as_object(meta.get("ui"))
    changed = _member_rewritten(meta, "ui/resourceUri", rewrite)
    if app is not None:
        changed = {**changed, "ui": _member_rewritten(app, "resourceUri", rewrite)}
    return value if changed == meta else {**value, "_meta": changed}


def _block_rewritten(block: Params, rewrite: Rewrite) -> Params:
    match block.get("type"):
        case "resource_link":
            return _member_rewritten(block, "uri", rewrite)
        case "resource":
            inner = as_object(block.get("resource"))
            return block if inner is None else {**block, "resource": _member_rewritten(inner, "uri", rewrite)}
        case "tool_result":
            return _blocks_rewritten(block, "content", rewrite)
        case _:
            return block


def _blocks_rewritten(value: Params, member: str, rewrite: Rewrite) -> Params:
    """Content is a list of blocks, or in a prompt's message one of them."""
    block = as_object(value.get(member))
    if block is not None:
        return {**value, member: _block_rewritten(block, rewrite)}
    return _each(value, member, lambda entry: _block_rewritten(entry, rewrite))


def _each(value: Params, member: str, change: Callable[[Params], Params]) -> Params:
    entries = as_array(value.get(member))
    if entries is None:
        return value
    inner = ((entry, as_object(entry)) for entry in entries)
    return {**value, member: [entry if opened_entry is None else change(opened_entry) for entry, opened_entry in inner]}


def _member_rewritten(value: Mapping[str, object], member: str, rewrite: Rewrite) -> Params:
    uri = value.get(member)
    return {**value, member: rewrite(uri)} if isinstance(uri, str) else dict(value)
