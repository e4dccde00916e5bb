"""From 2026-07-28, both sides: requests that carry all they need, `server/discover`, results that may ask for input.

This shape is also the one spoken inside sluicegate: what an `Exchange` holds is a request of this era, taken apart.
"""

from collections.abc import Mapping, Sequence
from typing import Final, cast

import jiter
import msgspec

from sluicegate.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    ErrorObject,
    RemoteProtocolError,
    UpstreamProtocolError,
)
from sluicegate.protocol.headers import Claims
from sluicegate.protocol.message import (
    Notification,
    Params,
    Reply,
    Request,
    RequestId,
    Result,
    as_array,
    as_object,
    may_escape_names,
    opened,
)
from sluicegate.protocol.methods import LOG_LEVELS, METHODS, QUESTIONS, requestable
from sluicegate.protocol.versions import LATEST_VERSION, MODERN_VERSIONS, SESSION_VERSIONS, SUPPORTED_VERSIONS

VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO_KEY: Final = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL_KEY: Final = "io.modelcontextprotocol/logLevel"
SERVER_INFO_KEY: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_KEY: Final = "io.modelcontextprotocol/subscriptionId"

_PROFILE_KEYS: Final = frozenset({VERSION_KEY, CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY, "progressToken"})

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"


class Profile(msgspec.Struct, frozen=True):
    """What a client said of itself with one request. In the session era most of it was said at `initialize`."""

    version: str = LATEST_VERSION
    capabilities: Mapping[str, object] = {}
    client_info: Mapping[str, object] | None = None
    log_level: str | None = None
    progress_token: RequestId | None = None


def is_modern(params: Params) -> bool:
    """Whether a request says its revision itself, which only 2026-07-28 and later do."""
    meta = as_object(params.get("_meta"))
    return meta is not None and VERSION_KEY in meta


def _version_in(meta: Params, request_id: RequestId) -> str:
    version = meta.get(VERSION_KEY)
    if not isinstance(version, str):
        problem = f"Invalid params: _meta lacks {VERSION_KEY}."
    elif as_object(meta.get(CAPABILITIES_KEY)) is None:
        problem = f"Invalid params: _meta lacks {CAPABILITIES_KEY}, an object (it may be empty)."
    else:
        return version
    raise RemoteProtocolError(problem, code=INVALID_PARAMS, request_id=request_id)


def read_request(request: Request, claims: Claims | None = None) -> tuple[Profile, Params]:
    """The request's profile, and its params without what the profile now holds; over HTTP, if its headers agree.

    Raises:
        RemoteProtocolError: −32602 for an incomplete `_meta`, −32020 for headers that say something else, −32022 for a
            revision we do not speak, −32601 for a method that 2026-07-28 does not have.
    """
    meta = as_object(request.params.get("_meta")) or {}
    version = _version_in(meta, request.id)
    if claims is not None:
        claims.check(request.id, version, request.method, request.params)
    if (version, request.method) not in _REQUESTABLE:
        raise _not_spoken(request, version)
    client_info, log_level, token = meta.get(CLIENT_INFO_KEY), meta.get(LOG_LEVEL_KEY), meta.get("progressToken")
    if client_info is not None and as_object(client_info) is None:
        raise _wrong_meta(request, f"{CLIENT_INFO_KEY} is an object.")
    if log_level is not None and log_level not in LOG_LEVELS:
        raise _wrong_meta(request, f"{LOG_LEVEL_KEY} is one of {', '.join(LOG_LEVELS)}.")
    if token is not None:
        token = _progress_token_in(meta, request.id)
    capabilities = cast(Params, meta[CAPABILITIES_KEY])
    profile = Profile(version, capabilities, cast(Params | None, client_info), cast(str | None, log_level), token)
    return profile, _without(request.params, meta)


_REQUESTABLE: Final = frozenset(
    (version, method) for version in MODERN_VERSIONS for method in METHODS if requestable(method, version)
)


