"""`sluicegate init`: writes a file, and never over another."""

from tests.cli.folders import Folder


def test_the_written_file_is_commented_and_changes_nothing(folder: Folder) -> None:
    done = folder.invoke("init")
    text = (folder.path / "sluicegate.toml").read_text()
    assert (done.returncode, done.stdout) == (0, "") and "wrote" in done.stderr
    assert "# " in text and "[http]" in text and folder.invoke("init", "--stdout").stdout == text
    assert folder.invoke("check").returncode == 0


def test_an_existing_file_stays(folder: Folder) -> None:
    mine = folder.write("sluicegate.toml", "# mine\n")
    done = folder.invoke("init")
    assert done.returncode == 1 and "--force" in done.stderr and mine.read_text() == "# mine\n"


def test_force_writes_over_it_and_keeps_it(folder: Folder) -> None:
    mine = folder.write("sluicegate.toml", "# mine\n")
    assert folder.invoke("init", "--force").returncode == 0
    assert "[http]" in mine.read_text() and (folder.path / "sluicegate.toml.bak").read_text() == "# mine\n"


def test_a_folder_that_cannot_be_written_to_is_one_sentence(folder: Folder) -> None:
    (folder.path / "sluicegate.toml").mkdir()
    done = folder.invoke("init", "--force")
    assert done.returncode == 1 and "cannot be written" in done.stderr and "Traceback" not in done.stderr
