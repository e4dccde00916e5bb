"""Loading: which files, in which order, and the merged result."""

from pathlib import Path

import pytest

from sluicegate.config.load import Loaded
from sluicegate.config.model import GatewayConfig, Http, Installed, PythonFile, Stdio
from sluicegate.exchange import Caller, Target
from sluicegate.gate.policy import Rules, judge
from tests.config.folders import Folders


def url_of(config: GatewayConfig, name: str) -> str:
    source = config.servers[name].source
    assert isinstance(source, Http)
    return source.url.reveal()


def sentences(loaded: Loaded, severity: str) -> list[str]:
    return [problem.sentence for problem in loaded.problems if problem.severity == severity]


def test_nothing_at_all_is_a_configuration(folders: Folders) -> None:
    assert folders.config() == GatewayConfig(root=str(folders.root))


def test_the_project_wins_per_server(folders: Folders) -> None:
    folders.servers({"both": {"url": "http://user.example/"}, "user": {"url": "http://u.example/"}}, folders.home)
    folders.servers({"mine": {"url": "http://p.example/"}, "both": {"url": "http://project.example/"}})
    config = folders.config()
    assert list(config.servers) == ["both", "user", "mine"]
    assert url_of(config, "both") == "http://project.example/"
    assert config.servers["both"].file == str(folders.root / ".mcp.json")


def test_problems_of_an_entry_that_the_project_replaces_are_not_reported(folders: Folders) -> None:
    folders.servers({"both": {"url": "http://u.example/${NOT_SET}"}}, folders.home)
    folders.servers({"both": {"url": "http://project.example/"}})
    assert folders.config().servers["both"].enabled


def test_a_file_that_was_asked_for_is_the_only_one(folders: Folders, tmp_path: Path) -> None:
    folders.servers({"user": {"url": "http://u.example/"}}, folders.home)
    folders.servers({"project": {"url": "http://p.example/"}})
    (tmp_path / "mine.json").write_text('{"mcpServers": {"only": {"url": "http://o.example/"}}}')
    loaded = folders.load(tmp_path / "mine.json")
    assert loaded.config is not None and list(loaded.config.servers) == ["only"]
    (tmp_path / "mine.toml").write_text('naming = "claude"')
    loaded = folders.load(tmp_path / "mine.toml")
    assert loaded.config is not None and loaded.config.naming == "claude"
    assert list(loaded.config.servers) == ["user", "project"]


def test_variables_can_be_passed_on_by_name_and_glob(folders: Folders) -> None:
    folders.environ |= {"UV_INDEX_URL": "https://a", "AWS_KEY": "k-123", "AWS_REGION": "r", "OTHER": "o", "LANG": "C"}
    entry = {"command": folders.program("serve"), "env": {"AWS_REGION": "own"}}
    folders.servers({"x": entry, "y": entry})
    folders.settings('[servers.x]\nenv_pass = ["AWS_*", "UV_INDEX_URL", "LANG", "NOT_SET"]\n')
    x, y = (server.source for server in folders.config().servers.values())
    assert isinstance(x, Stdio) and isinstance(y, Stdio)
    # LANG is inherited by every server.
    assert x.environment() == {"UV_INDEX_URL": "https://a", "AWS_KEY": "k-123", "AWS_REGION": "own"}
    assert y.environment() == {"AWS_REGION": "own"}
    assert "k-123" not in repr(x)


def test_settings_of_user_and_project_are_merged_key_by_key(folders: Folders) -> None:
    folders.settings(
        'naming = "claude"\n[http]\nport = 1111\npath = "/a"\n[servers.x]\nqueue = 1\ntimeout = 5\n', user=True
    )
    folders.settings("[http]\nport = 2222\n[servers.x]\nqueue = 2\n")
    folders.servers({"x": {"url": "http://x.example/"}})
    config = folders.config()
    assert (config.naming, config.http.port, config.http.path) == ("claude", 2222, "/a")
    assert (config.servers["x"].settings.queue, config.servers["x"].settings.timeout) == (2, 5.0)


def test_xdg_config_home_is_respected(folders: Folders, tmp_path: Path) -> None:
    folders.environ["XDG_CONFIG_HOME"] = str(tmp_path / "xdg")
    (tmp_path / "xdg" / "sluicegate").mkdir(parents=True)
    (tmp_path / "xdg" / "sluicegate" / "sluicegate.toml").write_text('naming = "collide"')
    assert folders.config().naming == "collide"


