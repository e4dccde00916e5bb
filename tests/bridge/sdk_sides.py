"""The official SDKs as clients and servers: which there are, and how they are started."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from tests.bridge.clients import PATIENCE
from tests.bridge.http_servers import over_http
from tests.bridge.servers import REVISIONS
from tests.bridge.stage import ROOT

Json = dict[str, Any]
Sdk = Literal["mcp1", "mcp2", "typescript1", "typescript2"]
Over = Literal["stdio", "/mcp", "/session", "/sse"]

STRANGERS: Final = ROOT / ".strangers"
PEERS: Final = ROOT / "tests" / "strangers" / "peers"
MAX_VISITS: Final = 200.0

VERSIONS: Final[Mapping[Sdk, str]] = {
    "mcp1": "Python 1.x",
    "mcp2": "Python 2.x",
    "typescript1": "TypeScript 1.x",
    "typescript2": "TypeScript 2.x",
}
_TRANSPORTS: Final[Mapping[Over, str]] = {"stdio": "stdio", "/mcp": "HTTP", "/session": "HTTP", "/sse": "HTTP+SSE"}


class Server(NamedTuple):
    """A server that SDK clients visit: one of our own hand, or an SDK's."""

    sdk: Sdk | None
    revision: str
    over: Over

    @property
    def name(self) -> str:
        """What it is mounted as."""
        return f"{self.sdk or 'own'}-{self.revision}-{self.over.removeprefix('/')}"

    @property
    def title(self) -> str:
        if self.sdk is None:
            return f"{self.revision} by hand"
        return f"{VERSIONS[self.sdk]} {self.revision} {_TRANSPORTS[self.over]}"

    @property
    def is_python(self) -> bool:
        """Whether it is made with the Python SDK."""
        return self.sdk in ("mcp1", "mcp2")

    @property
    def asks(self) -> bool:
        """Whether it can show a form."""
        return self.revision >= "2025-06-18"

    @property
    def is_held_back(self) -> bool:
        """Whether it would speak a newer revision if it were asked."""
        return self.over != "/session" and self.revision < "2026" and self.sdk in ("mcp2", "typescript2")


class SdkClient(NamedTuple):
    """A client of an SDK, made to speak one revision."""

    sdk: Sdk
    mode: str
    revision: str
    over: Over

    @property
    def title(self) -> str:
        return f"{VERSIONS[self.sdk]} {self.revision} {_TRANSPORTS[self.over]}"

    @property
    def ticket(self) -> str:
        """A word of its own, for what it leaves behind at a server."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower())


OURS: Final = [Server(None, revision, "/mcp") for revision in REVISIONS]
THEIRS: Final = [
    Server("mcp1", "2025-11-25", "stdio"),
    Server("mcp1", "2025-11-25", "/mcp"),
    Server("mcp1", "2025-11-25", "/sse"),
    Server("mcp2", "2025-11-25", "stdio"),
    Server("mcp2", "2025-11-25", "/mcp"),
    Server("mcp2", "2026-07-28", "stdio"),
    Server("mcp2", "2026-07-28", "/mcp"),
    Server("typescript1", "2025-11-25", "stdio"),
    Server("typescript1", "2025-11-25", "/mcp"),
    Server("typescript1", "2025-11-25", "/sse"),
    Server("typescript2", "2025-11-25", "stdio"),
    Server("typescript2", "2025-11-25", "/session"),  # Elsewhere it keeps no sessions, and can neither ask nor tell.
    Server("typescript2", "2026-07-28", "stdio"),
    Server("typescript2", "2026-07-28", "/mcp"),
]
CLIENTS: Final = [
    SdkClient("mcp1", "", "2025-11-25", "stdio"),
    SdkClient("mcp1", "", "2025-11-25", "/mcp"),
    SdkClient("mcp1", "", "2025-11-25", "/sse"),
    SdkClient("mcp2", "2024-11-05", "2024-11-05", "/sse"),
    *(SdkClient("mcp2", revision, revision, "/mcp") for revision in REVISIONS),
    SdkClient("mcp2", "2025-11-25", "2025-11-25", "stdio"),
    SdkClient("mcp2", "2026-07-28", "2026-07-28", "stdio"),
    SdkClient("typescript1", "", "2025-11-25", "stdio"),
    SdkClient("typescript1", "", "2025-11-25", "/mcp"),
    SdkClient("typescript1", "", "2025-11-25", "/sse"),
    SdkClient("typescript2", "legacy", "2025-11-25", "stdio"),
    SdkClient("typescript2", "legacy", "2025-11-25", "/mcp"),
    SdkClient("typescript2", "modern", "2026-07-28", "stdio"),
    SdkClient("typescript2", "modern", "2026-07-28", "/mcp"),
]


def missing() -> list[str]:
    """What is not installed of the SDKs."""
    return [name for name in ("mcp1", "mcp2", "npm") if not (STRANGERS / f"{name}.lock").exists()]


# ------------------------------------------------------------------------------------------------------------ servers


async def own_entries(stack: AsyncExitStack) -> dict[str, Json]:
    """Where our own servers are, which run here."""
    entries: dict[str, Json] = {}
    for server in OURS:
        url = await stack.enter_async_context(over_http(server.revision))
        entries[server.name] = {"type": "sse" if url.endswith("/sse") else "http", "url": url}
    return entries


async def their_entries(stack: AsyncExitStack) -> dict[str, Json]:
    """Where the SDKs' servers are, or how they are started. A process serves all who come by HTTP."""
    entries: dict[str, Json] = {}
    ports: dict[tuple[str, ...], int] = {}
    for server in THEIRS:
        assert server.sdk is not None
        if server.over == "stdio":
            entries[server.name] = _stdio_entry(server.sdk)
            continue
        command = _http_command(server.sdk, server.over)
        if command not in ports:
            ports[command] = await stack.enter_async_context(_http_server(command))
        kind = "sse" if server.over == "/sse" else "http"
        entries[server.name] = {"type": kind, "url": f"http://127.0.0.1:{ports[command]}{server.over}"}
    return entries


