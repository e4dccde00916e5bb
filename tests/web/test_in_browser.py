"""The page for approvals in a real browser: it works, and what others wrote does nothing there (T29)."""

from pathlib import Path

import pytest

from sluicegate import http1
from sluicegate.control.folder_operations import FolderOperations
from sluicegate.store.memory_decisions import MemoryDecisions
from sluicegate.web.approvals_page import approvals_page
from tests.web.browser import chromium
from tests.web.test_approvals_page import PAYLOAD, ask


@pytest.mark.timeout(120)
async def test_t29_a_person_logs_in_sees_everything_and_answers(tmp_path: Path) -> None:
    state = MemoryDecisions()
    try:
        async with chromium(tmp_path) as tab, approvals_page(FolderOperations(state), port=0, by="ada") as url:
            await ask(state, "abcdef", PAYLOAD)
            await ask(state, "ghjkmn", "plain")
            await tab.open(url)
            assert "sluicegate approvals --link" in str(await tab.value("document.body.innerText"))
            await tab.open(str(await FolderOperations(state).login_link(by="ada")))
            assert str(await tab.value("location.href")).startswith(f"{url}/")
            text = str(await tab.value("document.body.innerText"))
            assert "<script>alert(1)</script>" in text and "U+202E" in text and "x" * 5000 in text
            assert await tab.value("document.querySelectorAll('script, img').length") == 0
            await tab.click("#ghjkmn button[value=once]")
            assert "ada answered “once”" in str(await tab.value("document.querySelector('.told').innerText"))
            await tab.value("document.querySelector('#abcdef input[name=reason]').value = 'No scripts.'")
            await tab.click("#abcdef button[value=no]")
            assert "Nothing waits for approval" in str(await tab.value("document.body.innerText"))
            yes, no = await state.find("ghjkmn"), await state.find("abcdef")
            assert yes is not None and no is not None
            assert (yes.state, no.state, no.reason) == ("approved", "declined", "No scripts.")
            events = [event["method"] for event in tab.events]
            assert "Page.javascriptDialogOpening" not in events
            requested = [str(event["params"]) for event in tab.events if event["method"] == "Network.requestWillBeSent"]
            assert requested and all(url in each for each in requested)
            refused = [
                each for each in tab.events if each["method"] == "Log.entryAdded" and "Content Security" in str(each)
            ]
            assert not refused
    finally:
        await state.aclose()


@pytest.mark.timeout(120)
async def test_t40_no_other_local_port_gets_the_cookie(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    async def other(request: http1.Request) -> None:
        seen.append((request.path, request.headers.get("cookie") or ""))
        request.respond(200, (("Content-Type", "text/html"),), b"<p>another program</p>")

    state = MemoryDecisions()
    try:
        async with (
            chromium(tmp_path) as tab,
            approvals_page(FolderOperations(state), port=0, by="ada"),
            http1.serve(other) as listener,
        ):
            await tab.open(str(await FolderOperations(state).login_link(by="ada")))
            own = str(await tab.value("location.href"))
            assert "Nothing waits" in str(await tab.value("document.body.innerText"))
            elsewhere = f"http://127.0.0.1:{listener.addresses[0][1]}"
            for path in ("/", "/approvals", "/approvals/", "/approvals/guess"):
                await tab.open(elsewhere + path)
            visited = {path: cookie for path, cookie in seen}
            assert visited["/approvals/guess"] == visited["/approvals"] == "" and not any(visited.values())
            await tab.open(own)
            assert "Nothing waits" in str(await tab.value("document.body.innerText"))
    finally:
        await state.aclose()
