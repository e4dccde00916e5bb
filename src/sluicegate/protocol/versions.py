"""The five revisions of MCP and what each has. The session era has a handshake, the modern era has none."""

from typing import Final

import msgspec

V2024_11_05: Final = "2024-11-05"
V2025_03_26: Final = "2025-03-26"
V2025_06_18: Final = "2025-06-18"
V2025_11_25: Final = "2025-11-25"
V2026_07_28: Final = "2026-07-28"

# Oldest first.
SESSION_VERSIONS: Final = (V2024_11_05, V2025_03_26, V2025_06_18, V2025_11_25)
MODERN_VERSIONS: Final = (V2026_07_28,)
SUPPORTED_VERSIONS: Final = (*reversed(MODERN_VERSIONS), *reversed(SESSION_VERSIONS))
LATEST_SESSION_VERSION: Final = V2025_11_25
LATEST_VERSION: Final = V2026_07_28


class Revision(msgspec.Struct, frozen=True):
    """The features of a revision. A feature that is False was added later, or removed again."""

    version: str
    modern: bool = False
    batches: bool = False
    progress_message: bool = False
    audio: bool = False
    tool_annotations: bool = False
    completions_flag: bool = False
    resource_links: bool = False
    structured_content: bool = False
    titles: bool = False
    definition_meta: bool = False
    completion_context: bool = False
    elicitation: bool = False
    icons: bool = False
    elicitation_modes: bool = False
    rich_sampling: bool = False
    any_structured_content: bool = False


_R2024 = Revision(V2024_11_05)
_R03 = msgspec.structs.replace(
    _R2024,
    version=V2025_03_26,
    batches=True,
    progress_message=True,
    audio=True,
    tool_annotations=True,
    completions_flag=True,
)
_R06 = msgspec.structs.replace(
    _R03,
    version=V2025_06_18,
    batches=False,
    resource_links=True,
    structured_content=True,
    titles=True,
    definition_meta=True,
    completion_context=True,
    elicitation=True,
)
_R11 = msgspec.structs.replace(_R06, version=V2025_11_25, icons=True, elicitation_modes=True, rich_sampling=True)
_R26 = msgspec.structs.replace(_R11, version=V2026_07_28, modern=True, any_structured_content=True)

REVISIONS: Final = {revision.version: revision for revision in (_R2024, _R03, _R06, _R11, _R26)}


def negotiate(requested: object) -> str:
    """The version to answer `initialize` with: the requested one if it is of the session era, else our newest."""
    return requested if isinstance(requested, str) and requested in SESSION_VERSIONS else LATEST_SESSION_VERSION
