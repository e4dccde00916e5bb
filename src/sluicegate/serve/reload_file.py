"""`serve FILE.py --reload`: the server in a Python file, loaded again whenever the file changes."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from sluicegate.client.in_process import as_upstream
from sluicegate.config.watch import watch
from sluicegate.errors import ConfigError
from sluicegate.exchange import Exchange, Handler
from sluicegate.gateway.loading import file_of, load_server
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.protocol.message import Reply
from sluicegate.runtime.task_scope import TaskScope

if TYPE_CHECKING:
    from sluicegate.server import Server

log = logging.getLogger("sluicegate")

_NAME: Final = "server"
_SETTINGS: Final = MountSettings(prefix="")


class ReloadedFile:
    """A handler that answers as the server in a file does; open it with `async with`.

    A hub with one mount does the work, as in a gateway: clients stay connected and are notified of new lists, and calls
    in progress finish with the previous version.
    """

    def __init__(self, target: str, say: Callable[[str], None] = log.info) -> None:
        """Load the file. Raises ConfigError as `load_server` does."""
        server = load_server(target)
        self.name = server.name
        self._target = target
        self._file = file_of(target)
        self._say = say
        self._hub = Hub(server.name)
        self._hub.mount(_NAME, as_upstream(server), _SETTINGS)
        self._server: Handler = server
        self._open = AsyncExitStack()

    @property
    def is_open(self) -> bool:
        return self._hub.is_open

    async def __aenter__(self) -> "ReloadedFile":
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._hub)
            tasks = await stack.enter_async_context(TaskScope())
            stack.callback(tasks.cancel_all)
            tasks.start(watch(lambda: [self._file], self._reload))
            self._open = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._open.aclose()

    async def settled(self) -> None:
        """Return when the server can be called."""
        await self._hub.settled()

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        # Clients see the server's own name, version and instructions, and not those of the hub.
        return self._server(exchange) if exchange.method == "server/discover" else self._hub(exchange)

    async def _reload(self, is_quiet: Callable[[], bool]) -> None:
        try:
            server: Server | Hub = load_server(self._target)
        except ConfigError as problem:
            self._say(f"the server stays as it was: {problem.message}")
            return
        self._server = server
        self._hub.replace(_NAME, as_upstream(server), _SETTINGS)
        self._say(f"{self._file} was loaded again.")
