"""`state.db`: one compare-and-set for each decision, whatever happens to the processes that share the file."""

import asyncio
import os
import re
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluicegate.errors import StateUnavailable
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.store.base import ApprovalAnswer, Change, Decisions
from sluicegate.store.memory_decisions import MemoryDecisions
from sluicegate.store.sqlite_decisions import SqliteDecisions
from tests.store.check_decisions import CHECKS, ONCE, Clock, check_decisions, question


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["memory", "SQLite"])
async def test_the_store_passes_the_suite(
    kind: str, check: Callable[[Decisions, Clock], Awaitable[None]], tmp_path: Path
) -> None:
    file = str(tmp_path / "state" / "state.db")
    await check_decisions(MemoryDecisions if kind == "memory" else partial(SqliteDecisions, file), check)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "state.db")


async def test_files_are_accessible_to_their_owner_alone(path: str) -> None:
    async with aclosing(SqliteDecisions(path)) as state:
        await state.grants()
        for file in Path(path).parent.rglob("*"):
            allowed = 0o700 if file.is_dir() else 0o600
            assert stat.S_IMODE(file.stat().st_mode) == allowed, file
        assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700


async def test_arguments_of_a_decided_question_are_in_no_file(path: str) -> None:
    clock = Clock()
    async with aclosing(SqliteDecisions(path, clock=clock)) as state:
        asked = msgspec.structs.replace(question(state, clock), arguments='{"key":"canary-7c1d"}')
        await state.ask(asked, 10)
        assert b"canary-7c1d" in content_of(path)
        await state.decide(asked.id, ONCE)
        assert b"canary-7c1d" not in content_of(path)


def content_of(path: str) -> bytes:
    """The content of a database and of the files beside it."""
    return b"".join(file.read_bytes() for file in Path(path).parent.iterdir() if file.is_file())


async def test_t18_of_fifty_racing_approvers_one_wins(path: str) -> None:
    clock = Clock()
    clock.now = time.time_ns()
    async with aclosing(SqliteDecisions(path)) as gateway:
        await gateway.ask(question(gateway, clock), 10)

        async def answer(number: int) -> bool:
            async with aclosing(SqliteDecisions(path, locked_for=30.0, asks=False)) as approver:
                return await approver.decide(
                    "aaaaaa", ApprovalAnswer(scope="always", by=f"approver {number}", way="command")
                )

        with ThreadPoolExecutor(50) as pool:
            answers = [pool.submit(asyncio.run, answer(number)) for number in range(50)]
            won = [number for number, each in enumerate(answers) if each.result()]
        assert len(won) == 1
        found = await gateway.find("aaaaaa")
        assert found is not None and found.by == f"approver {won[0]}"
        assert [grant.by for grant in await gateway.grants()] == [f"approver {won[0]}"]


async def test_t18_of_many_calls_that_use_one_answer_one_runs(path: str) -> None:
    clock = Clock()
    clock.now = time.time_ns()
    async with aclosing(SqliteDecisions(path)) as gateway:
        await gateway.ask(question(gateway, clock), 10)
        await gateway.decide("aaaaaa", ONCE)

        async def take() -> bool:
            async with aclosing(SqliteDecisions(path, locked_for=30.0, asks=False)) as other:
                return await other.take("aaaaaa")

        with ThreadPoolExecutor(20) as pool:
            taken = [pool.submit(asyncio.run, take()) for _ in range(20)]
            assert sum(each.result() for each in taken) == 1


async def test_another_process_sees_changes(path: str) -> None:
    clock = Clock()
    clock.now = time.time_ns()
    is_changed = asyncio.Event()
    async with (
        aclosing(SqliteDecisions(path)) as gateway,
        aclosing(SqliteDecisions(path, asks=False)) as command,
        asyncio.timeout(10),
        TaskScope() as tasks,
    ):
        tasks.start(gateway.follow())
        await gateway.ask(question(gateway, clock), 10)
        gateway.observe(lambda change: is_changed.set())
        assert await command.decide("aaaaaa", ONCE)
        await is_changed.wait()
        tasks.cancel_all()


