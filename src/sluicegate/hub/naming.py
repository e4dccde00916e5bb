"""Names and URIs of many servers behind one endpoint. Pure.

A name is made once, deterministically, and looked up in a table afterwards; names are never split. A URI carries its
server's prefix in its scheme. In replies and definitions, URIs that name a resource are rewritten; text is not.
"""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal

import msgspec

from sluicegate.errors import ErrorObject
from sluicegate.protocol.message import Params, Reply, Result, ToolText, as_array, as_object, mentions, opened

Naming = Literal["prefix", "collide", "claude"]

MAX_TOOL_NAME: Final = 64
"""Model APIs refuse longer names, though the specification allows 128."""

_scheme: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_UI: Final = "ui://"
_illegal: Final = re.compile(r"[^A-Za-z0-9_.-]")
_SEPARATOR: Final = "__"
_DIGEST_STEP: Final = 8


def names_for(
    prefix: str, name: str, naming: Naming = "prefix", longest: int = MAX_TOOL_NAME, *, key: str = ""
) -> Iterator[str]:
    """The names under which a server's own one may be exposed, the best first.

    `prefix` is the server's; an empty one leaves its names as they are. Names of activations, which begin with the
    prefix or else the key, get no other prefix: `solar.watch` is `solar__watch`, since model APIs refuse dots.
    """
    is_inside = is_in_namespace(prefix or key, name)
    for full in [name] if is_inside else _full_names(prefix, name, naming):
        plain = full.replace(".", _SEPARATOR) if prefix or is_inside else full
        if 0 < len(plain) <= longest and _illegal.search(plain) is None:
            yield plain
            if plain == full:
                continue
        # Too long, or with characters that model APIs refuse, or like another one without its dots: a stable short
        # form. More of the digest separates two names with the same short form.
        legal = _illegal.sub("_", plain)
        digest = hashlib.sha256(full.encode("utf-8", "surrogatepass")).hexdigest()
        for length in range(_DIGEST_STEP, longest, _DIGEST_STEP):
            end = "_" + digest[:length]
            yield legal[: longest - len(end)] + end


def is_in_namespace(prefix: str, name: str) -> bool:
    """Whether a name begins with the server's prefix itself, as those of activations do: `solar.watch`."""
    return prefix != "" and name.startswith(f"{prefix}.")


def looks_like_any(name: str, others: Iterable[str]) -> bool:
    """Whether a name is one of the others, or may be taken for one of them (T15)."""
    folded = _folded(name)
    return any(_folded(other) == folded for other in others)


def _folded(name: str) -> str:
    visible = "".join(char for char in unicodedata.normalize("NFKC", name) if char.isprintable() and not char.isspace())
    return visible.casefold()


def head_of(prefix: str, naming: Naming) -> str:
    """The beginning of the exposed names of a server with a prefix."""
    return f"mcp{_SEPARATOR}{prefix}{_SEPARATOR}" if naming == "claude" else f"{prefix}{_SEPARATOR}"


def native_name(prefix: str, name: str) -> str:
    """The name of a server's tool as native clients know it: `solar.watch`, `files.read_file`."""
    return name if not prefix or is_in_namespace(prefix, name) else f"{prefix}.{name}"


def heads_of(*names: str) -> list[str]:
    """How clients may begin the names of tools of a server that has these names, without `mcp__`."""
    return [f"{name}{separator}" for name in dict.fromkeys(names) if name for separator in (_SEPARATOR, ".")]


def _full_names(prefix: str, name: str, naming: Naming) -> list[str]:
    if not prefix:
        return [name]
    prefixed = head_of(prefix, naming) + name
    return [name, prefixed] if naming == "collide" else [prefixed]


def exposed_uri(prefix: str, uri: str) -> str:
    """A server's URI as clients see it; also of a template, since only a literal is prepended.

    Web addresses are unchanged, since a client may fetch them itself. URIs of apps keep the scheme that hosts check. A
    scheme that is the prefix itself says whose URI it is, unless clients read such URIs themselves (`file`), or it is
    ours.
    """
    if not prefix:
        return uri
    found = _scheme.match(uri)
    scheme = found[1].lower() if found is not None else ""
    if scheme in ("http", "https"):
        return uri
    if uri.startswith(_UI):
        return f"{_UI}{prefix}+{uri[len(_UI) :]}"
    return uri if _has_own_scheme(prefix, uri) else f"{prefix}+{uri}"


def own_uri(prefix: str, uri: str) -> str | None:
    """The server's own URI of an exposed one, or None if it is not of that server."""
    if not prefix:
        return uri
    if uri.startswith(f"{prefix}+"):
        return uri[len(prefix) + 1 :]
    if uri.startswith(f"{_UI}{prefix}+"):
        return _UI + uri[len(_UI) + len(prefix) + 1 :]
    return uri if _has_own_scheme(prefix, uri) and not uri.startswith(_UI) else None


def _has_own_scheme(prefix: str, uri: str) -> bool:
    return uri.startswith(f"{prefix}:") and prefix.lower() not in ("file", "http", "https", "sluicegate")


Rewrite = Callable[[str], str]

# A reply without any of these names no resource and is not decoded.
_URI_HINTS: Final = (b'"uri"', b'"resource', b'"ui')


def reply_rewritten(method: str, reply: Reply, rewrite: Rewrite) -> Reply:
    """The reply to a call, with every URI in it as clients know it."""
    if isinstance(reply, ErrorObject):
        data = as_object(reply.data)
        if data is None or not isinstance(data.get("uri"), str):
            return reply
        return ErrorObject(reply.code, reply.message, _member_rewritten(data, "uri", rewrite))
    if isinstance(reply.value, ToolText):
        return reply  # Text names no resource.
    if isinstance(reply.value, msgspec.Raw) and not mentions(bytes(reply.value), _URI_HINTS):
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
    return Result(_app_rewritten(value, rewrite), reply.is_final)


def definition_rewritten(definition: Params, rewrite: Rewrite) -> Params:
    """A tool, prompt, resource or template, with its URIs as clients know them; icons are unchanged."""
    for member in ("uri", "uriTemplate"):
        definition = _member_rewritten(definition, member, rewrite)
    return _app_rewritten(definition, rewrite)


def _app_rewritten(value: Params, rewrite: Rewrite) -> Params:
    """Rewrite the page that tools and results of apps name, in one of two places."""
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
    """Rewrite content: a list of blocks or, in a prompt's message, one block."""
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
