"""Builds the governance of a gateway from its configuration, and opens what it remembers."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

from sluicegate.config.model import GatewayConfig, Http, Installed, PythonFile, ServerConfig, Stdio
from sluicegate.config.paths import audit_folder, last_checkpoint_file, state_file
from sluicegate.config.resource_tools import resource_tools_server
from sluicegate.errors import ConfigError, StateUnavailable
from sluicegate.gate.approvals import ApprovalSettings
from sluicegate.gate.governance import Governance, MakePermission
from sluicegate.gate.limits import Ceilings, RateLimits, parse_rate
from sluicegate.gate.pins import Mode
from sluicegate.gate.policy import Careful, Rules
from sluicegate.runtime.task_scope import TaskScope, forever
from sluicegate.store.base import Approval, AuditLog, AuditReader, Decisions
from sluicegate.store.memory import Unrecorded
from sluicegate.store.memory_decisions import MemoryDecisions
from sluicegate.store.sqlite_decisions import SqliteDecisions
from sluicegate.text.globs import name_glob

log = logging.getLogger("sluicegate")

Notify = Callable[[Approval], Awaitable[None]]
Page = Callable[[], AbstractAsyncContextManager[str]]
"""Serves the page for approvals, and gives its address."""

_CAREFUL: Final = {
    "bash": Careful(needs_client=True),
    # An agent asks about each use of a tool, and works for as long as a person needs to answer. A rule that allows the
    # whole server, so that one can chat, does not allow all tools of the agent.
    "agent": Careful("permission", "tool_name"),
    "claudecode": Careful("permission", "tool_name"),
}
"""The bundled activations whose tools can do anything on this machine."""


class Stores:
    """What a gateway remembers beyond its end, and how people learn that they are asked."""

    def __init__(self, audit: AuditLog, decisions: Decisions, *, is_recorded: bool) -> None:
        self.audit = audit
        self.decisions = decisions
        self.is_recorded = is_recorded
        self.notify: Notify | None = None
        self.may_run_unrecorded = False
        """Whether calls go on while the audit log cannot be written."""
        self.permission: MakePermission | None = None
        self.open_audit_reader: Callable[[], AuditReader] | None = None
        """Opens a reader of the audit log, which is closed with the stores; None if there is no log to read."""


def stores_in_memory() -> Stores:
    """For a gateway inside another program, and for one that nothing is called through: nothing is kept."""
    return Stores(Unrecorded(), MemoryDecisions(), is_recorded=False)


@asynccontextmanager
async def open_stores(config: GatewayConfig, environ: Mapping[str, str]) -> AsyncGenerator[Stores]:
    """Open the audit log and the record of decisions of a gateway's folder.

    Raises:
        ConfigError: the record of decisions cannot be used, and there are rules that need it.
    """
    async with AsyncExitStack() as stack:
        audit: AuditLog = Unrecorded()
        open_reader: Callable[[], AuditReader] | None = None
        if config.audit.enabled:
            # Imported late: a gateway that records nothing needs none of it.
            from sluicegate.store.audit_log import open_audit_log

            settings = config.audit
            audit = await stack.enter_async_context(
                open_audit_log(
                    audit_folder(config, environ),
                    sync=settings.sync,
                    on_failure=settings.on_failure,
                    keep=settings.keep,
                    anchors=settings.anchors,
                    last_checkpoint=last_checkpoint_file(config.root, environ),
                )
            )
            open_reader = partial(_open_audit_reader, audit_folder(config, environ), stack)
        decisions = _open_decisions(config, environ)
        stack.push_async_callback(decisions.aclose)
        stores = Stores(audit, decisions, is_recorded=config.audit.enabled)
        stores.may_run_unrecorded = config.audit.on_failure == "open"
        stores.open_audit_reader = open_reader
        yield stores


def _open_audit_reader(folder: str, stack: AsyncExitStack) -> AuditReader:
    # Imported late: few gateways are asked about their log.
    from sluicegate.store.audit_index import open_audit_reader

    reader = open_audit_reader(folder)
    stack.callback(reader.close)
    return reader


def _open_decisions(config: GatewayConfig, environ: Mapping[str, str]) -> Decisions:
    try:
        return SqliteDecisions(state_file(config.root, environ))
    except StateUnavailable as problem:
        if config.policy.rules or config.policy.can_ask or config.locked is not None:
            raise ConfigError(f"{problem.message} Rules cannot be enforced without it.") from None
        log.warning("%s Changed definitions of tools are noticed only while this gateway runs.", problem.message)
        return MemoryDecisions()


class ApprovalsPage:
    """The page for approvals: opened with the first rule that asks, also one that a reload adds, and then kept open."""

    def __init__(self, page: Page | None, *, is_shared: bool) -> None:
        """`is_shared` is whether others than this process can answer questions."""
        self.url = ""
        """Where it is; empty while it is not open."""
        self._is_shared = is_shared
        self._page = page
        self._tasks = TaskScope()  # A reload runs in a task that ends; the page needs one of its own.
        self._opening: asyncio.Future[str] | None = None
        """While it is being opened: why that failed, or nothing. A reload that is cancelled leaves it to the next."""

    async def __aenter__(self) -> "ApprovalsPage":
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._tasks.cancel_all()
        await self._tasks.__aexit__(None, None, None)

    async def follow(self, config: GatewayConfig) -> list[str]:
        """Open it if there are rules that ask, and it is not open; sentences to report."""
        if self._page is None or self.url or not config.policy.can_ask:
            return []
        if not self._is_shared:
            return [
                "Rules ask for approval, but only the client itself can be asked: the record of approvals "
                "could not be used when this gateway was started."
            ]
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()
            self._tasks.start(self._keep(self._page(), self._opening))
        if why := await asyncio.shield(self._opening):
            return [f"The page for approvals cannot be opened: {why} `sluicegate approvals` works without it."]
        return ["Rules ask for approval: `sluicegate approvals` shows what waits, with --link on a page."]

    async def _keep(self, page: AbstractAsyncContextManager[str], opening: asyncio.Future[str]) -> None:
        try:
            async with page as self.url:
                opening.set_result("")
                await forever()
        except (OSError, StateUnavailable) as problem:
            if self.url:
                raise
            self._opening = None  # The next reload tries again.
            opening.set_result(problem.message if isinstance(problem, StateUnavailable) else f"{problem.strerror}.")


def governance_of(config: Callable[[], GatewayConfig], stores: Stores) -> Governance:
    """The governance of a gateway; `config` returns the configuration that is in force."""

    def find(key: str) -> ServerConfig | None:
        return next((server for server in config().servers.values() if server.key == key), None)

    def secrets(key: str) -> Collection[str]:
        source = server.source if (server := find(key)) is not None else None
        return source.hidden_parts() if isinstance(source, Stdio | Http) else ()

    def mode(key: str) -> Mode:
        server = find(key)
        if server is None:
            return "pin"
        default: Mode = "off" if isinstance(server.source, PythonFile | Installed) else "pin"
        return server.settings.definitions or default

    made = Governance(
        rules_of(config()),
        stores.audit,
        stores.decisions,
        mode=mode,
        secrets=secrets,
        approvals=approval_settings(config()),
        is_recorded=stores.is_recorded,
        is_shared=stores.decisions.is_shared,
        notify=stores.notify,
        permission=stores.permission,
    )
    adjust(made, config())
    return made


def rules_of(config: GatewayConfig) -> Rules:
    """The access rules of a configuration."""
    sources = {server.key: server.source for server in config.servers.values()}
    bundled = {
        key: source.name for key, source in sources.items() if isinstance(source, Installed) and source.is_bundled
    }
    careful = {key: _CAREFUL[name] for key, name in bundled.items() if name in _CAREFUL}
    own = resource_tools_server(config)
    return Rules(config.policy, careful, names_of(config), free=[config.servers[own].key] if own else ())


def names_of(config: GatewayConfig) -> dict[str, set[str]]:
    """All names of each server, by its key: rules and limits may use any of them."""
    return {server.key: server.names for server in config.servers.values()}


def adjust(governance: Governance, config: GatewayConfig) -> None:
    """Apply another configuration."""
    limits = config.limits
    servers = [server for server in config.servers.values() if server.enabled]
    rates = RateLimits(
        None if limits.calls is None else parse_rate(limits.calls),
        {s.key: parse_rate(s.settings.calls) for s in servers if s.settings.calls is not None},
        [(name_glob(source), parse_rate(rate)) for source, rate in limits.calls_per_tool.items()],
        names_of(config),
    )
    ceilings = {
        s.key: Ceilings(s.settings.max_arguments, s.settings.max_result)
        for s in servers
        if s.settings.max_arguments is not None or s.settings.max_result is not None
    }
    governance.adjust(rules_of(config), rates, ceilings, approval_settings(config), config.locked)


def approval_settings(config: GatewayConfig) -> ApprovalSettings:
    """How people are asked."""
    own = config.approvals
    return ApprovalSettings(wait=own.wait, hold=own.hold, client=own.client, late=own.late)
