"""The calls to one server: limited, timed, counted, repeated where that is safe (threats R1, R12, R36)."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import monotonic, time
from typing import Final, Protocol

import msgspec

from sluicegate.errors import (
    ErrorObject,
    RemoteProtocolError,
    SluicegateError,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from sluicegate.exchange import NOBODY, Caller, Connection, Exchange, Handler, WithSession
from sluicegate.hub.call_sink import PROGRESS, CallSink
from sluicegate.hub.mount_settings import Figures, MountSettings
from sluicegate.hub.supervise import CircuitBreaker, is_away, is_undelivered, out_of_reach
from sluicegate.hub.tasks.run_legacy import LegacyTasks, Wanted
from sluicegate.protocol.input_required import may_have_two_types
from sluicegate.protocol.json_limits import DEFAULT_LIMITS, MARKS, has_many_marks
from sluicegate.protocol.message import (
    Notification,
    Params,
    Reply,
    Result,
    ToolText,
    as_object,
    mentions,
    opened,
    read_tool_text,
)
from sluicegate.protocol.methods import METHODS
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.protocol.own_marks import error_of_server, without_own_marks
from sluicegate.protocol.pagination import as_raw
from sluicegate.protocol.tasks import may_have_tasks, without_tasks
from sluicegate.protocol.translate.content import without
from sluicegate.protocol.versions import LATEST_VERSION, REVISIONS, SESSION_VERSIONS, Revision
from sluicegate.runtime.deadlines import Deadline, DeadlineExceeded, Deadlines
from sluicegate.runtime.quota import ConcurrencyLimit
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.text.globs import name_matches

# Declared to session-era servers once for all callers, since a connection outlives each of them. Whether a caller can
# be asked is checked with each question. Roots are left out: many servers would use them in place of the folders on
# their command line. So is the context of sampling: the servers of a gateway are not the client's.
ASKABLE: Final[Mapping[str, object]] = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}}

_OWN_MARKS: Final = (b'"dev.sluicegate/',)
_BACKSLASH: Final = 0x5C

_COMMON: Final = ("complete", "input_required")
"""Result types that need no extension."""

_ACTING: Final = frozenset({"tools/call", "tasks/update"})
"""Methods with effects, as those of unknown extensions may have; all others may be sent twice."""


PINGS: Final = 2
"""Pings in a row without an answer, after which a server hangs."""
WAITING_PROGRESS: Final = 2.0
"""Seconds between two progress notifications to a caller that waits for a server to start."""

Check = Callable[[], None]


class CalledServer(Protocol):
    """The mount, as its calls need it."""

    calls: "Calls"

    @property
    def connection(self) -> Connection | None: ...
    @property
    def latest(self) -> "CalledServer": ...
    async def wait_until_ready(self) -> Connection: ...
    def lose(self, connection: Connection) -> None: ...
    def reconnect(self, connection: Connection, problem: UpstreamError | None = None) -> None: ...


def askable(settings: MountSettings) -> Mapping[str, object]:
    """The capabilities that are declared to a session-era server."""
    return {**ASKABLE, "roots": {}} if settings.roots else ASKABLE


class Calls:
    """All calls of one mount."""

    def __init__(self, name: str, server: CalledServer, settings: MountSettings) -> None:
        self.figures = Figures()
        self.losses: Counter[str] = Counter()
        """What could not be preserved between two revisions, and how often (see docs/bridge.md)."""
        self.lost_at = 0.0
        """When something was lost last, in seconds since 1970."""
        self.limit = ConcurrencyLimit(name, settings.concurrency, settings.queue, settings.queue_wait)
        self.circuit = CircuitBreaker()
        self.callers: set[str] = set()
        """The callers so far, at most two: more than one makes no difference."""
        self.is_session_era = False
        """Whether the server is of the session era."""
        self.settings = settings
        self.label = settings.prefix or name
        """What questions of the server begin with, so that none can be taken for one of ours (T18)."""
        self.tasks = LegacyTasks(name, self.lost)
        self._name = name
        self._server = server
        self._deadlines = Deadlines(settings.hang_after, self._suspect)
        self._silent: Deadline | None = None
        """The call whose silence is to be looked into."""
        self._suspicion = asyncio.Event()
        self._hung: tuple[Connection, UpstreamTimeout] | None = None
        """The last connection that was given up because the server hung."""

    def adjust(self, settings: MountSettings) -> None:
        """Apply other settings to new calls; those in progress keep theirs."""
        self.settings = settings
        self.label = settings.prefix or self._name
        self._deadlines.hang_after = settings.hang_after
        self.limit.adjust(settings.concurrency, settings.queue, settings.queue_wait)

    def note_sign_of_life(self) -> None:
        """Remember that the server sent something: it may be busy with one call while all others wait."""
        self._deadlines.heard = monotonic()

    def know_caller(self, caller: Caller) -> None:
        """Remember that the server may have something to say about this caller's requests."""
        if len(self.callers) < 2:
            self.callers.add(caller.id)

    def lost(self, what: str) -> None:
        """Count something that could not be passed on."""
        self.losses[what] += 1
        self.lost_at = time()

    def count(self, reply: Reply) -> None:
        """Count a call as failed if its result says so; JSON-RPC errors are counted already."""
        # A refusal of ours is a decoded value that names its reason; the server has not seen the call.
        value = reply.value if isinstance(reply, Result) else None
        is_ours = isinstance(value, dict) and "dev.sluicegate/reason" in (as_object(value.get("_meta")) or {})
        if isinstance(reply, Result) and not is_ours and says_error(reply):
            self.figures.errors += 1

    async def call(self, exchange: Exchange, params: Params, check: Check | None = None) -> Reply:
        """The server's reply to an exchange whose params use the server's own names, with a `resultType`.

        Args:
            check: raises if the call may not be sent any more; called right before, since the call may have waited.

        Raises:
            UpstreamError: the server is away, went away, took too long or answered something else.
            LimitExceeded: too many calls wait for it already.
        """
        connection = self._server.connection
        if connection is not None and self.circuit.is_calm:
            reply = await self._attempt(exchange, params, connection, check)
        else:
            reply = await self._call_when_ready(exchange, params, check)
        return self._with_type(exchange.method, reply)

    def _with_type(self, method: str, reply: Reply) -> Reply:
        """A reply with the `resultType` that some servers leave out and clients of 2026-07-28 may require.

        A result of an uncommon type is decoded, since it has to be checked.

        Raises:
            UpstreamProtocolError: it cannot be read.
        """
        if not isinstance(reply, Result) or reply.is_final:
            return reply
        value = reply.value
        if isinstance(value, msgspec.Raw) and method == "tools/call" and not reply.is_other:
            value = read_tool_text(value) or value
        if isinstance(value, ToolText):
            if method == "tools/call":
                is_same = value is reply.value and value.resultType is not msgspec.UNSET
                return reply if is_same else Result(value.marked())
            value = value.to_raw()
        if not isinstance(value, msgspec.Raw):
            return Result(without_own_marks(dict(value))) if "_meta" in value else reply
        try:
            return _typed(self._name, value)
        except UpstreamProtocolError:
            self.figures.errors += 1
            raise

    async def _call_when_ready(
        self, exchange: Exchange, params: Params, check: Check | None, before: Deadline | None = None
    ) -> Reply:
        """Call a server that is away, or that failed recently: then one call at a time tests it."""
        connection = self._server.connection or await self._wait_until_ready(exchange)
        if connection is not self._server.connection:  # Another mount has replaced this one, perhaps of another era.
            return await self._server.latest.calls._call_when_ready(exchange, params, check, before)
        circuit = self.circuit
        if not circuit.is_open:
            return await self._attempt(exchange, params, connection, check, before)
        if not circuit.admit(now := monotonic()):
            trouble = out_of_reach(self._name, circuit, self.settings.explain, now)
            assert trouble is not None  # An open circuit has a problem.
            raise UpstreamUnavailable(trouble.sentence)
        try:
            return await self._attempt(exchange, params, connection, check, before)
        except UpstreamError as problem:
            if is_away(problem):
                if not is_undelivered(problem):
                    self._failed(problem, connection)
                # It may come back with another era and other lists, so connect again; but not while other calls are in
                # progress, which would end with the connection and show by themselves how the server is.
                if not self.limit.in_use:
                    self._server.reconnect(connection)
            raise
        finally:
            circuit.gave_up()  # Whatever the outcome: another call may test the server when it is time.

    async def _wait_until_ready(self, exchange: Exchange) -> Connection:
        """The connection, once there is one; a caller that wants progress gets some meanwhile."""
        if exchange.profile.progress_token is None:
            return await self._server.wait_until_ready()
        async with TaskScope() as tasks:
            tasks.start(self._report_waiting(exchange))
            try:
                return await self._server.wait_until_ready()
            finally:
                tasks.cancel_all()

    async def _report_waiting(self, exchange: Exchange) -> None:
        number = 0
        while True:
            await asyncio.sleep(WAITING_PROGRESS)
            number += 1
            # It must grow, and stay below the server's own progress, which may begin with 0.
            params: Params = {
                "progressToken": exchange.profile.progress_token,
                "progress": -1 / number,
                "message": f"Waiting for {self._name} to start ({number * WAITING_PROGRESS:.0f} s).",
            }
            await exchange.emit(Notification(PROGRESS, params))

    async def _attempt(
        self,
        exchange: Exchange,
        params: Params,
        connection: Connection,
        check: Check | None,
        before: Deadline | None = None,
    ) -> Reply:
        """One attempt; where it fails and that does no harm, a second one, within the time of the one `before`."""
        limit, figures = self.limit, self.figures
        if not limit.try_acquire():
            await limit.acquire()
        figures.calls += 1
        began = monotonic()
        sink = self._sink(exchange, params, began)
        if before is not None:
            sink.go_on(before)
        if len(self.callers) < 2 and exchange.caller.id not in self.callers:
            self.know_caller(exchange.caller)
        try:
            if check is not None:
                check()
            with sink:
                reply = await self._send(exchange, params, connection, sink)
            self._deadlines.heard = monotonic()
            if sink.room is not None:
                sink.take(len(msgspec.json.encode(reply.value if isinstance(reply, Result) else reply)))
            if not self.circuit.is_calm:
                self.circuit.succeeded(monotonic())
            if type(reply) is ErrorObject:
                reply = error_of_server(reply)
            if sink.lacking is not None:
                reply = sink.explained(reply)
            if type(reply) is not Result:
                figures.errors += 1
            now = monotonic()
            figures.recent.append(now - began - (sink.asked_for(now) if sink.questions else 0.0))
            return reply
        except UpstreamError as problem:
            figures.errors += 1
            await self._note(problem, connection)
            if before is not None or not self._may_repeat(exchange, params, problem):
                if self._hung is not None and self._hung[0] is connection:
                    problem = self._hung[1]
                raise _in_doubt(exchange, problem) from problem.__cause__
        except asyncio.CancelledError:
            self._suspect(sink)  # Clients often give up before the deadline.
            raise
        except DeadlineExceeded:
            figures.errors += 1
            if sink.is_too_much:
                raise sink.overrun() from None
            self._suspect(sink)
            raise _in_doubt(exchange, self._missed(sink)) from None
        finally:
            limit.release()
        return await self._call_when_ready(exchange, params, check, sink)

    def _sink(self, exchange: Exchange, params: Params, began: float) -> CallSink:
        settings, profile = self.settings, exchange.profile
        seconds = settings.timeout_of(exchange.method, params) if settings.tool_timeouts else settings.timeout
        return CallSink(
            self._deadlines,
            seconds,
            began + seconds,
            began + settings.longest_call,
            sink=exchange.sink,
            capabilities=profile.capabilities,
            revision=REVISIONS.get(profile.version) or REVISIONS[LATEST_VERSION],
            label=self.label,
            lost=self.lost,
            limit=self.limit,
            folders=settings.roots,
            room=exchange.max_result,
        )

    def _send(self, exchange: Exchange, params: Params, connection: Connection, sink: CallSink) -> Awaitable[Reply]:
        send: Handler = connection
        profile = exchange.profile
        if self.is_session_era:
            if self.settings.roots:
                profile = msgspec.structs.replace(profile, capabilities={**profile.capabilities, "roots": {}})
            if "task" in params:
                if isinstance(params["task"], Wanted):
                    send = partial(self.tasks.run, connection, sink)
                else:
                    # We do not offer legacy tasks, so a client that asks for one gets a plain call.
                    params = without(params, ("task",))
        elif "extensions" in profile.capabilities:
            profile = _without_unknown_tasks(profile, connection)
        return send(
            Exchange(
                exchange.method,
                params,
                sink,
                profile,
                exchange.caller,
                None,
                exchange.end_response_early,
                router=exchange.router,
            )
        )

    async def _note(self, problem: UpstreamError, connection: Connection) -> None:
        if isinstance(problem, UpstreamClosed) and await is_closed(connection):
            self._server.lose(connection)
        if is_undelivered(problem):
            self._failed(problem, connection)
        elif "status" in problem.data:
            # It refused this request and may answer others. Missing authorization is shown all the same.
            self.circuit.succeeded(now := monotonic())
            if problem.reason == "backend_auth" and connection is self._server.connection:
                self.circuit.unreachable(problem, now)

    def _suspect(self, call: Deadline) -> None:
        """Have the server pinged: a call got no answer, and its caller is not being asked."""
        if not call.waits:
            self._silent = call
            self._suspicion.set()

    async def watch(self, connection: Connection) -> None:
        """Ping the server whenever it is silent; if it does not answer, connect again as after a crash."""
        while True:
            self._suspicion.clear()
            await self._suspicion.wait()
            if await self._is_hung(connection):
                seconds = self.settings.ping_timeout
                what = f"neither a call nor {PINGS} pings within {seconds:g} s each"
                problem = UpstreamTimeout(f"{self._name} hangs: it answered {what} (see `hang_after`).")
                self._hung = connection, problem
                self._server.reconnect(connection, problem)
                return

    async def _is_hung(self, connection: Connection) -> bool:
        """Whether the server does not even answer pings; any answer will do."""
        silent = self._silent
        version = silent.revision.version if isinstance(silent, CallSink) else LATEST_VERSION
        in_session = self.is_session_era or (version in SESSION_VERSIONS and isinstance(connection, WithSession))
        # 2026-07-28 has no ping.
        ping = Exchange("ping" if in_session else "server/discover", {}, NOBODY, ClientProfile(version))
        for _ in range(PINGS):
            began = monotonic()
            try:
                async with asyncio.timeout(self.settings.ping_timeout):
                    await connection(ping)
                self.note_sign_of_life()
                return False
            except TimeoutError:
                if self._deadlines.heard >= began:
                    return False  # It sent something else meanwhile.
            except SluicegateError:
                return False  # A refusal of a server in this process; or it is gone, which is noticed anyway.
        return True

    def _failed(self, problem: UpstreamError, connection: Connection) -> None:
        if connection is self._server.connection:  # Else it is about an earlier connection.
            self.circuit.failed(problem, monotonic())

    def _missed(self, sink: CallSink) -> UpstreamTimeout:
        had = f"{sink.seconds:g} s (`{'timeout' if sink.seconds == self.settings.timeout else 'tool_timeouts'}`)"
        if sink.reached_its_end:
            had = f"{self.settings.longest_call:g} s, the longest time for a call (`longest_call`)"
        return UpstreamTimeout(f"{self._name} did not answer within {had}.")

    def _may_repeat(self, exchange: Exchange, params: Params, problem: UpstreamError) -> bool:
        """Whether a failed call may be sent a second time."""
        if not isinstance(problem, UpstreamClosed):
            return False
        if problem.delivered == "no" or not _may_act(exchange.method):
            return True  # Reading twice is harmless; of tools only the operator knows.
        if exchange.method != "tools/call":
            return False
        name = str(params.get("name"))
        return any(name_matches(name, tool) for tool in self.settings.resend)


