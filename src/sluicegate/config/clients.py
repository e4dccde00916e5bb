"""Programs that use servers: where each keeps its list, how to read it, and how to write ourselves into it.

For `sluicegate import` and `sluicegate connect`. Files are read and written by the caller; here are only texts.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final, Literal, cast

import msgspec

from sluicegate.config import editing, jsonc
from sluicegate.config.jsonc import Fault, Object
from sluicegate.config.ourselves import leads_to, starts_a_gateway
from sluicegate.config.values import HttpFront

Scope = Literal["user", "project"]
Entry = dict[str, object]

OUR_NAME: Final = "sluicegate"
"""What clients call us, if nobody wants another name."""


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """A program that uses servers."""

    name: str
    title: str
    table: tuple[str, ...] = ("mcpServers",)
    """The keys that lead to its servers."""
    form: Literal["json", "toml"] = "json"
    by_url: str | None = "url"
    """The key of a server's URL; None if it only starts commands."""
    typed: bool = False
    """Whether an entry must say "type"."""
    user: Mapping[str, str] = {}
    """Its file in the user's home, for each `sys.platform`; "" is for all others."""
    project: str | None = None
    """Its file in a folder of work."""
    also: tuple[str, ...] = ()
    """Other files in the user's home that it once used, to import from."""


_MAC: Final = "~/Library/Application Support"

CLIENTS: Final[dict[str, Client]] = {
    client.name: client
    for client in (
        Client(
            name="claude-desktop",
            title="Claude Desktop",
            by_url=None,
            user={
                "darwin": f"{_MAC}/Claude/claude_desktop_config.json",
                "win32": "%APPDATA%/Claude/claude_desktop_config.json",
                "": "%XDG_CONFIG_HOME%/Claude/claude_desktop_config.json",
            },
        ),
        Client(name="claude-code", title="Claude Code", typed=True, user={"": "~/.claude.json"}, project=".mcp.json"),
        Client(name="cursor", title="Cursor", user={"": "~/.cursor/mcp.json"}, project=".cursor/mcp.json"),
        Client(
            name="vscode",
            title="VS Code",
            table=("servers",),
            typed=True,
            user={
                "darwin": f"{_MAC}/Code/User/mcp.json",
                "win32": "%APPDATA%/Code/User/mcp.json",
                "": "%XDG_CONFIG_HOME%/Code/User/mcp.json",
            },
            project=".vscode/mcp.json",
            also=("settings.json",),
        ),
        Client(
            name="codex",
            title="Codex",
            table=("mcp_servers",),
            form="toml",
            user={"": "%CODEX_HOME%/config.toml"},
            project=".codex/config.toml",
        ),
        Client(
            name="gemini",
            title="Gemini CLI",
            by_url="httpUrl",
            user={"": "~/.gemini/settings.json"},
            project=".gemini/settings.json",
        ),
    )
}

OURS: Final = Client(name="mcp-json", title=".mcp.json", user={"": "~/.mcp.json"}, project=".mcp.json")
"""Our own file of servers, as one more of them: `import` writes into it."""


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """Servers of another program, in the words of `.mcp.json`, and what whoever imports them should know."""

    servers: dict[str, Entry] = {}
    notes: tuple[str, ...] = ()


def client_file(
    client: Client, scope: Scope, *, home: str, root: str, environ: Mapping[str, str], platform: str = sys.platform
) -> str | None:
    """Where the client keeps its list of servers; None if it has no such file."""
    if scope == "project":
        return None if client.project is None else os.path.join(root, *client.project.split("/"))
    place = client.user.get(platform, client.user.get(""))
    if place is None:
        return None
    first, *rest = place.split("/")
    return os.path.join(_shared_folders(home, environ)[first], *rest)


