"""What all mounts offer together: names and URIs, whose they are, and what of it is shown."""

import msgspec
import pytest

from sluicegate.hub.catalog import Catalog, Patterns, Share, Subset, build_catalog, seen_through
from sluicegate.hub.fetch_catalog import Offer, Offered
from sluicegate.hub.naming import Naming
from sluicegate.protocol.message import Params


def tool(name: str, **more: object) -> Params:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def share(mount: str, *tools: Params, prefix: str | None = None, patterns: Patterns | None = None) -> Share:
    offer = Offer(tools=tuple(Offered(str(definition["name"]), definition) for definition in tools))
    return Share(mount, mount if prefix is None else prefix, offer, patterns or Patterns())


def resources(mount: str, *uris: str, templates: tuple[str, ...] = (), prefix: str | None = None) -> Share:
    listed = tuple(Offered(uri, {"uri": uri, "name": uri}) for uri in uris)
    patterns = tuple(Offered(uri, {"uriTemplate": uri, "name": uri}) for uri in templates)
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


def test_the_first_server_gets_a_name_and_the_collision_is_reported() -> None:
    catalog = build_catalog([resources("a", "https://x"), resources("b", "https://x")])
    assert [(name, entry.mount) for name, entry in catalog.resources.items()] == [("https://x", "a")]
    assert catalog.findings == ["b: 'https://x' of its resources is left out, since another server has that name."]


@pytest.mark.parametrize(
    ("naming", "own"),
    [
        ("prefix", "b__t"),
        ("prefix", "B__T"),
        ("prefix", "b__nobody has this"),
        ("claude", "mcp__b__t"),
        ("collide", "b__t"),
    ],
)
def test_a_bare_name_that_looks_like_anothers_is_refused_whether_that_one_has_it_or_not(
    naming: Naming, own: str
) -> None:
    offered = [share("a", tool(own), tool("plain"), prefix=""), share("b", tool("t"))]
    catalog = build_catalog(offered, naming=naming)
    assert [entry.own for entry in catalog.tools.values()] == ["plain", "t"]
    assert catalog.findings == [f"a: {own!r} of its tools is left out, since another server has that name."]


def test_a_bare_uri_that_looks_like_anothers_is_refused() -> None:
    bare = resources("a", "b+file:///x", "ui://b+page", "file:///y", templates=("b+doc://{id}",), prefix="")
    catalog = build_catalog([bare, resources("b", "urn:z")])
    assert list(catalog.resources) == ["file:///y", "b+urn:z"]
    assert list(catalog.templates) == []
    assert catalog.owner_of_uri("b+file:///x") == ("b", "file:///x")
    assert len(catalog.findings) == 3


def test_where_only_collisions_count_a_name_that_looks_like_anothers_gets_its_prefix() -> None:
    catalog = build_catalog([share("a", tool("b__t")), share("b", tool("t"))], naming="collide")
    assert {name: entry.mount for name, entry in catalog.tools.items()} == {"a__b__t": "a", "t": "b"}


# ------------------------------------------------------------------------------------------------ who has it keeps it


def mounts(catalog: Catalog, kind: str = "tools") -> dict[str, str]:
    return {name: entry.mount for name, entry in catalog.of(kind).items()}


def test_a_newcomer_takes_no_name_that_another_has_wherever_it_stands() -> None:
    before = build_catalog([share("a"), share("b", tool("search"))], naming="collide")
    after = build_catalog([share("a", tool("search")), share("b", tool("search"))], naming="collide", known=before)
    assert mounts(after) == {"a__search": "a", "search": "b"}


@pytest.mark.parametrize("kind", ["resources", "templates"])
def test_nor_a_web_address(kind: str) -> None:
    def offering(mount: str, *uris: str) -> Share:
        return resources(mount, *uris) if kind == "resources" else resources(mount, templates=uris)

    before = build_catalog([offering("a"), offering("b", "https://x/{y}")])
    after = build_catalog([offering("a", "https://x/{y}"), offering("b", "https://x/{y}")], known=before)
    assert mounts(after, kind) == {"https://x/{y}": "b"}
    assert after.findings == [f"a: 'https://x/{{y}}' of its {kind} is left out, since another server has that name."]


def test_a_name_that_is_no_longer_offered_is_free() -> None:
    before = build_catalog([share("a"), share("b", tool("search"))], naming="collide")
    hidden = share("b", tool("search"), patterns=Patterns(hide=("search",)))
    for later in ([share("a", tool("search")), share("b")], [share("a", tool("search")), hidden]):
        assert mounts(build_catalog(later, naming="collide", known=before)) == {"search": "a"}


def test_a_prefixed_tool_keeps_its_name_while_the_colliding_server_is_away() -> None:
    both = [share("a", tool("search")), share("b", tool("search"))]
    before = build_catalog(both, naming="collide")
    alone = build_catalog([share("a"), both[1]], naming="collide", known=before)
    assert mounts(alone) == {"b__search": "b"}
    again = build_catalog(both, naming="collide", known=alone)
    assert mounts(again) == mounts(before) == {"search": "a", "b__search": "b"}


