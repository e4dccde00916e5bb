"""`HubContext`: what the routers of a hub share."""

from collections.abc import Iterable, Mapping
from secrets import token_hex
from typing import Final

from sluicegate.errors import UnknownTarget
from sluicegate.exchange import Caller, Governor, Handler, Target
from sluicegate.hub.input_requests import RequestStates
from sluicegate.hub.instructions import instructions_of
from sluicegate.hub.mount import Mount
from sluicegate.hub.naming import MAX_TOOL_NAME, Naming
from sluicegate.hub.tasks.ids import TaskIds

PAGE_SIZE: Final = 1000
MAX_INSTRUCTIONS: Final = 4096


class HubContext:
    """The mounts, the governor and the settings of a hub; only the hub changes them."""

    def __init__(self, info: Mapping[str, object]) -> None:
        self.id = token_hex(8)
        """By which other gateways know this hub."""
        self.info = info
        """The name and version that clients see."""
        self.mounts: dict[str, Mount] = {}
        self.find = self.mounts.get
        """Finds a mount by its name."""
        self.governor: Governor | None = None
        """Decides on every request to a server; without one, all are allowed."""
        self.revision = 0
        """Changes whenever the catalog, a profile or the rules do."""
        self.request_states = RequestStates()
        self.task_ids = TaskIds()
        self.naming: Naming = "prefix"
        self.longest_name = MAX_TOOL_NAME
        self.page_size = PAGE_SIZE
        self.longest_instructions = MAX_INSTRUCTIONS
        self.searches = False
        """Whether clients get two tools, to search and to call, in place of all."""
        self.unlisted: dict[str, Handler] = {}
        """Tools that are in no list, by their names: the handlers that list and call them."""

    @property
    def are_known(self) -> bool:
        """Whether the lists of every server that has not failed are known, from this start or an earlier one."""
        return not any(mount.is_awaited for mount in self.mounts.values())

    def mounts_of(self, names: Iterable[str]) -> list[Mount]:
        """The mounts of these names; names of removed mounts are left out."""
        return [mount for name in names if (mount := self.find(name)) is not None]

    def mounts_of_hub(self, id: str) -> frozenset[str]:
        """The names of the mounts that are the gateway with this id."""
        return frozenset(name for name, mount in self.mounts.items() if mount.offer and mount.offer.hub_id == id)

    def hides(self, caller: Caller, target: Target) -> bool:
        """Whether a caller may never use the target."""
        return self.governor is not None and self.governor.hides(caller, target)

    def tool_target(self, caller: Caller, mount: Mount, own: str) -> Target:
        """The target of a tool by its own name, which may have left the catalog: a task goes on without its tool.

        Raises:
            UnknownTarget: the caller may not use it.
        """
        target = Target(mount.settings.key or mount.name, "tool", own, origin=mount.settings.origin)
        if self.hides(caller, target):
            raise UnknownTarget(f"Unknown tool: {own[:200]}")
        return target

    def instructions(self, names: Mapping[str, str]) -> str | None:
        """The naming rule, and the instructions of each of these mounts."""
        return instructions_of(self.mounts_of(names), names, self.naming, self.longest_instructions, self.governor)

    def life(self, names: Iterable[str]) -> tuple[int, str]:
        """How long the lists of these mounts may be cached, and the scope of the cache."""
        offers = [mount.offer if mount.is_ready else None for mount in self.mounts_of(names)]
        known = [offer for offer in offers if offer is not None]
        if not known or len(known) < len(offers):
            return 0, "private"
        is_public = all(offer.is_public for offer in known)
        return min(offer.ttl_ms for offer in known), "public" if is_public else "private"