def _not_spoken(request: Request, version: str) -> RemoteProtocolError:
    if version in MODERN_VERSIONS:
        problem, code, data = f"Method not found: {request.method[:100]}", METHOD_NOT_FOUND, None
    else:
        problem, code = "Unsupported protocol version", UNSUPPORTED_VERSION
        data = {"supported": list(SUPPORTED_VERSIONS), "requested": version}
    return RemoteProtocolError(problem, code=code, request_id=request.id, data=data)


def _wrong_meta(request: Request, problem: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"Invalid params: {problem}", code=INVALID_PARAMS, request_id=request.id)


def read_progress_token(request: Request) -> RequestId | None:
    """The progress token of a request of either era, or None if it wants no progress.

    Raises:
        RemoteProtocolError: −32602 for a token that is neither string nor integer.
    """
    return _progress_token_in(as_object(request.params.get("_meta")) or {}, request.id)


def _progress_token_in(meta: Params, request_id: RequestId) -> RequestId | None:
    token = meta.get("progressToken")
    if token is None or isinstance(token, str) or type(token) is int:
        return token
    problem = "Invalid params: a progress token is a string or an integer."
    raise RemoteProtocolError(problem, code=INVALID_PARAMS, request_id=request_id)


def without_profile(params: Params) -> Params:
    """The params without the `_meta` members that a profile holds, and without `_meta` if nothing else was in it."""
    meta = as_object(params.get("_meta"))
    return params if meta is None or meta.keys().isdisjoint(_PROFILE_KEYS) else _without(params, meta)


def _without(params: Params, meta: Params) -> Params:
    params = dict(params)
    del params["_meta"]
    if not meta.keys() <= _PROFILE_KEYS:
        params["_meta"] = {key: value for key, value in meta.items() if key not in _PROFILE_KEYS}
    return params


def with_profile(params: Params, profile: Profile, progress_token: RequestId | None) -> Params:
    """The params as a server of this era wants them: the profile in `_meta`, under our own progress token."""
    stamped = dict(as_object(params.get("_meta")) or {})
    stamped[VERSION_KEY] = profile.version
    stamped[CAPABILITIES_KEY] = profile.capabilities
    if profile.client_info is not None:
        stamped[CLIENT_INFO_KEY] = profile.client_info
    if profile.log_level is not None:
        stamped[LOG_LEVEL_KEY] = profile.log_level
    if progress_token is not None:
        stamped["progressToken"] = progress_token
    return {**params, "_meta": stamped}


def tagged(notification: Notification, subscription_id: RequestId) -> Notification:
    """The notification as it travels on a `subscriptions/listen` stream: marked with the id of the listen request."""
    return Notification(notification.method, marked(notification.params, subscription_id))


def marked(value: Params, subscription_id: RequestId) -> Params:
    """The params or the result with the mark of a listen request in its `_meta`."""
    meta = as_object(value.get("_meta")) or {}
    return {**value, "_meta": {**meta, SUBSCRIPTION_KEY: subscription_id}}


def subscription_of(notification: Notification) -> tuple[RequestId | None, Notification]:
    """The listen request a notification belongs to, if it says so, and the notification without that mark."""
    meta = as_object(notification.params.get("_meta"))
    if meta is None or SUBSCRIPTION_KEY not in meta:
        return None, notification
    marker = meta[SUBSCRIPTION_KEY]
    rest = {key: value for key, value in meta.items() if key != SUBSCRIPTION_KEY}
    params = {key: value for key, value in notification.params.items() if key != "_meta"}
    if rest:
        params["_meta"] = rest
    subscription = marker if isinstance(marker, str) or type(marker) is int else None
    return subscription, Notification(notification.method, params)


# ------------------------------------------------------------------------------------------------- asking for input


class Question(msgspec.Struct, frozen=True):
    """One thing a server wants to know from the client: the value of an `inputRequests` entry."""

    method: str
    params: Params = {}  # `roots/list` may leave them out


