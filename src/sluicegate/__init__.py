"""sluicegate: all MCP servers behind one address, and the toolkit that the gateway is built with.

A server made of functions, and a client for it:

    server = sluicegate.Server("demo")

    @server.tool
    async def count(to: int):
        for n in range(1, to + 1):
            yield sluicegate.Progress(n, total=to)
        yield f"counted to {to}"

    sluicegate.run(server)

    async with sluicegate.connect("python demo.py") as client:
        print(await client.call("count", to=3))
"""

from importlib import import_module

__version__ = "0.1.0.dev0"

# Names are loaded at their first use, which keeps the import cheap. Type checkers read `__init__.pyi`; a test compares
# both.
_HOMES = {
    "activations": ("questions",),
    "activations.call": ("Call",),
    "activations.values": (
        "AssistantMessage",
        "Audio",
        "Contents",
        "Data",
        "EmbeddedResource",
        "Error",
        "Image",
        "Log",
        "Progress",
        "ResourceLink",
        "Structured",
        "Text",
        "ToolUse",
        "UserMessage",
    ),
    "activations.questions": ("Elicited", "Root", "Sampled"),
    "client.handlers": ("ElicitAnswer", "ElicitRequest", "SampleRequest"),
    "client.client": ("Client",),
    "client.connect": ("Era", "connect"),
    "serve.asgi": ("AsgiApp",),
    "errors": (
        "ConfigError",
        "InputRefused",
        "InvalidParams",
        "LimitExceeded",
        "MethodNotFound",
        "MissingCapability",
        "ProtocolError",
        "Refused",
        "RpcError",
        "SluicegateError",
        "ToolError",
        "UnknownTarget",
        "UpstreamClosed",
        "UpstreamError",
        "UpstreamProtocolError",
        "UpstreamTimeout",
        "UpstreamUnavailable",
    ),
    "exchange": (
        "Caller",
        "Exchange",
        "Handler",
        "Step",
        "Upstream",
    ),
    "hub.hub": ("Hub",),
    "protocol.types": ("DataEvent", "LogEvent", "OwnEvent", "ProgressEvent", "ToolResult"),
    "upstream.http": ("http",),
    "upstream.stdio": ("stdio",),
    "server": ("Server", "activation"),
    "toolbox.permission": ("Allow", "Deny"),
    "toolbox.toolbox": ("Toolbox",),
    "runtime.identity": ("Refusal",),
    "serve.run_server": ("run",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'sluicegate' has no attribute {name!r}")
    home = import_module(f"sluicegate.{_HOME_OF[name]}")
    # A submodule is no attribute before it is imported.
    value: object = getattr(home, name) if hasattr(home, name) else import_module(f"{home.__name__}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
