"""Tools that a server answers though it does not list them: only one without a prefix is called by such names."""

import re
from typing import TYPE_CHECKING, Final

from sluicegate.hub.mount import Mount
from sluicegate.hub.naming import head_of, looks_like_any

if TYPE_CHECKING:
    from sluicegate.hub.hub import Hub
    from sluicegate.hub.router import Router


_PLAIN: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def server_of_unlisted(hub: "Hub", router: "Router", name: str) -> Mount | None:
    """The server that a tool with a name that is in no list may belong to; None if there is none.

    That is a server without a prefix, which looks as if the client were connected to it directly. A tool that it lists
    is not among them: clients may not see it because it is hidden or quarantined. Nor is any where rules or a lock file
    name what may be used.
    """
    prefixes, naming = router.catalog.prefixes, router.catalog.rule[0]
    bare = next((mount for mount, prefix in prefixes.items() if not prefix), None)
    mount = None if bare is None else hub.find(bare)
    if mount is None or mount.offer is None:
        return None
    if any(prefix and name.lower().startswith(head_of(prefix, naming).lower()) for prefix in prefixes.values()):
        return None  # It looks like a tool of another server.
    governor = hub.governor
    if _PLAIN.fullmatch(name) is None or (governor is not None and not governor.allows_unlisted):
        return None
    is_listed = looks_like_any(name, (tool.own for tool in mount.offer.tools))
    names = (name, *(f"{other}__{name}" for other in (mount.name, mount.settings.key) if other))
    is_let = mount.settings.tools.let(name) and router.profile.tools.let(*names)
    return mount if is_let and not is_listed else None