Questions = Mapping[str, Question]
Answers = Mapping[str, Params]
"""Bare results under the keys of the questions: the value of `inputResponses`."""


class InputRequired(msgspec.Struct, frozen=True):
    """A result that is no answer yet: answer the questions and send the request again with the state."""

    questions: Questions
    state: str | None = None


def input_required(questions: Questions, state: str | None) -> Result:
    """The result that asks the client for input."""
    value: Params = {"resultType": "input_required"}
    if questions:
        value["inputRequests"] = {key: {"method": q.method, "params": q.params} for key, q in questions.items()}
    if state is not None:
        value["requestState"] = state
    return Result(value)


_COMPLETE: Final = b'{"resultType":"complete"'


def read_input_required(method: str, reply: Reply) -> InputRequired | None:
    """The questions in a reply, or None if it is final.

    Raises:
        UpstreamProtocolError: an unknown result type, input asked for where none may be, or questions nobody can read.
    """
    if not isinstance(reply, Result) or reply.is_final:
        return None
    raw = reply.value
    # Most replies are final and stay bytes: only one that has the word in it, or may spell it otherwise, is opened.
    if isinstance(raw, msgspec.Raw):
        data = bytes(raw)
        # The first word counts if there is no second one, which another reader might take instead (T1).
        said = data.startswith(_COMPLETE)
        if data.count(b'"resultType"') <= said and not may_escape_names(data):
            return None
        kind = _decode_type(raw)
    else:
        kind = raw.get("resultType", "complete")
    if kind == "complete":
        return None
    if kind != "input_required":
        raise UpstreamProtocolError(f"The server answered {method} with the unknown result type {kind!r}.")
    row = METHODS.get(method)
    if row is None or not row.may_ask:
        raise UpstreamProtocolError(f"The server asked for input on {method}, where no revision allows it.")
    try:
        return _read_questions(opened(reply))
    except RemoteProtocolError:
        raise UpstreamProtocolError(f"The server's answer to {method} cannot be decoded.") from None


def may_have_two_types(raw: msgspec.Raw) -> bool:
    """Whether a result may say twice of what type it is: another reader might take the other (T1)."""
    data = bytes(raw)
    if data.count(b'"resultType"') < 2:
        return False
    try:
        jiter.from_json(data, catch_duplicate_keys=True)  # Something inside may rightly have a type of its own.
    except ValueError:
        return True
    return False


class _ResultType(msgspec.Struct):
    resultType: object = "complete"  # noqa: N815 - the name on the wire


_type_decoder: Final = msgspec.json.Decoder(_ResultType)


def _decode_type(raw: msgspec.Raw) -> object:
    try:
        return _type_decoder.decode(raw).resultType
    except (msgspec.DecodeError, RecursionError):
        raise UpstreamProtocolError("The server's result cannot be decoded.") from None


def _read_questions(value: Params) -> InputRequired:
    entries = as_object(value.get("inputRequests", {}))
    state = value.get("requestState")
    if entries is None or not (state is None or isinstance(state, str)):
        raise UpstreamProtocolError("The server asked for input in a form that cannot be read.")
    questions: dict[str, Question] = {}
    for key, entry in entries.items():
        try:
            question = msgspec.convert(entry, Question)
        except msgspec.ValidationError:
            raise UpstreamProtocolError("The server asked for input in a form that cannot be read.") from None
        if question.method not in QUESTIONS:
            raise UpstreamProtocolError(f"The server asked for input by {question.method}, which no revision has.")
        questions[key] = question
    if not questions and state is None:
        raise UpstreamProtocolError("The server asked for input but for nothing in particular.")
    return InputRequired(questions, state)


def with_answers(params: Params, answers: Answers, state: str | None) -> Params:
    """The params for the next round: the same request, the answers, and the state exactly as it was given or not."""
    again = {key: value for key, value in params.items() if key not in ("inputResponses", "requestState")}
    if answers:
        again["inputResponses"] = dict(answers)
    if state is not None:
        again["requestState"] = state
    return again