def _shared_folders(home: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What the beginning of a client's path stands for."""
    return {
        "~": home,
        "%APPDATA%": environ.get("APPDATA") or os.path.join(home, "AppData", "Roaming"),
        "%XDG_CONFIG_HOME%": environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"),
        "%CODEX_HOME%": environ.get("CODEX_HOME") or os.path.join(home, ".codex"),
    }


def folders_of(file: str, *, home: str, root: str, environ: Mapping[str, str]) -> list[str]:
    """The folders around a client's file that are the client's own, the innermost first."""
    shared = _shared_folders(home, environ)
    ends = {root, *(shared[first] for first in ("~", "%APPDATA%", "%XDG_CONFIG_HOME%"))}
    found: list[str] = []
    folder = os.path.dirname(file)
    while folder not in ends and folder.startswith(tuple(os.path.join(end, "") for end in ends)):
        found.append(folder)
        folder = os.path.dirname(folder)
    return found


def client_files(
    client: Client, *, home: str, root: str, environ: Mapping[str, str], platform: str = sys.platform
) -> tuple[str, ...]:
    """Every file in which the client may have servers, the one that counts more last."""
    user = client_file(client, "user", home=home, root=root, environ=environ, platform=platform)
    project = client_file(client, "project", home=home, root=root, environ=environ, platform=platform)
    older = [os.path.join(os.path.dirname(user), name) for name in client.also] if user else []
    return tuple(file for file in (*older, user, project) if file is not None)


def read_client(client: Client, text: str, *, root: str = "", ourselves: Sequence[HttpFront] = ()) -> Imported | Fault:
    """The servers of a client's file, without our own gateway.

    `root` is the folder of work, for clients that keep all of them in one file; `ourselves` is where we can be found.
    """
    notes: list[str] = []
    found = _entries(client, text, root, notes)
    if isinstance(found, Fault):
        return found
    if client.form == "toml":
        servers = {name: _from_codex(entry) for name, entry in found.items()}
    else:
        servers = {name: cast(Entry, _adapted(entry, name, client, notes)) for name, entry in found.items()}
    return _without_ourselves(client, servers, notes, ourselves)


def gateways_in(client: Client, text: str, *, root: str = "", ourselves: Sequence[HttpFront] = ()) -> frozenset[str]:
    """What a client calls this gateway in its file, if it is there; the arguments are those of `read_client`."""
    found = _entries(client, text, root) if text.strip() else {}
    if isinstance(found, Fault):
        return frozenset()
    return frozenset(name for name, entry in found.items() if _is_gateway(name, entry, ourselves))


def entry_in(client: Client, text: str, name: str) -> Entry | None:
    """What a client's file says of one server, at the place where `with_entry` writes."""
    page = _page(client, text)
    table = {} if isinstance(page, Fault) else page
    for key in client.table:
        inner = table.get(key)
        table = cast(Entry, inner) if isinstance(inner, dict) else {}
    entry = table.get(name)
    return cast(Entry, entry) if isinstance(entry, dict) else None


def _page(client: Client, text: str) -> Entry | Fault:
    """What is in a client's file."""
    if client.form == "toml":
        import tomllib

        try:
            return tomllib.loads(text)
        except ValueError as error:
            return editing.no_toml(text, error)
    document = jsonc.read(text)
    if isinstance(document, Fault):
        return document
    return (
        cast(Entry, jsonc.plain(document)) if isinstance(document, Object) else Fault("The file is no JSON object.", 0)
    )


def _entries(client: Client, text: str, root: str, notes: list[str] | None = None) -> dict[str, Entry] | Fault:
    """The servers of a client's file, in its own words; what cannot be one is told in the `notes`."""
    page = _page(client, text)
    if isinstance(page, Fault):
        return page
    notes = [] if notes is None else notes
    if client.form == "toml":
        return _tables(page.get(client.table[0]), client, notes)
    tables: list[object] = [page.get(key) for key in dict.fromkeys(("mcpServers", *client.table))]
    if isinstance(mcp := page.get("mcp"), dict):
        tables.append(cast(Entry, mcp).get("servers"))
    if isinstance(projects := page.get("projects"), dict):
        project = cast(Entry, projects).get(root)
        tables.append(cast(Entry, project).get("mcpServers") if isinstance(project, dict) else None)
    found: dict[str, Entry] = {}
    for table in tables:
        found |= _tables(table, client, notes)
    return found


def _tables(table: object, client: Client, notes: list[str]) -> dict[str, Entry]:
    if not isinstance(table, dict):
        if table is not None:
            notes.append(f"The servers of {client.title} are left out: they should be an object, with a name for each.")
        return {}
    found: dict[str, Entry] = {}
    for name, entry in cast(Entry, table).items():
        if isinstance(entry, dict):
            found[name] = cast(Entry, entry)
        else:
            notes.append(f"{name} of {client.title} is left out: it should be an object with a command or a url.")
    return found


def runs_the_same(one: Entry, other: Entry) -> bool:
    """Whether two entries, in the words of `.mcp.json`, start or reach the same server in the same way."""
    return _what_runs(one) == _what_runs(other)


def _what_runs(entry: Entry) -> Entry:
    """An entry without its settings, and without what goes without saying."""
    url = next((entry[key] for key in ("url", "httpUrl", "serverUrl") if entry.get(key)), None)
    same = ("headers",) if url else ("command", "args", "env", "envFile", "cwd")
    is_sse = any(entry.get(key) == "sse" for key in ("type", "transport", "transportType"))
    said: Entry = {"url": url, "sse": is_sse, **{key: entry.get(key) for key in same}}
    return {key: value for key, value in said.items() if value}


def entry_for(client: Client, *, url: str, command: Sequence[str]) -> Entry:
    """How the client is told of us: by our URL if it can use one, else by the command that speaks over pipes."""
    if client.by_url is None:
        program, *args = command
        return {"command": program, "args": args}
    return {"type": "http", client.by_url: url} if client.typed else {client.by_url: url}


def with_entry(client: Client, text: str, name: str, entry: Mapping[str, object]) -> str | Fault:
    """The text of the client's file with this server in it, and all else as it was."""
    if client.form == "toml":
        return editing.toml_with(text, client.table[0], name, entry)
    return editing.json_with(text, client.table, name, entry)


def without_entry(client: Client, text: str, name: str) -> str | Fault:
    """The text of the client's file without this server, and all else as it was."""
    if client.form == "toml":
        return editing.toml_without(text, client.table[0], name)
    return editing.json_without(text, client.table, name)


_bare_variable: Final = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_input: Final = re.compile(r"\$\{input:([^}]+)\}")


def _adapted(value: object, name: str, client: Client, notes: list[str]) -> object:
    """An entry in our words: variables as `${NAME}`, and what an editor would ask a person for as variables too."""
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
                note = f"{name}: set the variable {wanted}, which {client.title} asked you for."
                if note not in notes:
                    notes.append(note)
                return f"${{{wanted}}}"

            return _input.sub(variable, value)
        case _:
            return value


def _from_codex(entry: Entry) -> Entry:
    """A server of Codex in the words of `.mcp.json`."""
    same = {key: entry[key] for key in ("command", "args", "cwd", "url", "enabled") if key in entry}
    env = dict(_strings(entry.get("env")))
    forwarded = entry.get("env_vars")
    for variable in cast(list[object], forwarded) if isinstance(forwarded, list) else ():
        if isinstance(variable, str):
            env.setdefault(variable, f"${{{variable}}}")
    headers = dict(_strings(entry.get("http_headers")))
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
    if not isinstance(table, dict):
        return {}
    return {name: value for name, value in cast(Entry, table).items() if isinstance(value, str)}


def _without_ourselves(
    client: Client, servers: dict[str, Entry], notes: list[str], ourselves: Sequence[HttpFront]
) -> Imported:
    """The servers without an entry that is us: a gateway that calls itself never ends."""
    kept = {name: entry for name, entry in servers.items() if not _is_gateway(name, entry, ourselves)}
    left = [f"{name} of {client.title} is sluicegate itself, and left out." for name in servers if name not in kept]
    return Imported(servers=kept, notes=(*notes, *left))


def _is_gateway(name: str, entry: Entry, ourselves: Sequence[HttpFront]) -> bool:
    command, args = entry.get("command"), entry.get("args")
    words = [str(command or ""), *map(str, cast(list[object], args) if isinstance(args, list) else [])]
    if starts_a_gateway(words):
        return True
    urls = [url for key in ("url", "httpUrl", "serverUrl") if isinstance(url := entry.get(key), str)]
    # `connect` gives us this name, and perhaps a port that we do not have any more.
    return any(leads_to(url, http, at_any_port=name == OUR_NAME) for url in urls for http in ourselves)
