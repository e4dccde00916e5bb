"""Long texts are files for a day that only their caller reads, page by page."""

import os
import stat
from pathlib import Path

import pytest

from sluicegate.store import kept
from sluicegate.store.kept import PAGE, KeptFiles


def keep(files: KeptFiles, text: str, caller: str = "ann") -> str:
    writer = files.begin(caller)
    writer.write(text)
    return writer.end().id


def pages(files: KeptFiles, id: str, caller: str = "ann") -> list[str]:
    found: list[str] = []
    while (page := files.read(caller, id, len(found) + 1)) is not None:
        found.append(page)
    return found


@pytest.mark.parametrize("offset", range(4))
def test_pages_together_are_the_text_wherever_a_page_ends(tmp_path: Path, offset: int) -> None:
    files = KeptFiles(str(tmp_path))
    text = "x" * offset + "€😀é" * (PAGE // 4)
    found = pages(files, keep(files, text))
    assert len(found) == 3 and "".join(found) == text


def test_another_caller_cannot_read_it(tmp_path: Path) -> None:
    files = KeptFiles(str(tmp_path))
    id = keep(files, "secret")
    assert pages(files, id) == ["secret"]
    assert pages(files, id, "bob") == []


@pytest.mark.parametrize("id", ["", "../x", "0" * 31, "0" * 32])
def test_a_value_that_is_no_id_finds_nothing(tmp_path: Path, id: str) -> None:
    files = KeptFiles(str(tmp_path / "kept"))
    keep(files, "text")
    assert files.read("ann", id, 1) is None and files.read("ann", id, 0) is None


def test_only_the_user_can_open_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    keep(KeptFiles(str(folder)), "text")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()] == [0o600]


def test_a_kept_text_is_gone_after_a_day(tmp_path: Path) -> None:
    now = 1000.0
    files = KeptFiles(str(tmp_path), clock=lambda: now)
    first = keep(files, "first")
    now += kept.LIFETIME - 1
    assert pages(files, first) == ["first"]
    keep(files, "second")
    now += 1
    assert pages(files, first) == []
    now += kept.LIFETIME
    keep(files, "third")
    assert len(os.listdir(tmp_path)) == 1


def test_the_oldest_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MAX_FOLDER", 10)
    now = 1000.0
    files = KeptFiles(str(tmp_path), clock=lambda: now)
    first = keep(files, "123456")
    now += 1
    second = keep(files, "123456")
    now += 1
    keep(files, "1")
    assert pages(files, first) == [] and pages(files, second) == ["123456"]


def test_a_file_that_grows_too_large_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MAX_FILE", 4)
    writer = KeptFiles(str(tmp_path)).begin("ann")
    for text in ("abc", "de", "f"):
        writer.write(text)
    ended = writer.end()
    assert (ended.size, ended.pages, ended.is_cut) == (3, 1, True)


def test_a_discarded_text_leaves_no_file(tmp_path: Path) -> None:
    writer = KeptFiles(str(tmp_path)).begin("ann")
    writer.write("text")
    writer.discard()
    assert os.listdir(tmp_path) == []
