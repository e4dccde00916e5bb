"""`Toolbox`: every server of a folder inside an agent's loop, with permissions, in the shapes of model APIs.

It is a gateway in this process, and a view of it.
"""

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final, Literal, Self, cast

import msgspec
from msgspec.structs import replace

from sluicegate.client.in_process import LocalHub, as_upstream, is_local_hub
from sluicegate.config.load import Loaded, load
from sluicegate.config.model import GatewayConfig, PythonFile, ServerConfig, Stdio
from sluicegate.config.paths import Places
from sluicegate.config.problems import Problem
from sluicegate.config.resource_tools import NAMES, resource_tools_server, with_resource_tools
from sluicegate.exchange import Caller, Upstream
from sluicegate.gate.rules import Permission, PolicyConfig, Rule
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.governance import open_stores
from sluicegate.gateway.loading import FoundActivation, load_file
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountState
from sluicegate.protocol.message import Params
from sluicegate.protocol.versions import MODERN_VERSIONS
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.serve.reload import Reloader
from sluicegate.server import Server
from sluicegate.toolbox.narrowing import Narrowing, NarrowingGovernor
from sluicegate.toolbox.permission import OnPermission, Permissions
from sluicegate.toolbox.results import MAX_RESULT
from sluicegate.toolbox.view import ManagementTools, SharedByViews, View

log = logging.getLogger("sluicegate")

FUNCTIONS: Final = "functions"
"""The server that has the functions of the program."""
MAX_INSTRUCTIONS: Final = 2048

Tools = Upstream | LocalHub | Callable[..., object]


class BoxServer(msgspec.Struct, frozen=True):
    """One server of a toolbox."""

    name: str
    state: str
    sentence: str
    era: str
    """`session` or `modern`; empty while that is unknown."""
    tools: int


