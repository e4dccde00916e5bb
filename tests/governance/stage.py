"""A gateway process in front of servers that record, and what it left in its audit log."""

import asyncio
import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple, cast

from sluicegate.config.paths import audit_folder
from sluicegate.protocol.canonical_json import canonical_json
from tests.downstream.http_client import standard
from tests.downstream.raw_client import Json, modern
from tests.faults.gateway_stage import Folder, Process, gateway_process
from tests.faults.load import Answer, Wire, raw_post
from tests.polling import PATIENCE

RECORDER: Final = str(Path(__file__).with_name("recorder.py"))
BY_ITSELF: Final = ("server/discover", "initialize", "notifications/initialized", "ping", "logging/setLevel")
"""What a gateway sends by itself to every server, besides lists."""


class Recorded(NamedTuple):
    """A row of the audit log."""

    seq: int
    kind: str
    request: str
    name: str
    verdict: str
    body: Json


class Governed(Folder):
    """A folder whose gateway has its state below the test's own folder."""

    def __init__(
        self, base: Path, words: Mapping[str, Sequence[str]], settings: str = "", env: Mapping[str, str] | None = None
    ) -> None:
        """`words` are those of each recording server, by its name."""
        self.base = base
        entries = {
            name: {"command": sys.executable, "args": ["-I", "-S", RECORDER, str(self.journal(name)), *more]}
            | {"env": dict(env or {})}
            for name, more in words.items()
        }
        super().__init__(base, entries, settings)
        self.environ["XDG_STATE_HOME"] = str(base / "state")
        self.audit = Path(audit_folder(self.config(), self.environ))

    def journal(self, name: str) -> Path:
        """Where a server writes down what it receives."""
        return self.base / f"{name}.journal"

    def received(self, name: str) -> list[Json]:
        """What a server received, besides what gateways send by themselves."""
        path = self.journal(name)
        messages = [json.loads(line) for line in path.read_bytes().split(b"\n") if line] if path.exists() else []
        own = {each.get("id") for each in messages if is_own(each)}
        return [each for each in messages if not is_own(each) and not (is_cancel(each) and cancelled(each) in own)]

    def rows(self, *kinds: str, after: int = 0) -> list[Recorded]:
        """The rows of all files of the audit log, in their order: of these kinds, and after a number."""
        found: list[Recorded] = []
        for path in sorted(self.audit.glob("*.jsonl")):
            # The gateway may be writing the last line.
            for line in path.read_bytes().split(b"\n")[:-1]:
                row = json.loads(line)
                if row["seq"] > after and (not kinds or row["kind"] in kinds):
                    found.append(Recorded(*(row[field] for field in Recorded._fields)))
        return found

    def digest(self, arguments: object) -> str:
        """The digest that the log has for arguments, made from its key alone."""
        key = bytes.fromhex((self.audit / "digest.key").read_text())
        return hashlib.blake2b(canonical_json(arguments), key=key, digest_size=16).hexdigest()

    async def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sluicegate", *words),
            cwd=self.root,
            env=self.environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
        return subprocess.CompletedProcess(words, process.returncode or 0, out.decode(), err.decode())

    async def verified(self) -> str:
        """What `audit verify` says, which passes."""
        done = await self.command("audit", "verify")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def is_own(message: Json) -> bool:
    """Whether gateways send this by themselves."""
    method, params = str(message.get("method", "")), cast(Json, message.get("params") or {})
    if method == "subscriptions/listen":
        return "resourceSubscriptions" not in cast(Json, params["notifications"])
    return method in BY_ITSELF or method.endswith("/list")


def is_cancel(message: Json) -> bool:
    """Whether a message ends a request."""
    return message.get("method") == "notifications/cancelled"


def cancelled(message: Json) -> object:
    """The request that a message ends."""
    return cast(Json, message["params"])["requestId"]


@asynccontextmanager
async def governing(folder: Governed) -> AsyncGenerator[Process]:
    """The gateway of a folder, once its servers are ready."""
    async with gateway_process(folder) as gateway:
        await gateway.ready(*json.loads((folder.root / ".mcp.json").read_text())["mcpServers"])
        yield gateway


async def wire_to(gateway: Process) -> Wire:
    """A connection to a gateway."""
    _, wire = await asyncio.get_running_loop().create_connection(Wire, "127.0.0.1", gateway.port)
    return wire


def call_bytes(name: str, arguments: str, *, named: str | None = None, more: str = "", id: object = 1) -> bytes:
    """A call of 2026-07-28 whose arguments are spelled as given, as is `more`, which follows them in the params."""
    meta = json.dumps(modern({})["_meta"])
    params = f'{{"_meta": {meta}, "name": {json.dumps(name)}, "arguments": {arguments}{more}}}'
    body = f'{{"jsonrpc": "2.0", "id": {json.dumps(id)}, "method": "tools/call", "params": {params}}}'
    return raw_post(
        body.encode("utf-8", "surrogatepass"), standard("tools/call", {"name": header_value(named or name)})
    )


def header_value(name: str) -> str:
    """A name as the value of `Mcp-Name`."""
    if name.isascii() and name.isprintable() and name == name.strip() and name:
        return name
    return f"=?base64?{base64.b64encode(name.encode('utf-8', 'surrogatepass')).decode()}?="


def request_bytes(method: str, params: Json, version: str = "2026-07-28") -> bytes:
    """A request of the modern era."""
    full = modern(params)
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": full}).encode()
    return raw_post(body, standard(method, full, version))


def outcome_of(answer: Answer) -> str:
    """What a client saw: ok, the reason of an error, or of a refusal that is a result."""
    message = answer.message
    if "error" in message:
        data = cast(Json, cast(Json, message["error"]).get("data") or {})
        return str(data.get("reason", cast(Json, message["error"])["code"]))
    result = cast(Json, message["result"])
    reason = cast(Json, result.get("_meta") or {}).get("dev.sluicegate/reason")
    return "ok" if reason is None else str(reason)
