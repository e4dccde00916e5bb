"""Resource URIs of many servers behind one endpoint: told apart by their scheme, and found again (protocol §4.3)."""

import re
from typing import Final

_scheme: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_UI: Final = "ui://"


def exposed_uri(prefix: str, uri: str) -> str:
    """A server's URI as clients see it. Only a literal is put in front, so a template stays a template.

    Web addresses stay as they are, for a client may fetch them itself; those of an app keep their scheme, for hosts
    look at it.
    """
    if not prefix:
        return uri
    found = _scheme.match(uri)
    scheme = found[1].lower() if found is not None else ""
    if scheme in ("http", "https"):
        return uri
    if uri.startswith(_UI):
        return f"{_UI}{prefix}+{uri[len(_UI) :]}"
    return f"{prefix}+{uri}"


def own_uri(prefix: str, uri: str) -> str | None:
    """The server's own URI behind an exposed one, or None if it is not one of that server's."""
    if not prefix:
        return uri
    if uri.startswith(f"{prefix}+"):
        return uri[len(prefix) + 1 :]
    if uri.startswith(f"{_UI}{prefix}+"):
        return _UI + uri[len(_UI) + len(prefix) + 1 :]
    return None
