"""MCP clients such as Claude Code: where each keeps its list of servers, how to read it and how to add the gateway.

For `sluicegate import` and `sluicegate connect`. The functions work on texts; the caller reads and writes the files.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final, Literal, cast

import msgspec

from sluicegate.config import edit_files, jsonc
from sluicegate.config.jsonc import JsonObject, SyntaxFault
from sluicegate.config.model import HttpFront
from sluicegate.config.paths import Places
from sluicegate.config.self_reference import leads_to, starts_a_gateway
from sluicegate.config.settings_toml import parse_toml

Scope = Literal["user", "project"]
Entry = dict[str, object]

OUR_NAME: Final = "sluicegate"
"""The default name of the gateway in clients' files."""


class KnownClient(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP client."""

    name: str
    title: str
    table: tuple[str, ...] = ("mcpServers",)
    """The path of keys to its servers."""
    form: Literal["json", "toml"] = "json"
    by_url: str | None = "url"
    """The key of a server's URL; None if it supports commands only."""
    typed: bool = False
    """Whether an entry needs a "type"."""
    user: Mapping[str, str] = {}
    """The client's file in the user's home, for each `sys.platform`; "" is for all other platforms."""
    project: str | None = None
    """The client's file in a project folder; None if it has none."""
    also: tuple[str, ...] = ()
    """Older files beside the user's, to import from."""


def _app_files(path: str) -> dict[str, str]:
    """A file among the data of desktop programs, for each platform."""
    bases = {"darwin": "~/Library/Application Support", "win32": "%APPDATA%", "": "%XDG_CONFIG_HOME%"}
    return {platform: f"{base}/{path}" for platform, base in bases.items()}


CLIENTS: Final[dict[str, KnownClient]] = {
    client.name: client
    for client in (
        KnownClient(
            name="claude-desktop",
            title="Claude Desktop",
            by_url=None,
            user=_app_files("Claude/claude_desktop_config.json"),
        ),
        KnownClient(
            name="claude-code", title="Claude Code", typed=True, user={"": "~/.claude.json"}, project=".mcp.json"
        ),
        KnownClient(name="cursor", title="Cursor", user={"": "~/.cursor/mcp.json"}, project=".cursor/mcp.json"),
        KnownClient(
            name="vscode",
            title="VS Code",
            table=("servers",),
            typed=True,
            user=_app_files("Code/User/mcp.json"),
            project=".vscode/mcp.json",
            also=("settings.json",),
        ),
        KnownClient(
            name="codex",
            title="Codex",
            table=("mcp_servers",),
            form="toml",
            user={"": "%CODEX_HOME%/config.toml"},
            project=".codex/config.toml",
        ),
        KnownClient(
            name="gemini",
            title="Gemini CLI",
            by_url="httpUrl",
            user={"": "~/.gemini/settings.json"},
            project=".gemini/settings.json",
        ),
    )
}

OURS: Final = KnownClient(name="mcp-json", title=".mcp.json", user={"": "~/.mcp.json"}, project=".mcp.json")
"""The gateway's own file in the same form: `import` writes to it."""


class ImportedServers(msgspec.Struct, frozen=True, kw_only=True):
    """Servers of a client in the form of `.mcp.json`, and notes for the user."""

    servers: dict[str, Entry] = {}
    notes: tuple[str, ...] = ()


def client_file(client: KnownClient, scope: Scope, places: Places, platform: str = sys.platform) -> str | None:
    """The file with the client's servers; None if it has no such file."""
    if scope == "project":
        return None if client.project is None else os.path.join(places.root, *client.project.split("/"))
    path = client.user.get(platform, client.user.get(""))
    if path is None:
        return None
    home, environ = places.home, places.environ
    bases = {
        "~": home,
        "%APPDATA%": environ.get("APPDATA") or os.path.join(home, "AppData", "Roaming"),
        "%XDG_CONFIG_HOME%": environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"),
        "%CODEX_HOME%": environ.get("CODEX_HOME") or os.path.join(home, ".codex"),
    }
    first, *rest = path.split("/")
    return os.path.join(bases[first], *rest)


def client_files(client: KnownClient, places: Places, platform: str = sys.platform) -> tuple[str, ...]:
    """Every file in which the client may have servers; later ones take precedence."""
    user = client_file(client, "user", places, platform)
    older = [os.path.join(os.path.dirname(user), name) for name in client.also] if user else []
    return tuple(file for file in (*older, user, client_file(client, "project", places)) if file is not None)


def read_client(
    client: KnownClient, text: str, *, root: str = "", ourselves: Sequence[HttpFront] = ()
) -> ImportedServers | SyntaxFault:
    """The servers of a client's file, without this gateway.

    Args:
        root: the project folder, for clients that keep the servers of all projects in one file.
        ourselves: the addresses of this gateway.
    """
    notes: list[str] = []
    found = _entries(client, text, root, notes)
    if isinstance(found, SyntaxFault):
        return found
    servers: dict[str, Entry] = {}
    for name, entry in found.items():
        entry = _from_codex(entry) if client.form == "toml" else cast(Entry, _adapted(entry, name, client, notes))
        if _is_gateway(name, entry, ourselves):  # A gateway that calls itself never ends.
            notes.append(f"{name} of {client.title} is sluicegate itself, so it is left out.")
        else:
            servers[name] = entry
    return ImportedServers(servers=servers, notes=tuple(notes))


def gateways_in(
    client: KnownClient, text: str, *, root: str = "", ourselves: Sequence[HttpFront] = ()
) -> frozenset[str]:
    """The names of this gateway in a client's file; takes the arguments of `read_client`."""
    found = _entries(client, text, root, []) if text.strip() else {}
    if isinstance(found, SyntaxFault):
        return frozenset()
    return frozenset(name for name, entry in found.items() if _is_gateway(name, entry, ourselves))


def entry_in(client: KnownClient, text: str, name: str) -> Entry | None:
    """The entry of one server in a client's file, at the place where `with_entry` writes."""
    document = _parse(client, text)
    value: object = {} if isinstance(document, SyntaxFault) else document
    for key in (*client.table, name):
        value = _table(value).get(key)
    return cast(Entry, value) if isinstance(value, dict) else None


def _parse(client: KnownClient, text: str) -> Entry | SyntaxFault:
    if client.form == "toml":
        return parse_toml(text)
    document = jsonc.read(text)
    if isinstance(document, SyntaxFault):
        return document
    if not isinstance(document, JsonObject):
        return SyntaxFault("The file is not a JSON object.", 0)
    return cast(Entry, jsonc.plain(document))


def _table(value: object) -> Entry:
    return cast(Entry, value) if isinstance(value, dict) else {}


def _entries(client: KnownClient, text: str, root: str, notes: list[str]) -> dict[str, Entry] | SyntaxFault:
    """The servers of a client's file in the client's own form. Adds a note for each that is not a server."""
    document = _parse(client, text)
    if isinstance(document, SyntaxFault):
        return document
    if client.form == "toml":
        tables = [document.get(client.table[0])]
    else:
        tables = [document.get(key) for key in dict.fromkeys(("mcpServers", *client.table))]
        tables.append(_table(document.get("mcp")).get("servers"))  # VS Code's settings.json.
        tables.append(_table(_table(document.get("projects")).get(root)).get("mcpServers"))  # ~/.claude.json.
    found: dict[str, Entry] = {}
    for table in tables:
        if table is not None and not isinstance(table, dict):
            notes.append(f"The servers of {client.title} are left out: they should be an object, with a name for each.")
        for name, entry in _table(cast(object, table)).items():
            if isinstance(entry, dict):
                found[name] = cast(Entry, entry)
            else:
                notes.append(f"{name} of {client.title} is left out: it should be an object with a command or a url.")
    return found


def entry_for(client: KnownClient, *, url: str, command: Sequence[str], env: Mapping[str, str]) -> Entry:
    """The gateway's entry in a client's file: its URL if the client supports one, else the command that uses stdio."""
    if client.by_url is None:
        program, *args = command
        return {"command": program, "args": args, **({"env": dict(env)} if env else {})}
    return {"type": "http", client.by_url: url} if client.typed else {client.by_url: url}


def with_entry(client: KnownClient, text: str, name: str, entry: Mapping[str, object]) -> str | SyntaxFault:
    """The text of the client's file with this server added, and nothing else changed."""
    if client.form == "toml":
        return edit_files.toml_with(text, client.table[0], name, entry)
    return edit_files.json_with(text, client.table, name, entry)


def without_entry(client: KnownClient, text: str, name: str) -> str | SyntaxFault:
    """The text of the client's file with this server removed, and nothing else changed."""
    if client.form == "toml":
        return edit_files.toml_without(text, client.table[0], name)
    return edit_files.json_without(text, client.table, name)


_bare_variable: Final = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_input: Final = re.compile(r"\$\{input:([^}]+)\}")


def _adapted(value: object, name: str, client: KnownClient, notes: list[str]) -> object:
    """An entry in the form of `.mcp.json`: variables as `${NAME}`, also where the editor asks the user for a value."""
    match value:
        case dict():
            return {key: _adapted(inner, name, client, notes) for key, inner in cast(Entry, value).items()}
        case list():
            return [_adapted(inner, name, client, notes) for inner in cast(list[object], value)]
        case str():
            if client.name == "gemini":
                value = _bare_variable.sub(r"${\1}", value)

            def variable(found: re.Match[str]) -> str:
                wanted = re.sub(r"[^A-Z0-9]+", "_", found[1].upper()).strip("_") or "INPUT"
                wanted = wanted if wanted[0].isalpha() else f"INPUT_{wanted}"
                note = f"{name}: set the variable {wanted}; {client.title} asked you for its value."
                if note not in notes:
                    notes.append(note)
                return f"${{{wanted}}}"

            return _input.sub(variable, value)
        case _:
            return value


def _from_codex(entry: Entry) -> Entry:
    """A server of Codex in the form of `.mcp.json`."""
    same = {key: entry[key] for key in ("command", "args", "cwd", "url", "enabled") if key in entry}
    env = _strings(entry.get("env"))
    forwarded = entry.get("env_vars")
    for variable in cast(list[object], forwarded) if isinstance(forwarded, list) else ():
        if isinstance(variable, str):
            env.setdefault(variable, f"${{{variable}}}")
    headers = _strings(entry.get("http_headers"))
    headers |= {name: f"${{{variable}}}" for name, variable in _strings(entry.get("env_http_headers")).items()}
    if isinstance(token := entry.get("bearer_token_env_var"), str):
        headers["Authorization"] = f"Bearer ${{{token}}}"
    more: Entry = {"env": env, "headers": headers}
    if isinstance(seconds := entry.get("tool_timeout_sec"), int | float) and seconds >= 1:
        more["timeout"] = round(seconds * 1000)
    more["includeTools"] = entry.get("enabled_tools")
    more["excludeTools"] = entry.get("disabled_tools")
    return {**same, **{key: value for key, value in more.items() if value}}


def _strings(table: object) -> dict[str, str]:
    return {name: value for name, value in _table(table).items() if isinstance(value, str)}


def _is_gateway(name: str, entry: Entry, ourselves: Sequence[HttpFront]) -> bool:
    command, args = entry.get("command"), entry.get("args")
    words = [str(command or ""), *map(str, cast(list[object], args) if isinstance(args, list) else [])]
    if starts_a_gateway(words):
        return True
    urls = [url for key in ("url", "httpUrl", "serverUrl") if isinstance(url := entry.get(key), str)]
    # `connect` writes this name; the gateway's port may have changed since.
    return any(leads_to(url, http, at_any_port=name == OUR_NAME) for url in urls for http in ourselves)
