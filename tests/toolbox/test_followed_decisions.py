"""A toolbox notices what other processes decide."""

import os
import sys
from contextlib import aclosing

from sluicegate.config.paths import state_file
from sluicegate.store.sqlite_decisions import SqliteDecisions
from sluicegate.toolbox.toolbox import Toolbox
from tests.polling import until
from tests.toolbox.box import Folder, folder

__all__ = ["folder"]

SKY = """
import sluicegate
server = sluicegate.Server("sky")

@server.tool(description="The weather.\\u200b")
def weather() -> str:
    return "sun"

sluicegate.run(server)
"""


def has_weather(box: Toolbox) -> bool:
    box.refresh()
    return "weather" in str(box.definitions("openai"))


async def test_a_definition_that_a_command_approves_is_offered(folder: Folder) -> None:
    (folder.path / "sky.py").write_text(SKY)
    folder.servers(sky={"command": sys.executable, "args": [str(folder.path / "sky.py")]})
    async with folder.load(ready=20.0) as box:
        assert not has_weather(box)
        async with aclosing(SqliteDecisions(state_file(str(folder.path), os.environ), asks=False)) as command:
            [pin] = [pin for pin in await command.pins() if pin.name == "weather"]
            assert await command.approve_pin(pin.server, pin.kind, pin.name, pin.hash)
        await until(lambda: has_weather(box))