def test_among_servers_that_start_their_order_decides_so_that_names_are_the_same_each_time() -> None:
    a, b = share("a", tool("search")), share("b", tool("search"))
    expected = mounts(build_catalog([a, b], naming="collide"))
    waiting = build_catalog([Share("a", "a", Offer(), is_awaited=True), b], naming="collide")
    assert mounts(waiting) == {"search": "b"}
    assert mounts(build_catalog([a, b], naming="collide", known=waiting)) == expected


def test_another_naming_length_or_prefix_assigns_new_names() -> None:
    a, b = share("a", tool("search")), share("b", tool("search"))
    before = build_catalog([share("a"), b], naming="collide")
    assert mounts(build_catalog([a, b], naming="claude", known=before)) == {
        "mcp__a__search": "a",
        "mcp__b__search": "b",
    }
    shorter = build_catalog([a, b], naming="collide", longest_name=32, known=before)
    assert mounts(shorter) == {"search": "a", "b__search": "b"}
    renamed = build_catalog([a, Share("b", "c", b.offer)], naming="collide", known=before)
    assert mounts(renamed) == {"search": "a", "c__search": "b"}


def test_a_server_that_is_added_has_the_names_that_begin_with_its_own() -> None:
    bare = share("a", tool("b__t"), prefix="")
    before = build_catalog([bare])
    assert mounts(before) == {"b__t": "a"}
    assert mounts(build_catalog([bare, share("b", tool("t"))], known=before)) == {"b__t": "b"}


def test_short_forms_stay_with_whom_they_were_given_to() -> None:
    long = "x" * 100
    before = build_catalog([share("b", tool(long), tool("read file"))])
    after = build_catalog([share("a", tool(long), prefix=""), share("b", tool("read file"), tool(long))], known=before)
    assert {name: e.own for name, e in after.tools.items() if e.mount == "b"} == {
        name: e.own for name, e in before.tools.items()
    }


# ------------------------------------------------------------------------------------------------------ what is shown


def test_tools_that_a_mount_hides_are_not_there() -> None:
    patterns = Patterns(only=("read_*", "write_*"), hide=("write_secret",))
    offered = share("a", tool("read_a"), tool("write_secret"), tool("delete"), patterns=patterns)
    assert list(build_catalog([offered]).tools) == ["a__read_a"]


def test_a_profile_names_servers_and_tools_in_any_of_their_names() -> None:
    catalog = build_catalog([share("files", tool("read"), tool("write")), share("git", tool("read"))])

    def shown(**parts: object) -> list[str]:
        profile = msgspec.convert(parts, Subset)
        return list(seen_through(catalog, profile).tools)

    assert shown(servers=["f*"]) == ["files__read", "files__write"]
    assert shown(tools={"only": ["*__read"]}) == ["files__read", "git__read"]
    assert shown(tools={"hide": ["write"]}) == ["files__read", "git__read"]
    assert shown(servers=["git"], tools={"only": ["write"]}) == []


@pytest.mark.parametrize("prefix", ["", "mem"])
def test_a_profile_knows_a_server_by_its_key_whatever_its_prefix(prefix: str) -> None:
    offered = share("Memory Store", tool("read"), tool("delete"), prefix=prefix)
    catalog = build_catalog([msgspec.structs.replace(offered, key="memory-store"), share("git", tool("read"))])
    profile = Subset(("memory*",), Patterns(hide=("memory-store__delete",)))
    assert [entry.own for entry in seen_through(catalog, profile).tools.values()] == ["read"]


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


def test_an_unknown_uri_goes_to_the_server_without_a_prefix() -> None:
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
    bare = share("a", tool("x", _meta={"ui/resourceUri": "ui://page"}), prefix="")
    named = Share("a", "p", bare.offer)
    known = build_catalog([bare], naming="collide")
    catalog = build_catalog([named], naming="collide", known=known)
    assert catalog.tools["x"].definition["_meta"] == {"ui/resourceUri": "ui://p+page"}


def test_T22_names_that_pages_use_have_one_owner_among_all_servers_with_pages() -> None:
    page = tool("show", _meta={"ui": {"resourceUri": "ui://page"}})
    hiding = share("a", page, tool("save"), patterns=Patterns(hide=["save"]))
    both = build_catalog([hiding, share("b", page, tool("save"), tool("load")), share("c", tool("load"))])
    assert (both.exposed_to_page("save"), both.exposed_to_page("load")) == (None, "b__load")
    # A profile without a server does not show its pages either.
    assert seen_through(both, Subset(servers=["b", "c"])).exposed_to_page("save") == "b__save"
    assert seen_through(both, Subset(servers=["a", "c"])).exposed_to_page("save") is None
    hidden = seen_through(both, Subset(tools=Patterns(hide=["b__load"])))
    assert hidden.exposed_to_page("load") is None
