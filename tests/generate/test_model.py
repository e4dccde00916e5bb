"""What holds for the code of any tools: it is valid, the same every time, and no text of a server becomes code."""

import ast
import re
from collections.abc import Sequence
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.generate.model import GeneratedTool, modules_of
from sluicegate.generate.python import python
from sluicegate.generate.typescript import typescript
from sluicegate.protocol.definition_digest import interface_digest
from tests.generate.samples import ODD, nasty, odd, our_tools, tool

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["*/", '"""', "\\", "\n", "\r", "$ref", "#", "a", "b", "*/x", '""""', "type", "\u2028"]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
KEYWORDS = (
    *("type", "properties", "required", "items", "prefixItems", "additionalProperties", "enum", "const", "default"),
    *("anyOf", "oneOf", "allOf", "$ref", "$defs", "description", "minItems", "maxItems", "nullable", "title"),
)
places = st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/nowhere", "other", "#a", "#/%", "#/~"])


def _objects(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    named = st.dictionaries(st.sampled_from(["a", "b"]) | texts, inner, max_size=3)
    proper = st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array", "string", "integer", "null", "what"]) | inner,
            "properties": named,
            "$defs": named,
            "required": st.lists(texts, max_size=2),
            "items": inner,
            "additionalProperties": inner,
            "$ref": places,
            "enum": st.lists(scalars, max_size=3),
            "description": texts,
            **{each: st.lists(inner, max_size=3) for each in ("anyOf", "oneOf", "allOf", "prefixItems")},
        },
    )
    return proper | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=3) | st.lists(inner, max_size=2)


schemas = st.recursive(scalars | st.fixed_dictionaries({"$ref": places}), _objects, max_leaves=12)


def executed(code: str) -> dict[str, Any]:
    """The names of a generated module, after it has run."""
    space: dict[str, Any] = {"__name__": "generated"}
    exec(compile(code, "generated", "exec"), space)
    return space


def methods(code: str, name: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    found = [each for each in ast.parse(code).body if isinstance(each, ast.ClassDef) and each.name == name]
    return {each.name: each for each in found[0].body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def skeleton(code: str) -> str:
    """TypeScript without its comments and the contents of its strings."""
    return re.sub(r"/\*.*?\*/\s*|//[^\n]*", "", re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', _uncommented(code)), flags=re.S)


def _uncommented(code: str) -> str:
    return re.sub(r"/\*.*?\*/\s*", "", code, flags=re.S)


@given(schemas, schemas)
@settings(max_examples=150)
def test_any_json_as_a_schema_gives_code_that_runs(first: object, second: object) -> None:
    modules = modules_of([tool("try", inputSchema=first, outputSchema=second), tool("again", inputSchema=second)])
    assert "Odd" in executed(python(modules)["odd.py"])
    assert "class Odd" in typescript(modules)["odd.ts"]


@given(texts, texts)
@settings(max_examples=200)
def test_no_text_of_a_server_becomes_code(text: str, other: str) -> None:
    def codes(text: str, other: str) -> tuple[str, str]:
        schema = {"type": "object", "description": other, "properties": {"a": {"enum": [text], "description": other}}}
        modules = modules_of([tool("try", description=text, inputSchema=schema, outputSchema=schema)])
        return python(modules)["odd.py"], typescript(modules)["odd.ts"]

    hostile, harmless = codes(f"x{text}", f"x{other}"), codes("x", "x")
    assert skeleton(hostile[1]) == skeleton(harmless[1])
    shapes = [[type(each) for each in ast.walk(ast.parse(code))] for code in (hostile[0], harmless[0])]
    assert shapes[0] == shapes[1]


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=5, unique=True))
def test_any_names_become_names_that_differ(names: Sequence[tuple[str, str]]) -> None:
    modules = modules_of(tool(name, server) for server, name in names)
    files = python(modules)
    assert len({file.lower() for file in files}) == len(files) == len({server for server, _ in names}) + 1
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,90}\.py", file) for file in files)
    found = [name for each in modules for name in methods(files[f"{each.name}.py"], each.class_name)]
    assert len(found) - len(modules) == len(names), "each tool is a method beside __init__"


