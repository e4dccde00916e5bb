"""Tasks on the official SDK from 2.0 on, which has hooks for extensions: `server` on stdio, or `client URL`."""

import asyncio
import json
import sys
from typing import Literal

import mcp_types as types
from mcp import MCPError
from mcp.client import Client
from mcp.client.extension import ClientExtension, ResultClaim
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import MCPServer

EXTENSION = "io.modelcontextprotocol/tasks"
WHEN = "2026-07-28T10:30:00Z"
QUESTION = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}},
}


class About(types.RequestParams):
    taskId: str  # noqa: N815 - names on the wire
    inputResponses: dict | None = None  # noqa: N815


class Tasks(Extension):
    """Calls of `dig` become tasks, which ask once and then are done."""

    identifier = EXTENSION

    def __init__(self):
        self.states = {}

    def methods(self):
        return [MethodBinding(f"tasks/{name}", About, getattr(self, name)) for name in ("get", "update", "cancel")]

    def told(self, task_id):
        times = {"createdAt": WHEN, "lastUpdatedAt": WHEN, "ttlMs": None, "pollIntervalMs": 10}
        return {"taskId": task_id, **times, **self.states[task_id]}

    def known(self, params):
        if params.taskId not in self.states:
            raise MCPError(code=-32602, message="There is no such task.")
        return params.taskId

    async def get(self, context, params):
        return self.told(self.known(params))

    async def update(self, context, params):
        answer = params.inputResponses["sure"]
        words = f"dug, for you said {answer['action']}"
        done = {"content": [{"type": "text", "text": words}], "structuredContent": {"result": words}}
        self.states[self.known(params)] = {"status": "completed", "result": done}
        return {}

    async def cancel(self, context, params):
        self.states[self.known(params)] = {"status": "cancelled"}
        return {}

    async def intercept_tool_call(self, params, context, call_next):
        capabilities = (context.meta or {}).get("io.modelcontextprotocol/clientCapabilities") or {}
        if params.name != "dig" or EXTENSION not in (capabilities.get("extensions") or {}):
            return await call_next(context)
        task_id = f"task-{len(self.states)}"
        self.states[task_id] = {"status": "working"}
        begun = {"resultType": "task", **self.told(task_id)}
        self.states[task_id] = {"status": "input_required", "inputRequests": {"sure": QUESTION}}
        return begun


def serve():
    server = MCPServer("stranger", extensions=[Tasks()])

    @server.tool()
    def dig() -> str:
        """Dig."""
        return "dug at once"

    server.run("stdio")


class Ticket(types.Result):
    result_type: Literal["task"] = "task"
    taskId: str  # noqa: N815
    status: str


class State(types.Result):
    model_config = {"extra": "allow"}


class Get(types.Request[dict, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    name_param = "taskId"


class Update(types.Request[dict, Literal["tasks/update"]]):
    method: Literal["tasks/update"] = "tasks/update"
    name_param = "taskId"


class Cancel(types.Request[dict, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    name_param = "taskId"


class Knowing(ClientExtension):
    """Fetches the results of tasks, and answers what they ask."""

    identifier = EXTENSION

    def __init__(self, saw):
        self.saw = saw

    def claims(self):
        return [ResultClaim(result_type="task", model=Ticket, resolve=self.resolve)]

    async def resolve(self, ticket, context):
        self.saw["id"] = ticket.taskId
        for _ in range(100):
            state = await context.session.send_request(Get(params={"taskId": ticket.taskId}), State)
            found = state.model_extra
            self.saw.setdefault("states", []).append([found["taskId"], found["status"]])
            if found["status"] == "completed":
                return types.CallToolResult.model_validate(found["result"])
            asked = found["inputRequests"]
            self.saw["asked"] = {key: question["params"]["message"] for key, question in asked.items()}
            answers = {key: {"action": "accept", "content": {}} for key in asked}
            params = {"taskId": ticket.taskId, "inputResponses": answers}
            await context.session.send_request(Update(params=params), State)
        raise AssertionError("it never ends")


async def visit(url):
    saw = {}
    async with Client(url, mode="auto", extensions=[Knowing(saw)]) as client:
        discovered = client.server_capabilities
        saw["offered"] = discovered and discovered.extensions
        result = await client.call_tool("s__dig", {})
        saw["result"] = result.content[0].text
        await client.session.send_request(Cancel(params={"taskId": saw["id"]}), State)
        try:
            await client.session.send_request(Get(params={"taskId": "s.never"}), State)
        except MCPError as error:
            saw["unknown"] = error.code
    async with Client(url, mode="2026-07-28") as client:
        saw["plain"] = (await client.call_tool("s__dig", {})).content[0].text
    print(json.dumps(saw))


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve()
    else:
        asyncio.run(visit(sys.argv[2]))
