"""Tasks that one client listens to: each server that has some is listened to for it, and its words are passed on.

The one rule: of each task the last word counts, so that a slow client holds up no server. A client that falls too far
behind, or whose server lets go before all is said, has its subscription ended in order: something may have been said
that it did not hear, and it asks or listens again. Everything here ends with the subscription.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from sluicegate.concurrency import TaskScope
from sluicegate.errors import InputRefused, InvalidParams, UpstreamError, UpstreamProtocolError
from sluicegate.exchange import Exchange
from sluicegate.hub.listening import LISTEN
from sluicegate.hub.mount import Mount
from sluicegate.hub.passed_tasks import Speaker
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, as_array, as_object
from sluicegate.protocol.modern import ACKNOWLEDGED
from sluicegate.protocol.tasks import ENDED, NOTICE, WANTED, offers_tasks

log = logging.getLogger("sluicegate")

MOST_TASKS: Final = 1000
"""How many tasks one listener may name."""

MOST_BYTES: Final = 1 << 20
"""Of words that wait for a slow listener; a single one may be longer."""

MOST_LISTENS: Final = 64
"""How many may listen to tasks of one server at a time: by HTTP each takes a connection that calls may need."""

Names = Mapping[str, str]
"""Tasks of one server by their own ids: the ids that the client named."""


def tasks_wanted(params: Params) -> list[str]:
    """The ids of tasks that a `subscriptions/listen` request names.

    Raises:
        InvalidParams: they are of the wrong type, or too many.
    """
    wanted = as_array((as_object(params.get("notifications")) or {}).get(WANTED, []))
    ids = [item for item in wanted or () if isinstance(item, str)]
    if wanted is None or len(ids) < len(wanted):
        raise InvalidParams(f"Invalid params: {WANTED} is a list of ids of tasks.")
    if len(ids) > MOST_TASKS:
        raise InvalidParams(f"Invalid params: {WANTED} holds no more than {MOST_TASKS} ids.")
    return ids


class TaskNews:
    """What servers say of the tasks that one client listens to."""

    def __init__(self, exchange: Exchange, scope: TaskScope, may_tell: Callable[[str], bool]) -> None:
        """`may_tell` says of the id of a task whether the client may still be told of it."""
        self._exchange = exchange
        self._scope = scope
        self._may_tell = may_tell
        self._hearings: list[_Hearing] = []
        self._waiting: dict[str, bytes] = {}
        self._size = 0
        self._woken = asyncio.Event()
        self._is_over = False

    def begin(self, mount: Mount, names: Names) -> None:
        """Listen to tasks of a mount from now on; called for one at least."""
        hearing = _Hearing(mount, names, self._heard, self._scope)
        self._hearings.append(hearing)
        self._scope.start(self._hear(mount, hearing), key=hearing)

    async def accepted(self, seconds: float) -> list[str]:
        """The ids of the tasks that their servers will tell of, as far as they say so in time."""
        await asyncio.wait([hearing.accepted for hearing in self._hearings], timeout=seconds)
        for hearing in self._hearings:
            if not hearing.accepted.done():
                self._scope.cancel(hearing)  # Whatever it says later, the client was not promised to hear it.
        return [name for hearing in self._hearings if hearing.accepted.done() for name in hearing.accepted.result()]

    def tell(self, ids: Collection[str], end: Callable[[], None]) -> None:
        """Tell the client of these from now on; `end` is called when it has to ask or listen again."""
        if ids or self._is_over:
            self._scope.start(self._tell(frozenset(ids), end))

    async def _tell(self, ids: Collection[str], end: Callable[[], None]) -> None:
        while True:
            while self._waiting:
                name = next(iter(self._waiting))
                words = self._waiting.pop(name)
                self._size -= len(words)
                if name in ids and self._may_tell(name):
                    await self._exchange.emit(Notification(NOTICE, msgspec.json.decode(words)))
            if self._is_over:
                end()
                return
            self._woken.clear()
            await self._woken.wait()

    def _heard(self, name: str, words: bytes) -> None:
        if self._is_over:
            return
        self._size -= len(self._waiting.pop(name, b""))
        if self._waiting and self._size + len(words) > MOST_BYTES:
            self._waiting.clear()
            self._end()
            return
        self._waiting[name] = words
        self._size += len(words)
        self._woken.set()

    def _end(self) -> None:
        self._is_over = True
        self._woken.set()
        for hearing in self._hearings:
            self._scope.cancel(hearing)

    async def _hear(self, mount: Mount, hearing: "_Hearing") -> None:
        """Listen to a server, once."""
        exchange = self._exchange
        # Nothing but tasks is told here. Who wanted logs as well would be taken for one whom those of others may
        # belong to, and nobody would be told them (T11).
        profile = msgspec.structs.replace(exchange.profile, log_level=None, progress_token=None)
        params: Params = {"notifications": {WANTED: list(hearing.left)}}
        try:
            connection = mount.connection or await mount.wait_until_ready()
            if offers_tasks(connection.discovery) and mount.task_listens < MOST_LISTENS:
                mount.task_listens += 1
                try:
                    await connection(Exchange(LISTEN, params, hearing, profile, exchange.caller))
                finally:
                    mount.task_listens -= 1
        except UpstreamError as problem:
            log.debug("%s: a subscription to tasks ended: %s", mount.name, problem)
        finally:
            hearing.agree(())
        if hearing.left:
            self._end()


class _Hearing:
    """The sink of a subscription to tasks of one server."""

    def __init__(self, mount: Mount, names: Names, heard: Callable[[str, bytes], None], scope: TaskScope) -> None:
        self.left = dict(names)
        """Those that have not ended, and that the server tells of."""
        self.accepted: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._mount = mount
        self._names = names
        self._heard = heard
        self._scope = scope

    async def emit(self, notification: Notification) -> None:
        """Learn what the server says."""
        if notification.method == ACKNOWLEDGED:
            honoured = as_object(notification.params.get("notifications")) or {}
            self.agree({own for own in as_array(honoured.get(WANTED)) or [] if isinstance(own, str)})
        elif notification.method == NOTICE:
            own = notification.params.get("taskId")
            if isinstance(own, str) and own in self.left:
                self._hear(own, notification.params)
        if self.accepted.done() and not self.left:
            self._scope.cancel(self)  # There is nothing more to hear.

    def _hear(self, own: str, params: Params) -> None:
        given, status = self.left[own], params.get("status")
        try:
            words = msgspec.json.encode(Speaker(self._mount.name, self._mount.prefix).told(params, own, given))
        except (UpstreamProtocolError, TypeError, ValueError, OverflowError, RecursionError) as problem:
            log.debug("%s: what it says of a task cannot be passed on: %s", self._mount.name, problem)
            return
        self._heard(given, words)
        if isinstance(status, str) and status in ENDED:
            del self.left[own]

    def agree(self, owns: Collection[str]) -> None:
        """Learn which tasks the server will tell of; its first word on it counts."""
        if not self.accepted.done():
            self.accepted.set_result([given for own, given in self._names.items() if own in owns])
            self.left = {own: given for own, given in self.left.items() if own in owns}

    async def ask(self, questions: Questions) -> Answers:
        """Refuse."""
        raise InputRefused("Nobody is there to be asked.")
