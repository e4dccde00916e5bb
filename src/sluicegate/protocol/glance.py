"""What a client mostly sends, read at a glance: in 2026-07-28 the last good request again, with another id and other
arguments; before that a request that has nothing in it to look at.

The one rule: a request is read here only if all that the rules of `strict`, `modern` and `headers` are about is what
was found good before, or is not there at all; for all else there is None, and those say what it is.
"""

from typing import Final, TypeGuard

import msgspec

from sluicegate.protocol.bounds import DEFAULT_LIMITS
from sluicegate.protocol.conversation import Asked
from sluicegate.protocol.lookalikes import META_MEMBERS, PLAIN_PARAMS, REQUEST_MEMBERS
from sluicegate.protocol.message import LARGEST_ID, Params, Request, RequestId, as_array, as_object
from sluicegate.protocol.methods import METHODS
from sluicegate.protocol.modern import Profile
from sluicegate.protocol.strict import SHORT_ID, check_limits

LONGEST_META: Final = 2048

_TOKEN: Final = "progressToken"
_WORDS: Final = frozenset({str, bool, type(None)})
_NO_PARAMS: Final[Params] = {}
_TOKEN_ALONE: Final = {_TOKEN}
_encode: Final = msgspec.json.Encoder().encode


class Repeats:
    """The last good request of 2026-07-28 behind one HTTP head. The head is the same, so its headers still agree."""

    __slots__ = ("_encoded", "_members", "_meta", "_method", "_name", "_profile", "_target")

    def __init__(self) -> None:
        self._profile: Profile | None = None
        self._meta = _NO_PARAMS
        self._encoded = b""
        self._method = self._target = ""
        self._name: object = None
        self._members: frozenset[str] = frozenset()

    def learn(self, request: Request, profile: Profile) -> None:
        """Know a request again of which `read_request` made this profile, if nothing in it is out of the ordinary."""
        params, meta = request.params, as_object(request.params.get("_meta"))
        target = METHODS[request.method].target or ""
        name = params.get(target)
        usual = {"_meta", "arguments", target} if isinstance(name, str) else {"_meta", "arguments"}
        if meta is None or not (params.keys() <= usual and meta.keys() <= META_MEMBERS):
            return
        # A float can be written in many ways, of which some are too long.
        if not _holds_float(meta):
            meta = _without_token(meta)
            encoded = _encode(meta)
            if len(encoded) <= LONGEST_META:
                self._profile = msgspec.structs.replace(profile, progress_token=None)
                self._meta, self._encoded, self._members = meta, encoded, frozenset(params)
                self._method, self._target, self._name = request.method, target, name

    def read(self, data: bytes, value: object) -> Asked | None:
        """The request that the data is, by `parse_json`, if it is the last one again; `_meta` is taken out of it.

        Raises:
            RemoteProtocolError: its arguments are over a limit, as `check_limits` says.
        """
        profile, envelope = self._profile, as_object(value)
        if profile is None or envelope is None or envelope.keys() != REQUEST_MEMBERS:
            return None
        request_id, params = envelope["id"], as_object(envelope["params"])
        if not _is_short(request_id) or envelope["method"] != self._method or envelope["jsonrpc"] != "2.0":
            return None
        if params is None or params.keys() != self._members or params.get(self._target) != self._name:
            return None
        meta = as_object(params["_meta"])
        if meta is None:
            return None
        token = None
        if _TOKEN in meta:
            token, meta = meta[_TOKEN], _without_token(meta)
            if not _is_short(token):
                return None
        # Then as bytes: to Python 1, 1.0 and true are equal. Only then, because what differs may be over a limit.
        if meta != self._meta or _encode(meta) != self._encoded:
            return None
        # All else is as before, and was within the limits then.
        if len(data) > DEFAULT_LIMITS.members or not _is_flat(params.get("arguments", _NO_PARAMS)):
            check_limits(data, value)
        del params["_meta"]
        if token is not None:
            profile = Profile(profile.version, profile.capabilities, profile.client_info, profile.log_level, token)
        return Asked(request_id, self._method, params, profile, True)


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


def _without_token(meta: Params) -> Params:
    return {key: value for key, value in meta.items() if key != _TOKEN}


def _holds_float(value: object) -> bool:
    # By recursion: what comes here is no deeper than `Limits.depth`.
    members = as_object(value)
    items = as_array(value) if members is None else members.values()
    return type(value) is float if items is None else any(map(_holds_float, items))
