"""A reload touches only what changed."""

import pytest
from msgspec.structs import replace

from sluicegate.config.diff import ConfigChanges, changes
from sluicegate.config.load import Loaded, settle
from sluicegate.config.model import GatewayConfig, HttpFront, LimitsConfig, ProfileConfig
from sluicegate.config.problems import Problem
from tests.config.folders import Folders

A, B = {"url": "http://a.example/"}, {"url": "http://b.example/"}


def after(folders: Folders, servers: dict[str, object], settings: str = "") -> GatewayConfig:
    folders.servers(servers)
    folders.settings(settings)
    return folders.config()


def test_nothing_changed(folders: Folders) -> None:
    old = after(folders, {"a": A, "b": B})
    assert changes(old, after(folders, {"a": A, "b": B})) == ConfigChanges()
    assert not changes(old, old)


def test_another_line_and_another_comment_change_nothing(folders: Folders) -> None:
    old = after(folders, {"a": A})
    folders.servers('// new\n\n\n{"mcpServers": {"a": {"url": "http://a.example/"}}}')
    assert not changes(old, folders.config())


def test_added_and_removed(folders: Folders) -> None:
    old = after(folders, {"a": A, "b": B})
    assert changes(old, after(folders, {"b": B, "c": A})) == ConfigChanges(added=("c",), removed=("a",))


def test_another_order(folders: Folders) -> None:
    old = after(folders, {"a": A, "b": B})
    assert changes(old, after(folders, {"b": B, "a": A})) == ConfigChanges(order=True)


@pytest.mark.parametrize(
    "entry",
    [B, {**A, "headers": {"K": "v"}}, {**A, "type": "sse"}, {**A, "disabled": True}, {"command": "true"}],
)
def test_a_change_of_the_source_needs_a_new_connection(folders: Folders, entry: dict[str, object]) -> None:
    folders.program("true")
    old = after(folders, {"a": A, "b": B})
    assert changes(old, after(folders, {"a": entry, "b": B})) == ConfigChanges(reconnect=("a",))


def test_another_secret_needs_a_new_connection(folders: Folders) -> None:
    folders.environ["TOKEN"] = "one"
    entry = {**A, "headers": {"Authorization": "Bearer ${TOKEN}"}}
    old = after(folders, {"a": entry, "b": B})
    folders.environ["TOKEN"] = "two"
    assert changes(old, after(folders, {"a": entry, "b": B})) == ConfigChanges(reconnect=("a",))


def test_another_install_timeout_affects_only_servers_that_are_fetched(folders: Folders) -> None:
    folders.program("npx")
    servers: dict[str, object] = {"a": {"command": "npx", "args": ["-y", "x@1.2.3"]}, "b": B}
    old = after(folders, servers)
    new = after(folders, servers, '[servers."*"]\ninstall_timeout = 900')
    assert [server.opens_within for server in new.servers.values()] == [900, 30]
    assert changes(old, new) == ConfigChanges(reconnect=("a",), adjusted=("b",))


@pytest.mark.parametrize("setting", ['era = "session"', "start_timeout = 3", 'roots = ["/x"]'])
def test_a_change_of_the_handshake_needs_a_new_connection(folders: Folders, setting: str) -> None:
    old = after(folders, {"a": A, "b": B})
    assert changes(old, after(folders, {"a": A, "b": B}, f"[servers.a]\n{setting}\n")) == ConfigChanges(
        reconnect=("a",)
    )


@pytest.mark.parametrize(
    "setting", ["timeout = 3", "queue = 1", 'prefix = "x"', 'hide = ["y"]', "instructions = false"]
)
def test_how_a_server_is_treated_needs_no_new_connection(folders: Folders, setting: str) -> None:
    old = after(folders, {"a": A, "b": B})
    assert changes(old, after(folders, {"a": A, "b": B}, f"[servers.a]\n{setting}\n")) == ConfigChanges(adjusted=("a",))


@pytest.mark.parametrize(
    "settings",
    [
        "timeout = 7200",
        "timeout = 7200\nlongest_call = 9000",
        "longest_call = 9000",
        'tool_timeouts = { "dig" = 7200 }',
    ],
)
def test_how_long_a_server_may_be_silent_is_a_matter_of_its_connection_by_http_alone(
    folders: Folders, settings: str
) -> None:
    folders.program("true")
    servers: dict[str, object] = {"a": A, "b": {"command": "true"}}
    old = after(folders, servers)
    new = after(folders, servers, f'[servers."*"]\n{settings}\n')
    assert changes(old, new) == ConfigChanges(reconnect=("a",), adjusted=("b",))
    assert changes(new, old) == ConfigChanges(reconnect=("a",), adjusted=("b",))


def test_a_server_that_does_not_run_needs_no_connection(folders: Folders) -> None:
    old = after(folders, {"a": {**A, "disabled": True}})
    assert changes(old, after(folders, {"a": {**B, "disabled": True}})) == ConfigChanges(adjusted=("a",))


def test_how_a_server_would_be_treated_that_does_not_run_changes_nothing(folders: Folders) -> None:
    servers: dict[str, object] = {"a": {**A, "disabled": True}, "b": B}
    old = after(folders, servers)
    assert changes(old, after(folders, servers, '[servers."*"]\nqueue = 3\n')) == ConfigChanges(adjusted=("b",))


def test_settings_of_the_gateway_are_live_or_wait_for_a_restart(folders: Folders) -> None:
    old = after(folders, {})
    settings = (
        'naming = "claude"\n[http]\nport = 1\nallowed_hosts = ["h"]\n[control]\nsocket = "x"\n[catalog]\ngrace = 1\n'
        "[limits]\nbody = 5000\nin_flight = 3\n[profiles.p]\n"
    )
    found = changes(old, after(folders, {}, settings))
    assert found == ConfigChanges(
        settings=("naming", "catalog.grace", "profiles.p"),
        restart=("http.port", "http.allowed_hosts", "control.socket", "limits.body", "limits.in_flight"),
    )


def test_the_way_back_touches_the_same(folders: Folders) -> None:
    base = after(folders, {"a": A})
    other = replace(
        base,
        servers={},
        naming="collide",
        http=HttpFront(port=1),
        limits=LimitsConfig(drain=1),
        profiles={"x": ProfileConfig()},
    )
    forth, back = changes(base, other), changes(other, base)
    assert (forth.settings, forth.restart) == (back.settings, back.restart)
    assert (forth.added, forth.removed) == (back.removed, back.added)


def test_an_error_keeps_the_old_state(folders: Folders) -> None:
    old = after(folders, {"a": A})
    problem = Problem(severity="error", file="x", sentence="Wrong.")
    assert settle(old, Loaded(config=None, problems=(problem,))) == Loaded(config=None, problems=(problem,))


def test_an_entry_that_was_never_right_stays_invalid(folders: Folders) -> None:
    old = after(folders, {"a": A})
    folders.servers({"a": A, "b": {}})
    settled = settle(old, folders.load()).config
    assert settled is not None and settled.servers["b"].source is None


def test_a_missing_variable_disables_a_running_server(folders: Folders) -> None:
    old = after(folders, {"a": A})
    folders.servers({"a": {"url": "http://a.example/${GONE}"}})
    settled = settle(old, folders.load()).config
    assert settled is not None and not settled.servers["a"].enabled
