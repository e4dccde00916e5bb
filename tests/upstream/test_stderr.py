"""A server's stderr in our log: whole lines, not too many, no secrets; and what a server without a name is called."""

import logging
from types import SimpleNamespace

import pytest

from sluicegate.upstream import stderr
from sluicegate.upstream.stderr import (
    FLOOD,
    FLOOD_LINES,
    LAST_CHARACTERS,
    LINES_A_SECOND,
    MAX_LINE,
    PROBE_NOTE,
    StderrLog,
)
from sluicegate.upstream.stdio import StdioUpstream


class Clock:
    """A time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stderr, "time", SimpleNamespace(monotonic=clock.monotonic))
    caplog.set_level(logging.INFO, "sluicegate.stderr")
    return clock


def log_of(*secrets: str) -> StderrLog:
    return StderrLog("demo", secrets)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("size", [1, 3, 100])
def test_lines_are_reported_whole_in_any_chunking(caplog: pytest.LogCaptureFixture, size: int) -> None:
    data = b"one\r\n\ntw\xc3\xb6\nbell \x07 and \xff\nnot yet whole"
    log = log_of()
    for start in range(0, len(data), size):
        log.received(data[start : start + size])
    assert caplog.messages[:2] == ["demo: one", "demo: twö"]
    assert len(caplog.messages) == 3 and caplog.messages[2].startswith("demo: bell ")
    assert {(record.name, record.levelno) for record in caplog.records} == {("sluicegate.stderr", logging.INFO)}
    assert "\x07" not in caplog.text


def test_the_number_of_lines_reported_each_second_is_limited(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log = log_of()
    log.received(b"line\n" * 10 * LINES_A_SECOND)
    assert len(caplog.messages) == LINES_A_SECOND + 1
    assert caplog.messages[-1] == f"demo: more than {LINES_A_SECOND} lines a second; the rest are left out"
    clock.now += 1
    log.received(b"next\n")
    assert caplog.messages[-1] == "demo: next"


@pytest.mark.usefixtures("clock")
def test_a_line_that_is_too_long_is_cut_and_the_next_one_reported(caplog: pytest.LogCaptureFixture) -> None:
    log = log_of()
    for _ in range(100):
        log.received(b"x" * 10_000)
    log.received(b"\nnext\n")
    assert caplog.messages == ["demo: " + "x" * MAX_LINE, "demo: next"]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_line_that_is_cut_in_the_middle_of_a_secret_shows_none_of_it(size: int) -> None:
    heard: list[str] = []
    log = StderrLog("demo", ["the-secret-of-the-server"], heard.extend)
    data = b"x" * (MAX_LINE - 5) + b"the-secret-of-the-server" + b"y" * 2000 + b"\nnext\n"
    for start in range(0, len(data), size):
        log.received(data[start : start + size])
    assert heard == ["x" * (MAX_LINE - 5) + "***yy", "next"]


@pytest.mark.usefixtures("clock")
def test_a_line_full_of_secrets_shows_none_where_it_is_cut() -> None:
    heard: list[str] = []
    log = StderrLog("demo", ["sk-live-ABCDEFGHIJKLMN"], heard.extend)
    log.received(b"sk-live-ABCDEFGHIJKLMN " * 60 + b"\n")
    assert len(heard) == 1 and "ABC" not in heard[0]


def test_a_note_explains_the_version_probe_if_the_server_wrote_anything() -> None:
    heard: list[str] = []
    log = StderrLog("demo", [], heard.extend)
    log.explain_probe()
    assert heard == []
    log.received(b"Failed to validate request\n")
    log.explain_probe()
    assert heard == ["Failed to validate request", PROBE_NOTE]


def test_a_flood_is_reported_in_part_and_the_lines_of_the_next_second_in_full(clock: Clock) -> None:
    heard: list[str] = []
    log = StderrLog("demo", [], heard.extend)
    for n in range(FLOOD):
        log.received(b"%d\n" % n)
    told = [str(n) for n in range(FLOOD)]
    assert heard[:FLOOD] == told
    assert heard[FLOOD:] == [f"(more than {FLOOD} lines in one second: some of those that follow are left out)"]
    heard.clear()
    log.received("".join(f"{n}\n" for n in told).encode())
    log.received(b"and\n")
    assert heard == [*told[-FLOOD_LINES:], "and"]
    heard.clear()
    clock.now += 1
    log.received("".join(f"{n}\n" for n in told[:100]).encode())
    assert heard == told[:100]


@pytest.mark.parametrize(
    "text", ["plain", "\x1b[31mred\x1b[0m", "ünd \x1b[1mfett", "tab\tand bell\x07", "a\u202eb", "ö\u2028"]
)
def test_reported_lines_are_readable_and_safe_for_a_terminal(text: str) -> None:
    heard: list[str] = []
    StderrLog("demo", [], heard.extend).received(f"{text}\r\n".encode())
    shown = {"\x1b": "\\x1b", "\x07": "\\x07", "\u202e": "\\u202e", "\u2028": "\\u2028"}
    assert heard == ["".join(shown.get(character, character) for character in text)]


@pytest.mark.usefixtures("clock")
def test_values_of_variables_are_masked_in_the_log_and_in_the_last_words(caplog: pytest.LogCaptureFixture) -> None:
    key = "-----BEGIN KEY-----\nabcdefgh\nijklmnop\n-----END KEY-----"
    log = log_of("hunter2", "hunter2-longer", "debug", key)
    said = f"bad key hunter2-longer\nnot hunter2 either; debug is on\n{key}\n"
    log.received(said.encode())
    told = ["bad key ***", "not *** either; debug is on"]
    assert caplog.messages == [f"demo: {line}" for line in [*told, "***"]]
    caplog.clear()
    for line in key.splitlines(keepends=True):
        log.received(line.encode())
    assert caplog.messages == ["demo: ***"] * 3
    assert log.last_words(said) == f"; its last output: {' | '.join([*told, '***'])}"


def test_last_words_are_the_last_whole_lines() -> None:
    log = log_of()
    assert log.last_words("") == log.last_words(" \n\n") == ""
    assert log.last_words("".join(f"{n}\n" for n in range(9))).endswith("its last output: 3 | 4 | 5 | 6 | 7 | 8")
    assert log.last_words("a" * LAST_CHARACTERS + "\nValueError: b\n").endswith("its last output: ValueError: b")
    assert len(log.last_words("a" * 10_000)) < LAST_CHARACTERS + 100


@pytest.mark.parametrize(
    ("seconds", "when"),
    [
        (0, ""),
        (9, ""),
        (25, " (25 seconds before)"),
        (600, " (10 minutes before)"),
        (86_400, " (24 hours before)"),
    ],
)
def test_last_words_of_long_before_say_so(clock: Clock, seconds: float, when: str) -> None:
    log = log_of()
    log.received(b"listening\n")
    clock.now += seconds
    assert log.last_words("listening\n") == f"; its last output: listening{when}"
    clock.now += 1000
    assert log.last_words("listening\n") == f"; its last output: listening{when}", (
        "it ended when it was first asked about"
    )


@pytest.mark.parametrize("size", [1, 4, 100])
def test_last_words_are_the_lines_that_were_printed_together(clock: Clock, size: int) -> None:
    log, said = log_of(), b""
    for data in (b"ready\nlistening\n", b"\n\nTraceback\nKeyError\nno end"):
        clock.now += 100
        for start in range(0, len(data), size):
            log.received(data[start : start + size])
            clock.now += 0.01
        said += data
    assert log.last_words(said.decode()) == "; its last output: Traceback | KeyError | no end"


def test_nothing_is_kept_for_a_log_without_a_reader(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "sluicegate.stderr")
    log_of().received(b"line\n")
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["/usr/bin/python3.11", "-u", "/srv/demo.py", "--port", "1"], "python3.11 demo.py"),
        (["python", "-m", "demo"], "python demo"),
        (["python", "-c", "import os; print(os)"], "python"),
        (["node", "-e", "code", "x"], "node"),
        (["npx", "-y", "@scope/server-files", "/srv/share"], "npx server-files"),
        (["uv", "run", "demo.py"], "uv demo.py"),
        (["bash"], "bash"),
        (["/opt/bin/mcp-server", "/srv/share"], "mcp-server"),
        (["bundle-server", "token"], "bundle-server"),
        (["shell-server", "token"], "shell-server"),
        ([], "The server"),
    ],
)
def test_an_unnamed_server_is_named_after_its_program_or_script(command: list[str], name: str) -> None:
    assert vars(StdioUpstream(command))["_name"] == name
    assert vars(StdioUpstream(command, name="files"))["_name"] == "files"
