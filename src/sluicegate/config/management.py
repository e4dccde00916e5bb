"""The server with the management tools, as part of a configuration."""

import logging
from typing import Final

from msgspec.structs import replace

from sluicegate.config.model import GatewayConfig, PythonFile, ServerConfig, ServerSettings
from sluicegate.gate.rules import Permission, Rule

log = logging.getLogger("sluicegate")

MANAGEMENT: Final = "<management tools>"
"""Stands for the file of the server with the management tools."""
MANAGED_AS: Final = ("sluicegate", "sluicegate-tools", "sluicegate-resources")
"""Names of that server; the first that no other one has is used."""


def with_management(config: GatewayConfig) -> GatewayConfig:
    """The configuration with the server of the management tools, if it is configured.

    Its tools do nothing by themselves, so that no rule has to allow them: what they call is judged.
    """
    is_there = any(server.source == PythonFile(file=MANAGEMENT) for server in config.servers.values())
    if not config.catalog.resource_tools or is_there:
        return config
    taken = {name for server in config.servers.values() for name in server.names}
    name = next((name for name in MANAGED_AS if name not in taken), "")
    if not name:
        log.warning("There are no tools for resources, since servers have all of their names.")
        return config
    # Without a prefix, models find them under the names that they know.
    is_bare = all(server.prefix for server in config.servers.values())
    settings = ServerSettings(prefix="" if is_bare else name, instructions=False)
    own = ServerConfig(name=name, key=name, source=PythonFile(file=MANAGEMENT), settings=settings)
    rule = Rule(Permission(tool=f"mcp__{name}", action="allow"), "the management tools")
    policy = replace(config.policy, rules=(*config.policy.rules, rule))
    return replace(config, servers={**config.servers, name: own}, policy=policy)
