"""Tools that a server answers though it does not list them: only one without a prefix is called by such names."""

from typing import TYPE_CHECKING

from sluicegate.hub.mount import Mount
from sluicegate.hub.naming import head_of

if TYPE_CHECKING:
    from sluicegate.hub.hub import Hub
    from sluicegate.hub.router import Router


def server_of_unlisted(hub: "Hub", router: "Router", name: str) -> Mount | None:
    """The server that a tool with a name that is in no list may belong to; None if there is none.

    That is a server without a prefix, which looks as if the client were connected to it directly. A tool that it lists
    is not among them: clients may not see it because it is hidden or quarantined.
    """
    prefixes, naming = router.catalog.prefixes, router.catalog.rule[0]
    bare = next((mount for mount, prefix in prefixes.items() if not prefix), None)
    mount = None if bare is None else hub.find(bare)
    if mount is None or mount.offer is None:
        return None
    if any(prefix and name.lower().startswith(head_of(prefix, naming).lower()) for prefix in prefixes.values()):
        return None  # It looks like a tool of another server.
    is_listed = any(tool.own == name for tool in mount.offer.tools)
    names = (name, *(f"{other}__{name}" for other in (mount.name, mount.settings.key) if other))
    is_let = mount.settings.tools.let(name) and router.profile.tools.let(*names)
    return mount if is_let and not is_listed else None
