"""Adding or removing one entry leaves every other byte of a file as it is."""

import json
import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.config import jsonc
from sluicegate.config.edit_files import json_with, json_without, toml_with, toml_without
from sluicegate.config.jsonc import JsonNode, SyntaxFault

ENTRY = {"type": "http", "url": "http://127.0.0.1:4747/mcp"}
PATH = ("mcpServers",)


def edited(text: str | SyntaxFault) -> str:
    assert isinstance(text, str), text
    return text


def value(text: str) -> object:
    node = jsonc.read(text)
    assert isinstance(node, JsonNode)
    return jsonc.plain(node)


JSON = {
    "empty": "",
    "an empty object": "{}",
    "an empty object with a line": "{\n}\n",
    "no table": '{\n  "theme": "dark"\n}\n',
    "an empty table": '{\n  "mcpServers": {}\n}\n',
    "one server": '{\n  "mcpServers": {\n    "a": {"command": "x"}\n  }\n}\n',
    "four blanks": '{\n    "mcpServers": {\n        "a": {\n            "command": "x"\n        }\n    },\n'
    '    "z": 1\n}\n',
    "tabs": '{\n\t"mcpServers": {\n\t\t"a": {}\n\t}\n}\n',
    "windows": '{\r\n  "mcpServers": {\r\n    "a": {}\r\n  }\r\n}\r\n',
    "one line": '{"mcpServers": {"a": {"command": "x"}}, "z": 1}',
    "one line with a trailing comma": '{"mcpServers": {"a": {},},}',
    "a trailing comma": '{\n  "mcpServers": {\n    "a": {},\n  },\n}\n',
    "comments": '// top\n{\n  /* in */ "mcpServers": { // table\n    "a": {} // after a\n    // last\n  }, // end\n}\n',
    "a comment after a comma": '{\n  "mcpServers": {\n    "a": {}, // after a\n    /* last */\n  }\n}\n',
    "only a comment": '{\n  "mcpServers": {\n    // none yet\n  }\n}\n',
    "a bracket beside": '{"mcpServers": {\n  "a": {}}}',
    "a byte order mark": '\ufeff{\n  "mcpServers": {}\n}\n',
    "brackets in strings": '{\n  "x": "}\\"//{",\n  "mcpServers": {"a": {"args": ["}", ","]}}\n}\n',
}


@pytest.mark.parametrize("text", JSON.values(), ids=JSON)
def test_an_entry_comes_in_and_goes_out_again(text: str) -> None:
    before = value(text or "{}")
    assert isinstance(before, dict)
    table: dict[str, object] = dict(before.get("mcpServers", {}))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    inside = edited(json_with(text, PATH, "sluicegate", ENTRY))
    assert value(inside) == {**before, "mcpServers": {**table, "sluicegate": ENTRY}}
    assert comments(text) == comments(inside)
    outside = edited(json_without(inside, PATH, "sluicegate"))
    assert value(outside) == {**before, "mcpServers": table}
    assert comments(text) == comments(outside)


@pytest.mark.parametrize(
    "name",
    [
        "one server",
        "four blanks",
        "tabs",
        "windows",
        "one line",
        "comments",
        "a comment after a comma",
        "a trailing comma",
    ],
)
def test_undoing_gives_the_very_same_bytes(name: str) -> None:
    inside = edited(json_with(JSON[name], PATH, "sluicegate", ENTRY))
    assert edited(json_without(inside, PATH, "sluicegate")) == JSON[name]


def test_the_layout_of_the_file_is_kept() -> None:
    assert edited(json_with(JSON["four blanks"], PATH, "me", {"url": "u"})) == (
        '{\n    "mcpServers": {\n        "a": {\n            "command": "x"\n        },\n        "me": {\n'
        '            "url": "u"\n        }\n    },\n    "z": 1\n}\n'
    )


def test_an_older_entry_is_replaced_in_its_place() -> None:
    text = '{\n  "mcpServers": {\n    "me": {"url": "old"}, // mine\n    "b": {}\n  }\n}\n'
    assert edited(json_with(text, PATH, "me", {"url": "new"})) == text.replace(
        '{"url": "old"}', '{\n      "url": "new"\n    }'
    )


@pytest.mark.parametrize("where", [0, 1, 2])
def test_any_of_three_can_go(where: int) -> None:
    names = ["a", "b", "c"]
    text = '{\n  "mcpServers": {\n' + ",\n".join(f'    "{name}": {{}} // {name}' for name in names) + "\n  }\n}\n"
    text = re.sub(r" // (\w),", r", // \1", text)
    after = edited(json_without(text, PATH, names[where]))
    assert value(after) == {"mcpServers": {name: {} for name in names if name != names[where]}}


def test_removing_a_missing_entry_changes_nothing() -> None:
    for text in JSON.values():
        assert json_without(text, PATH, "none") == text


def test_a_key_that_is_there_twice_goes_twice() -> None:
    after = edited(json_without('{"mcpServers": {"a": 1, "b": 2, "a": 3}}', PATH, "a"))
    assert value(after) == {"mcpServers": {"b": 2}}


@pytest.mark.parametrize("text", ["{", "[]", '{"mcpServers": 1}', '{"mcpServers": []}', "nonsense"])
def test_a_file_that_cannot_be_edited_is_left_alone(text: str) -> None:
    assert isinstance(json_with(text, PATH, "a", ENTRY), SyntaxFault)


