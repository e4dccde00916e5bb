"""A server that writes down every line that it receives before it answers: `python -I -S recorder.py JOURNAL [WORD …]`.

Words: `session` speaks the session era, `described=FILE` takes the description of its tools from a file,
`tools=a,b` lists these instead of its own. It answers every request, of whatever method, so that whatever is forwarded
succeeds; only a call with the argument `hang` gets no answer.
"""

import json
import os
import sys

JOURNAL = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
OPTIONS = {key: value for key, _, value in (word.partition("=") for word in sys.argv[2:])}
TOOLS = OPTIONS.get("tools", "put,get,rm,flip").split(",")
OFFER: "dict[str, object]" = {
    "capabilities": {
        "tools": {"listChanged": True},
        "prompts": {},
        "resources": {"subscribe": True},
        "completions": {},
        "logging": {},
        "extensions": {"io.modelcontextprotocol/tasks": {}, "com.example/invented": {}},
    },
    "serverInfo": {"name": "recorder", "version": "1"},
}
LIFE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def described() -> str:
    if "described" not in OPTIONS:
        return "Records."
    with open(OPTIONS["described"]) as file:
        return file.read()


def result_of(method: str, params: "dict[str, object]") -> "dict[str, object]":
    match method:
        case "server/discover":
            return {"supportedVersions": ["2026-07-28"], **OFFER}
        case "initialize":
            return {"protocolVersion": "2025-11-25", **OFFER}
        case "tools/list":
            schema = {"type": "object", "properties": {"path": {"type": "string"}}}
            return {"tools": [{"name": name, "description": described(), "inputSchema": schema} for name in TOOLS]}
        case "prompts/list":
            return {"prompts": [{"name": "poem"}]}
        case "resources/list":
            return {"resources": [{"name": "page", "uri": "file:///srv/page"}]}
        case "resources/templates/list":
            return {"resourceTemplates": [{"name": "pages", "uriTemplate": "file:///srv/{page}"}]}
        case "resources/read":
            return {"contents": [{"uri": params["uri"], "text": "recorded"}]}
        case "prompts/get":
            return {"messages": [{"role": "user", "content": {"type": "text", "text": "recorded"}}]}
        case "completion/complete":
            return {"completion": {"values": ["recorded"]}}
        case _:
            return {"content": [{"type": "text", "text": "recorded"}]}


for line in sys.stdin.buffer:
    os.write(JOURNAL, line)
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method is None or id is None:
        continue
    if method == "subscriptions/listen":
        meta = {"io.modelcontextprotocol/subscriptionId": id}
        params = {"notifications": message["params"]["notifications"], "_meta": meta}
        notice = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
        os.write(1, json.dumps(notice).encode() + b"\n")
        continue
    if message.get("params", {}).get("arguments", {}).get("hang"):
        continue
    answer: "dict[str, object]" = {"jsonrpc": "2.0", "id": id}
    if method == "server/discover" and "session" in OPTIONS:
        answer["error"] = {"code": -32601, "message": "Method not found"}
    else:
        answer["result"] = {**LIFE, **result_of(method, message.get("params", {}))}
    os.write(1, json.dumps(answer).encode() + b"\n")
