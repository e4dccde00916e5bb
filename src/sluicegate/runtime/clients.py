"""The clients of a gateway: who is connected, and the rows of the audit log about clients that come, leave or fail.

Clients of the session era have a session, and clients on a pipe or socket a connection: they come and leave with it.
Clients of 2026-07-28 over HTTP have neither. Such a client comes with its first request, and has left when it has sent
none for ten minutes; it is told from others by its caller, name, version and revision.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.store.base import Row
from sluicegate.text.visible_text import visible

# Not the logger whose records clients can follow: they need not learn of each other.
log = logging.getLogger("sluicegate.clients")

Era = Literal["session", "modern", "native"]

IDLE: Final = 600.0
"""Seconds without a request after which a client without a connection has left."""
MAX_STATELESS: Final = 1000
"""Clients without a connection that are remembered; the one that came first makes room."""
MAX_LENGTH: Final = 200
"""Characters of a text that a client chose."""
LOG_LINES: Final = 60
"""Lines about clients in one minute of the log of the process: a flood of new names must not fill it."""

Stateless = tuple[str, str, str, str]
"""The caller, revision, name and version of a client without a connection; the last two have `MAX_LENGTH`."""


class ConnectedClient(msgspec.Struct, frozen=True, kw_only=True):
    """A client, as it describes itself."""

    caller: str
    name: str = ""
    version: str = ""
    revision: str = ""
    era: Era
    transport: str
    """stdio, http, sse or websocket. The clients of `sluicegate serve --stdio` have stdio, also if they are relayed."""
    since: int
    """Nanoseconds since 1970."""

    def __str__(self) -> str:
        name = visible(f"{self.name} {self.version}".strip()) or "A client without a name"
        how = ", ".join(filter(None, (self.revision or self.era, self.transport, f"caller {self.caller}")))
        return f"{name} ({how})"


class Clients:
    """The clients of one gateway."""

    def __init__(self, note: Callable[[Row], None] | None = None) -> None:
        """`note` records a row; without it, nothing is logged or recorded, as in servers that are no gateway."""
        self.stateless: dict[Stateless, float] = {}
        """When clients without a connection sent their last request, by the monotonic clock."""
        self._note = note
        self._connected: dict[object, ConnectedClient] = {}
        self._minute = 0
        self._lines = 0
        """Lines of the log in this minute."""

    def list(self) -> list[ConnectedClient]:
        """The clients that are connected, in the order in which they came."""
        self.expire()
        return list(self._connected.values())

    # ------------------------------------------------------------------------------------------- coming and leaving

    def connected(self, key: object, caller: str, profile: ClientProfile, era: Era, transport: str) -> None:
        """A client is connected, until `left` is called with the same key."""
        info = profile.client_info or {}
        revision = "" if era == "native" else profile.version
        self._add(key, caller, revision, _text(info, "name"), _text(info, "version"), era, transport)

    def left(self, key: object) -> None:
        """A client has left; also for one that never came."""
        client = self._connected.pop(key, None)
        if client is not None:
            self._record(client, "left", {"seconds": (time.time_ns() - client.since) // 10**9})

    def connected_stateless(self, key: Stateless) -> None:
        """A client without a connection sends its first request. Set `stateless[key]` with each later one."""
        self.expire()
        if len(self.stateless) >= MAX_STATELESS:
            first = next(iter(self.stateless))
            del self.stateless[first]
            self.left(first)
        self.stateless[key] = time.monotonic()
        caller, revision, name, version = key
        self._add(key, caller, revision, name, version, "modern", "http")

    def expire(self) -> None:
        """Let clients without a connection leave that have sent nothing for a while."""
        end = time.monotonic() - IDLE
        for key in [key for key, last in self.stateless.items() if last < end]:
            del self.stateless[key]
            self.left(key)

    def close(self) -> None:
        """Let all clients leave, because the gateway stops."""
        self.stateless.clear()
        for key in list(self._connected):
            self.left(key)

    def _add(self, key: object, caller: str, revision: str, name: str, version: str, era: Era, transport: str) -> None:
        client = self._connected[key] = ConnectedClient(
            caller=caller,
            name=name,
            version=version,
            revision=revision,
            era=era,
            transport=transport,
            since=time.time_ns(),
        )
        self._record(client, "connected", {})

    def _record(self, client: ConnectedClient, verdict: str, more: dict[str, object]) -> None:
        if self._note is None:
            return
        self._log(client, verdict)
        body: dict[str, object] = {
            "version": client.version,
            "revision": client.revision,
            "era": client.era,
            "transport": client.transport,
        }
        self._note(Row(kind="session", caller=client.caller, name=client.name, verdict=verdict, body=body | more))

    def _log(self, client: ConnectedClient, verdict: str) -> None:
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._lines = minute, 0
        self._lines += 1
        if self._lines <= LOG_LINES:
            log.info("%s has %s.", client, verdict)
        elif self._lines == LOG_LINES + 1:
            log.info("More clients come and leave than are logged in a minute; see `sluicegate audit list`.")

    # -------------------------------------------------------------------------------------- what is not let through

    def note_refused(self, reason: str, address: str) -> None:
        """The credentials of a request were refused."""
        if self._note is not None:
            self._note(Row(kind="auth_fail", verdict=reason, body={"source": address}))

    def note_without_id(self, caller: str, method: str, params: Mapping[str, object]) -> None:
        """A message without an id names a method that must be asked for: nothing runs, and nothing is answered."""
        if self._note is None:
            return
        named = _text(params, "name") or _text(params, "uri")
        body: dict[str, object] = {"method": method[:MAX_LENGTH], "name": named}
        self._note(Row(kind="reject", caller=caller, verdict="without_id", body=body))


def _text(members: Mapping[str, object], name: str) -> str:
    value = members.get(name)
    return value[:MAX_LENGTH] if isinstance(value, str) else ""
