"""Lines of a server that are no messages."""

import time
from types import SimpleNamespace

import pytest

from sluicegate.upstream import server_messages
from sluicegate.upstream.redact import Redactor
from sluicegate.upstream.server_messages import SkippedLines


def test_the_first_five_a_minute_are_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    skipped = SkippedLines("files")
    for _ in range(9):
        skipped.skip(b"{}", "is odd", is_answer=False)
    assert [record.getMessage() for record in caplog.records] == [
        "files: a line is skipped because it is odd: '{}'"
    ] * 5
    clock = time.monotonic
    monkeypatch.setattr(server_messages, "time", SimpleNamespace(monotonic=lambda: clock() + 61))
    for _ in range(9):
        skipped.log("is odd")
    assert len(caplog.records) == 10


def test_secrets_in_them_are_redacted_T9(caplog: pytest.LogCaptureFixture) -> None:
    redact = Redactor({"canary-hunter2"}).redact_cut
    SkippedLines("files", redact=redact).skip(b'{"jsonrpc":"2.0","x":"canary-hunter2"', "is odd", is_answer=True)
    assert "***" in caplog.text and "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("line", "is_answer", "is_printed"),
    [
        (b"Listening", False, True),
        (b'{"level":"info"}', False, True),
        (b"[INFO] started", False, True),
        (b'{"jsonrpc":"2.0"}', False, False),
        (b'{"id":1,"result":', True, False),
    ],
)
def test_text_that_is_no_message_was_printed(line: bytes, is_answer: bool, is_printed: bool) -> None:
    printed: list[bytes] = []
    SkippedLines("files", printed.append).skip(line, "is odd", is_answer=is_answer)
    assert printed == ([line] if is_printed else [])