def test_hostile_and_odd_servers_give_modules_that_can_be_imported() -> None:
    for name, code in python(modules_of([*nasty(), *odd()])).items():
        if name != "__init__.py":
            executed(code)


def test_the_order_of_tools_changes_nothing() -> None:
    tools = [*odd(), tool("echo", "b"), tool("echo", "a")]
    for write in (typescript, python):
        assert write(modules_of(tools)) == write(modules_of(reversed(tools)))


def test_a_chain_of_references_that_doubles_ends_soon() -> None:
    assert modules_of([tool(inputSchema=ODD["doubling"])])[0].functions[0].name == "try_"


def lines(schema: object) -> tuple[str, str]:
    """The TypeScript and Python for the member `a` of a schema."""
    modules = modules_of([tool("go", inputSchema={"type": "object", "properties": {"a": schema}, **_DEFS})])
    found = re.search(r"^  a\?: (.*);$", typescript(modules)["odd.ts"], re.M)
    other = re.search(r'^    "a": typing.NotRequired\[(.*)\],$', python(modules)["odd.py"], re.M)
    assert found is not None and other is not None
    return found[1], other[1].replace("typing.", "")


_DEFS = {"$defs": {"Node": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}}


def test_types_are_as_narrow_as_the_schema() -> None:
    assert lines({"enum": ["x", 1, True, None]}) == ('"x" | 1 | true | null', 'Union[Literal["x", 1, True], None]')
    assert lines({"const": "x"}) == ('"x"', 'Literal["x"]')
    assert lines({"$ref": "#/$defs/Node"}) == ("Node", '"Node"')
    assert lines({"allOf": [{"$ref": "#/$defs/Node"}], "description": "One."}) == ("Node", '"Node"')
    assert lines({"type": ["integer", "null"]}) == ("number | null", "Union[int, None]")
    assert lines({"type": "array", "items": {"$ref": "#/$defs/Node"}}) == ("Array<Node>", 'list["Node"]')
    assert lines({"type": "object", "additionalProperties": {"type": "string"}}) == (
        "{ [key: string]: string }",
        "dict[str, str]",
    )
    assert lines({}) == lines(True) == ("unknown", "object"), "never `any`"


def test_the_same_definition_in_two_tools_is_one_type_and_others_are_not() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/Node"}}}
    other = {**schema, "$defs": {"Node": {"type": "object", "properties": {"y": {"type": "string"}}}}}
    tools = [tool(each, inputSchema={**schema, **_DEFS}) for each in ("one", "two")]
    (module,) = modules_of([*tools, tool("three", inputSchema=other)])
    assert sorted(each.name for each in module.types if each.name.startswith("Node")) == ["Node", "Node_2"]


async def test_the_hash_is_that_of_the_definition_of_the_server() -> None:
    echo = next(each for each in await our_tools() if each.own == "echo")
    module = modules_of([echo])[0]
    assert module.functions[0].hash == interface_digest({**echo.definition, "name": "echo"})
    changed = GeneratedTool(echo.server, echo.own, {**echo.definition, "description": "Another."})
    assert modules_of([changed])[0].functions[0].hash != module.functions[0].hash


async def test_only_streams_have_events_and_custom_events_are_named() -> None:
    code = typescript(modules_of(await our_tools()))
    assert "watch(args: WatchArguments): AsyncIterable<runtime.Event | WatchEvent> {" in code["solar.ts"]
    assert "export type WatchEvent = Seen | Lost;" in code["solar.ts"]
    assert "async echo(args: EchoArguments): Promise<string> {" in code["demo.ts"]


def test_arguments_that_are_repeated_in_headers_are_passed_on() -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    code = typescript(modules_of([tool("go", inputSchema=schema)]))["odd.ts"]
    assert 'call("odd__go", args, {"region": ["region"]})' in code


def test_docstrings_have_the_description_as_it_is() -> None:
    text = 'Say "hi": \\n, """ and """"'
    code = python(modules_of([tool("go", description=text)]))["odd.py"]
    doc = cast(str, ast.get_docstring(methods(code, "Odd")["go"]))
    assert doc.startswith(f"{text}\n\nTool: odd__go\nHash: ")