def _may_act(method: str) -> bool:
    return method in _ACTING or method not in METHODS


def _in_doubt(exchange: Exchange, problem: UpstreamError) -> UpstreamError:
    """The problem; if the call may have run, its sentence says so, since most clients show nothing else."""
    if not _may_act(exchange.method) or problem.delivered != "unknown":
        return problem
    # A copy: other requests that failed with the same connection may be harmless. Without `__init__`, whose arguments
    # are unknown for exceptions of other upstreams.
    doubt = type(problem).__new__(type(problem), *problem.args)
    doubt.__dict__.update(problem.__dict__)
    doubt.message = f"{problem.message.rstrip('.')}; the call may have run."
    return doubt


async def is_closed(connection: Connection) -> bool:
    """Whether a connection is closed already."""
    try:
        async with asyncio.timeout(0):
            await connection.wait_closed()
    except TimeoutError:
        return False
    return True


class _ResultHead(msgspec.Struct):
    meta: msgspec.Raw = msgspec.field(name="_meta", default=msgspec.Raw(b""))
    resultType: object = msgspec.UNSET  # noqa: N815 - the names on the wire
    isError: object = False  # noqa: N815


_result_head: Final = msgspec.json.Decoder(_ResultHead)


def _typed(name: str, raw: msgspec.Raw) -> Result:
    if has_many_marks(bytes(raw)):
        # It would be decoded, entry by entry, and the gateway would do nothing else meanwhile (T4).
        raise UpstreamProtocolError(f"{name}: The answer has more than {DEFAULT_LIMITS.marks} {MARKS}.")
    try:
        head = _result_head.decode(raw)
        # A `ToolText` has no such marks, and few other results have `_meta`. All is searched: it may occur twice.
        if head.meta and (_BACKSLASH in bytes(head.meta) or mentions(bytes(raw), _OWN_MARKS)):
            raw = as_raw(without_own_marks(opened(Result(raw))))
        kind = head.resultType
        if kind is msgspec.UNSET:
            rest = bytes(raw).lstrip()[1:]
            return Result(msgspec.Raw(b'{"resultType":"complete"%b%b' % (b"" if rest.lstrip() == b"}" else b",", rest)))
        return Result(raw) if kind in _COMMON and not may_have_two_types(raw) else Result(opened(Result(raw)))
    except RemoteProtocolError as problem:
        raise UpstreamProtocolError(f"{name}: {problem.message}") from None
    except (msgspec.DecodeError, RecursionError):
        raise UpstreamProtocolError(f"{name}: The answer's result cannot be decoded.") from None


def _without_unknown_tasks(profile: ClientProfile, connection: Connection) -> ClientProfile:
    """The profile for a server, without the extension for tasks unless both sides declare it."""
    if may_have_tasks(profile, connection.discovery):
        return profile
    return msgspec.structs.replace(profile, capabilities=without_tasks(profile.capabilities))


def revision_of(version: str) -> Revision:
    """The features of a caller's revision; those of the latest for an unknown one."""
    return REVISIONS.get(version) or REVISIONS[LATEST_VERSION]


def is_plain(reply: Reply, version: str) -> bool:
    """Whether a reply is the text of a tool that did not fail, with nothing that the caller's revision lacks."""
    text = reply.value if isinstance(reply, Result) else None
    if not isinstance(text, ToolText) or text.isError is True:
        return False
    return text.structuredContent is msgspec.UNSET or revision_of(version).structured_content


def says_error(reply: Result) -> bool:
    """Whether a tool reports that it failed."""
    value = reply.value
    if isinstance(value, ToolText):
        return value.isError is True
    if not isinstance(value, msgspec.Raw):
        return value.get("isError") is True
    try:
        return _result_head.decode(value).isError is True
    except (msgspec.DecodeError, RecursionError):
        return False  # What reads it next reports that it cannot be read.
