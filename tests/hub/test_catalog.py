"""What all mounts offer together: names and URIs, whose they are, and what of it is shown."""

import msgspec

from sluicegate.hub.catalog import Catalog, Patterns, Profile, Share, build_catalog, seen_through
from sluicegate.hub.offers import Offer
from sluicegate.protocol.message import Params


def tool(name: str, **more: object) -> Params:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def share(mount: str, *tools: Params, prefix: str | None = None, patterns: Patterns | None = None) -> Share:
    return Share(mount, mount if prefix is None else prefix, Offer(tools=tools), patterns or Patterns())


def resources(mount: str, *uris: str, templates: tuple[str, ...] = (), prefix: str | None = None) -> Share:
    listed = tuple[Params, ...]({"uri": uri, "name": uri} for uri in uris)
    patterns = tuple[Params, ...]({"uriTemplate": uri, "name": uri} for uri in templates)
    return Share(mount, mount if prefix is None else prefix, Offer(resources=listed, templates=patterns))


# ---------------------------------------------------------------------------------------------------------------- names


def test_entries_come_in_the_order_of_mounts_and_then_in_each_servers_own() -> None:
    catalog = build_catalog([share("b", tool("z"), tool("a")), share("a", tool("z"))])
    assert list(catalog.tools) == ["b__z", "b__a", "a__z"]
    assert [(entry.mount, entry.own) for entry in catalog.tools.values()] == [("b", "z"), ("b", "a"), ("a", "z")]


def test_a_definition_keeps_all_but_its_name() -> None:
    schema = {"type": "object", "$defs": {"x": {"$anchor": "y"}}, "unknown": [1]}
    catalog = build_catalog([share("a", {"name": "t", "inputSchema": schema, "later": {"deep": True}})])
    entry = catalog.tools["a__t"]
    assert entry.definition == {"name": "a__t", "inputSchema": schema, "later": {"deep": True}}
    assert msgspec.json.decode(entry.encoded) == entry.definition


def test_who_comes_first_keeps_a_name_and_the_other_is_reported() -> None:
    catalog = build_catalog([share("a", tool("b__t"), prefix=""), share("b", tool("t"))])
    assert [(name, entry.mount) for name, entry in catalog.tools.items()] == [("b__t", "a")]
    assert catalog.findings == ["b: 't' of its tools is left out, another server has that name."]


def test_tools_that_a_mount_hides_are_not_there() -> None:
    patterns = Patterns(only=("read_*", "write_*"), hide=("write_secret",))
    offered = share("a", tool("read_a"), tool("write_secret"), tool("delete"), patterns=patterns)
    assert list(build_catalog([offered]).tools) == ["a__read_a"]


def test_marks_for_headers_stay_if_a_client_can_follow_them_and_go_if_it_would_drop_the_tool() -> None:
    def marked(value: object) -> Params:
        return {"type": "object", "properties": {"x": {"type": "string", "x-mcp-header": value}}}

    good, bad = tool("good", inputSchema=marked("Region")), tool("bad", inputSchema=marked("no header!"))
    catalog = build_catalog([share("a", good, bad)])
    assert catalog.tools["a__good"].definition["inputSchema"] == marked("Region")
    assert list(catalog.tools["a__good"].marks.values()) != []
    assert catalog.tools["a__bad"].definition["inputSchema"] == {
        "type": "object",
        "properties": {"x": {"type": "string"}},
    }
    assert catalog.tools["a__bad"].marks == {}


def test_a_profile_names_servers_and_tools_in_any_of_their_names() -> None:
    catalog = build_catalog([share("files", tool("read"), tool("write")), share("git", tool("read"))])

    def shown(**parts: object) -> list[str]:
        profile = msgspec.convert(parts, Profile)
        return list(seen_through(catalog, profile).tools)

    assert shown(servers=["f*"]) == ["files__read", "files__write"]
    assert shown(tools={"only": ["*__read"]}) == ["files__read", "git__read"]
    assert shown(tools={"hide": ["write"]}) == ["files__read", "git__read"]
    assert shown(servers=["git"], tools={"only": ["write"]}) == []


# ----------------------------------------------------------------------------------------------------------------- URIs


def owner(catalog: Catalog, uri: str) -> tuple[str, str] | None:
    return catalog.owner_of_uri(uri)


def test_a_uri_finds_its_owner_as_listed_as_the_server_says_it_and_by_its_prefix() -> None:
    catalog = build_catalog([resources("a", "file:///x", templates=("doc://{id}",)), resources("b", "urn:y")])
    assert list(catalog.resources) == ["a+file:///x", "b+urn:y"]
    assert list(catalog.templates) == ["a+doc://{id}"]
    assert owner(catalog, "a+file:///x") == ("a", "file:///x")
    assert owner(catalog, "file:///x") == ("a", "file:///x")
    assert owner(catalog, "b+anything:else") == ("b", "anything:else")
    assert owner(catalog, "doc://7") == ("a", "doc://7")
    assert owner(catalog, "nobody:at-all") is None


def test_a_uri_that_two_have_belongs_to_neither_until_it_says_whose_it_is() -> None:
    catalog = build_catalog([resources("a", "file:///x"), resources("b", "file:///x")])
    assert owner(catalog, "file:///x") is None
    assert owner(catalog, "b+file:///x") == ("b", "file:///x")


def test_a_leaked_uri_reaches_no_server_that_merely_has_its_scheme_for_a_name() -> None:
    catalog = build_catalog([resources("git", "file:///x"), resources("b", "git+https://example.org/r")])
    assert owner(catalog, "git+https://example.org/r") == ("b", "git+https://example.org/r")


def test_what_nobody_knows_goes_to_the_server_without_a_prefix() -> None:
    catalog = build_catalog([resources("a", "file:///x"), resources("bare", prefix="")])
    assert owner(catalog, "new:thing") == ("bare", "new:thing")


# ------------------------------------------------------------------------------------------------------- built again


def test_what_did_not_change_is_not_made_again_and_what_did_is() -> None:
    one, two = share("a", tool("x"), tool("y")), share("b", tool("x", _meta={"ui/resourceUri": "ui://page"}))
    known = build_catalog([one, two])
    changed = share("a", tool("x", title="new"), tool("y"))
    catalog = build_catalog([changed, two], known=known)
    assert catalog == build_catalog([changed, two])
    assert catalog.tools["b__x"] is known.tools["b__x"]
    assert catalog.tools["a__x"].definition["title"] == "new"


def test_the_same_name_with_another_prefix_is_another_entry() -> None:
    definition = tool("x", _meta={"ui/resourceUri": "ui://page"})
    bare, named = share("a", definition, prefix=""), share("a", definition, prefix="p")
    known = build_catalog([bare], naming="collide")
    catalog = build_catalog([named], naming="collide", known=known)
    assert catalog.tools["x"].definition["_meta"] == {"ui/resourceUri": "ui://p+page"}