def test_settings_for_all_then_of_the_entry_then_of_the_server(folders: Folders) -> None:
    folders.settings('[servers."*"]\ntimeout = 10\nqueue = 3\nhide = ["z"]\n[servers.c]\ntimeout = 30\n')
    entry = {"url": "http://x.example/"}
    folders.servers({"a": entry, "b": {**entry, "timeout": 20_000}, "c": {**entry, "timeout": 20_000}})
    servers = folders.config().servers
    assert [server.settings.timeout for server in servers.values()] == [10.0, 20.0, 30.0]
    assert {server.settings.queue for server in servers.values()} == {3}
    assert not servers["a"].offers("z")


def test_settings_find_a_server_by_its_key_too(folders: Folders) -> None:
    folders.servers({"Brave Search": {"url": "http://x.example/"}})
    folders.settings("[servers.brave-search]\nqueue = 7\n[servers.brave-serch]\n")
    loaded = folders.load()
    assert loaded.config is not None and loaded.config.servers["Brave Search"].settings.queue == 7
    assert sentences(loaded, "warning") == ['There is no server "brave-serch". Did you mean "brave-search"?']


def test_settings_switch_a_server_off_and_on(folders: Folders) -> None:
    folders.servers(
        {"a": {"url": "http://a/"}, "b": {"url": "http://b/", "disabled": True}, "c": {"url": "http://c/${NO}"}}
    )
    folders.settings("[servers.a]\nenabled = false\n[servers.b]\nenabled = true\n[servers.c]\nenabled = true\n")
    loaded = folders.load()
    assert loaded.config is not None
    assert [server.enabled for server in loaded.config.servers.values()] == [False, True, False]
    assert "sluicegate.toml" in loaded.config.servers["a"].disabled


def test_times_of_tools(folders: Folders) -> None:
    folders.servers({"a": {"url": "http://a/"}})
    folders.settings('[servers.a]\ntimeout = 5\n[servers.a.tool_timeouts]\n"slow_*" = 600\n"slow_one" = 1\n')
    server = folders.config().servers["a"]
    assert [server.timeout_of(tool) for tool in ("quick", "slow_one")] == [5.0, 600.0]


def test_a_longer_timeout_makes_the_longest_call_longer(folders: Folders) -> None:
    url = {"url": "http://a.example/"}
    folders.servers({"a": url, "b": {**url, "timeout": 900_000}, "c": url, "d": url})
    folders.settings("[servers.c.tool_timeouts]\nslow = 3600\n[servers.d]\nlongest_call = 60\n")
    assert [server.settings.longest_call for server in folders.config().servers.values()] == [600, 900, 3600, 60]


def test_profiles_choose(folders: Folders) -> None:
    folders.servers({"files": {"url": "http://a/"}, "Web Search": {"url": "http://b/"}})
    folders.settings(
        '[profiles.reading]\ntools = ["files__read_*", "web-search__*"]\nhide = ["*__delete*"]\n'
        '[profiles.files]\nservers = ["fil*"]\n[profiles.odd]\nservers = ["none"]\n'
    )
    loaded = folders.load()
    assert loaded.config is not None
    files, web = loaded.config.servers.values()
    reading, only_files = loaded.config.profiles["reading"], loaded.config.profiles["files"]
    assert reading.offers(files, "read_text") and reading.offers(web, "search")
    assert not reading.offers(files, "write") and not reading.offers(web, "delete_all")
    assert only_files.offers(files, "write") and not only_files.offers(web, "search")
    assert sentences(loaded, "warning") == ['No server matches "none" of the profile "odd".']


def test_profiles_know_a_server_by_its_key_whatever_its_prefix(folders: Folders) -> None:
    folders.servers({"Memory Store": {"url": "http://a/"}})
    rules = '[profiles.safe]\nservers = ["memory-*"]\nhide = ["memory-store__delete_*"]\n'
    for prefix in ("", "mem", "memory-store"):
        folders.settings(f'{rules}[servers.memory-store]\nprefix = "{prefix}"\n')
        config = folders.config()
        (server,), safe = config.servers.values(), config.profiles["safe"]
        assert safe.offers(server, "read_graph") and not safe.offers(server, "delete_entities")
    folders.settings('[profiles.mem]\nservers = ["mem"]\n[servers.memory-store]\nprefix = "mem"\n')
    config = folders.config()
    assert config.profiles["mem"].shows(config.servers["Memory Store"])


