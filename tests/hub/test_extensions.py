"""Extensions that nothing here knows: who declares them, which server gets their requests, and what comes back."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from sluicegate.errors import (
    ErrorObject,
    InvalidParams,
    MethodNotFound,
    Refused,
    SluicegateError,
    UnknownTarget,
    UpstreamProtocolError,
)
from sluicegate.exchange import NOBODY, Exchange, send
from sluicegate.hub.catalog import Subset as View
from sluicegate.hub.fetch_catalog import decode_offer, encode_offer
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.protocol.extensions import MAX_SIZE
from sluicegate.protocol.message import Params, Reply, Result, as_array, as_object, opened
from sluicegate.protocol.modern_era import ClientProfile, complete
from tests.hub.scripted import Scripted, tools
from tests.hub.test_governed_hub import Judge

SKILLS = "io.modelcontextprotocol/skills"
Answer = Callable[[Exchange], Awaitable[Reply]]


class Skilled(Scripted):
    """A server with an extension, that has one skill; it notes the requests of the extension."""

    def __init__(
        self,
        name: str,
        extensions: Params | None = None,
        *,
        answer: Callable[[Exchange], Reply] | None = None,
        version: str = "2026-07-28",
    ) -> None:
        declared: Params = {SKILLS: {}} if extensions is None else extensions
        super().__init__(self._reply, {"tools": {}, "resources": {}, "extensions": declared}, version)
        self.uri = f"skill://{name}/SKILL.md"
        self.asked: list[tuple[str, Params]] = []
        self._skill: Params = {
            "uri": self.uri,
            "frontmatter": {"name": name, "uri": "stays"},
            "resources": [{"uri": self.uri, "digest": "d"}],
        }
        self._own_answer = answer

    async def _reply(self, exchange: Exchange) -> Reply:
        match exchange.method:
            case "tools/list":
                return tools("one")
            case "resources/list":
                return Result(complete({"resources": [{"uri": self.uri, "name": "n"}]}, ttl_ms=0))
            case "resources/templates/list":
                return Result(complete({"resourceTemplates": []}, ttl_ms=0))
            case _:
                self.asked.append((exchange.method, exchange.params))
        if self._own_answer is not None:
            return self._own_answer(exchange)
        if exchange.method == "skills/list":
            return Result(complete({"skills": [self._skill]}, ttl_ms=5000, scope="public"))
        if exchange.method == "skills/get" and exchange.params.get("uri") == self.uri:
            return Result(complete({"skill": self._skill}, ttl_ms=5000))
        return ErrorObject(-32602, "Unknown skill", {"uri": exchange.params.get("uri")})


@asynccontextmanager
async def hub_of(servers: Mapping[str, Scripted], **settings: MountSettings) -> AsyncGenerator[Hub]:
    hub = Hub()
    for name, server in servers.items():
        hub.mount(name, server, settings.get(name) or MountSettings(prefix=name, debounce=0))
    async with asyncio.timeout(10), hub:
        await hub.settled()
        yield hub


async def ask(hub: Hub, method: str, params: Params | None = None, profile: ClientProfile | None = None) -> Params:
    reply = await hub(Exchange(method, params or {}, NOBODY, profile or ClientProfile()))
    assert isinstance(reply, Result), reply
    return opened(reply)


async def capabilities(hub: Hub) -> Params:
    return as_object((await ask(hub, "server/discover"))["capabilities"]) or {}


def uris(listed: object) -> list[object]:
    return [(as_object(entry) or {}).get("uri") for entry in as_array(listed) or []]


# --------------------------------------------------------------------------------------------------------- capabilities


async def test_extensions_of_all_servers_are_declared_with_each_feature_that_one_of_them_has() -> None:
    plain, reading = Skilled("a"), Skilled("b", {SKILLS: {"directoryRead": True}, "com.example/x": {"y": 1}})
    async with hub_of({"a": plain, "b": reading}) as hub:
        assert (await capabilities(hub))["extensions"] == {SKILLS: {"directoryRead": True}, "com.example/x": {"y": 1}}


async def test_without_extensions_none_are_declared() -> None:
    async with hub_of({"a": Skilled("a", {})}) as hub:
        assert "extensions" not in await capabilities(hub)


@pytest.mark.parametrize(
    "declared",
    [
        {"io.modelcontextprotocol/oauth-client-credentials": {}},
        {"com.example/large": {"text": "x" * MAX_SIZE}},
        {"com.example/malformed": True},
    ],
)
async def test_extensions_about_one_connection_large_ones_and_malformed_ones_are_not_declared(declared: Params) -> None:
    async with hub_of({"a": Skilled("a", declared)}) as hub:
        assert "extensions" not in await capabilities(hub)


async def test_a_profile_declares_only_extensions_of_its_servers() -> None:
    async with hub_of({"a": Skilled("a"), "b": Skilled("b", {"com.example/x": {}})}) as hub:
        router = hub.router("few", View(servers=("b",)))
        reply = await router(Exchange("server/discover", {}, NOBODY))
        assert isinstance(reply, Result)
        declared = as_object(opened(reply)["capabilities"]) or {}
        assert declared["extensions"] == {"com.example/x": {}}


async def test_extensions_are_remembered_with_what_a_server_offers() -> None:
    async with hub_of({"a": Skilled("a")}) as hub:
        offer = hub.mounts[0].offer
    assert offer is not None
    saved = decode_offer(encode_offer(offer))
    assert saved is not None and saved.extensions == {SKILLS: {}}


# -------------------------------------------------------------------------------------------------------------- routing


async def test_a_list_of_one_server_passes_with_uris_that_clients_know_and_data_untouched() -> None:
    server = Skilled("a")
    async with hub_of({"a": server, "other": Skilled("o", {})}) as hub:
        listed = await ask(hub, "skills/list")
        (skill,) = as_array(listed["skills"]) or []
        assert skill == {
            "uri": "a+skill://a/SKILL.md",
            "frontmatter": {"name": "a", "uri": "stays"},
            "resources": [{"uri": "a+skill://a/SKILL.md", "digest": "d"}],
        }
        assert (listed["ttlMs"], listed["cacheScope"]) == (5000, "public")


async def test_lists_of_several_servers_are_one_list_with_all_their_pages() -> None:
    def answer(exchange: Exchange) -> Reply:
        page = int(str(exchange.params.get("cursor", 0)))
        more: Params = {} if page == 2 else {"nextCursor": str(page + 1)}
        return Result(complete({"skills": [{"uri": f"skill://b/{page}"}], **more}, ttl_ms=1000))

    async with hub_of({"a": Skilled("a"), "b": Skilled("b", answer=answer)}) as hub:
        listed = await ask(hub, "skills/list")
    assert uris(listed["skills"]) == ["a+skill://a/SKILL.md", *(f"b+skill://b/{page}" for page in range(3))]
    assert (listed["ttlMs"], listed["cacheScope"]) == (1000, "private")
    assert "nextCursor" not in listed


async def test_a_server_that_cannot_list_is_left_out_of_a_merged_list_and_named() -> None:
    failing = Skilled("b", answer=lambda exchange: ErrorObject(-32603, "no"))
    async with hub_of({"a": Skilled("a"), "b": failing}) as hub:
        listed = await ask(hub, "skills/list")
    assert uris(listed["skills"]) == ["a+skill://a/SKILL.md"]
    assert listed["_meta"] == {"dev.sluicegate/servers": {"b": "ready"}} and listed["ttlMs"] == 0


async def test_a_merged_list_that_no_server_can_answer_fails_as_the_first_one_does() -> None:
    def failing(text: str) -> Skilled:
        return Skilled("s", answer=lambda exchange: ErrorObject(-32603, text))

    async with hub_of({"a": failing("first"), "b": failing("second")}) as hub:
        reply = await hub(Exchange("skills/list", {}, NOBODY))
    assert isinstance(reply, ErrorObject) and reply.message == "first"


async def test_a_cursor_for_a_merged_list_is_refused() -> None:
    async with hub_of({"a": Skilled("a"), "b": Skilled("b")}) as hub:
        with pytest.raises(InvalidParams, match="cursor"):
            await hub(Exchange("skills/list", {"cursor": "x"}, NOBODY))


async def test_a_request_that_names_a_resource_goes_to_its_server_under_the_servers_own_uri() -> None:
    servers = {"a": Skilled("a"), "b": Skilled("b")}
    async with hub_of(servers) as hub:
        found = await ask(hub, "skills/get", {"uri": "b+skill://b/SKILL.md"})
        assert (as_object(found["skill"]) or {})["uri"] == "b+skill://b/SKILL.md"
        reply = await hub(Exchange("skills/get", {"uri": "b+skill://b/none"}, NOBODY))
    assert servers["b"].asked == [("skills/get", {"uri": f"skill://b/{end}"}) for end in ("SKILL.md", "none")]
    assert not servers["a"].asked
    assert isinstance(reply, ErrorObject) and reply.code == -32602 and reply.data == {"uri": "b+skill://b/none"}


async def test_a_method_that_is_named_after_no_extension_goes_to_a_server_with_extensions_by_what_it_names() -> None:
    server = Skilled("a", answer=lambda exchange: Result(complete({"resources": [{"uri": "skill://a/x"}]})))
    async with hub_of({"a": server, "b": Skilled("b", {})}) as hub:
        found = await ask(hub, "resources/directory/read", {"uri": "a+skill://a"})
        assert uris(found["resources"]) == ["a+skill://a/x"]
        assert await ask(hub, "apps/run", {"name": "a__one"})
        assert server.asked == [("resources/directory/read", {"uri": "skill://a"}), ("apps/run", {"name": "one"})]
        for params in ({"uri": "b+skill://b/SKILL.md"}, {"name": "b__one"}, {"name": "one"}, {}):
            with pytest.raises(MethodNotFound):
                await ask(hub, "resources/directory/read", dict[str, object](params))


async def test_a_request_that_names_nothing_of_ours_goes_to_the_one_server_that_declares_the_extension() -> None:
    server = Skilled("a", {"com.example/x": {}}, answer=lambda exchange: Result(complete({"done": True})))
    async with hub_of({"a": server, "b": Skilled("b")}) as hub:
        assert await ask(hub, "x/do", {"what": 1}) == {"resultType": "complete", "done": True}
    assert server.asked == [("x/do", {"what": 1})]


async def test_a_request_that_could_be_for_several_servers_is_refused() -> None:
    async with hub_of({"a": Skilled("a"), "b": Skilled("b")}) as hub:
        with pytest.raises(InvalidParams, match="These have it: a, b"):
            await hub(Exchange("skills/install", {}, NOBODY))


async def test_what_the_declaring_server_does_not_have_is_unknown_and_not_forwarded() -> None:
    server = Skilled("a")
    async with hub_of({"a": server, "b": Skilled("b", {})}) as hub:
        for uri in ("b+skill://b/SKILL.md", "skill://nowhere"):
            with pytest.raises(UnknownTarget):
                await hub(Exchange("skills/get", {"uri": uri}, NOBODY))
    assert not server.asked


@pytest.mark.parametrize("method", ["skill/list", "x/y", "tasks/list"])
async def test_a_method_that_no_server_declares_is_not_found(method: str) -> None:
    server = Skilled("a")
    async with hub_of({"a": server}) as hub:
        with pytest.raises(MethodNotFound):
            await hub(Exchange(method, {}, NOBODY))
    assert not server.asked


async def test_a_result_of_a_session_era_server_gets_a_lifetime() -> None:
    server = Skilled("a", version="2025-11-25", answer=lambda exchange: Result({"skill": {}}))
    async with hub_of({"a": server}) as hub:
        found = await ask(hub, "skills/get", {"uri": "a+skill://a/SKILL.md"})
    assert (found["ttlMs"], found["cacheScope"]) == (0, "private")


async def test_a_result_type_of_its_own_passes_only_to_a_client_that_declares_an_extension() -> None:
    server = Skilled("a", answer=lambda exchange: Result({"resultType": "later"}))
    async with hub_of({"a": server}) as hub:
        knowing = ClientProfile(capabilities={"extensions": {SKILLS: {}}})
        assert await ask(hub, "skills/wait", profile=knowing) == {"resultType": "later"}
        with pytest.raises(SluicegateError, match="unknown result type"):
            await ask(hub, "skills/wait")


async def test_a_result_that_asks_for_input_is_refused() -> None:
    server = Skilled("a", answer=lambda exchange: Result({"resultType": "input_required", "inputRequests": {}}))
    async with hub_of({"a": server}) as hub:
        with pytest.raises(UpstreamProtocolError):
            await ask(hub, "skills/wait", profile=ClientProfile(capabilities={"extensions": {SKILLS: {}}}))


# --------------------------------------------------------------------------------------------------------------- rules


async def test_every_request_of_an_extension_is_decided_on_by_what_it_names_or_by_its_method() -> None:
    judge = Judge()
    async with hub_of({"a": Skilled("a"), "b": Skilled("b"), "c": Skilled("c", {"com.example/x": {}})}) as hub:
        hub.govern(judge)
        await ask(hub, "skills/list")
        await ask(hub, "skills/get", {"uri": "b+skill://b/SKILL.md"})
        await hub(Exchange("x/run", {"name": "c__one"}, NOBODY))
        await hub(Exchange("x/run", {}, NOBODY))
    assert [(method, target.server, target.kind, target.name) for method, target in judge.passed] == [
        ("skills/list", "a", "method", "skills/list"),
        ("skills/list", "b", "method", "skills/list"),
        ("skills/get", "b", "resource", "skill://b/SKILL.md"),
        ("x/run", "c", "tool", "one"),
        ("x/run", "c", "method", "x/run"),
    ]


async def test_t16_a_tool_that_may_not_be_called_is_not_used_by_another_method_either() -> None:
    class Strict(Judge):
        async def decide(self, exchange: Exchange) -> Reply:
            assert exchange.target is not None
            if exchange.target.kind == "tool":
                raise Refused("No.")
            return await send(exchange)

    server = Skilled("a", {"com.example/x": {}})
    async with hub_of({"a": server}) as hub:
        hub.govern(Strict())
        with pytest.raises(Refused):
            await hub(Exchange("x/run", {"name": "a__one"}, NOBODY))
    assert not server.asked


async def test_what_a_caller_may_not_use_is_unknown_to_requests_of_extensions() -> None:
    judge = Judge()
    judge.hidden = {"local": {"skill://b/SKILL.md", "one", "x/run"}}
    servers = {"a": Skilled("a"), "b": Skilled("b", {SKILLS: {}, "com.example/x": {}})}
    async with hub_of(servers) as hub:
        hub.govern(judge)
        with pytest.raises(UnknownTarget):
            await ask(hub, "skills/get", {"uri": "b+skill://b/SKILL.md"})
        with pytest.raises(UnknownTarget):
            await ask(hub, "x/call", {"name": "b__one"})
        with pytest.raises(MethodNotFound):
            await ask(hub, "x/run")
        judge.hidden = {"local": {"skills/list"}}
        with pytest.raises(MethodNotFound):
            await ask(hub, "skills/list")
    assert not judge.passed and not any(server.asked for server in servers.values())


async def test_a_server_that_refuses_by_rule_is_left_out_of_a_merged_list_without_a_word() -> None:
    class Strict(Judge):
        async def decide(self, exchange: Exchange) -> Reply:
            if exchange.target is not None and exchange.target.server == "b":
                raise Refused("No.")
            return await send(exchange)

    async with hub_of({"a": Skilled("a"), "b": Skilled("b")}) as hub:
        hub.govern(Strict())
        listed = await ask(hub, "skills/list")
    assert uris(listed["skills"]) == ["a+skill://a/SKILL.md"] and "_meta" not in listed
