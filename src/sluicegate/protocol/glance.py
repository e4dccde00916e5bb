"""What a client mostly sends, read at a glance: the last good request again, with another id and other arguments; and
in the session era a request that has nothing in it to look at.

The one rule: a request is read here only if all that the rules of `strict`, `modern` and `headers` are about is what
was found good before, or is not there at all; for all else there is None, and those say what it is.
"""

from typing import Final, TypeGuard

import msgspec

from sluicegate.protocol.bounds import DEFAULT_LIMITS, may_break_limit
from sluicegate.protocol.conversation import Asked
from sluicegate.protocol.lookalikes import META_MEMBERS, PLAIN_PARAMS, REQUEST_MEMBERS
from sluicegate.protocol.message import LARGEST_ID, Params, Request, RequestId, as_object
from sluicegate.protocol.methods import METHODS
from sluicegate.protocol.modern import Profile
from sluicegate.protocol.mould import ARGUMENTS, Holes, Mould, mould_of
from sluicegate.protocol.strict import SHORT_ID, check_limits

_TOKEN: Final = "progressToken"
_WORDS: Final = frozenset({str, bool, type(None)})
_NO_PARAMS: Final[Params] = {}
_TOKEN_ALONE: Final = {_TOKEN}
_FILLED: Final = ("_meta", ARGUMENTS)

_WAYS: Final[Holes] = {
    "id": ("id",),
    ARGUMENTS: ("params", ARGUMENTS),
    _TOKEN: ("params", "_meta", _TOKEN),
}


class Repeats:
    """The last good request behind one HTTP head, known again by its bytes. The head is the same, so its headers still
    agree, and its era is the same.
    """

    __slots__ = ("_method", "_misses", "_mould", "_params", "_patience", "_profile")

    def __init__(self) -> None:
        self._mould: Mould | None = None
        self._misses = 0
        self._patience = 2
        self._method = ""
        self._params = _NO_PARAMS
        self._profile = Profile()

    def learn(self, data: bytes, request: Request, profile: Profile) -> None:
        """Know a request again of which `read_request` made this profile, if nothing in it is out of the ordinary."""
        params, meta = request.params, as_object(request.params.get("_meta"))
        target = METHODS[request.method].target or ""
        usual = {"_meta", ARGUMENTS, target} if isinstance(params.get(target), str) else {"_meta", ARGUMENTS}
        if meta is not None and params.keys() <= usual and meta.keys() <= META_MEMBERS and self._is_time():
            self._learn(data, request, profile, left_out="_meta")

    def learn_plain(self, data: bytes, request: Request) -> None:
        """Know a request again that `plain_request` has read, if nothing is kept of it but words."""
        is_kept = (type(value) is str for name, value in request.params.items() if name not in _FILLED)
        if all(is_kept) and self._is_time():
            self._learn(data, request, self._profile)

    def _is_time(self) -> bool:
        # It takes as long as to read some requests. One alone is not learned, for many a head is never seen again; and
        # whoever sends a different one each time is soon left alone.
        self._misses += 1
        if self._misses < self._patience:
            return False
        self._misses, self._patience = 0, 2 * self._patience
        return True

    def _learn(self, data: bytes, request: Request, profile: Profile, left_out: str = "") -> None:
        params = request.params
        changing = {"id", *(params.keys() & {ARGUMENTS}), *((as_object(params.get("_meta")) or {}).keys() & {_TOKEN})}
        mould = mould_of(data, {name: way for name, way in _WAYS.items() if name in changing})
        if mould is not None:
            self._mould = mould
            self._method = request.method
            self._profile = msgspec.structs.replace(profile, progress_token=None)
            # In the order in which they came; what is in a hole will be there in its place.
            self._params = {
                name: None if name in _FILLED else value for name, value in params.items() if name != left_out
            }

    def read(self, data: bytes) -> Asked | None:
        """What the data asks, if it is the last request of 2026-07-28 again; `_meta` is taken out of it."""
        known = self._read(data)
        if known is None:
            return None
        found, params = known
        profile, token = self._profile, found.get(_TOKEN)
        if token is not None:
            profile = Profile(profile.version, profile.capabilities, profile.client_info, profile.log_level, token)
        return Asked(found["id"], self._method, params, profile, True)

    def read_plain(self, data: bytes) -> Request | None:
        """The request that the data is, if it is the last one of the session era again."""
        known = self._read(data)
        if known is None:
            return None
        found, params = known
        token = found.get(_TOKEN)
        if token is not None:
            params["_meta"] = {_TOKEN: token}
        return Request(found["id"], self._method, params)

    def _read(self, data: bytes) -> tuple[dict[str, RequestId], Params] | None:
        if self._mould is None or len(data) > DEFAULT_LIMITS.marks:
            return None
        filled = self._mould.read(data)
        if filled is None:
            return None
        found, arguments = filled
        params = {**self._params}
        if arguments is not None:
            # All else is as before, and was within the limits then.
            is_small = len(data) <= DEFAULT_LIMITS.members and _is_flat(arguments)
            if not is_small and may_break_limit(data, DEFAULT_LIMITS):
                return None
            params[ARGUMENTS] = arguments
        return found, params


def plain_request(data: bytes, value: object) -> Request | None:
    """The request that the data is, by `parse_json`, if its `_meta` says nothing but where progress goes.

    Then it is of the session era. None for `initialize`, too.

    Raises:
        RemoteProtocolError: its params are over a limit, as `check_limits` says.
    """
    envelope = as_object(value)
    if envelope is None or envelope.keys() != REQUEST_MEMBERS or envelope["jsonrpc"] != "2.0":
        return None
    request_id, method, params = envelope["id"], envelope["method"], as_object(envelope["params"])
    if not _is_short(request_id) or type(method) is not str or method == "initialize":
        return None
    # Each member by its right name, and no other in `_meta`: nothing is left that a rule is about.
    if params is None or not params.keys() <= PLAIN_PARAMS or ("_meta" in params and not _is_token(params["_meta"])):
        return None
    is_flat = len(data) <= DEFAULT_LIMITS.members
    for member in params.values():
        is_flat = is_flat and (type(member) is str or _is_flat(member))
    if not is_flat:
        check_limits(data, value)
    return Request(request_id, method, params)


def _is_short(value: object) -> TypeGuard[RequestId]:
    """Whether this is an id, or a progress token, that need not be measured."""
    if type(value) is int:
        return -LARGEST_ID <= value <= LARGEST_ID
    return type(value) is str and len(value) <= SHORT_ID


def _is_token(value: object) -> bool:
    """Whether this is a `_meta` with a progress token and nothing else."""
    meta = as_object(value)
    return meta is not None and meta.keys() == _TOKEN_ALONE and _is_short(meta[_TOKEN])


def _is_flat(value: object) -> bool:
    """Whether this is an object whose depth and numbers are within any limit: of words and integers of usual size."""
    members = as_object(value)
    if members is None:
        return False
    for member in members.values():
        if type(member) not in _WORDS and not (type(member) is int and -LARGEST_ID <= member <= LARGEST_ID):
            return False
    return True
