"""Approvals, grants and pins for commands: the gateway of the folder decides; without one, its files are used.

`gateway_or` makes this choice, for the audit log too (`audit_reading`).
"""

import asyncio
import getpass
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from typing import TypeVar

from sluicegate.cli.command import Failure
from sluicegate.cli.decisions import record_of
from sluicegate.cli.gateway_client import GatewayClient, result_of, running_gateway
from sluicegate.config.paths import Places, audit_folder
from sluicegate.control.folder_operations import FolderOperations
from sluicegate.errors import AuditUnavailable, RpcError, UpstreamUnavailable
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.store.base import Row

T = TypeVar("T")


@asynccontextmanager
async def operations_of(places: Places, *, waits: bool = False) -> AsyncGenerator[GatewayClient | FolderOperations]:
    """The operations of the gateway that runs for the folder; without one, those on its files.

    With `waits`, the record of the folder is created if there is none, and changes by other processes are noticed.

    Raises:
        Failure: the record cannot be used, or the gateway does not answer.
    """
    async with gateway_or(places, lambda: _in_files(places, waits)) as operations:
        yield operations


@asynccontextmanager
async def gateway_or(
    places: Places, open_files: Callable[[], AbstractAsyncContextManager[T]]
) -> AsyncGenerator[GatewayClient | T]:
    """The gateway that runs for the folder; without one, what `open_files` opens. Raises as `operations_of` does."""
    async with AsyncExitStack() as stack:
        try:
            operations = await stack.enter_async_context(running_gateway(places, has_hub=False))
        except UpstreamUnavailable:
            operations = await stack.enter_async_context(open_files())
        try:
            yield operations
        except AuditUnavailable as problem:  # Of the audit log, or of the record of decisions.
            raise Failure(problem.message) from None
        except RpcError as problem:
            raise Failure(f"the gateway of this folder has another version; restart it ({problem}).") from None


@asynccontextmanager
async def _in_files(places: Places, waits: bool) -> AsyncGenerator[FolderOperations]:
    decisions = record_of(places, is_created=waits)
    async with aclosing(decisions), TaskScope() as tasks:
        if waits:
            tasks.start(decisions.follow())
        changes: list[Row] = []
        try:
            yield FolderOperations(decisions, changes.append)
        finally:
            tasks.cancel_all()
            if changes:
                _record_changes(places, changes)


def _record_changes(places: Places, rows: Sequence[Row]) -> None:
    """Write what was changed to the audit log of the folder, as its gateway would have done."""
    from sluicegate.cli.configuration import loaded_from  # Both are needed for this only.
    from sluicegate.store.audit_journal import Journal

    config = loaded_from(places).config
    if config is None or not config.audit.enabled:
        return
    journal = Journal(audit_folder(config, places.environ), keep=0)
    try:
        journal.open([(row, time.time_ns()) for row in rows])
        journal.close()
    except (OSError, ValueError) as problem:
        raise Failure(f"it was done, but could not be recorded in the audit log: {problem}.") from None


def ask(places: Places, work: Callable[[GatewayClient | FolderOperations], Awaitable[T]]) -> T:
    """The result of one operation, for a command that does nothing else meanwhile. Raises as `operations_of` does."""

    async def asked() -> T:
        async with operations_of(places) as operations:
            return await work(operations)

    return result_of(asked())


def acting_person() -> str:
    """The user, as the audit log names the person who decides."""
    return getpass.getuser()


async def wait_decided(places: Places, question: str) -> None:
    """Return when a question has been answered or withdrawn."""
    try:
        async with operations_of(places, waits=True) as operations:
            await operations.wait_decided(question)
    except Failure:
        await asyncio.Event().wait()  # It can still be answered by its asker.
