"""Our own log records, as session-era clients that set a log level read them."""

import json
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sluicegate.exchange import Exchange
from sluicegate.hub.catalog import Subset as Share
from sluicegate.protocol.message import Params, Reply
from sluicegate.serve.client_log import records_to_clients
from tests.cli.folders import COMMAND, folder_in
from tests.hub.scripted import Scripted, tools
from tests.hub.test_unattributed import Stage, staged
from tests.polling import until
from tests.upstream.raw_server import Recorder

log = logging.getLogger("sluicegate")


@asynccontextmanager
async def gateway() -> AsyncGenerator[Stage]:
    """A hub with one server, `s`, as the gateway of this process."""
    async with staged() as stage:
        with records_to_clients(stage.hub):
            yield stage


async def _no_tools(_: Exchange) -> Reply:
    return tools()


def heard(sink: Recorder) -> list[object]:
    return [notice.params["data"] for notice in sink.notices]


async def test_a_client_reads_the_records_from_its_level_up() -> None:
    async with gateway() as stage:
        client = await stage.listen("warning")
        log.info("nothing for it")
        log.warning("%s: late", "s")
        log.error("broken")
        await until(lambda: len(client.notices) == 2)
        assert [dict(notice.params) for notice in client.notices] == [
            {"level": "warning", "logger": "sluicegate", "data": "s: late"},
            {"level": "error", "logger": "sluicegate", "data": "broken"},
        ]


@pytest.mark.parametrize("level", ["debug", "info"])
async def test_a_client_may_ask_for_more_than_warnings(level: str) -> None:
    async with gateway() as stage:
        client = await stage.listen(level)
        log.log(getattr(logging, level.upper()), "a detail")
        await until(lambda: heard(client) == ["a detail"])


async def test_secrets_are_masked_and_tracebacks_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "propagate", False)  # The test run cannot report a text with a lone surrogate.
    async with gateway() as stage:
        client = await stage.listen("error")
        try:
            raise ValueError("the inside")
        except ValueError:
            log.exception("asked https://ada:s3cret@example.com/x?key=1 with --token abc and API_KEY=def, \udcff")
        await until(lambda: bool(client.notices))
        masked = "asked https://***@example.com/x?key=*** with --token *** and API_KEY=***"
        assert heard(client) == [f"{masked} ?"]


async def test_a_record_that_cannot_be_formatted_fails_no_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log, "propagate", False)
    async with gateway() as stage:
        client = await stage.listen("warning")
        log.warning("%d", "x")
        log.warning("the next")
        await until(lambda: heard(client) == ["the next"])
    assert "not str" in capsys.readouterr().err  # As `logging` reports it.


async def test_records_of_other_threads_arrive() -> None:
    async with gateway() as stage:
        client = await stage.listen("warning")
        thread = threading.Thread(target=log.warning, args=("from afar",))
        thread.start()
        await until(lambda: heard(client) == ["from afar"])
        thread.join()


async def test_output_of_servers_is_no_record_of_ours() -> None:
    async with gateway() as stage:
        client = await stage.listen("debug")
        logging.getLogger("sluicegate.stderr").warning("s: printed")
        log.warning("the next")
        await until(lambda: bool(client.notices))
        assert heard(client) == ["the next"]


async def test_a_client_of_a_profile_reads_only_about_its_servers_T11() -> None:
    async with gateway() as stage:
        with_s = stage.hub.router("with", Share(servers=("s",)))
        without = stage.hub.router("without", Share(servers=()))
        sees, sees_not = await stage.listen("debug", handler=with_s), await stage.listen("debug", handler=without)
        everything = await stage.listen("debug")
        log.warning("The file is wrong.")
        log.warning("%s: late", "s")
        await until(lambda: len(everything.notices) == 2 and bool(sees.notices))
        assert heard(sees) == ["s: late"]
        assert heard(sees_not) == []


async def test_among_several_callers_no_line_about_another_is_shown() -> None:
    async with gateway() as stage:
        ada = await stage.listen("debug")
        await stage.call("ada")
        log.warning("%s: one", "s")
        await until(lambda: heard(ada) == ["s: one"])
        await stage.call("bob")
        log.warning("%s: two", "s")
        log.warning("three")
        stage.hub.mount("t", Scripted(_no_tools, {}))
        log.warning("%s: four", "t")
        await until(lambda: len(ada.notices) > 1)
        assert heard(ada) == ["s: one", "t: four"]


async def test_the_log_of_the_process_is_as_before_when_the_gateway_has_ended() -> None:
    before = log.level, list(log.handlers)
    async with gateway():
        pass
    assert (log.level, list(log.handlers)) == before


ENDS = """
import os, sluicegate
server = sluicegate.Server("ends")

@server.tool
def end() -> str:
    os._exit(3)

sluicegate.run(server)
"""


def test_a_client_on_stdin_reads_that_its_server_has_ended(tmp_path: Path) -> None:
    with folder_in(tmp_path) as folder:
        folder.write("ends.py", ENDS)
        folder.servers(ends={"command": sys.executable, "args": ["ends.py"]})
        opening: Params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "c", "version": "1"},
        }
        messages: list[Params] = [
            {"id": 1, "method": "initialize", "params": opening},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "logging/setLevel", "params": {"level": "warning"}},
            {"id": 3, "method": "tools/call", "params": {"name": "ends__end", "arguments": {}}},
        ]
        command = [*COMMAND, "serve", "--stdio", "--own"]
        with subprocess.Popen(
            command, cwd=folder.path, env=folder.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as gateway:
            assert gateway.stdin is not None and gateway.stdout is not None
            for message in messages:
                gateway.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            gateway.stdin.flush()
            said = (json.loads(line) for line in gateway.stdout)
            record = next(message["params"] for message in said if message.get("method") == "notifications/message")
            gateway.stdin.close()
        assert record["level"] == "warning" and record["logger"] == "sluicegate"
        assert record["data"].startswith("ends ")