async def test_a_change_before_the_watch_began_is_seen(path: str) -> None:
    clock = Clock()
    clock.now = time.time_ns()
    changes: list[Change] = []
    is_changed = asyncio.Event()
    async with aclosing(SqliteDecisions(path)) as gateway, aclosing(SqliteDecisions(path, asks=False)) as command:
        await gateway.ask(question(gateway, clock), 10)
        assert await command.decide("aaaaaa", ONCE)
        gateway.observe(changes.append)
        gateway.observe(lambda change: is_changed.set())
        async with asyncio.timeout(10), TaskScope() as tasks:
            tasks.start(gateway.follow())
            await is_changed.wait()
            tasks.cancel_all()
    assert changes == ["approvals", "pins"]


async def test_a_gateway_that_stops_voids_its_questions(path: str) -> None:
    clock = Clock()
    clock.now = time.time_ns()
    gateway = SqliteDecisions(path)
    await gateway.ask(question(gateway, clock), 10)
    await gateway.set_page("http://127.0.0.1:1/approvals")
    await gateway.aclose()
    async with aclosing(SqliteDecisions(path, asks=False)) as command:
        assert await command.page() is None
        assert not await command.decide("aaaaaa", ONCE)
        assert os.listdir(f"{path}-runs") == []


async def test_t18_questions_of_a_killed_gateway_are_void_and_other_questions_stay(path: str) -> None:
    script = f"""
import asyncio, sys, time
from sluicegate.store.memory_decisions import MemoryDecisions
from sluicegate.store.sqlite_decisions import SqliteDecisions
from tests.store.check_decisions import Clock, question
clock = Clock()
clock.now = time.time_ns()
state = SqliteDecisions({path!r})
asyncio.run(state.ask(question(state, clock, "killed", "b2"), 10))
print("asked", flush=True)
sys.stdin.read()
"""
    clock = Clock()
    clock.now = time.time_ns()
    async with aclosing(SqliteDecisions(path)) as gateway:
        await gateway.ask(question(gateway, clock), 10)
        root = str(Path(__file__).parents[2])
        other = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root
        )
        try:
            assert other.stdout is not None and await other.stdout.readline() == b"asked\n"
            async with aclosing(SqliteDecisions(path, asks=False)) as command:
                assert {found.id for found in await command.open_questions()} == {"aaaaaa", "killed"}
        finally:
            other.kill()
            await other.communicate()
        async with aclosing(SqliteDecisions(path, asks=False)) as command:
            assert [found.id for found in await command.open_questions()] == ["aaaaaa"]
            assert not await command.decide("killed", msgspec.structs.replace(ONCE, scope="always"))
            assert await command.decide("aaaaaa", ONCE)


async def test_observers_are_called_when_questions_of_a_killed_gateway_are_voided(path: str) -> None:
    clock = Clock()
    clock.now = time.time_ns()
    changes: list[Change] = []
    async with aclosing(SqliteDecisions(path, asks=False)) as command:
        killed = SqliteDecisions(path)
        await killed.ask(question(killed, clock), 10)
        # What the system does when a process is killed: its lock is released, and nothing else happens.
        assert killed._lock is not None  # pyright: ignore[reportPrivateUsage]
        os.close(killed._lock)  # pyright: ignore[reportPrivateUsage]
        killed._db.close()  # pyright: ignore[reportPrivateUsage]
        command.observe(changes.append)
        assert list(await command.open_questions()) == []
        assert changes == ["approvals"]


async def test_a_locked_file_is_a_refusal_and_not_a_wait(path: str) -> None:
    clock = Clock()
    async with aclosing(SqliteDecisions(path, locked_for=0.0, clock=clock)) as gateway:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateUnavailable, match="locked"):
            await gateway.ask(question(gateway, clock), 10)
        assert await gateway.open_questions() == []  # Readers do not wait for writers.
        other.execute("ROLLBACK")
        other.close()
        assert await gateway.ask(question(gateway, clock), 10) is not None


