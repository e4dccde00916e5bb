"""The server with the resource tools, as part of a configuration."""

from typing import Final

from msgspec.structs import replace

from sluicegate.config.model import GatewayConfig, Installed, ServerConfig, ServerSettings

NAMES: Final = ("sluicegate", "sluicegate-tools", "sluicegate-resources")
"""Names of that server; the first that no other one has is used."""
_BUNDLED: Final = "resource_tools"


def resource_tools_server(config: GatewayConfig) -> str:
    """The name of the server that `with_resource_tools` has added; empty if there is none."""
    for name in NAMES:
        server = config.servers.get(name)
        if server is not None and isinstance(server.source, Installed):
            if server.source.is_bundled and server.source.name == _BUNDLED:
                return name
    return ""


def with_resource_tools(config: GatewayConfig, settings: dict[str, object] | None = None) -> GatewayConfig:
    """The configuration with the server of the resource tools, if `[catalog] resource_tools` is set.

    Its tools do nothing by themselves, so that no rule has to allow them, and rules about all servers are not about
    them: what they call is judged.
    """
    if not config.catalog.resource_tools or resource_tools_server(config):
        return config
    taken = {name for server in config.servers.values() for name in server.names}
    name = next((name for name in NAMES if name not in taken), "")
    if not name:
        import logging  # Imported late: `serve` starts the servers before it is loaded.

        log = logging.getLogger("sluicegate")
        log.warning("There are no tools for resources, since servers have all of their names.")
        return config
    # Without a prefix, models find them under the names that they know.
    is_bare = all(server.prefix for server in config.servers.values())
    own = ServerConfig(
        name=name,
        key=name,
        source=Installed(name=_BUNDLED, is_bundled=True, settings=settings or {}),
        settings=ServerSettings(prefix="" if is_bare else name, instructions=False),
    )
    return replace(config, servers={**config.servers, name: own})
