"""Remembers on disk what each server offered last, so that a client that lists right after the start sees all tools.

One file for each server entry, named by a digest of the entry: another command line is another server. No file holds a
secret of the configuration, neither in its name nor in its content.
"""

import glob
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from sluicegate.config.model import Http, Installed, PythonFile, ServerConfig, Stdio
from sluicegate.errors import ThreadsBusy
from sluicegate.gateway.gateway import Gateway
from sluicegate.hub.catalog import Offer
from sluicegate.hub.fetch_catalog import decode_offer, encode_offer
from sluicegate.runtime.task_scope import in_thread
from sluicegate.text.masking import masked_text

log = logging.getLogger("sluicegate")

MAX_SIZE: Final = 16 * 1024 * 1024
"""Bytes of one file."""
MAX_FILES: Final = 256
MAX_BYTES: Final = 64 * 1024 * 1024
"""Files of one gateway, and their size together. Those that were not used for longest are removed."""
UNUSED_SECONDS: Final = 90 * 86_400.0
"""Seconds after which unused files of other gateways, whose folders may be gone, are removed."""


class CatalogCache:
    """The files in one folder. A file that is missing or cannot be read is as good as none."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def load(self, server: ServerConfig) -> Offer | None:
        """What the server offered when it was last connected."""
        path = self._path(server)
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_SIZE + 1)
            _mark_used(path)
        except OSError:
            return None
        return decode_offer(data) if len(data) <= MAX_SIZE else None

    def save(self, server: ServerConfig, offer: Offer) -> None:
        """Remember an offer. A disk that is full or read-only only costs the memory."""
        data, path = encode_offer(offer), self._path(server)
        if len(data) > MAX_SIZE or _has_secret(server, data):
            return
        try:
            is_new = True
            with suppress(FileNotFoundError), open(path, "rb") as file:
                if file.read(MAX_SIZE + 1) == data:
                    _mark_used(path)
                    return
                is_new = False
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.replace(temporary, path)
                if is_new:
                    self._remove_old()
            except OSError:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as problem:
            log.debug("The catalog of %s cannot be saved: %s", server.name, problem)

    def _remove_old(self) -> None:
        """Remove files that were not used for long: a changed entry of the configuration has a new one each time."""
        files, size = _newest_first(glob.glob(os.path.join(glob.escape(self._folder), "*.json"))), 0
        for number, (_, path, bytes_) in enumerate(files, 1):
            size += bytes_
            if number > MAX_FILES or (number > 1 and size > MAX_BYTES):
                _remove(path)
        folder, last = os.path.split(self._folder)
        others = glob.glob(os.path.join(glob.escape(os.path.dirname(folder)), "*", last, "*.json"))
        for used, path, _ in _newest_first(others):
            if used < time.time() - UNUSED_SECONDS:
                _remove(path)

    async def follow(self, gateway: Gateway) -> None:
        """Save each offer of each server when it changes, in a thread, until cancelled."""
        saved: dict[str, Offer] = {}
        while True:
            while (unsaved := _unsaved(gateway, saved)) is not None:
                server, offer = unsaved
                saved[server.name] = offer
                with suppress(ThreadsBusy):  # `save_all` saves it when the gateway stops.
                    await in_thread(partial(self.save, server, offer))
            # No other task runs between the last look and this, so no change is missed.
            await gateway.hub.wait_change()

    def save_all(self, gateway: Gateway) -> None:
        """Save what the servers that are ready offer now."""
        saved: dict[str, Offer] = {}
        while (unsaved := _unsaved(gateway, saved)) is not None:
            server, offer = unsaved
            saved[server.name] = offer
            self.save(server, offer)

    def _path(self, server: ServerConfig) -> str:
        return os.path.join(self._folder, f"{_digest(server)}.json")


def _mark_used(path: str) -> None:
    with suppress(OSError):  # It may be on a disk that cannot be written.
        os.utime(path)


def _newest_first(paths: Iterable[str]) -> list[tuple[float, str, int]]:
    """When each file was used last, its path and its size."""
    found: list[tuple[float, str, int]] = []
    for path in paths:
        with suppress(OSError):  # Another gateway may have removed it.
            status = os.stat(path)
            found.append((status.st_mtime, path, status.st_size))
    return sorted(found, reverse=True)


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
        os.removedirs(os.path.dirname(path))  # As far as they are empty.


def _unsaved(gateway: Gateway, saved: dict[str, Offer]) -> tuple[ServerConfig, Offer] | None:
    for mount in gateway.hub.mounts:
        server = gateway.config.servers.get(mount.name)
        if (
            server is not None
            and mount.is_ready
            and mount.offer is not None
            and saved.get(mount.name) is not mount.offer
        ):
            return server, mount.offer
    return None


def _has_secret(server: ServerConfig, data: bytes) -> bool:
    """Whether a server repeats a secret of its entry in its lists, in a description for example."""
    if not isinstance(server.source, Stdio | Http):
        return False
    # As a JSON string without its quotes: that is how it would stand in the data.
    return any(msgspec.json.encode(part)[1:-1] in data for part in server.source.hidden_parts() if part)


def _digest(server: ServerConfig) -> str:
    match server.source:
        case Stdio() as source:
            parts: list[object] = ["stdio", source.command, source.cwd, [arg.shown for arg in source.args]]
            # The name of a file is not the place even for the digest of a secret that could be guessed.
            parts.append(sorted((name, masked_text(f"{name}={value.reveal()}")) for name, value in source.env.items()))
        case Http() as source:
            parts = ["http", source.url.shown, sorted(source.headers), source.transport]
        case PythonFile(file=file):
            parts = ["python", file]
        case Installed() as source:
            parts = ["bundled" if source.is_bundled else "package", source.name]
        case None:
            parts = ["none"]
    data = msgspec.json.encode([server.name, *parts])
    return hashlib.blake2b(data, digest_size=16).hexdigest()
