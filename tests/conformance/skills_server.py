"""A server of 2026-07-28 that has the skills extension (SEP-2640), written by hand.

Run as a program it speaks over its stdin, or with `--http` by HTTP.
"""

import asyncio
import hashlib
import sys
from typing import Final

from sluicegate.http1 import serve
from sluicegate.runtime.task_scope import TaskScope
from tests.bridge.http_servers import ModernPeer
from tests.bridge.over_stdio import over_stdio
from tests.bridge.servers import MODERN, Call, Failed, Json, Peer

EXTENSION: Final = "io.modelcontextprotocol/skills"
ROOT: Final = "skill://acme/refunds"
SKILL: Final = f"{ROOT}/SKILL.md"
FRONTMATTER: Final[Json] = {"name": "refunds", "description": "How to give money back."}
FILES: Final = {
    SKILL: "---\nname: refunds\ndescription: How to give money back.\n---\nRead templates/letter.md.\n",
    f"{ROOT}/templates/letter.md": "Dear customer,\n",
}


def entry() -> Json:
    """The one skill."""
    files = [
        {"uri": uri, "digest": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}", "size": len(text.encode())}
        for uri, text in FILES.items()
    ]
    return {"uri": SKILL, "frontmatter": FRONTMATTER, "resources": files}


class Librarian(Peer):
    """It has one skill of two files, and one tool."""

    def __init__(self, tasks: TaskScope) -> None:
        super().__init__(MODERN, tasks)

    def _capabilities(self) -> Json:
        return {"tools": {}, "resources": {}, "extensions": {EXTENSION: {"directoryRead": True}}}

    def _page(self, cursor: str | None) -> Json:
        return {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}

    def _read(self, uri: str) -> Json:
        if uri not in FILES:
            raise Failed(-32602, "Resource not found", {"uri": uri})
        return {"contents": [{"uri": uri, "mimeType": "text/markdown", "text": FILES[uri]}]}

    async def _result(self, method: str, call: Call, request_id: object, extra: list[Json]) -> Json:
        uri = call.params.get("uri")
        match method:
            case "resources/list":
                return {"resources": [{"uri": SKILL, "mimeType": "text/markdown", **FRONTMATTER}]}
            case "resources/templates/list":
                return {"resourceTemplates": []}
            case "skills/list":
                return {"skills": [entry()]}
            case "skills/get" if uri == SKILL:
                return {"skill": entry(), "ttlMs": 1000, "cacheScope": "private"}
            case "resources/directory/read" if uri == ROOT:
                folder = {"uri": f"{ROOT}/templates", "name": "templates", "mimeType": "inode/directory"}
                return {"resources": [{"uri": SKILL, "name": "SKILL.md"}, folder]}
            case "skills/get" | "resources/directory/read":
                raise Failed(-32602, "There is no such skill or directory.", {"uri": uri})
            case _:
                return await super()._result(method, call, request_id, extra)


async def over_http() -> None:
    """Serve whoever comes to the address that is said on stderr."""
    async with TaskScope() as tasks, serve(ModernPeer(Librarian(tasks))) as listener:
        host, port = listener.addresses[0][:2]
        print(f"serving at http://{host}:{port}/mcp", file=sys.stderr, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(over_http() if "--http" in sys.argv else over_stdio(Librarian))