@pytest.mark.parametrize("content", [b"this is no database, but long enough to be read as one " * 40, None])
def test_a_file_that_cannot_be_used_is_refused(path: str, content: bytes | None) -> None:
    os.makedirs(os.path.dirname(path))
    if content is None:
        os.mkdir(path)
    else:
        Path(path).write_bytes(content)
    with pytest.raises(StateUnavailable):
        SqliteDecisions(path)


async def test_a_file_of_another_version_is_refused(path: str) -> None:
    await SqliteDecisions(path).aclose()
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(StateUnavailable, match="another version"):
        SqliteDecisions(path)


VERSION_1 = """
CREATE TABLE approvals (
    id TEXT PRIMARY KEY, run TEXT NOT NULL, binding TEXT NOT NULL, caller TEXT NOT NULL, client TEXT NOT NULL,
    method TEXT NOT NULL, server TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, definition TEXT NOT NULL,
    arguments TEXT NOT NULL, others TEXT NOT NULL, rule TEXT NOT NULL, why TEXT NOT NULL,
    asked INTEGER NOT NULL, deadline INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('pending', 'approved', 'declined', 'void')), taken INTEGER NOT NULL,
    scope TEXT, "by" TEXT NOT NULL, way TEXT, reason TEXT NOT NULL, decided INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX approvals_by_binding ON approvals (run, binding);
CREATE TABLE grants (
    id TEXT PRIMARY KEY, caller TEXT NOT NULL, server TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
    definition TEXT NOT NULL, since INTEGER NOT NULL, until INTEGER, "by" TEXT NOT NULL, way TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX grants_by_name ON grants (server, name);
CREATE TABLE pins (
    server TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, hash TEXT NOT NULL, definition TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('approved', 'pending')), seen INTEGER NOT NULL,
    PRIMARY KEY (server, kind, name, state)
) STRICT, WITHOUT ROWID;
CREATE TABLE pages (run TEXT PRIMARY KEY, url TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE logins (digest TEXT PRIMARY KEY, deadline INTEGER NOT NULL) STRICT, WITHOUT ROWID;
PRAGMA user_version = 1;
"""
INDEXES_OF_1 = """
CREATE INDEX approvals_by_caller ON approvals (run, caller) WHERE state = 'pending';
CREATE INDEX approvals_by_deadline ON approvals (deadline);
"""
"""Some files of version 1 have these."""


def tables(path: str) -> set[tuple[str, ...]]:
    """The statements that make a file what it is, without their blanks."""
    with closing(sqlite3.connect(path)) as db:
        return {(name, "".join((sql or "").split())) for name, sql in db.execute("SELECT name, sql FROM sqlite_master")}


@pytest.mark.parametrize("more", ["", INDEXES_OF_1], ids=["without indexes", "with indexes"])
async def test_a_file_of_the_version_before_is_brought_up_to_date(path: str, more: str, tmp_path: Path) -> None:
    os.mkdir(os.path.dirname(path))
    with closing(sqlite3.connect(path)) as old:
        old.executescript(VERSION_1 + more)
        old.execute(
            "INSERT INTO grants VALUES ('gggggg', 'ada', 'files', 'tool', 'write', 'd1', 1, NULL, 'bob', 'page')"
        )
        old.commit()
    new = str(tmp_path / "new" / "state.db")
    for each in (path, new):
        await SqliteDecisions(each).aclose()
    assert tables(path) == tables(new)
    clock = Clock()
    for _ in range(2):
        async with aclosing(SqliteDecisions(path, clock=clock)) as state:
            # It does not say which command or URL it was given for, so it is shown and covers nothing.
            assert [(grant.id, grant.origin) for grant in await state.grants()] == [("gggggg", "")]
            assert await state.find_grant("ada", "files", "tool", "write", "d1", "o1") is None
            assert await state.ask(question(state, clock), 10) is not None
            await state.void("aaaaaa")
            await state.ask(question(state, clock, "bbbbbb"), 10)
            await state.abandon("bbbbbb")
            assert [found.abandoned for found in await state.open_questions()] == [True]
        clock.now += 3 * 3600 * 10**9