def lacking_capability(question: Question, capabilities: Mapping[str, object]) -> Params | None:
    """What the client would have to declare before it may be asked this, or None if it did.

    An empty `elicitation` object means forms only, as in the revision that had nothing else.
    """
    match question.method:
        case "elicitation/create":
            declared = as_object(capabilities.get("elicitation"))
            mode = str(question.params.get("mode", "form"))
            if declared is not None and (mode in declared or (mode == "form" and "url" not in declared)):
                return None
            return {"elicitation": {mode: {}}}
        case "sampling/createMessage":
            declared = as_object(capabilities.get("sampling"))
            if declared is None:
                return {"sampling": {}}
            if ("tools" in question.params or "toolChoice" in question.params) and "tools" not in declared:
                return {"sampling": {"tools": {}}}
            return None
        case _:
            return None if isinstance(capabilities.get("roots"), dict) else {"roots": {}}


# ------------------------------------------------------------------------------------------------- discovery and
# probing


class Discovery(msgspec.Struct, frozen=True):
    """What a server offers, as its discover result or its `initialize` answer says."""

    version: str
    capabilities: Params = {}
    server_info: Params = {}
    instructions: str | None = None


def complete(value: Params, *, ttl_ms: int | None = None, scope: str = "private") -> Params:
    """A final result of this era out of a plain value; with cache hints where a lifetime is given."""
    result: Params = {"resultType": "complete", **value}
    if ttl_ms is not None:
        result["ttlMs"] = ttl_ms
        result["cacheScope"] = scope
    return result


class Legacy(msgspec.Struct, frozen=True):
    """The probed server wants the handshake."""


class Retry(msgspec.Struct, frozen=True):
    """The probed server is of this era, but at another revision: ask again with it."""

    version: str


class Incompatible(msgspec.Struct, frozen=True):
    """The probed server and we have no revision in common."""

    supported: Sequence[str]


Verdict = Discovery | Legacy | Retry | Incompatible


def judge_probe(reply: Reply) -> Verdict:
    """Which era a server is of, by its answer to `server/discover` (protocol §2.1).

    The verdict never hangs on one error code: session-era servers refuse an unknown first request in many ways.
    """
    if isinstance(reply, Result):
        try:
            value = opened(reply)
        except RemoteProtocolError:
            return Legacy()
        supported = value.get("supportedVersions")
        mutual = _newest_modern(supported)
        if mutual is None:
            return Legacy()
        return _read_discovery(value, mutual)
    if reply.code == UNSUPPORTED_VERSION:
        supported = (as_object(reply.data) or {}).get("supported")
        mutual = _newest_modern(supported)
        if mutual is not None:
            return Retry(mutual)
        names = as_array(supported) or []
        if not names or any(name in SESSION_VERSIONS for name in names):
            return Legacy()
        return Incompatible([str(name) for name in names])
    if reply.code in (HEADER_MISMATCH, MISSING_CAPABILITY):
        return Retry(LATEST_VERSION)
    return Legacy()


def _newest_modern(supported: object) -> str | None:
    names = as_array(supported) or []
    return next((version for version in reversed(MODERN_VERSIONS) if version in names), None)


def _read_discovery(value: Params, version: str) -> Discovery:
    meta = as_object(value.get("_meta")) or {}
    instructions = value.get("instructions")
    return Discovery(
        version,
        as_object(value.get("capabilities")) or {},
        as_object(meta.get(SERVER_INFO_KEY)) or {},
        instructions if isinstance(instructions, str) else None,
    )


def missing_capability(required: Params) -> ErrorObject:
    """The refusal of a request whose client cannot be asked what must be asked."""
    message = "Missing required client capability: " + ", ".join(sorted(required))
    return ErrorObject(MISSING_CAPABILITY, message, {"requiredCapabilities": required})
