"""Activations are found in files, installed packages and among the bundled ones; one that fails is one failed mount."""

import sys
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

import sluicegate
from sluicegate.config.load import load
from sluicegate.config.paths import Places
from sluicegate.errors import ConfigError
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.loading import installed, load_file, load_server
from sluicegate.hub.hub import Hub
from sluicegate.protocol.message import as_array, as_object
from sluicegate.server import Server, activated
from sluicegate.testing import MemoryUpstream
from tests.activations.helpers import ask, call, text
from tests.bundled.services import services_in

SOLAR = """
import sluicegate

@sluicegate.activation("solar", version="3")
class Solar:
    '''The planets.'''

    def __init__(self, planets: int = 8) -> None:
        self.planets = planets

    async def count(self) -> str:
        return f"{self.planets} planets"
"""


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """What loading a file changes is changed back."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "Solar", None) is not None:
            del sys.modules[name]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with an activation, with something that is none, and with one that cannot be imported."""
    (tmp_path / "solar_system.py").write_text(SOLAR)
    info = tmp_path / "solar_system-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: solar-system\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[sluicegate.activations]\nsolar = solar_system:Solar\nother = os:getcwd\nlost = no_such_module:X\n"
        "bash = solar_system:Solar\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


@asynccontextmanager
async def gateway_of(folder: Path, settings: str) -> AsyncGenerator[tuple[Gateway, sluicegate.Client]]:
    (folder / "sluicegate.toml").write_text(settings)
    config = load(Places(root=str(folder), home=str(folder / "home"), environ={})).config
    assert config is not None
    async with Gateway(config, load_file=load_file) as gateway:
        await gateway.hub.settled()
        async with sluicegate.connect(MemoryUpstream(gateway.hub)) as client:
            yield gateway, client


async def test_a_file_may_have_a_class_or_an_instance(tmp_path: Path) -> None:
    (tmp_path / "of_a_class.py").write_text(SOLAR)
    (tmp_path / "of_an_instance.py").write_text(f"{SOLAR}\nnine = Solar(9)\n")
    by_class = cast(Server, load_server(str(tmp_path / "of_a_class.py")))
    assert text(await call(by_class, "solar.count")) == "8 planets"
    assert by_class.discovery.server_info["version"] == "3"
    by_instance = cast(Server, load_server(str(tmp_path / "of_an_instance.py")))
    assert text(await call(by_instance, "solar.count")) == "9 planets"


def test_a_file_with_several_needs_a_name(tmp_path: Path) -> None:
    file = tmp_path / "two_suns.py"
    file.write_text(f"{SOLAR}\nfirst, second = Solar(1), Solar(2)\n")
    with pytest.raises(ConfigError, match=r"several activations; say which: .*:first or .*:second"):
        load_server(str(file))
    assert isinstance(load_server(f"{file}:second"), Server)


async def test_its_name_in_the_configuration_is_its_namespace(tmp_path: Path) -> None:
    (tmp_path / "named.py").write_text(SOLAR)
    settings = '[activations.sun]\nfile = "named.py"\nsettings = {planets = 3}\n'
    async with gateway_of(tmp_path, settings) as (_, client):
        assert [tool.name for tool in await client.tools()] == ["sun__count"]
        assert (await client.call("sun.count")).text == "3 planets"


@pytest.mark.usefixtures("package")
async def test_an_installed_package_offers_one(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, '[activations.solar]\npackage = "solar"\n') as (_, client):
        assert (await client.call("solar.count")).text == "8 planets"


@pytest.mark.usefixtures("package")
async def test_package_and_bundled_activation_of_one_name_do_not_clash(tmp_path: Path) -> None:
    settings = '[activations.shell]\nbundled = "bash"\n[activations.sun]\npackage = "bash"\n'
    async with gateway_of(tmp_path, settings) as (_, client):
        assert [tool.name for tool in await client.tools()] == ["shell__execute", "sun__count"]