async def test_an_upgrade_forgets_what_questions_were_about_that_have_ended(path: str) -> None:
    os.mkdir(os.path.dirname(path))
    clock = Clock()
    with closing(sqlite3.connect(path)) as old:
        old.executescript(VERSION_1)
        for state, deadline in (("approved", 9), ("declined", 9), ("void", 9), ("pending", -90), ("pending", 8)):
            members = (f"{state}{deadline}", "run", "b", "ada", "", "tools/call", "files", "tool", "write", "d1")
            secret = f'{{"a":"secret of {state}{deadline}"}}'
            ended = (clock.now - 10**12, clock.now + deadline * 10**9, state, 0, None, "", None, "", 0)
            row = (*members, secret, secret, "", "", *ended)
            old.execute(f"INSERT INTO approvals VALUES ({', '.join('?' * len(row))})", row)
        old.commit()
    async with aclosing(SqliteDecisions(path, clock=clock)) as decisions:
        assert [each.id for each in await decisions.open_questions()] == ["pending8"]
        data = b"".join(file.read_bytes() for file in Path(path).parent.glob("state.db*") if file.is_file())
    assert set(re.findall(rb"secret of [a-z]+-?[0-9]+", data)) == {b"secret of pending8"}


async def test_values_that_do_not_fit_are_an_error(path: str) -> None:
    clock = Clock()
    async with aclosing(SqliteDecisions(path, clock=clock)) as gateway:
        await gateway.ask(question(gateway, clock), 10)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("UPDATE approvals SET scope = 'everything'")
        other.close()
        with pytest.raises(StateUnavailable):
            await gateway.find("aaaaaa")


async def test_a_question_takes_no_longer_the_more_there_were(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    statements: list[str] = []

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made = connect(*arguments, **options)
        made.set_trace_callback(statements.append)
        return made

    connect = sqlite3.connect
    monkeypatch.setattr("sluicegate.store.sqlite_decisions.sqlite3.connect", traced)
    clock = Clock()
    async with aclosing(SqliteDecisions(path, clock=clock)) as gateway:
        statements.clear()
        await gateway.ask(question(gateway, clock), 10)
        await gateway.decide("aaaaaa", ONCE)
        await gateway.take("aaaaaa")
    with closing(connect(path)) as other:
        used = [text for text in statements if " approvals " in text and not text.startswith("INSERT")]
        plans = [row[3] for text in used for row in other.execute(f"EXPLAIN QUERY PLAN {text}")]
        assert len(used) >= 5 and all(plan.startswith(("SEARCH approvals", "USE TEMP")) for plan in plans), plans


async def test_a_wider_yes_to_a_question_that_is_not_kept_is_a_grant(path: str) -> None:
    clock = Clock()
    async with aclosing(SqliteDecisions(path, clock=clock)) as gateway:
        await gateway.add_grant(question(gateway, clock), msgspec.structs.replace(ONCE, scope="always"))
        assert await gateway.find_grant("ada", "files", "tool", "write", "d1", "o1") is not None
        assert await gateway.open_questions() == []


async def test_processes_that_start_together_share_one_file(path: str) -> None:
    async def start() -> str:
        async with aclosing(SqliteDecisions(path, locked_for=30.0)) as state:
            await state.grants()
            return state.run

    with ThreadPoolExecutor(10) as pool:
        runs = [pool.submit(asyncio.run, start()) for _ in range(10)]
        assert len({each.result() for each in runs}) == 10
