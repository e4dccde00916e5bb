"""The tools of public servers, as the toolbox names them."""

from functools import cache
from typing import Any, cast

from sluicegate.protocol.types import Tool
from tests.public_tools import public_tools


@cache
def recorded() -> list[Tool]:
    """All tools of public servers under the names that the toolbox gives them; skips the test where there are none."""
    return [
        Tool(
            name=f"mcp__{server}__{tool['name']}",
            description=cast(str | None, tool.get("description")),
            input_schema=cast(dict[str, Any], tool["inputSchema"]),
        )
        for server, tools in public_tools().items()
        for tool in tools
    ]
