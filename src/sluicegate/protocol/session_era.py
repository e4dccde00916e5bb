"""The session era, 2024-11-05 to 2025-11-25, for both roles: the handshake and the state of a session after it."""

import sys
from collections.abc import Mapping
from enum import Enum
from typing import Final, cast

import msgspec

from sluicegate.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    NOT_INITIALIZED,
    ErrorObject,
    LocalProtocolError,
    RemoteProtocolError,
    UpstreamProtocolError,
)
from sluicegate.protocol.message import Params, Reply, Request, RequestId, Result, as_array, as_object, opened
from sluicegate.protocol.methods import LOG_LEVELS, METHODS, may_be_of_extension, requestable
from sluicegate.protocol.modern_era import ClientProfile, Discovery, read_progress_token, without_profile
from sluicegate.protocol.tasks import without_tasks
from sluicegate.protocol.versions import LATEST_SESSION_VERSION, REVISIONS, SESSION_VERSIONS, Revision, negotiate

DEFAULT_LOG_LEVEL: Final = "info"
"""The level of a session before `logging/setLevel`, which the specification leaves to the server."""


MAX_PROFILE: Final = 16 * 1024
"""Bytes of `clientInfo` and capabilities that a session keeps (T4)."""

_MAX_NAME: Final = 256
_encode: Final = msgspec.json.encode


class Stage(Enum):
    """The stage of a session."""

    CREATED = "created"
    INITIALIZING = "initializing"
    OPERATING = "operating"
    SHUTDOWN = "shutdown"


_REQUESTABLE: Final = {
    version: frozenset(method for method in METHODS if requestable(method, version)) for version in SESSION_VERSIONS
}


def not_initialized(request_id: RequestId | None) -> RemoteProtocolError:
    """The refusal of a request before `initialize`."""
    return RemoteProtocolError("Server not initialized", code=NOT_INITIALIZED, request_id=request_id)


