"""Audit logs in memory and in files, with their readers, pass the same suite."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import pytest

from sluicegate.store.audit_index import open_audit_reader
from sluicegate.store.audit_log import Sync, open_audit_log
from sluicegate.store.memory import MemoryAudit
from tests.store.check_audit import CHECKS, Check, OpenLog, check_audit
from tests.store.stage import faults

every_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


@asynccontextmanager
async def in_memory(*, clock: Callable[[], int]) -> AsyncGenerator[OpenLog]:
    log = MemoryAudit(clock)
    yield OpenLog(log, log.reader())


@asynccontextmanager
async def in_files(folder: Path, sync: Sync, *, clock: Callable[[], int]) -> AsyncGenerator[OpenLog]:
    with closing(open_audit_reader(str(folder))) as reader:
        async with open_audit_log(str(folder), sync=sync, clock=clock) as log:
            yield OpenLog(log, reader)
    assert faults(folder) == []


@every_check
async def test_a_log_in_memory(check: Check) -> None:
    await check_audit(in_memory, check)


@every_check
@pytest.mark.parametrize("sync", ["normal", "full"])
async def test_a_log_in_files(check: Check, sync: Sync, tmp_path: Path) -> None:
    await check_audit(partial(in_files, tmp_path, sync), check)
