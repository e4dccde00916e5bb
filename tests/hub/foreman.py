"""A server of 2026-07-28 that has the tasks extension, written by hand.

Among its tools are those that the scenarios of the official suite for tasks call. Run as a program it speaks over its
stdin, or with `--http` by HTTP.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Final

from sluicegate.http1 import serve
from sluicegate.runtime.task_scope import TaskScope
from tests.bridge.http_servers import ModernPeer
from tests.bridge.over_stdio import over_stdio
from tests.bridge.servers import META, MODERN, NOTE, Call, Failed, Json, Needed, Peer, Say, note, text

EXTENSION: Final = "io.modelcontextprotocol/tasks"
REQUIRED: Final[Json] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
NOTHING: Final[Json] = {"type": "object"}
WHEN: Final = "2026-07-28T10:30:00Z"
ENDED: Final = ("completed", "failed", "cancelled")

TASKS: Final = ("slow_compute", "failing_job", "protocol_error_job", "confirm_delete", "multi_input", "dig", "fetch")
"""Tools whose calls become tasks."""

PLAIN: Final = ("greet", "test_tool_with_task", "finish", "seen", "rogue", "nameless", "riddle")


class Job:
    """One task."""

    def __init__(self, task_id: str) -> None:
        self.id = task_id
        self.status = "working"
        self.more: Json = {}
        """What is told of it in this state."""
        self.answers: Json = {}
        self.changed = asyncio.Event()

    @property
    def state(self) -> Json:
        """What `tasks/get` tells of it."""
        times = {"createdAt": WHEN, "lastUpdatedAt": WHEN, "ttlMs": 60_000, "pollIntervalMs": 100}
        return {"taskId": self.id, "status": self.status, **times, **self.more}


class Foreman(Peer):
    """`dig` goes on until `finish` ends it; `seen` tells what was asked; `rogue` answers everybody with a task."""

    def __init__(self, tasks: TaskScope, *, has_tasks: bool = True) -> None:
        super().__init__(MODERN, tasks)
        self._has_tasks = has_tasks
        self._jobs: dict[str, Job] = {}
        self._seen: list[list[object]] = []

    def take(self, message: Json, say: Say, done: Callable[[], None] = lambda: None, *, key: object = None) -> None:
        """Note what comes, and do it."""
        if "method" in message:
            params: Json = message.get("params") or {}
            wanted: Json = params.get("notifications") or {}
            named = params.get("taskId") or wanted.get("taskIds")
            self._seen.append([message["method"], named, declares(params)])
        super().take(message, say, done, key=key)

    def _capabilities(self) -> Json:
        return {"tools": {}, "extensions": {EXTENSION: {}}} if self._has_tasks else {"tools": {}}

    def _page(self, cursor: str | None) -> Json:
        return {"tools": [{"name": name, "inputSchema": NOTHING} for name in (*TASKS, *PLAIN)]}

    async def _result(self, method: str, call: Call, request_id: object, extra: list[Json]) -> Json:
        if method.startswith("tasks/") or "taskIds" in (call.params.get("notifications") or {}):
            if not self._has_tasks:
                raise Failed(-32601, f"Method not found: {method}")
            if not declares(call.params):
                raise Failed(-32021, "Tasks are not declared.", REQUIRED)
        match method:
            case "tasks/get":
                return self._job(call).state
            case "tasks/update":
                job = self._job(call)
                asked: Json = job.more.get("inputRequests") or {}
                for key, answer in call.params["inputResponses"].items():
                    if asked.pop(key, None) is not None:
                        job.answers[key] = answer
                job.changed.set()
                return {}
            case "tasks/cancel":
                job = self._job(call)
                if job.status not in ENDED:
                    self._tasks.cancel(job)
                    self._set(job, "cancelled", {"statusMessage": "as you wish"})
                return {}
            case _:
                return await super()._result(method, call, request_id, extra)

    def _job(self, call: Call) -> Job:
        job = self._jobs.get(call.params["taskId"])
        if job is None:
            raise Failed(-32602, "Failed to retrieve task: Task not found")
        return job

    # ---------------------------------------------------------------------------------------------------- tools

    async def _call(self, name: str, call: Call, extra: list[Json]) -> Json:
        match name:
            case "greet":
                return text(f"Hello, {call.arguments.get('name')}!")
            case "seen":
                return text(json.dumps(self._seen))
            case "finish":
                self._set(self._jobs[call.arguments["task"]], "completed", {"result": call.arguments["result"]})
                return text("finished")
            case "rogue":
                return self._begun(Job("stray"))
            case "nameless":
                return {"resultType": "task", "status": "working"}
            case "riddle":
                return {"resultType": "riddle", "content": []}
            case "test_tool_with_task":
                return self._begin(name, call, {"name": await self._name(call)})
            case _ if name not in TASKS:
                raise Failed(-32602, f"Unknown tool: {name}")
            case _ if self._has_tasks and declares(call.params):
                return self._begin(name, call, call.arguments)
            case "failing_job":
                raise Failed(-32021, "It takes a task.", REQUIRED)
            case _:
                return text("done at once")

    async def _name(self, call: Call) -> str:
        brought: Json = call.params.get("inputResponses") or {}
        if "user_name" not in brought:
            raise Needed("user_name", question("What is your name?"))
        return brought["user_name"]["content"]["name"]

    def _begin(self, name: str, call: Call, arguments: Json) -> Json:
        job = Job(f"job-{len(self._jobs) + 1}")
        self._jobs[job.id] = job
        begun = self._begun(job)
        self._tasks.start(self._work(name, job, arguments), key=job)
        return begun

    def _begun(self, job: Job) -> Json:
        return {"resultType": "task", **job.state}

    async def _work(self, name: str, job: Job, arguments: Json) -> None:
        match name:
            case "slow_compute":
                await asyncio.sleep(arguments["seconds"])  # The caller chooses how long the job takes.
                self._set(job, "completed", {"result": text("computed")})
            case "failing_job":
                self._set(job, "completed", {"result": {**text("It failed."), "isError": True}})
            case "protocol_error_job":
                self._set(job, "failed", {"error": {"code": -32603, "message": "Oh.", "data": {"uri": NOTE}}})
            case "test_tool_with_task":
                self._set(job, "completed", {"result": text(f"Hello, {arguments['name']}!")})
            case "fetch":
                link = {"type": "resource_link", "uri": NOTE, "name": "one"}
                self._set(job, "completed", {"result": {"content": [link], "_meta": {"com.example/weight": 1.5}}})
            case "confirm_delete":
                await self._ask(job, {"sure": question("Sure?")})
                self._set(job, "completed", {"result": text(json.dumps(job.answers))})
            case "multi_input":
                await self._ask(job, {"one": question("One?"), "two": question("Two?")})
                self._set(job, "completed", {"result": text(json.dumps(job.answers))})
            case _:
                pass  # It goes on until somebody ends it.

    async def _ask(self, job: Job, questions: Json) -> None:
        self._set(job, "input_required", {"inputRequests": dict(questions)})
        while job.more["inputRequests"]:
            job.changed.clear()
            await job.changed.wait()

    def _set(self, job: Job, status: str, more: Json) -> None:
        job.status, job.more = status, more
        for request_id, say, wanted in self._listeners:
            if job.id in wanted.get("taskIds", []):
                say(note("notifications/tasks", {"_meta": {f"{META}subscriptionId": request_id}, **job.state}))

    async def _listen(self, call: Call, request_id: object) -> Json:
        wanted: Json = call.params["notifications"]
        if "taskIds" in wanted:
            wanted["taskIds"] = [task_id for task_id in wanted["taskIds"] if task_id in self._jobs]
        return await super()._listen(call, request_id)


def question(message: str) -> Json:
    """One that a person answers."""
    form = {"type": "object", "properties": {"name": {"type": "string"}}}
    return {"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": form}}


def declares(params: Json) -> bool:
    """Whether a request says that its client knows tasks."""
    meta: Json = params.get("_meta") or {}
    capabilities: Json = meta.get(f"{META}clientCapabilities") or {}
    return EXTENSION in (capabilities.get("extensions") or {})


async def over_http() -> None:
    """Serve whoever comes to the address that is said on stderr."""
    async with TaskScope() as tasks, serve(ModernPeer(Foreman(tasks))) as listener:
        host, port = listener.addresses[0][:2]
        print(f"serving at http://{host}:{port}/mcp", file=sys.stderr, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(over_http() if "--http" in sys.argv else over_stdio(Foreman))