class ServerSession:
    """The server's side of one session: the client's profile, and what it may request now."""

    __slots__ = ("offers", "profile", "ready_for_pushes", "revision", "stage", "version")

    def __init__(self) -> None:
        self.stage = Stage.CREATED
        self.version = LATEST_SESSION_VERSION
        self.revision = REVISIONS[LATEST_SESSION_VERSION]
        self.ready_for_pushes = False
        self.offers = ""
        """The names of the offered capabilities, interned: the same object for all clients with the same offer."""
        self.profile = ClientProfile(LATEST_SESSION_VERSION)
        """The client's profile, with a log level if we offer logging."""

    def begin(self, request: Request) -> None:
        """Accept an `initialize` request; `welcome` makes its answer.

        Raises:
            RemoteProtocolError: −32600 for a second one, −32602 for invalid params.
        """
        if self.stage is not Stage.CREATED:
            message = "Invalid request: this session is already initialized; open another one."
            raise RemoteProtocolError(message, request_id=request.id)
        params = request.params
        capabilities, info = params.get("capabilities", {}), params.get("clientInfo")
        problem = None
        if not isinstance(params.get("protocolVersion"), str):
            problem = "protocolVersion is a string"
        elif not isinstance(capabilities, dict):
            problem = "capabilities is an object"
        elif info is not None and not isinstance(info, dict):
            problem = "clientInfo is an object"
        if problem is not None:
            raise RemoteProtocolError(f"Invalid params: {problem}.", code=INVALID_PARAMS, request_id=request.id)
        version = negotiate(params["protocolVersion"])
        # Some clients declare capabilities that the negotiated revision does not have.
        askable = capabilities_for(cast(Params, capabilities), REVISIONS[version])
        about = _shortened(cast(Params, info or {}), MAX_PROFILE - len(_encode(askable)))
        if about is None:
            message = f"Invalid params: capabilities must not be larger than {MAX_PROFILE // 1024} KiB."
            raise RemoteProtocolError(message, code=INVALID_PARAMS, request_id=request.id)
        self.version, self.revision = version, REVISIONS[version]
        self.profile = ClientProfile(version, askable, None if info is None else about)
        self.stage = Stage.INITIALIZING

    def welcome(self, offer: Discovery) -> Result:
        """The answer to `initialize`: what we offer, without what the revision does not have."""
        if self.stage is not Stage.INITIALIZING:
            raise LocalProtocolError(f"A session that is {self.stage.value} cannot be welcomed.")
        capabilities = dict(without_tasks(offer.capabilities))  # The tasks extension is declared with each request.
        if not self.revision.completions_flag:
            capabilities.pop("completions", None)
        info = {"name": "sluicegate", "version": "0", **offer.server_info}
        value: Params = {
            "protocolVersion": self.version,
            "capabilities": capabilities,
            "serverInfo": implementation_for(info, self.revision),
        }
        if offer.instructions is not None:
            value["instructions"] = offer.instructions
        self.offers = sys.intern(" ".join(sorted(capabilities)))
        if "logging" in capabilities:
            self.profile = msgspec.structs.replace(self.profile, log_level=DEFAULT_LOG_LEVEL)
        self.stage = Stage.OPERATING
        return Result(value)

    def fail(self) -> None:
        """Forget an `initialize` that could not be answered: the client may try again."""
        if self.stage is Stage.INITIALIZING:
            self.stage = Stage.CREATED

    def initialized(self) -> None:
        """Note that the client got our answer to `initialize`: now we may send messages of our own."""
        if self.stage is Stage.OPERATING:
            self.ready_for_pushes = True

    def check(self, request: Request) -> None:
        """Check a request that is neither `initialize` nor `ping`.

        Raises:
            RemoteProtocolError: −32002 before `initialize`, −32601 for a method that this revision does not have.
        """
        if self.stage is Stage.CREATED:
            raise not_initialized(request.id)
        if request.method not in _REQUESTABLE[self.version] and not may_be_of_extension(request.method):
            message = f"Method not found: {request.method[:100]}"
            raise RemoteProtocolError(message, code=METHOD_NOT_FOUND, request_id=request.id)

    def set_level(self, request: Request) -> Reply:
        """The answer to `logging/setLevel`."""
        if self.profile.log_level is None:
            return ErrorObject(METHOD_NOT_FOUND, "Method not found: logging/setLevel (this server does not log)")
        level = request.params.get("level")
        if level not in LOG_LEVELS:
            return ErrorObject(INVALID_PARAMS, f"Invalid params: level is one of {', '.join(LOG_LEVELS)}.")
        self.profile = msgspec.structs.replace(self.profile, log_level=cast(str, level))
        return Result({})

    def profile_of(self, request: Request) -> tuple[ClientProfile, Params]:
        """A request's profile, and its params without the members of the profile."""
        token = read_progress_token(request)
        profile = self.profile if token is None else msgspec.structs.replace(self.profile, progress_token=token)
        return profile, without_profile(request.params)

    def close(self) -> None:
        """End the session: nothing is answered any more."""
        self.stage = Stage.SHUTDOWN
        self.ready_for_pushes = False
        self.profile = ClientProfile(
            self.version
        )  # A session that has ended may live on for a while; it keeps nothing.


