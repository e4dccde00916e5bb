"""Tasks that one client listens to: each server that has some is listened to for it, and its words are passed on.

The one rule: of each task the last word counts, so that a slow client holds up no server; one that falls too far
behind has its subscription ended in order, and asks or listens again. Everything here ends with the subscription.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from sluicegate.concurrency import TaskScope
from sluicegate.errors import InputRefused, InvalidParams, UpstreamUnavailable
from sluicegate.exchange import Exchange
from sluicegate.hub.listening import LISTEN, hold
from sluicegate.hub.mount import Mount
from sluicegate.hub.passed_tasks import Speaker
from sluicegate.protocol.message import Notification, Params, Reply, as_array, as_object
from sluicegate.protocol.modern import ACKNOWLEDGED, Answers, Questions
from sluicegate.protocol.tasks import ENDED, NOTICE, WANTED, offers_tasks

MOST_TASKS: Final = 1000
"""How many tasks one listener may name."""

MOST_BYTES: Final = 4 << 20
"""Of words that wait for a slow listener; a single one may be longer."""

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

    def __init__(self, exchange: Exchange, find: Callable[[str], Mount | None]) -> None:
        self._exchange = exchange
        self._find = find
        self._accepted: list[asyncio.Future[list[str]]] = []
        self._waiting: dict[str, tuple[Notification, int]] = {}
        self._size = 0
        self._woken = asyncio.Event()
        self._is_too_much = False
        self._too_much: Callable[[], None] = lambda: None

    def begin(self, mount: str, names: Names, scope: TaskScope) -> None:
        """Listen to tasks of a mount from now on; called for one at least."""
        accepted: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._accepted.append(accepted)
        scope.start(self._hear(mount, _Hearing(names, accepted, self._heard)))

    async def accepted(self, seconds: float) -> list[str]:
        """The ids of the tasks that their servers will tell of, as far as they say so in time."""
        await asyncio.wait(self._accepted, timeout=seconds)
        return [name for future in self._accepted if future.done() for name in future.result()]

    def tell(self, ids: list[str], scope: TaskScope, too_much: Callable[[], None]) -> None:
        """Tell the client of these from now on; `too_much` learns that it does not follow."""
        if not ids:
            scope.cancel_all()  # Nothing will be told, so nobody need be listened to.
            return
        self._too_much = too_much
        if self._is_too_much:
            too_much()
        scope.start(self._tell(frozenset(ids)))

    async def _tell(self, ids: frozenset[str]) -> None:
        while True:
            while self._waiting:
                name = next(iter(self._waiting))
                notice, size = self._waiting.pop(name)
                self._size -= size
                if name in ids:
                    await self._exchange.emit(notice)
            self._woken.clear()
            await self._woken.wait()

    def _heard(self, name: str, params: Params) -> None:
        size = len(msgspec.json.encode(params))
        _, before = self._waiting.pop(name, (None, 0))
        self._size -= before
        if self._waiting and self._size + size > MOST_BYTES:
            self._is_too_much = True
            self._too_much()
            return
        self._waiting[name] = Notification(NOTICE, params), size
        self._size += size
        self._woken.set()

    async def _hear(self, name: str, hearing: "_Hearing") -> None:
        """Listen to a server for as long as there is something to hear, whichever connection there is to it."""
        exchange = self._exchange

        async def ask() -> Reply:
            mount = self._find(name)
            if mount is None or not hearing.names:
                raise _Over
            connection = await mount.wait_until_ready()
            if not offers_tasks(connection.discovery):
                raise UpstreamUnavailable(f"{name} has no tasks.")
            hearing.speaker = Speaker(name, mount.prefix)
            params: Params = {"notifications": {WANTED: list(hearing.names)}}
            return await connection(Exchange(LISTEN, params, hearing, exchange.profile, exchange.caller))

        try:
            await hold(name, ask, hearing.ended)
        except _Over:
            pass
        finally:
            hearing.ended()


class _Over(Exception):
    """There is nothing more to hear."""


class _Hearing:
    """The sink of a subscription to tasks of one server."""

    def __init__(
        self,
        names: Names,
        accepted: "asyncio.Future[list[str]]",
        heard: Callable[[str, Params], None],
    ) -> None:
        self.names = dict(names)
        """Those that have not ended."""
        self.speaker = Speaker("", "")
        self._accepted = accepted
        self._heard = heard

    async def emit(self, notification: Notification) -> None:
        """Learn what the server says."""
        if notification.method == ACKNOWLEDGED:
            honoured = as_object(notification.params.get("notifications")) or {}
            owns = {own for own in as_array(honoured.get(WANTED)) or [] if isinstance(own, str)}
            if not self._accepted.done():
                self._accepted.set_result([given for own, given in self.names.items() if own in owns])
        elif notification.method == NOTICE:
            own = notification.params.get("taskId")
            given = self.names.get(own) if isinstance(own, str) else None
            if given is not None and isinstance(own, str):
                self._tell(own, given, notification.params)

    def _tell(self, own: str, given: str, params: Params) -> None:
        self._heard(given, self.speaker.told(params, own, given))
        if params.get("status") in ENDED:
            del self.names[own]

    async def ask(self, questions: Questions) -> Answers:
        """Refuse."""
        raise InputRefused("Nobody is there to be asked.")

    def ended(self) -> None:
        """Learn that the server lets go."""
        if not self._accepted.done():
            self._accepted.set_result([])
