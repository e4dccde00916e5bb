"""Folders to run commands in: an empty one, and one with a running gateway."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cli.folders import DEMO, ENDING, NOTES, Folder, folder_in


@pytest.fixture
def folder(tmp_path: Path) -> Generator[Folder]:
    """A folder with nothing in it."""
    with folder_in(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[Folder]:
    """A folder whose gateway runs, with a server that is a command, one that is a file, and one that is broken."""
    with folder_in(tmp_path_factory.mktemp("gateway")) as made:
        made.servers(notes=NOTES, broken=ENDING)
        profile = '[profiles.reading]\nservers = ["notes"]\n'
        made.write("sluicegate.toml", f'[activations.demo]\nfile = "{DEMO}"\n\n{profile}')
        with made.serving():
            yield made