def test_activations_are_servers(folders: Folders) -> None:
    (folders.root / "notes.py").write_text("")
    folders.settings('[activations.notes]\nfile = "notes.py"\n[servers.notes]\ntimeout = 9\n')
    server = folders.config().servers["notes"]
    assert server.source == PythonFile(file=str(folders.root / "notes.py"))
    assert (server.kind, server.settings.timeout, server.line) == ("python", 9.0, 1)


def test_an_activation_of_the_user_is_found_beside_its_own_file(folders: Folders) -> None:
    file = folders.settings('[activations.notes]\nfile = "notes.py"\n', user=True)
    loaded = folders.load()
    assert loaded.config is not None
    assert loaded.config.servers["notes"].source == PythonFile(file=str(file.parent / "notes.py"))
    assert "does not exist" in sentences(loaded, "warning")[0]


def test_an_activation_names_a_package_or_a_bundled_one(folders: Folders) -> None:
    folders.settings(
        '[activations.sun]\npackage = "solar"\nsettings = {planets = 3}\n[activations.sh]\nbundled = "bash"\n'
    )
    sun, shell = folders.config().servers.values()
    assert sun.source == Installed(name="solar", is_bundled=False, settings={"planets": 3})
    assert (shell.source, shell.kind) == (Installed(name="bash", is_bundled=True), "python")


@pytest.mark.parametrize("table", ["", 'file = "a.py"\nbundled = "bash"', "settings = {}"])
def test_an_activation_names_exactly_one_thing(folders: Folders, table: str) -> None:
    folders.settings(f"[activations.sun]\n{table}\n")
    assert sentences(folders.load(), "error") == ["An activation needs exactly one of file, package and bundled."]


def test_the_name_of_an_activation_has_no_dot(folders: Folders) -> None:
    folders.settings('[activations."sun.moon"]\nbundled = "bash"\n')
    (sentence,) = sentences(folders.load(), "error")
    assert sentence == 'The name of the activation "sun.moon" is its namespace, so it has no dot.'


def test_two_names_with_one_key_are_distinguished(folders: Folders) -> None:
    folders.servers({"My App": {"url": "http://a/"}, "my_app": {"url": "http://b/"}, "my-app": {"url": "http://c/"}})
    loaded = folders.load()
    assert loaded.config is not None
    assert [server.key for server in loaded.config.servers.values()] == ["my-app", "my-app-2", "my-app-3"]
    assert len(sentences(loaded, "warning")) == 2


def test_one_server_may_be_without_prefix(folders: Folders) -> None:
    folders.servers({"a": {"url": "http://a/"}, "b": {"url": "http://b/"}})
    folders.settings('[servers.a]\nprefix = ""\n[servers.b]\nprefix = "B_2"\n')
    assert [server.prefix for server in folders.config().servers.values()] == ["", "B_2"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ('[http]\nport = "x"\n', '"http.port" should be a whole number, not text in quotes.'),
        ("[http]\npath = 5\n", '"http.path" should be text in quotes, not a whole number.'),
        ("[http]\nport = 70000\n", '"http.port" should be a whole number <= 65535.'),
        ("[servers.a]\nqueue_wait = []\n", '"servers.a.queue_wait" should be a number, not a list.'),
        ('[servers.a]\ntools = "x"\n', '"servers.a.tools" should be a list, not text in quotes.'),
    ],
)
def test_a_value_of_another_kind_is_reported_in_plain_words(folders: Folders, settings: str, told: str) -> None:
    folders.settings(settings)
    assert told in [problem.sentence for problem in folders.load().problems]


# -------------------------------------------------------------------------------------------------- whose settings win

