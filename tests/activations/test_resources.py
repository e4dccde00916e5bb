"""Resources and templates: what is read, and what is not there."""

import pytest

from sluicegate.activations.call import Call
from sluicegate.activations.values import Contents, ToolError
from sluicegate.errors import InputRefused, UnknownTarget, error_object
from sluicegate.exchange import Exchange
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.server import Server
from tests.activations.helpers import EAGER, Recorder, ask


@pytest.fixture
def server() -> Server:
    return Server("demo")


async def read(server: Server, uri: str, sink: Recorder | None = None) -> list[dict[str, object]]:
    return (await ask(server, "resources/read", {"uri": uri}, sink))["contents"]


async def test_resource_may_be_text_bytes_or_an_object(server: Server) -> None:
    server.add_resource("a://text", lambda: "hello", name="text")
    server.add_resource("a://typed", lambda: "# hello", name="typed", mime_type="text/markdown")
    server.add_resource("a://bytes", lambda: b"\x00", name="bytes")
    server.add_resource("a://object", lambda: {"a": 1}, name="object")
    assert await read(server, "a://text") == [{"uri": "a://text", "mimeType": "text/plain", "text": "hello"}]
    assert await read(server, "a://typed") == [{"uri": "a://typed", "mimeType": "text/markdown", "text": "# hello"}]
    assert await read(server, "a://bytes") == [
        {"uri": "a://bytes", "mimeType": "application/octet-stream", "blob": "AA=="}
    ]
    assert await read(server, "a://object") == [
        {"uri": "a://object", "mimeType": "application/json", "text": '{"a":1}'}
    ]


async def test_resource_may_hold_several_contents(server: Server) -> None:
    @server.resource("dir://a")
    async def folder() -> list[Contents]:
        return [Contents(text="1", uri="dir://a/1"), Contents(blob=b"2", mime_type="x/y", meta={"k": 1})]

    assert await read(server, "dir://a") == [
        {"uri": "dir://a/1", "mimeType": "text/plain", "text": "1"},
        {"uri": "dir://a", "mimeType": "x/y", "blob": "Mg==", "_meta": {"k": 1}},
    ]


async def test_result_of_a_read_may_not_be_kept(server: Server) -> None:
    server.add_resource("a://text", lambda: "hello", name="text")
    result = await ask(server, "resources/read", {"uri": "a://text"})
    assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 0, "private")


async def test_variables_are_bound_by_name_and_converted(server: Server) -> None:
    @server.resource("note://{owner}/{number}{?tail}")
    async def note(number: int, owner: str, call: Call, tail: bool = False) -> str:
        return f"{owner} {number + 1} {tail} {call.client.version}"

    assert (await read(server, "note://ada%20l/41"))[0]["text"] == "ada l 42 False 2026-07-28"
    assert (await read(server, "note://ada/1?tail=true"))[0]["text"] == "ada 2 True 2026-07-28"
    with pytest.raises(UnknownTarget):
        await read(server, "note://ada/first")


async def test_exact_beats_template_and_the_first_template_wins(server: Server) -> None:
    server.add_resource("a://{+all}", lambda all: f"first {all}", name="first")  # pyright: ignore
    server.add_resource("a://{one}", lambda one: f"second {one}", name="second")  # pyright: ignore
    server.add_resource("a://here", lambda: "exact", name="exact")
    assert (await read(server, "a://here"))[0]["text"] == "exact"
    assert (await read(server, "a://there"))[0]["text"] == "first there"


async def test_unknown_resource_is_an_error_that_names_its_uri(server: Server) -> None:
    server.add_resource("a://none", lambda: None, name="none")
    for uri in ("a://b", "a://none"):
        with pytest.raises(UnknownTarget) as refusal:
            await read(server, uri)
        error = error_object(refusal.value)
        assert (error.code, error.message) == (-32602, f"Resource not found: {uri}")
        assert refusal.value.data == {"uri": uri}


async def test_a_failing_resource_shows_only_the_kind_of_failure(server: Server) -> None:
    @server.resource("a://broken")
    def broken() -> str:
        raise OSError("/etc/secret")

    @server.resource("a://closed")
    def closed() -> str:
        raise ToolError("Closed on Sundays.")

    with pytest.raises(ToolError, match=r"^The resource a://broken failed \(OSError\)\.$") as failure:
        await read(server, "a://broken")
    assert error_object(failure.value).code == -32603
    with pytest.raises(ToolError, match="Closed on Sundays"):
        await read(server, "a://closed")


async def test_resource_may_ask_and_be_refused(server: Server) -> None:
    @server.resource("a://roots")
    async def roots(call: Call) -> str:
        return (await call.roots())[0].uri

    sink = Recorder(lambda _: {"roots": {"roots": [{"uri": "file:///a"}]}})
    assert (await read(server, "a://roots", sink))[0]["text"] == "file:///a"

    def refuse(questions: Questions) -> Answers:
        raise InputRefused("Nobody is there.")

    reply = await server(Exchange("resources/read", {"uri": "a://roots"}, Recorder(refuse), EAGER))
    assert getattr(reply, "message", None) == "Nobody is there."


def test_function_and_uri_must_agree(server: Server) -> None:
    with pytest.raises(TypeError, match="has a variable 'id' that its function does not take"):
        server.add_resource("a://{id}", lambda: "", name="a")
    with pytest.raises(TypeError, match="has no variable for the parameter 'id' of its function"):
        server.add_resource("a://b", lambda id: id, name="b")  # pyright: ignore
    server.add_resource("a://c", lambda: "", name="c")
    with pytest.raises(ValueError, match="there is already a resource 'a://c'"):
        server.add_resource("a://c", lambda: "", name="c")


async def test_lists_show_uris_and_templates_apart(server: Server) -> None:
    @server.resource("a://b", title="B", mime_type="text/plain", size=3, annotations={"priority": 1.0})
    def b() -> str:
        """Just b."""
        return "abc"

    @server.resource("a://{c}/d", name="see-dee", description="All of them.", size=3)
    def d(c: str) -> str:
        return c

    assert (await ask(server, "resources/list"))["resources"] == [
        {
            "uri": "a://b",
            "name": "b",
            "title": "B",
            "description": "Just b.",
            "mimeType": "text/plain",
            "size": 3,
            "annotations": {"priority": 1.0},
        }
    ]
    assert (await ask(server, "resources/templates/list"))["resourceTemplates"] == [
        {"uriTemplate": "a://{c}/d", "name": "see-dee", "description": "All of them."}
    ]