def write_eras(folder: Path, entries: Collection[str]) -> None:
    """Make the gateway of a folder speak to these servers in their revision, where it would choose another."""
    held_back = [server.name for server in THEIRS if server.is_held_back and server.name in entries]
    lines = [f'[servers.{name}]\nera = "session"\n' for name in held_back]
    (folder / "sluicegate.toml").write_text("\n".join(lines))


def _program(sdk: Sdk) -> str:
    return str(STRANGERS / "npm" / "node" if sdk.startswith("typescript") else STRANGERS / sdk / "bin" / "python")


def _folder(sdk: Sdk) -> str:
    """Where a program of an SDK has to run: npm's packages are found from there only."""
    return str(STRANGERS / "npm" if sdk.startswith("typescript") else ROOT)


def _stdio_entry(sdk: Sdk) -> Json:
    if sdk.startswith("typescript"):
        script = str(PEERS / f"{sdk.replace('typescript', 'typescript_server')}.mjs")
        return {"command": _program(sdk), "args": [script, "stdio"], "cwd": _folder(sdk)}
    return {"command": _program(sdk), "args": [str(PEERS / f"server_{sdk}.py")]}


def _http_command(sdk: Sdk, over: Over) -> tuple[str, ...]:
    if sdk.startswith("typescript"):
        return _folder(sdk), _program(sdk), str(PEERS / f"{sdk.replace('typescript', 'typescript_server')}.mjs")
    return _folder(sdk), _program(sdk), str(PEERS / "http_server.py"), sdk, over.removeprefix("/")


@asynccontextmanager
async def _http_server(command: tuple[str, ...]) -> AsyncGenerator[int]:
    """An SDK's server over HTTP, as a process of its own; its port."""
    folder, *words = command
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=_environment(),
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            port = int(await process.stdout.readline())
        yield port
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(PATIENCE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


# ------------------------------------------------------------------------------------------------------------ clients


def own_gateway(folder: Path, entries: Mapping[str, Json]) -> object:
    """How a client over stdio starts a gateway, which has all of these servers to itself."""
    folder.mkdir()
    write_eras(folder, entries)
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": entries}))
    program = str(Path(__file__).with_name("gateway_stdio.py"))
    return [[sys.executable, program, str(folder)], {"PYTHONPATH": str(ROOT / "src")}]


async def visits(sdk: Sdk, works: Sequence[Json]) -> list[Json]:
    """What the clients of an SDK saw, one after the other: to start its language takes longer than a visit."""
    script, language = "sdk_client.py", sdk
    if sdk.startswith("typescript"):
        script, language = "sdk_client.mjs", sdk.removeprefix("typescript")
    process = await asyncio.create_subprocess_exec(
        _program(sdk),
        str(Path(__file__).with_name(script)),
        language,
        cwd=_folder(sdk),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(),
    )
    try:
        async with asyncio.timeout(MAX_VISITS):
            output, errors = await process.communicate(json.dumps(works).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode(errors="replace")
    return json.loads(output)