STRICT = """\
[http]
host = "127.0.0.1"
allowed_hosts = ["a.example"]
allowed_origins = []
anyone_may_connect = false
[approvals]
client = "none"
late = "void"
[limits]
calls = "60/m"
body = 2048
calls_per_tool = { "mcp__a__*" = "1/s" }
[audit]
enabled = true
sync = "full"
on_failure = "closed"
keep = 0
anchors = ["/copy"]
[servers."*"]
definitions = "pin"
max_result = 2048
[servers.a-b]
enabled = false
hide = ["x"]
tools = ["read_*"]
calls = "10/m"
[profiles.reading]
tools = ["read_*"]
"""
LOOSE = """\
[http]
host = "0.0.0.0"
allowed_hosts = ["a.example", "b.example"]
allowed_origins = ["https://b.example"]
anyone_may_connect = true
[approvals]
client = "any"
late = "keep"
[limits]
calls = "2/s"
body = 4096
calls_per_tool = { "*" = "9/s", "mcp__a__*" = "2/s" }
[audit]
enabled = false
sync = "normal"
on_failure = "open"
keep = 1
anchors = []
[servers.a_b]
enabled = true
definitions = "off"
hide = []
tools = ["*"]
calls = "10/s"
max_result = 4096
[profiles.reading]
tools = ["*"]
"""


def test_a_project_cannot_loosen_what_the_users_file_tightens(folders: Folders) -> None:
    folders.settings(STRICT, user=True)
    folders.servers({"a_b": {"url": "http://a.example/"}})
    strict = folders.config()
    folders.settings(LOOSE)
    loaded = folders.load()
    both = loaded.config
    assert both is not None and [problem for problem in loaded.problems if problem.severity != "note"] == []
    for section in ("http", "approvals", "audit", "profiles"):
        assert getattr(both, section) == getattr(strict, section)
    assert (both.limits.calls, both.limits.body) == ("60/m", 2048)
    assert list(both.limits.calls_per_tool.items())[0] == ("mcp__a__*", "1/s")
    assert both.servers["a_b"].settings == strict.servers["a_b"].settings and not both.servers["a_b"].enabled
    said = {problem.key: (problem.file, problem.line) for problem in loaded.problems}
    assert said["audit.enabled"] == (str(folders.root / "sluicegate.toml"), 14)
    assert {f"http.{key}" for key in ("host", "allowed_hosts", "allowed_origins", "anyone_may_connect")} <= set(said)
    assert {"approvals.client", "limits.body", "limits.calls", "profiles.reading.tools"} <= set(said)
    assert {f"servers.a_b.{key}" for key in ("enabled", "definitions", "max_result", "calls", "tools")} <= set(said)


def test_a_project_may_tighten_what_the_users_file_says(folders: Folders) -> None:
    folders.servers({"a_b": {"url": "http://a.example/"}})
    folders.settings(LOOSE, user=True)
    folders.settings(STRICT.replace("a-b", "a_b"))
    config = folders.config()
    assert not config.http.anyone_may_connect and config.approvals.client == "none" and config.limits.body == 2048
    assert config.audit.enabled and config.audit.keep == 0 and config.servers["a_b"].settings.calls == "10/m"
    assert config.servers["a_b"].settings.hide == ("x",) and config.profiles["reading"].tools == ("read_*",)


@pytest.mark.parametrize(
    ("own", "projects", "used"),
    [
        ("60/m", "3599/h", "60/m"),  # Fewer on average, but 3599 at once.
        ("60/m", "59/s", "60/m"),
        ("60/m", "60/h", "60/h"),
        ("60/m", "1/s", "1/s"),
    ],
)
def test_a_rate_of_a_project_allows_neither_more_calls_at_once_nor_more_over_time(
    folders: Folders, own: str, projects: str, used: str
) -> None:
    text = '[limits]\ncalls = "{0}"\ncalls_per_tool = {{ "*" = "{0}" }}\n[servers.a]\ncalls = "{0}"\n'
    folders.servers({"a": {"url": "http://a.example/"}})
    folders.settings(text.format(own), user=True)
    folders.settings(text.format(projects))
    config, problems = folders.config(), folders.load().problems
    assert {config.limits.calls, config.limits.calls_per_tool["*"], config.servers["a"].settings.calls} == {used}
    expected = {"limits.calls", "limits.calls_per_tool.*", "servers.a.calls"} if used == own else set[str]()
    assert {problem.key for problem in problems} == expected


