"""Generated Python in use: results by their types, and events of a tool's own kinds."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from sluicegate.client.connect import connect
from sluicegate.errors import ToolError
from sluicegate.generate import runtime
from sluicegate.generate.model import modules_of
from sluicegate.generate.python import python
from tests.generate.samples import our_hub, our_tools


async def test_generated_python_gives_results_and_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "stubs_in_use"
    folder.mkdir()
    for name, text in python(modules_of(await our_tools())).items():
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    package: Any = importlib.import_module("stubs_in_use")
    try:
        async with connect(our_hub()) as client:
            tools = package.Tools(client)
            assert await tools.demo.echo({"text": "hello"}) == "hello"
            assert await tools.solar.mass({"planet": "mars"}) == {"mars": 1.5}
            assert [event async for event in tools.solar.watch({"days": 3})] == [
                {"type": "start"},
                {"type": "seen", "planet": "mars"},
                {"type": "lost", "planet": "pluto", "days": 3},
                {"type": "complete"},
            ]
            with pytest.raises(ToolError, match="always fails"):
                await tools.demo.fail()
    finally:
        for name in [name for name in sys.modules if name.startswith("stubs_in_use")]:
            del sys.modules[name]


async def test_a_missing_structured_result_is_an_error() -> None:
    async with connect(our_hub()) as client:
        with pytest.raises(ToolError, match="no structured result"):
            await runtime.structured(client, "demo__clock", None)
