"""The tools of public servers, where they are recorded beside the project."""

import json
from functools import cache
from pathlib import Path

import pytest

from sluicegate.protocol.types import Tool

FOLDER = Path(__file__).parents[3] / "shared" / "corpus"


@cache
def recorded() -> list[Tool]:
    """All recorded tools under the names that the toolbox gives them; skips the test where there are none."""
    files = sorted(FOLDER.glob("*.json"))
    if not files:
        pytest.skip("no tools are recorded here")
    return [
        Tool(
            name=f"mcp__{file.stem}__{tool['name']}",
            description=tool.get("description"),
            input_schema=tool["inputSchema"],
        )
        for file in files
        for tool in json.loads(file.read_text(encoding="utf-8"))["tools"]
    ]
