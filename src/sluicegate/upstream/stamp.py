"""What every request to a server of 2026-07-28 says of its caller: written once for all who say the same."""

from collections.abc import Mapping
from typing import Final

import msgspec

from sluicegate.protocol.message import Params, RequestId, as_object
from sluicegate.protocol.modern import Profile, with_profile
from sluicegate.upstream.writing import encoded

MOST_KNOWN: Final = 64
LONGEST_KNOWN: Final = 1024
"""Bytes of what a caller says that it can be asked; it may be as long as a request."""


class Stamp:
    """Puts what a caller says of itself into the params of its requests, under our own name."""

    __slots__ = ("_client_info", "_known", "_last")

    def __init__(self, client_info: Mapping[str, object]) -> None:
        self._client_info = client_info
        self._last: tuple[Mapping[str, object], str | None, str, msgspec.Raw] | None = None
        self._known: dict[tuple[bytes, str | None, str], msgspec.Raw] = {}

    def on(self, params: Params, version: str, said: Profile, token: RequestId | None) -> Params:
        """The params as a server of this revision wants them, with our own progress token if there is one.

        Raises:
            LocalProtocolError: what the caller says of itself cannot be written as JSON.
        """
        if "_meta" in params or isinstance(token, str):
            return with_profile(params, self._profile(version, said), token)
        last = self._last
        # The same object, and nobody changes it: who sends many requests says it once.
        if last is not None and last[0] is said.capabilities and last[1] == said.log_level and last[2] == version:
            meta = last[3]
        else:
            meta = self._written(version, said)
            self._last = (said.capabilities, said.log_level, version, meta)
        if token is not None:
            meta = msgspec.Raw(b'%b,"progressToken":%d}' % (bytes(meta)[:-1], token))
        return {**params, "_meta": meta}

    def _written(self, version: str, said: Profile) -> msgspec.Raw:
        capabilities = encoded(said.capabilities)
        meta = self._known.get((capabilities, said.log_level, version))
        if meta is None:
            written = with_profile({}, self._profile(version, said), None)["_meta"]
            meta = msgspec.Raw(encoded(as_object(written) or {}))
            if len(capabilities) <= LONGEST_KNOWN:
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()  # The few in use are back at once; no order has to be kept for it.
                self._known[capabilities, said.log_level, version] = meta
        return meta

    def _profile(self, version: str, said: Profile) -> Profile:
        return Profile(version, said.capabilities, self._client_info, said.log_level)