def test_a_rule_of_another_folder_is_not_shown_as_one_of_the_project(folders: Folders, tmp_path: Path) -> None:
    folders.environ["XDG_CONFIG_HOME"] = str(tmp_path / "xdg")
    own = tmp_path / "xdg" / "sluicegate" / "sluicegate.toml"
    own.parent.mkdir(parents=True)
    own.write_text('[[permissions]]\ntool = "mcp__demo__a"\naction = "deny"\n')
    folders.settings('[[permissions]]\ntool = "mcp__demo__b"\naction = "deny"\n')
    rules = Rules(folders.config().policy)
    places = [judge(rules, Caller("local"), Target("demo", "tool", name), {}).rule for name in "ab"]
    assert places == ["…/xdg/sluicegate/sluicegate.toml:1", "sluicegate.toml:1"]


def test_rules_of_a_project_cannot_be_looser_than_the_default_of_the_user(folders: Folders) -> None:
    folders.settings('[policy]\ndefault = "ask"\n[[permissions]]\ntool = "mcp__demo__a"\naction = "allow"\n', user=True)
    folders.settings(
        '[policy]\ndefault = "allow"\n[[permissions]]\ntool = "mcp__demo__b"\naction = "deny"\n'
        '[[permissions]]\ntool = "*"\naction = "allow"\n'
    )
    rules = Rules(folders.config().policy)
    verdicts = {name: judge(rules, Caller("local"), Target("demo", "tool", name), {}) for name in "abc"}
    assert {name: verdict.action for name, verdict in verdicts.items()} == {"a": "allow", "b": "deny", "c": "ask"}
    assert verdicts["c"].rule == "~/.config/sluicegate/sluicegate.toml"


@pytest.mark.parametrize("link", ["sluicegate.toml", ".config/sluicegate", ".config"])
def test_settings_behind_a_dangling_link_are_an_error_and_not_an_absence(folders: Folders, link: str) -> None:
    path = folders.root / link if link.endswith("toml") else folders.home / link
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(folders.root / "nothing")
    loaded = folders.load()
    assert loaded.config is None
    assert sentences(loaded, "error") == [f"{path} is a link to something that does not exist."]


def test_servers_behind_a_dangling_link_are_a_warning(folders: Folders) -> None:
    (folders.root / ".mcp.json").symlink_to(folders.root / "nothing")
    loaded = folders.load()
    assert loaded.config is not None and loaded.broken == (str(folders.root / ".mcp.json"),)


@pytest.mark.parametrize("action", ["deny", "ask"])
def test_a_rule_that_closes_a_server_that_does_not_exist_is_an_error(folders: Folders, action: str) -> None:
    folders.servers({"github": {"url": "http://a.example/"}})
    rule = f'[[permissions]]\ntool = "mcp__gihub__delete"\naction = "{action}"\n'
    file = folders.settings(f"# Rules\n{rule}")
    loaded = folders.load()
    (problem,) = loaded.problems
    assert loaded.config is None and (problem.severity, problem.file, problem.line) == ("error", str(file), 2)
    assert problem.sentence.startswith('There is no server "gihub". Did you mean "github"?')
    folders.settings(f"{rule}optional = true\n")
    assert folders.config().policy.rules[0].written.optional
    folders.settings("")
    folders.settings(rule, user=True)
    assert folders.load().config is None


def test_rules_for_servers_that_may_come_are_no_errors(folders: Folders) -> None:
    folders.settings('[[permissions]]\ntool = "mcp__payments__pay"\naction = "deny"\n', user=True)
    folders.settings(
        '[[permissions]]\ntool = "mcp__*-prod__*"\naction = "deny"\n'
        '[[permissions]]\ntool = "mcp__x"\naction = "allow"\n'
    )
    loaded = folders.load()
    assert loaded.config is not None
    assert [sentence.split(".")[0] for sentence in sentences(loaded, "warning")] == [
        f'There is no server "{name}"' for name in ("payments", "*-prod", "x")
    ]


@pytest.mark.parametrize(
    ("key", "tables"),
    [("port", "[http] port or [control] port"), ("sync", "[audit] sync"), ("timeout", "[servers.NAME] timeout")],
)
def test_a_key_outside_of_its_table_is_reported_with_the_table(folders: Folders, key: str, tables: str) -> None:
    folders.settings(f"{key} = 1\n")
    assert sentences(folders.load(), "error") == [f'The key "{key}" is unknown. It belongs into a table: {tables}.']
