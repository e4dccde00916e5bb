"""sluicegate: one governed MCP endpoint in front of every MCP server, and the toolkit it is made of.

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

# A name is loaded when it is first used: a program that only calls tools never pays for writing them, and a command
# that only prints its help pays for nothing. Type checkers read `__init__.pyi`, which a test keeps in step with this.
_HOMES = {
    "activation": ("questions",),
    "activation.call": ("Call",),
    "activation.define": (
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
        "ToolError",
        "UserMessage",
    ),
    "activation.questions": ("Elicited", "Root", "Sampled"),
    "client.answers": ("ElicitAnswer", "ElicitRequest", "SampleRequest"),
    "client.client": ("Client",),
    "client.opening": ("Era", "connect"),
    "downstream.asgi": ("AsgiApp",),
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
    "mounting": ("http", "stdio"),
    "server": ("Server",),
    "serving": ("run",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'sluicegate' has no attribute {name!r}")
    home = import_module(f"sluicegate.{_HOME_OF[name]}")
    # Only a module is not there before it is imported by its own name.
    value: object = getattr(home, name) if hasattr(home, name) else import_module(f"{home.__name__}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
