"""A server of 2025-11-25 with a tool that can be called as a task only. Run as a program it speaks over its stdin."""

import asyncio
import json
from collections.abc import Callable
from typing import Final

from sluicegate.runtime.task_scope import TaskScope
from tests.bridge.over_stdio import over_stdio
from tests.bridge.servers import Call, Failed, Json, Peer, Say, note, text

REVISION: Final = "2025-11-25"
RELATED: Final = "io.modelcontextprotocol/related-task"
NOTHING: Final[Json] = {"type": "object"}


class Dig:
    """One task."""

    def __init__(self, task_id: str) -> None:
        self.id = task_id
        self.status = "working"
        self.is_over = asyncio.Event()
        self.result: Json = {}
        self.fetching: asyncio.Future[Say] = asyncio.get_running_loop().create_future()
        """The way to whoever waits for the result."""

    @property
    def state(self) -> Json:
        """What is told of it."""
        now = "2025-11-25T10:30:00Z"
        return {"taskId": self.id, "status": self.status, "createdAt": now, "lastUpdatedAt": now, "ttl": 60_000}


class Digger(Peer):
    """`dig` takes a task; `asks` takes one and asks something; `linger` never ends; `seen` tells what was asked."""

    def __init__(self, tasks: TaskScope) -> None:
        super().__init__(REVISION, tasks)
        self._digs: dict[str, Dig] = {}
        self._seen: list[str] = []

    def take(self, message: Json, say: Say, done: Callable[[], None] = lambda: None, *, key: object = None) -> None:
        """Note what comes, and do it."""
        if "method" in message:
            self._seen.append(message["method"])
        super().take(message, say, done, key=key)

    def _capabilities(self) -> Json:
        return {"tools": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}

    def _page(self, cursor: str | None) -> Json:
        needed = {"execution": {"taskSupport": "required"}}
        tasks = [{"name": name, "inputSchema": NOTHING, **needed} for name in ("dig", "asks", "endless")]
        return {"tools": [*tasks, *({"name": name, "inputSchema": NOTHING} for name in ("linger", "seen"))]}

    async def _result(self, method: str, call: Call, request_id: object, extra: list[Json]) -> Json:
        match method:
            case "tasks/result":
                dig = self._digs[call.params["taskId"]]
                dig.fetching.set_result(call.say)
                await dig.is_over.wait()
                return {**dig.result, "_meta": {RELATED: {"taskId": dig.id}}}
            case "tasks/cancel":
                dig = self._digs[call.params["taskId"]]
                dig.status = "cancelled"
                self._tasks.cancel(dig)
                return dig.state
            case _:
                return await super()._result(method, call, request_id, extra)

    async def _call(self, name: str, call: Call, extra: list[Json]) -> Json:
        if name == "seen":
            return text(json.dumps(self._seen))
        if name == "linger":
            await asyncio.Event().wait()
        if "task" not in call.params:
            raise Failed(-32601, f"{name} requires task augmentation")
        dig = Dig(f"dig-{len(self._digs)}")
        self._digs[dig.id] = dig
        self._tasks.start(self._dig(name, dig), key=dig)
        return {"task": dig.state}

    async def _dig(self, name: str, dig: Dig) -> None:
        self.push(note("notifications/tasks/status", dig.state))
        say = await dig.fetching
        words = f"ttl {dig.state['ttl']}"
        if name == "asks":
            form = {"type": "object", "properties": {"way": {"type": "string"}}}
            related = {RELATED: {"taskId": dig.id}}
            params = {"mode": "form", "message": "Which way?", "requestedSchema": form, "_meta": related}
            reply = await self.ask("elicitation/create", params, say)
            words = f"refused: {reply['error']['code']}" if "error" in reply else reply["result"]["content"]["way"]
        elif name == "endless":
            await asyncio.Event().wait()
        dig.status, dig.result = "completed", text(words)
        dig.is_over.set()


if __name__ == "__main__":
    asyncio.run(over_stdio(Digger))