names = st.text(min_size=1, max_size=6, alphabet=st.characters(exclude_categories=("Cs", "Cc")))
tables = st.dictionaries(names, st.dictionaries(names, st.integers() | names, max_size=2), max_size=4)


@given(tables, names, st.sampled_from([None, 1, 2, 4, "\t"]), st.dictionaries(names, st.integers(), max_size=2))
def test_any_file_takes_any_entry(
    table: dict[str, object], name: str, indent: int | str | None, rest: dict[str, object]
) -> None:
    page = {**rest, "mcpServers": table}
    text = json.dumps(page, indent=indent, ensure_ascii=False)
    inside = edited(json_with(text, PATH, name, ENTRY))
    assert value(inside) == {**page, "mcpServers": {**table, name: ENTRY}}
    outside = edited(json_without(inside, PATH, name))
    assert value(outside) == {**page, "mcpServers": {key: inner for key, inner in table.items() if key != name}}
    if table and name not in table:
        assert outside == text


def comments(text: str) -> list[str]:
    plain = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    return re.findall(r"//[^\n]*|/\*.*?\*/", plain)


TOML = {
    "empty": "",
    "nothing of ours": 'model = "x" # mine\n\n[features]\na = true\n',
    "another server": '[mcp_servers.a]\ncommand = "x"\n\n[mcp_servers.a.env]\nK = "v"\n',
    "no line at the end": 'model = "x"',
    "windows": 'model = "x"\r\n[a]\r\nb = 1\r\n',
    "in the middle": '[mcp_servers.me]\ncommand = "old"\n[mcp_servers.me.env]\nA = "b"\n\n# about z\n[z]\nx = 1\n',
    "quoted": '[mcp_servers."me"]\ncommand = "old"\n',
}


@pytest.mark.parametrize("text", TOML.values(), ids=TOML)
def test_a_table_comes_into_toml_and_goes_out_again(text: str) -> None:
    before = tomllib.loads(text)
    others = {name: entry for name, entry in before.get("mcp_servers", {}).items() if name != "me"}
    entry = {"url": "http://127.0.0.1:4747/mcp", "args": ["a", 'b"c'], "enabled": True, "env": {"A B": "c"}}
    inside = edited(toml_with(text, "mcp_servers", "me", entry))
    assert tomllib.loads(inside) == {**before, "mcp_servers": {**others, "me": entry}}
    outside = edited(toml_without(inside, "mcp_servers", "me"))
    assert tomllib.loads(outside).get("mcp_servers", {}) == others
    assert [line for line in text.splitlines() if "#" in line] == [line for line in outside.splitlines() if "#" in line]
    if "me" not in before.get("mcp_servers", {}):
        assert outside.rstrip() == text.rstrip()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1\n\n[t.me]\nx = 1\n\n# end\n", "a = 1\n\n# end\n"),
        ("a = 1\n\n[t.me]\nx = 1\n# end\n", "a = 1\n\n# end\n"),
        ('a = 1\n\n[t.me]\nx = 1\n\n[t.me.env]\nB = "c"\n# end', "a = 1\n\n# end"),
        ("a = 1\n\n\n\n[t.me]\nx = 1\n", "a = 1\n\n\n"),
        ("a = 1\r\n\r\n[t.me]\r\nx = 1\r\n", "a = 1\r\n"),
        ("a = 1\n\n[t.me]\nx = 1\n\n[z]\nb = 2", "a = 1\n\n[z]\nb = 2"),
        ("a = 1\n[t.me]\nx = 1\n[z]\nb = 2\n\n\n", "a = 1\n[z]\nb = 2\n\n\n"),
    ],
)
def test_nothing_but_a_table_goes_out_of_toml(text: str, expected: str) -> None:
    assert toml_without(text, "t", "me") == expected


def test_an_entry_in_an_inline_table_is_replaced() -> None:
    text = '[mcp_servers]\nme = { command = "x" }\na = { command = "y" } # mine\n'
    inside = edited(toml_with(text, "mcp_servers", "me", ENTRY))
    assert tomllib.loads(inside) == {"mcp_servers": {"a": {"command": "y"}, "me": ENTRY}}
    assert edited(toml_without(inside, "mcp_servers", "me")) == text.replace('me = { command = "x" }\n', "")


def test_a_header_inside_of_a_string_is_not_a_table() -> None:
    text = 'a = """\n[mcp_servers.me]\n"""\n'
    assert toml_without(f'{text}[mcp_servers.me]\ncommand = "x"\n', "mcp_servers", "me") == text


@pytest.mark.parametrize(
    "text",
    [
        "a = ",
        "mcp_servers = 3\n",
        "mcp_servers = { a = {} }\n",
        '[mcp_servers.me]\ncommand = "x"\n\n[z]\n\n[mcp_servers.me.env]\nA = "b"\n',
    ],
    ids=["no TOML", "no table", "an inline table", "a table in two parts"],
)
def test_toml_that_cannot_be_edited_is_left_alone(text: str) -> None:
    assert isinstance(toml_with(text, "mcp_servers", "me", ENTRY), SyntaxFault)
