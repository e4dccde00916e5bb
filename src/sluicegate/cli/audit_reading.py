"""The audit log that a command reads: the gateway of the folder is asked; without one, the files are read."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, closing
from typing import Final, NoReturn, Protocol

import msgspec

from sluicegate.cli.command import Failure, NotStarted
from sluicegate.cli.configuration import loaded_from, show_problems
from sluicegate.cli.gateway_client import GatewayClient, NotNow
from sluicegate.cli.operations import gateway_or
from sluicegate.config.paths import Places, audit_folder, last_checkpoint_file
from sluicegate.control.audit_operations import MAX_ROWS, AuditOperations
from sluicegate.store.audit_files import log_files
from sluicegate.store.audit_index import open_audit_reader
from sluicegate.store.base import AuditFilter, AuditPage, AuditRow

_FOLLOW_POLL: Final = 0.5
"""Seconds between reads of a log that is followed. Several gateways may write one log, so no single one of them could
report every new row."""

Keys = Mapping[str, str]
"""The keys of servers, under which they are recorded, by their keys, names and prefixes."""


class LogFiles(msgspec.Struct, frozen=True):
    """The files of an audit log."""

    folder: str
    anchors: tuple[str, ...] = ()
    last_checkpoint: str = ""
    """The file outside the folder in which the gateway keeps the last checkpoint."""
    keys: Keys = {}


class LogChoice(msgspec.Struct, frozen=True):
    """The log that the options of a command select: that of a gateway's folder, or the one in `folder`."""

    places: Places
    folder: str | None = None

    def files(self, *, must_exist: bool = True) -> LogFiles:
        """The files of the log.

        Raises:
            NotStarted: the configuration has errors, so the folder of the log is not known.
            Failure: there is no log, and it must exist.
        """
        files = LogFiles(self.folder) if self.folder is not None else _configured(self.places)
        if must_exist and not log_files(files.folder):
            raise Failure(f"there is no audit log in {files.folder}.")
        return files


def _configured(places: Places) -> LogFiles:
    loaded = loaded_from(places)
    if loaded.config is None:
        show_problems(loaded.problems, notes=False)
        raise NotStarted("the configuration has errors, so the folder of the log is not known; give --audit-folder.")
    keys = _keys(loaded.config.servers.values())
    return LogFiles(
        audit_folder(loaded.config, places.environ),
        loaded.config.audit.anchors,
        last_checkpoint_file(loaded.config.root, places.environ),
        keys,
    )


class _Named(Protocol):
    """A server of the configuration, or of the running gateway."""

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def prefix(self) -> str: ...


def _keys(servers: Iterable[_Named]) -> Keys:
    servers = list(servers)
    # A key stands for its own server, whatever others are called; a name counts more than a prefix.
    keys = {server.prefix: server.key for server in servers if server.prefix}
    return keys | {server.name: server.key for server in servers} | {server.key: server.key for server in servers}


def recorded_filter(where: AuditFilter, keys: Keys) -> AuditFilter:
    """The conditions with the keys of servers in place of their names and prefixes."""
    prefix, rest = (where.name or "").removeprefix("mcp__").partition("__")[::2]
    return msgspec.structs.replace(
        where,
        server=None if where.server is None else keys.get(where.server, where.server),
        name=f"{keys[prefix]}__{rest}" if rest and prefix in keys else where.name,
    )


# --------------------------------------------------------------------------------------------------------- reading


class OpenLog:
    """A log that can be read. Conditions name servers as clients do."""

    def __init__(self, operations: GatewayClient | AuditOperations, keys: Keys) -> None:
        self.operations = operations
        self._keys = keys

    def filter(self, where: AuditFilter) -> AuditFilter:
        """The conditions as the log has them."""
        return recorded_filter(where, self._keys)

    async def read(self, where: AuditFilter, use: Callable[[list[AuditRow]], object], *, after: str = "") -> AuditPage:
        """Call `use` with all rows that match, page by page, the oldest first. Returns the last page."""
        where = self.filter(where)
        while True:
            page = await self.operations.audit_rows(where, after=after)
            use(page.rows)
            if not page.has_more:
                return page
            after = page.position

    async def last(self, where: AuditFilter, limit: int) -> AuditPage:
        """The newest rows that match. The position is the end of the log."""
        if limit <= MAX_ROWS:
            return await self.operations.audit_last(self.filter(where), limit=limit)
        newest: deque[AuditRow] = deque(maxlen=limit)
        page = await self.read(where, newest.extend)
        return msgspec.structs.replace(page, rows=list(newest))


@asynccontextmanager
async def opened_log(choice: LogChoice) -> AsyncGenerator[OpenLog]:
    """The log of the gateway that runs for the folder, which is asked; without one, its files.

    The files are also read for --audit-folder, and for --config: the running gateway may use another file.

    Raises:
        Failure: there is no log, or it cannot be read, or the gateway does not answer.
    """
    if choice.folder is not None or choice.places.config is not None:
        async with _log_in_files(choice) as log:
            yield log
        return
    async with gateway_or(choice.places, lambda: _log_in_files(choice)) as found:
        if isinstance(found, GatewayClient):
            found = OpenLog(found, _keys((await found.report()).servers))
        yield found


@asynccontextmanager
async def _log_in_files(choice: LogChoice) -> AsyncGenerator[OpenLog]:
    files = choice.files()
    with closing(open_audit_reader(files.folder)) as reader:
        yield OpenLog(AuditOperations(lambda: reader), files.keys)


async def follow(
    choice: LogChoice, where: AuditFilter, position: str, use: Callable[[list[AuditRow]], object]
) -> NoReturn:
    """Call `use` with the rows that are added after a position. A gateway that starts or stops changes nothing."""
    while True:
        try:
            async with opened_log(choice) as log:
                while True:
                    position = (await log.read(where, use, after=position)).position
                    await asyncio.sleep(_FOLLOW_POLL)
        except NotNow:  # The gateway stops; its successor, or the files, are read.
            await asyncio.sleep(_FOLLOW_POLL)
