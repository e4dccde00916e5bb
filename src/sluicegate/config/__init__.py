"""What a gateway is told: files in, frozen values out, and a sentence for everything that is wrong with them."""

from sluicegate.config.changes import Changes, changes
from sluicegate.config.exposure import exposure
from sluicegate.config.load import Loaded, load, settle
from sluicegate.config.places import Places, control_socket
from sluicegate.config.problems import Problem
from sluicegate.config.secrets import Secret, shown
from sluicegate.config.values import (
    Catalog,
    ControlFront,
    GatewayConfig,
    Http,
    HttpFront,
    Limits,
    Profile,
    PythonFile,
    ServerConfig,
    ServerSettings,
    Source,
    Stdio,
)

__all__ = [
    "Catalog",
    "Changes",
    "ControlFront",
    "GatewayConfig",
    "Http",
    "HttpFront",
    "Limits",
    "Loaded",
    "Places",
    "Problem",
    "Profile",
    "PythonFile",
    "Secret",
    "ServerConfig",
    "ServerSettings",
    "Source",
    "Stdio",
    "changes",
    "control_socket",
    "exposure",
    "load",
    "settle",
    "shown",
]
