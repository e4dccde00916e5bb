"""A server with a database that is open while it runs, and a step that logs every request."""

import logging
import sqlite3
import time
from contextlib import asynccontextmanager, closing

import sluicegate

log = logging.getLogger("words")


@asynccontextmanager
async def lifespan(server: sluicegate.Server):
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as database:
        database.execute("CREATE TABLE words (word TEXT)")
        yield database


async def log_time(exchange: sluicegate.Exchange, proceed: sluicegate.Handler):
    started = time.monotonic()
    try:
        return await proceed(exchange)
    finally:
        log.warning("%s %s: %.3f s", exchange.method, exchange.name, time.monotonic() - started)


server = sluicegate.Server("words", lifespan=lifespan, steps=[log_time])


@server.tool(tags=["write"])
async def learn(word: str, call: sluicegate.Call) -> int:
    """Learn a word, and return how many are known."""
    call.state.execute("INSERT INTO words VALUES (?)", (word,))
    return call.state.execute("SELECT COUNT(*) FROM words").fetchone()[0]


if __name__ == "__main__":
    sluicegate.run(server)
