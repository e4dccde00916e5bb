"""An offer as bytes, to be kept on disk."""

from typing import Final

import msgspec

from sluicegate.hub.catalog import KINDS, Entries, Offer
from sluicegate.hub.fetch_catalog import offered
from sluicegate.protocol.message import Params


class _Saved(msgspec.Struct):
    tools: list[Params]
    prompts: list[Params]
    resources: list[Params]
    templates: list[Params]
    takes_tasks: bool
    is_gateway: bool
    extensions: Params = {}


_decoder: Final = msgspec.json.Decoder(_Saved)


def encode_offer(offer: Offer) -> bytes:
    """An offer as JSON, for `decode_offer`."""
    return msgspec.json.encode(
        _Saved(
            tools=_definitions(offer.tools),
            prompts=_definitions(offer.prompts),
            resources=_definitions(offer.resources),
            templates=_definitions(offer.templates),
            takes_tasks=offer.takes_tasks,
            is_gateway=offer.is_gateway,
            extensions=offer.extensions,
        )
    )


def decode_offer(data: bytes) -> Offer | None:
    """The offer that was encoded, without how long it may be cached; None if it cannot be read."""
    try:
        saved = _decoder.decode(data)
        return Offer(
            tools=_entries("tools", saved.tools),
            prompts=_entries("prompts", saved.prompts),
            resources=_entries("resources", saved.resources),
            templates=_entries("templates", saved.templates),
            takes_tasks=saved.takes_tasks,
            is_gateway=saved.is_gateway,
            extensions=saved.extensions,
        )
    except (msgspec.DecodeError, KeyError, RecursionError):
        return None


def _entries(kind: str, definitions: list[Params]) -> Entries:
    return tuple(offered(KINDS[kind], definition) for definition in definitions)


def _definitions(entries: Entries) -> list[Params]:
    return [entry.definition for entry in entries]
