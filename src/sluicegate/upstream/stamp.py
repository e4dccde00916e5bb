"""What every request to a server of 2026-07-28 says of its caller: written once for all who say the same."""

from collections.abc import Mapping

import msgspec

from sluicegate.protocol.message import Params, RequestId, as_object
from sluicegate.protocol.modern import Profile, with_profile
from sluicegate.upstream.writing import encoded


class Stamp:
    """Puts what a caller says of itself into the params of its requests, under our own name."""

    __slots__ = ("_capabilities", "_client_info", "_encoded", "_log_level", "_version")

    def __init__(self, client_info: Mapping[str, object]) -> None:
        self._client_info = client_info
        self._version = ""
        self._capabilities: Mapping[str, object] | None = None
        self._log_level: str | None = None
        self._encoded = msgspec.Raw()

    def on(self, params: Params, version: str, said: Profile, token: RequestId | None) -> Params:
        """The params as a server of this revision wants them, with our own progress token if there is one.

        Raises:
            LocalProtocolError: what the caller says of itself cannot be written as JSON.
        """
        capabilities, level = said.capabilities, said.log_level
        if token is not None or "_meta" in params:
            return with_profile(params, Profile(version, capabilities, self._client_info, level), token)
        # By identity: one who repeats itself, as nearly all do, is known again with the very same object.
        if capabilities is not self._capabilities or level != self._log_level or version != self._version:
            meta = with_profile({}, Profile(version, capabilities, self._client_info, level), None)["_meta"]
            self._encoded = msgspec.Raw(encoded(as_object(meta) or {}))
            self._version, self._capabilities, self._log_level = version, capabilities, level
        return {**params, "_meta": self._encoded}