class Toolbox(View):
    """The servers of a folder, and more, as the tools of an agent. Use `Toolbox.load`."""

    def __init__(
        self,
        places: Places,
        added: Mapping[str, Upstream],
        *,
        ready: float,
        on_permission: OnPermission | None,
        search: bool | Literal["auto"],
        pinned: Sequence[str],
        max_result: int,
    ) -> None:
        super().__init__("", Caller(), on_permission)
        self._places = replace(places, added=(*added, *NAMES))
        self._added = added
        self._ready = ready
        self._search_mode: bool | Literal["auto"] = search
        self._pinned = tuple(pinned)
        self._max_result = max_result
        self._stack = AsyncExitStack()
        self._gateway: Gateway | None = None
        self._files: Reloader | None = None
        self._unread: list[str] = []
        """What is wrong with the files."""

    @classmethod
    def load(
        cls,
        cwd: str | os.PathLike[str] = ".",
        add: Sequence[Tools] = (),
        *,
        ready: float = 5.0,
        on_permission: OnPermission | None = None,
        search: bool | Literal["auto"] = "auto",
        pinned: Sequence[str] = (),
        max_result: int = MAX_RESULT,
    ) -> Self:
        """The toolbox of a folder: `async with Toolbox.load() as box`. Reads what `sluicegate serve` reads.

        Args:
            cwd: the folder with `.mcp.json` and `sluicegate.toml`, both of which may be missing.
            add: further servers (`Server`, `stdio(…)`, `http(…)`, a `Hub`), and functions, which become tools.
            ready: seconds to wait for servers; slower ones join later.
            on_permission: a function that gets a `PermissionRequest` and returns `Allow` or `Deny`; or "allow",
                "deny" or "terminal". Without one, calls that no rule allows are refused.
            search: whether the model searches for tools instead of getting all definitions; "auto" from 30 tools or
                10,000 tokens on.
            pinned: globs on tools that are always defined, by the names that the model or the server uses.
            max_result: characters of a result that a model is shown at once.

        Raises:
            TypeError: something that was added is neither a server nor a function.
            ValueError: an option is not valid.
        """
        if isinstance(on_permission, str) and on_permission not in ("allow", "deny", "terminal"):
            raise ValueError(f"on_permission is a function, 'allow', 'deny' or 'terminal', not {on_permission!r}")
        if max_result < 1:
            raise ValueError("max_result is at least 1")
        places = Places.here(root=os.fspath(cwd))
        return cls(
            places,
            _named(add),
            ready=ready,
            on_permission=on_permission,
            search=search,
            pinned=pinned,
            max_result=max_result,
        )

    # ------------------------------------------------------------------------------------------------------ lifetime

    async def __aenter__(self) -> Self:
        if self._gateway is not None:
            raise RuntimeError("this toolbox is open already")
        async with AsyncExitStack() as stack:
            loaded = load(self._places)
            # Rules that cannot be read may deny anything, also what the program has added.
            unruled = GatewayConfig(root=self._places.root, policy=PolicyConfig((), "deny", has_default=True))
            loaded = self._adjusted(replace(loaded, config=loaded.config or unruled))
            for problem in self._unread:
                log.warning("%s", problem)
            config = cast(GatewayConfig, loaded.config)
            stores = await stack.enter_async_context(open_stores(config, self._places.environ))
            stores.permission = Permissions(stores.decisions, self._callback_of, self._about, self._own).step
            self._gateway = gateway = Gateway(config, load_file=self._load_file, stores=stores)
            gateway.hub.govern(NarrowingGovernor(gateway.governance, self._narrowing_of, self._own))
            stack.callback(self._closed)
            await stack.enter_async_context(gateway)
            await self._open(
                SharedByViews(
                    gateway.hub.router(""),
                    gateway.handler(),
                    lambda: cast(ManagementTools, gateway.activation(self._own())),
                    {self.caller.id: self},
                    self._search_mode,
                    self._pinned,
                )
            )
            stack.push_async_callback(self._close)
            tasks = await stack.enter_async_context(TaskScope())
            stack.callback(tasks.cancel_all)
            self._files = Reloader(gateway, self._places, log.info, self._adjusted, loaded)
            tasks.start(self._follow(self._files, gateway))
            tasks.start(self._follow_decisions(gateway))
            await gateway.startup.wait_for_startup(self._ready)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _follow(self, files: Reloader, gateway: Gateway) -> None:
        await files.follow(gateway.startup.wait_for_startup())

    async def _follow_decisions(self, gateway: Gateway) -> None:
        """Notice what other processes decide, such as `sluicegate pins approve`."""
        await gateway.startup.wait_for_startup()
        await gateway.stores.decisions.follow()

    def _closed(self) -> None:
        self._gateway = self._files = None

    def _load_file(self, file: str) -> Upstream | Hub | FoundActivation:
        return self._added[file] if file in self._added else load_file(file)

    def _adjusted(self, loaded: Loaded) -> Loaded:
        """What was read of the files, with the names, the servers and the default rules of a toolbox."""
        self._unread = [str(problem) for problem in loaded.problems if _is_news(problem, loaded.config)]
        config = loaded.config
        if config is None:
            return loaded
        servers = dict(config.servers)
        for name in self._added:
            key = next(key for key in (name, *(f"{name}-{n}" for n in range(2, 1000))) if key not in servers)
            servers[key] = ServerConfig(name=key, key=key, source=PythonFile(file=name))
        longest = min(config.catalog.instructions, MAX_INSTRUCTIONS)
        config = replace(
            config,
            naming="claude",
            servers=servers,
            policy=_policy(config.policy),
            catalog=replace(config.catalog, instructions=longest, resource_tools=True),
            is_controlled=False,
        )
        return replace(loaded, config=with_resource_tools(config, {"max_result": self._max_result}))

    # ---------------------------------------------------------------------------------------------------- permission

    def _callback_of(self, caller: str) -> tuple[str, OnPermission | None]:
        view = self._shared.views.get(caller, self)
        return view.agent, view.permission

    def _narrowing_of(self, caller: str) -> Narrowing | None:
        view = None if self._shared_parts is None else self._shared_parts.views.get(caller)
        return None if view is None else view.narrowing

    def _own(self) -> str:
        return resource_tools_server(self.gateway.config)

    def _about(self, name: str) -> Params:
        entry = self._shared.router.catalog.tools.get(name)
        return {} if entry is None else entry.definition

    # -------------------------------------------------------------------------------------------------------- status

    @property
    def gateway(self) -> Gateway:
        """The gateway inside. Raises RuntimeError while it is not open."""
        if self._gateway is None:
            raise RuntimeError("it is not open; use it inside `async with`")
        return self._gateway

    @property
    def servers(self) -> list[BoxServer]:
        """The servers and their states, in the order of the files."""
        return [
            BoxServer(each.name, each.state, each.sentence, _era(each.version), each.tools)
            for each in self.gateway.status()
            if each.name != self._own()
        ]

    @property
    def file_problems(self) -> list[str]:
        """What is wrong in the files."""
        if self._files is not None and self._files.unapplied:
            return [str(problem) for problem in self._files.unapplied]
        return list(self._unread)

    @property
    def problems(self) -> list[str]:
        """What does not work, and why: files that cannot be used, and servers that are not there."""
        failed = (MountState.FAILED.value, MountState.DEGRADED.value)
        down = [each for each in self.servers if each.state in failed]
        return [*self.file_problems, *(each.sentence for each in down)]

    def instructions(self) -> str:
        """What the servers say about themselves, for the model; empty if they say nothing."""
        prefixes = self._shared.router.catalog.prefixes
        return self.gateway.hub.instructions(prefixes) or ""

    def __str__(self) -> str:
        if self._gateway is None:
            return "a toolbox that is not open"
        rows = [("server", "state", "era", "tools", "")]
        rows += [(each.name, each.state, each.era or "-", str(each.tools), each.sentence) for each in self.servers]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows
        ]
        return "\n".join(line.rstrip() for line in lines)