class ClientSession:
    """The client's side of one session: the handshake."""

    def __init__(self) -> None:
        self.stage = Stage.CREATED
        self.version = LATEST_SESSION_VERSION

    @property
    def revision(self) -> Revision:
        """The negotiated revision."""
        return REVISIONS[self.version]

    def begin(self, capabilities: Mapping[str, object], client_info: Mapping[str, object]) -> Params:
        """The params of `initialize`."""
        if self.stage is not Stage.CREATED:
            raise LocalProtocolError(f"A session that is {self.stage.value} cannot be initialized.")
        self.stage = Stage.INITIALIZING
        return {
            "protocolVersion": self.version,
            "capabilities": capabilities_for(capabilities, REVISIONS[self.version]),
            "clientInfo": implementation_for(client_info, REVISIONS[self.version]),
        }

    def accept(self, reply: Reply) -> Discovery:
        """The `Discovery` in the server's answer to `initialize`. Send `notifications/initialized` next.

        Raises:
            UpstreamProtocolError: it refused, or answered with a revision that we do not support.
        """
        if self.stage is not Stage.INITIALIZING:
            raise LocalProtocolError(f"A session that is {self.stage.value} expects no answer to initialize.")
        if not isinstance(reply, Result):
            problem = f"The server refused initialize ({reply.code})."
            raise UpstreamProtocolError(problem, details=f" It says: {reply.message[:500]}")
        try:
            welcome = msgspec.convert(opened(reply), _Welcome)
        except (msgspec.ValidationError, RemoteProtocolError):
            raise UpstreamProtocolError("The server's answer to initialize cannot be read.") from None
        if welcome.protocolVersion not in SESSION_VERSIONS:
            raise UpstreamProtocolError(
                f"The server answered initialize with another revision than ours: {', '.join(SESSION_VERSIONS)}.",
                details=f" It says: {welcome.protocolVersion[:100]!r}",
            )
        self.version = welcome.protocolVersion
        self.stage = Stage.OPERATING
        instructions = welcome.instructions if isinstance(welcome.instructions, str) else None
        return Discovery(self.version, welcome.capabilities, welcome.serverInfo, instructions)

    def retry_with(self, reply: Reply) -> bool:
        """Whether a refused `initialize` named a revision that we support, too; then call `begin` once more."""
        if self.stage is not Stage.INITIALIZING or isinstance(reply, Result):
            return False
        names = as_array((as_object(reply.data) or {}).get("supported")) or []
        mutual = next((version for version in reversed(SESSION_VERSIONS) if version in names), None)
        if mutual is None or mutual == self.version:
            return False
        self.version, self.stage = mutual, Stage.CREATED
        return True

    def close(self) -> None:
        """End the session."""
        self.stage = Stage.SHUTDOWN


class _Welcome(msgspec.Struct):
    protocolVersion: str  # noqa: N815 - names on the wire
    capabilities: Params = {}
    serverInfo: Params = {}  # noqa: N815
    instructions: object = None


def capabilities_for(capabilities: Mapping[str, object], revision: Revision) -> Params:
    """A client's capabilities, without those and without the details that the revision does not have."""
    declared: Params = {}
    if isinstance(capabilities.get("roots"), dict):
        declared["roots"] = capabilities["roots"]
    sampling = as_object(capabilities.get("sampling"))
    if sampling is not None:
        declared["sampling"] = sampling if revision.rich_sampling else {}
    elicitation = as_object(capabilities.get("elicitation"))
    if elicitation is not None and revision.elicitation:
        declared["elicitation"] = elicitation if revision.elicitation_modes else {}
    for name in ("experimental", "extensions"):
        if isinstance(capabilities.get(name), dict):
            declared[name] = capabilities[name]
    return declared


def _shortened(info: Params, room: int) -> Params | None:
    """A `clientInfo` of at most `room` bytes, if necessary only with shortened names; None if even these do not fit."""
    if len(_encode(info)) <= room:
        return info
    names = {key: info[key] for key in ("name", "title", "version") if isinstance(info.get(key), str)}
    short: Params = {key: str(text)[:_MAX_NAME] for key, text in names.items()}
    return short if len(_encode(short)) <= room else None


def implementation_for(info: Mapping[str, object], revision: Revision) -> Params:
    """A `serverInfo` or `clientInfo` with only the fields that the revision has."""
    known = {"name", "version"}
    if revision.titles:
        known.add("title")
    if revision.icons:
        known |= {"icons", "description", "websiteUrl"}
    return {key: value for key, value in info.items() if key in known}
