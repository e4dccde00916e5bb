"""Builds the upstream and the mount settings of a server from its configuration."""

import shlex
from collections.abc import Callable
from functools import partial
from typing import Literal

from sluicegate.config.model import CatalogConfig, Era, GatewayConfig, Http, Installed, PythonFile, ServerConfig, Stdio
from sluicegate.errors import ConfigError
from sluicegate.exchange import Upstream
from sluicegate.gateway.server_logs import ServerLog
from sluicegate.gateway.status import explain
from sluicegate.hub.catalog import OfferLimits, Patterns
from sluicegate.hub.mount import MountSettings
from sluicegate.upstream.spawn import Launched
from sluicegate.upstream.stdio import StdioUpstream


def upstream_of(
    server: ServerConfig,
    max_message: int,
    server_log: ServerLog,
    launched: Launched | None,
    in_process: Callable[[ServerConfig, PythonFile | Installed], Upstream],
) -> Upstream:
    """The upstream of a configured server.

    `launched` is its process, if that was started already. `in_process` creates a server that runs in this process.

    Raises:
        ConfigError: it cannot be created.
    """
    match server.source:
        case Stdio() as source:
            return _stdio_upstream(server, source, max_message, server_log, launched)
        case Http() as source:
            return _http_upstream(server, source, max_message)
        case PythonFile() | Installed() as source:
            return in_process(server, source)
        case None:
            raise ConfigError(server.disabled or "Its entry is not valid.")


def _stdio_upstream(
    server: ServerConfig, source: Stdio, max_message: int, server_log: ServerLog, launched: Launched | None
) -> Upstream:
    settings = server.settings
    return StdioUpstream(
        source.argv(),
        env=source.environment(),
        cwd=source.cwd,
        era=settings.era,
        name=server.name,
        probe_timeout=settings.probe_timeout,
        open_timeout=server.opens_within,
        stop_grace=settings.stop_grace,
        ceiling=max_message,
        secrets=source.hidden_parts(),
        on_lines=server_log.add,
        on_printed=server_log.add_printed,
        launched=launched,
        missing=source.missing,
    )


def _http_upstream(server: ServerConfig, source: Http, max_message: int) -> Upstream:
    # Imported late: most gateways have no server at a URL.
    from sluicegate.upstream.http import HttpUpstream
    from sluicegate.upstream.http_endpoint import Timeouts

    settings = server.settings
    longest = max(settings.longest_call, settings.timeout, *settings.tool_timeouts.values(), 0.0)
    return HttpUpstream(
        source.url.reveal(),
        headers=source.fields(),
        # HTTP+SSE is detected on the same URL, after Streamable HTTP of the session era.
        era=_era_at_url(source, settings.era),
        name=server.name,
        probe_timeout=settings.probe_timeout,
        open_timeout=settings.start_timeout,
        # The deadline of each call applies; that of the connection must not be earlier.
        timeouts=Timeouts(silence=max(Timeouts().silence, longest), message=max_message),
        secrets=source.hidden_parts(),
    )


def _era_at_url(source: Http, era: Era) -> Literal["auto", "session", "modern"]:
    if era in ("auto", "both"):
        return "session" if source.transport == "sse" else "auto"
    return era


def _debounce(server: ServerConfig, catalog: CatalogConfig) -> float:
    # The lists of a server in this process are at hand, so they are fetched at once unless the settings say otherwise.
    is_usual = catalog.debounce == CatalogConfig().debounce
    return 0.0 if is_usual and isinstance(server.source, PythonFile | Installed) else catalog.debounce


def mount_settings(server: ServerConfig, config: GatewayConfig) -> MountSettings:
    """The settings of a server's mount in the hub."""
    own, limits = server.settings, config.limits
    return MountSettings(
        prefix=server.prefix,
        key=server.key,
        origin=server.origin,
        tools=Patterns(own.tools, own.hide),
        concurrency=own.concurrency,
        queue=own.queue,
        queue_wait=own.queue_wait,
        timeout=own.timeout,
        longest_call=own.longest_call,
        hang_after=own.hang_after,
        tool_timeouts=tuple(own.tool_timeouts.items()),
        fetched_by=server.fetched_by,
        opens_within=server.opens_within,
        offers=OfferLimits(limits.tools_per_server, limits.description, limits.schema, limits.lists_per_server),
        offer_timeout=own.start_timeout,
        debounce=_debounce(server, config.catalog),
        resend=own.resend,
        roots=own.roots,
        instructions=own.instructions,
        is_light=isinstance(server.source, Http),
        restarted_by=f"sluicegate restart {shlex.quote(server.name)}" if config.is_controlled else "",
        explain=partial(explain, server.name),
    )


def check_prefixes(config: GatewayConfig) -> None:
    """Raise ConfigError if two enabled servers have the same prefix."""
    owners: dict[str, str] = {}
    for server in config.servers.values():
        if server.enabled and (other := owners.setdefault(server.prefix, server.name)) != server.name:
            what = f"the prefix {server.prefix!r}" if server.prefix else "no prefix"
            raise ConfigError(f"{server.name} and {other} both have {what}; their tools would have the same names.")