def _is_news(problem: Problem, config: GatewayConfig | None) -> bool:
    """Whether a problem in a file is worth a warning. A server whose command is missing says so when it is started."""
    server = None if config is None else config.servers.get(problem.server)
    missing = server.source.missing if server is not None and isinstance(server.source, Stdio) else ""
    return problem.severity != "note" and not (missing and missing in problem.sentence)


def _era(version: str) -> str:
    if not version:
        return ""
    return "modern" if version in MODERN_VERSIONS else "session"


def _policy(written: PolicyConfig) -> PolicyConfig:
    """The rules of the files; what none of them names is asked about, except reading."""
    if written.has_default:
        return written
    reading = (Permission(resource="*", action="allow"), Permission(prompt="*", action="allow"))
    rules = (*written.rules, *(Rule(each, "the toolbox") for each in reading))
    return replace(written, rules=rules, default="ask", has_default=True)


def _named(add: Sequence[Tools]) -> dict[str, Upstream]:
    """The servers that are added by name, with one for all functions."""
    found: dict[str, Upstream] = {}
    functions = Server(FUNCTIONS)
    for each in add:
        if is_local_hub(each) or (hasattr(each, "connect") and not isinstance(each, type)):
            upstream = cast(Upstream | LocalHub, each)
            name = _key(str(getattr(each, "name", "") or getattr(each, "_name", "") or type(each).__name__))
            key = next(key for key in (name, *(f"{name}-{n}" for n in range(2, 1000))) if key not in found)
            found[key] = as_upstream(upstream)
        elif callable(each) and not isinstance(each, type):
            functions.add_tool(cast(Callable[..., object], each))
            found[FUNCTIONS] = functions
        else:
            raise TypeError(f"add servers and functions, not {type(each).__name__}")
    return found


def _key(name: str) -> str:
    """The name of a server as names of tools can have it."""
    key = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")
    return (key if key[:1].isalpha() else f"server-{key}".strip("-"))[:28]