async def test_class_with_a_parameter_services_receives_those_of_the_gateway(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(
        "import sluicegate\n@sluicegate.activation('counting')\nclass Counting:\n"
        "    def __init__(self, services, prefix=''): self.services, self.prefix = services, prefix\n"
        "    async def show(self) -> str: return f'{self.prefix}{self.services.name} {dict(self.services.servers())}'\n"
    )
    settings = '[activations.mine]\nfile = "counting.py"\nsettings = {prefix = "I am "}\n'
    async with gateway_of(tmp_path, settings) as (_, client):
        assert (await client.call("mine.show")).text == "I am mine {'ready': 1}"


async def test_setting_called_services_goes_before_those_of_the_gateway(tmp_path: Path) -> None:
    (tmp_path / "listing.py").write_text(
        "import sluicegate\n@sluicegate.activation('listing')\nclass Listing:\n"
        "    def __init__(self, services): self.services = services\n"
        "    async def show(self) -> str: return ','.join(self.services)\n"
    )
    settings = '[activations.mine]\nfile = "listing.py"\nsettings = {services = ["mail", "print"]}\n'
    async with gateway_of(tmp_path, settings) as (_, client):
        assert (await client.call("mine.show")).text == "mail,print"


def test_bundled_activation_is_found_in_sources_that_are_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [each for each in sys.path if "site-packages" not in each])
    found = installed("health", is_bundled=True)
    assert found.server(instance=found.instance(services=services_in(tmp_path))).name == "health"


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ('package = "solr"', "no installed package has an activation 'solr'; there are: bash, lost, other, solar."),
        ('package = "other"', "The activation other (os:getcwd) is not a class with @sluicegate.activation"),
        ('package = "lost"', "could not be loaded: ModuleNotFoundError: No module named 'no_such_module'."),
        ('package = "solar"\nsettings = {moons = 1}', "could not be created: TypeError"),
        ('bundled = "bsah"', "there is no bundled activation 'bsah'; there are: "),
        ('file = "plain.py"\nsettings = {a = 1}', "It has settings, which only an activation can use"),
        ('file = "broken.py"', "could not be loaded: ZeroDivisionError"),
        ('file = "childless.py"', "could not be created: ZeroDivisionError"),
        ('file = "leaving.py"', "could not be created: SystemExit"),
    ],
)
async def test_an_activation_that_fails_is_a_failed_mount(tmp_path: Path, table: str, sentence: str) -> None:
    (tmp_path / "sound.py").write_text(SOLAR)
    (tmp_path / "plain.py").write_text("import sluicegate\nserver = sluicegate.Server('plain')\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "childless.py").write_text(f"{SOLAR}    def children(self): 1 / 0\n    def child(self, name): ...\n")
    (tmp_path / "leaving.py").write_text(f"{SOLAR}    def extend(self, server): exit()\n")
    async with gateway_of(tmp_path, f'[activations.bad]\n{table}\n[activations.good]\nfile = "sound.py"\n') as (
        gateway,
        client,
    ):
        bad, good = gateway.status()
        assert (bad.state, good.state) == ("failed", "ready")
        assert sentence in bad.sentence
        assert (await client.call("good.count")).text == "8 planets"


async def test_a_class_that_raises_when_it_opens_is_a_failed_mount(tmp_path: Path) -> None:
    failing = (
        "    async def __aenter__(self):\n        raise OSError('no disk')\n    async def __aexit__(self, *e): ...\n"
    )
    (tmp_path / "failing.py").write_text(SOLAR + failing)
    (tmp_path / "sound_one.py").write_text(SOLAR)
    settings = '[activations.bad]\nfile = "failing.py"\n[activations.good]\nfile = "sound_one.py"\n'
    async with gateway_of(tmp_path, settings) as (gateway, client):
        assert gateway.status()[0].state != "ready"
        assert (await client.call("good.count")).text == "8 planets"


class Diary:
    """Has a lifespan and resources."""

    def __init__(self) -> None:
        self.events: list[str] = []

    async def __aenter__(self) -> "Diary":
        self.events.append("opened")
        return self

    async def __aexit__(self, *error: object) -> None:
        self.events.append("closed")

    async def write(self, line: str) -> str:
        self.events.append(line)
        return "written"

    def extend(self, server: Server) -> None:
        server.add_resource("diary://today", lambda: "\n".join(self.events), name="today")


async def test_an_activation_is_open_while_its_server_runs_and_may_have_resources() -> None:
    diary = Diary()
    server = activated("diary", diary)
    async with server.running():
        assert text(await call(server, "diary.write", {"line": "rain"})) == "written"
        read = cast(Any, await ask(server, "resources/read", {"uri": "diary://today"}))
        assert read["contents"][0]["text"] == "opened\nrain"
    assert diary.events == ["opened", "rain", "closed"]
    async with server.running():
        assert [tool["name"] for tool in cast(Any, await ask(server, "tools/list"))["tools"]] == ["diary.write"]


@pytest.mark.parametrize("name", ["arbor", "bash", "cone", "health", "resource_tools"])
async def test_bundled_activations_describe_every_property(name: str, tmp_path: Path) -> None:
    found = installed(name, is_bundled=True)
    settings: dict[str, object] = {"endpoints": {}} if name == "cone" else {}
    server = found.server(instance=found.instance(settings, services_in(tmp_path)))
    async with server.running():
        tools = cast(Any, await ask(server, "tools/list"))["tools"]
    assert tools
    for tool in tools:
        assert tool["inputSchema"]["additionalProperties"] is False and "required" in tool["inputSchema"]
        parts = (tool["inputSchema"], tool.get("outputSchema"), tool.get("_meta"))
        # The tag of an event and the only member of a result need none.
        assert {each for part in parts for each in _undescribed(part)} <= {"type", "result"}


def _undescribed(schema: object) -> Iterator[str]:
    """The names of properties without a description, at any depth."""
    members = as_object(schema) or {}
    properties = as_object(members.get("properties")) or {}
    yield from (name for name, each in properties.items() if "description" not in (as_object(each) or {}))
    for each in (*members.values(), *(as_array(schema) or ())):
        yield from _undescribed(each)


def test_a_namespace_that_is_taken_is_refused() -> None:
    hub = Hub()
    hub.mount("diary", activated("diary", Diary()))
    with pytest.raises(ConfigError, match="There is a server 'diary' already"):
        hub.mount("diary", activated("diary", Diary()))
