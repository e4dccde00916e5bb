"""What servers offered last, on disk."""

import os
from pathlib import Path

import pytest

from sluicegate.config.model import Http, Secret, ServerConfig, Stdio
from sluicegate.hub.catalog import Offer
from sluicegate.hub.fetch_catalog import offered
from sluicegate.serve import catalog_cache
from sluicegate.serve.catalog_cache import CatalogCache

OFFER = Offer(
    tools=(
        offered("name", {"name": "dig", "inputSchema": {"type": "object"}, "description": "Dig ä."}),
        offered("name", {"name": "fill", "inputSchema": {"type": "object", "properties": {"how": {}}}}),
    ),
    resources=(offered("uri", {"uri": "x://y", "name": "y"}),),
    is_gateway=True,
)


def server(*words: str, **env: str) -> ServerConfig:
    args = tuple(Secret(word, word) for word in words)
    variables = {name: Secret(value) for name, value in env.items()}
    return ServerConfig(name="s", key="s", source=Stdio(command="c", program="/c", cwd="/", args=args, env=variables))


@pytest.fixture
def cache(tmp_path: Path) -> CatalogCache:
    return CatalogCache(str(tmp_path / "state" / "catalogs"))


def test_an_offer_comes_back_as_it_was(cache: CatalogCache) -> None:
    assert cache.load(server("a")) is None
    cache.save(server("a"), OFFER)
    assert cache.load(server("a")) == OFFER


def test_another_entry_is_another_server(cache: CatalogCache) -> None:
    cache.save(server("a", MODE="r"), OFFER)
    for other in (server("b", MODE="r"), server("a", MODE="w"), server("a")):
        assert cache.load(other) is None
    assert cache.load(server("a", MODE="r")) == OFFER


def test_a_new_secret_is_not_another_server(cache: CatalogCache) -> None:
    cache.save(server(TOKEN="one"), OFFER)
    assert cache.load(server(TOKEN="two")) == OFFER


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"tools": [{}]}', b"\xff" * 9, b"[" * 100_000])
def test_a_broken_file_is_as_none(cache: CatalogCache, tmp_path: Path, content: bytes) -> None:
    cache.save(server(), OFFER)
    (file,) = (tmp_path / "state" / "catalogs").iterdir()
    file.write_bytes(content)
    assert cache.load(server()) is None
    cache.save(server(), OFFER)
    assert cache.load(server()) == OFFER


def test_an_unreadable_file_is_as_none(cache: CatalogCache, tmp_path: Path) -> None:
    cache.save(server(), OFFER)
    (file,) = (tmp_path / "state" / "catalogs").iterdir()
    file.unlink()
    file.mkdir()
    assert cache.load(server()) is None
    cache.save(server(), OFFER)


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = CatalogCache(str(tmp_path / "file" / "catalogs"))
    cache.save(server(), OFFER)
    assert cache.load(server()) is None


def test_the_same_offer_is_not_written_again(cache: CatalogCache, tmp_path: Path) -> None:
    cache.save(server(), OFFER)
    (file,) = (tmp_path / "state" / "catalogs").iterdir()
    before = os.stat(file)
    cache.save(server(), OFFER)
    assert os.stat(file).st_ino == before.st_ino  # A file that is written is a new one.


def test_files_that_were_not_used_for_longest_are_removed(
    cache: CatalogCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_cache, "MAX_FILES", 3)
    for number in range(3):
        cache.save(server(str(number)), OFFER)
        age_all(tmp_path, 10)
    assert cache.load(server("0")) == OFFER  # Used now.
    cache.save(server("3"), OFFER)
    assert [cache.load(server(str(number))) is not None for number in range(4)] == [True, False, True, True]
    monkeypatch.setattr(catalog_cache, "MAX_BYTES", 1)
    age_all(tmp_path, 10)
    cache.save(server("4"), OFFER)
    assert len(list((tmp_path / "state" / "catalogs").iterdir())) == 1 and cache.load(server("4")) == OFFER


def test_files_of_other_gateways_are_removed_after_months(tmp_path: Path) -> None:
    old, recent, own = (CatalogCache(str(tmp_path / name / "catalogs")) for name in ("old", "recent", "own"))
    old.save(server(), OFFER)
    age_all(tmp_path, catalog_cache.UNUSED_SECONDS + 1)
    recent.save(server(), OFFER)
    assert not (tmp_path / "old").exists()
    age_all(tmp_path, catalog_cache.UNUSED_SECONDS / 2)
    own.save(server(), OFFER)
    assert recent.load(server()) == own.load(server()) == OFFER


def age_all(folder: Path, seconds: float) -> None:
    """Make all files older."""
    for file in folder.rglob("*.json"):
        used = file.stat().st_mtime - seconds
        os.utime(file, (used, used))


def test_an_offer_that_repeats_a_secret_is_not_saved(cache: CatalogCache) -> None:
    url = Secret("https://h/mcp?key=s3cr3t-value-1234", "https://h/mcp?key=***")
    remote = ServerConfig(name="r", key="r", source=Http(url=url, headers={"X-Key": Secret("another-5678")}))
    for text in ("s3cr3t-value-1234", "another-5678"):
        cache.save(remote, Offer(tools=(offered("name", {"name": "t", "description": f"It is {text}."}),)))
        assert cache.load(remote) is None
    cache.save(remote, OFFER)
    assert cache.load(remote) == OFFER
