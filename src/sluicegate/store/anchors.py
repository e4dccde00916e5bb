"""Sends checkpoints of the audit log elsewhere: without a copy outside, its owner can rewrite history."""

import asyncio
import logging
import os
from contextlib import suppress
from functools import partial
from typing import Final

from sluicegate.errors import SluicegateError
from sluicegate.http1 import Pool
from sluicegate.runtime.task_scope import in_thread
from sluicegate.store.audit_files import append_note
from sluicegate.store.chain import split_notes

log = logging.getLogger("sluicegate")

_TIMEOUT: Final = 10.0
_MAX_LAST: Final = 100
"""Other chains whose last checkpoint is kept."""
_HEADERS: Final = (("Content-Type", "text/plain; charset=utf-8"),)


def is_url(anchor: str) -> bool:
    """Whether an anchor is a URL; otherwise it is a file."""
    return anchor.startswith(("http://", "https://"))


class Anchors:
    """The places that get a copy of each checkpoint: files, and URLs to which it is posted."""

    def __init__(self, places: tuple[str, ...], last: str = "") -> None:
        """`last` is a file for the last checkpoint of each chain; empty for none."""
        self._last = last
        self._files = [place for place in places if not is_url(place)]
        self._urls = [place for place in places if is_url(place)]
        self._pool: Pool | None = None
        self._failed: set[str] = set()

    async def send(self, note: str) -> None:
        """Send a checkpoint to all places. One that fails gets the next one, which vouches for the same rows."""
        writes = {file: _append for file in self._files} | ({self._last: _replace} if self._last else {})
        for file, write in writes.items():
            try:
                await in_thread(partial(write, file, note))
            except (OSError, SluicegateError) as problem:
                self._report(file, str(problem))
            else:
                self._failed.discard(file)
        for url in self._urls:
            try:
                await self._post(url, note)
            except (SluicegateError, TimeoutError) as problem:
                self._report(url, str(problem) or "no answer in time")
            else:
                self._failed.discard(url)

    async def _post(self, url: str, note: str) -> None:
        if self._pool is None:
            self._pool = Pool(name="the anchor of the audit log")
        async with asyncio.timeout(_TIMEOUT):
            answer = await self._pool.request("POST", url, _HEADERS, note.encode(), resend=True)
            await answer.read()
        if not 200 <= answer.status < 300:
            raise SluicegateError(f"it answered with status {answer.status}")

    def _report(self, place: str, problem: str) -> None:
        if place not in self._failed:
            self._failed.add(place)
            # Not the URL: it may contain a secret.
            what = "a URL" if is_url(place) else place
            log.warning("The checkpoint of the audit log could not be sent to %s: %s", what, problem)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            await self._pool.aclose()


def _replace(file: str, note: str) -> None:
    """Put a checkpoint in the place of the one before it of its chain. The others in the file stay."""
    origin = note.partition("\n")[0]
    try:
        with open(file, encoding="utf-8", errors="replace") as text:
            kept = [each for each in split_notes(text.read()) if each.partition("\n")[0] != origin]
    except FileNotFoundError:
        kept = []
    temporary = f"{file}.{os.getpid()}"
    with suppress(FileNotFoundError):
        os.unlink(temporary)
    for each in (*kept[-_MAX_LAST:], note):
        append_note(temporary, each)
    os.replace(temporary, file)


def _append(file: str, note: str) -> None:
    os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)
    append_note(file, note)
