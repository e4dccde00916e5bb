"""What a hub passes on of what servers say about themselves."""

import asyncio
from typing import cast

import pytest

import sluicegate
from sluicegate.exchange import NOBODY, Exchange
from sluicegate.hub import instructions
from sluicegate.hub.hub import Hub
from sluicegate.protocol.message import Params, Result, opened
from sluicegate.protocol.types import NAMESPACES_KEY
from sluicegate.text.visible_text import visible


async def told(**inner: dict[str, str]) -> dict[str, dict[str, str]]:
    """What a hub tells of the namespaces of these servers, by the descriptions that they give of inner ones."""
    async with asyncio.timeout(30), Hub() as hub:
        for name, texts in inner.items():
            server = sluicegate.Server(name, version="1", description=f"Of {name}.")
            server.add_tool(lambda: 1, name="get", description="Get it.")
            server.inner.update(texts)
            hub.mount(name, server)
        await hub.settled()
        reply = await hub(Exchange("server/discover", {"_meta": {NAMESPACES_KEY: True}}, NOBODY))
        assert isinstance(reply, Result)
        return cast(dict[str, dict[str, str]], cast(Params, opened(reply)["_meta"])[NAMESPACES_KEY])


async def test_only_names_that_a_namespace_can_have_are_passed_on_t20() -> None:
    wrong = ["\u202eevil", "\x1b[31m", "a b", "", "a..b", ".a", "a.", "x" * 32, ".".join("abcdefghij"), "a\n"]
    found = await told(files={**dict.fromkeys(wrong, "No."), "files.one": "One.", "two": "Two.", "two.three": "Three."})
    assert set(found) == {"files", "files.one", "files.two", "files.two.three"}
    assert found["files.two.three"] == {"description": "Three."}


async def test_a_server_cannot_replace_the_description_of_any_server() -> None:
    found = await told(files={"git": "Mine.", "files": "Mine.", "": "Mine."}, git={"files": "Mine."})
    assert (found["files"]["description"], found["git"]["description"]) == ("Of files.", "Of git.")
    assert set(found) == {"files", "git", "files.git", "files.files", "git.files"}


async def test_no_more_is_read_of_descriptions_than_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def recorded(text: str) -> str:
        read.append(len(text))
        return visible(text)

    monkeypatch.setattr(instructions, "visible", recorded)
    found = await told(files={f"n{number}": "\u202e" * 5000 for number in range(300)})
    assert len(found) == 257 and max(read) == 2000
    assert {len(each["description"]) for name, each in found.items() if name != "files"} == {2000}
