"""The whole governance in front of a hub: no way around the rules."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import msgspec
import pytest

import sluicegate
from sluicegate.errors import InvalidParams, RateLimited, Refused, UnknownTarget, UpstreamProtocolError
from sluicegate.exchange import NOBODY, Caller, Exchange, Host, Target
from sluicegate.gate.admission import Admission
from sluicegate.gate.approval_text import bind
from sluicegate.gate.approvals import ApprovalSettings
from sluicegate.gate.governance import Governance
from sluicegate.gate.limits import Ceilings, Rate, RateLimits
from sluicegate.gate.policy import Rules
from sluicegate.gate.rules import Permission, PolicyConfig, Rule
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.protocol.message import Params, Reply, Result, as_object, opened
from sluicegate.protocol.modern_era import ClientProfile, Discovery, complete
from sluicegate.store.memory import MemoryAudit
from sluicegate.store.memory_decisions import MemoryDecisions
from sluicegate.testing import MemoryUpstream
from tests.hub.scripted import Connected, Scripted

TOOLS = ("read", "delete_file")


class Stage:
    """A hub with one server that notes what it receives, under rules that a test sets."""

    def __init__(self, *rules: Mapping[str, object], prefix: str = "files") -> None:
        self.received: list[tuple[str, Params]] = []
        self.audit = MemoryAudit()
        self.decisions = MemoryDecisions()
        written = [msgspec.convert(rule, Permission) for rule in rules]
        policy = PolicyConfig(
            tuple(Rule(rule, f"sluicegate.toml:{number}", number) for number, rule in enumerate(written)),
        )
        self.governance = Governance(
            Rules(policy),
            self.audit,
            self.decisions,
            mode=lambda key: "pin",
            secrets=lambda key: (),
            approvals=ApprovalSettings(wait=0.05, hold=0.05),
        )
        self.reply: Params = {"content": [{"type": "text", "text": "x" * 100}]}
        """The description of the first tool for clients that declare an extension."""
        self.hub = Hub()
        self.server = Instructed(self._answer, {"tools": {}, "extensions": {"com.example/runner": {}}})
        self.hub.mount("files", self.server, MountSettings(prefix=prefix, key="files"))
        self.hub.govern(self.governance)

    async def review_again(self) -> None:
        """Let the governance decide on all definitions again, as after a change of a file."""
        self.governance.pins.forget()
        self.hub.review()
        await self.hub.wait_reviewed()

    async def _answer(self, exchange: Exchange) -> Reply:
        if exchange.method == "tools/list":
            schema: Params = {"type": "object", "properties": {"path": True}}
            listed: list[Params] = [{"name": name, "inputSchema": schema} for name in TOOLS]
            return Result(complete({"tools": listed}))
        if exchange.method.endswith("/list"):
            return Result(complete({exchange.method.split("/")[-2]: []}))
        self.received.append((exchange.method, exchange.params))
        return Result(complete(dict(self.reply)))

    async def ask(self, method: str, caller: str = "local", **params: object) -> Params:
        profile = ClientProfile(capabilities={"extensions": {"com.example/runner": {}}})
        reply = await self.hub(Exchange(method, params, NOBODY, profile, Caller(caller)))
        assert isinstance(reply, Result), reply
        return opened(reply)

    def rows(self, kind: str) -> list[str]:
        return [row.verdict for row in self.audit.rows if row.kind == kind]


class Instructed(Scripted):
    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[Connected]:
        async with super().connect(host) as connection:
            found = connection.discovery
            connection.discovery = Discovery(found.version, found.capabilities, {}, "Handle with care.")
            yield connection


@asynccontextmanager
async def stage(*rules: Mapping[str, object], prefix: str = "files") -> AsyncGenerator[Stage]:
    made = Stage(*rules, prefix=prefix)
    async with made.hub:
        await made.hub.settled()
        yield made


DENIED = {"tool": "mcp__files__delete_file", "action": "deny"}
NOT_ETC = {"tool": "mcp__files__read", "args": {"path": "/etc/**"}, "action": "deny", "why": "Not there."}
ASKED = {"tool": "mcp__files__read", "action": "ask"}


async def test_t16_an_extension_method_does_not_do_what_a_rule_denies() -> None:
    async with stage(NOT_ETC) as here:
        refused = await here.ask("tools/call", name="files__read", arguments={"path": "/etc/x"})
        assert refused["isError"] is True
        with pytest.raises(Refused):
            await here.ask("runner/call", name="files__read", arguments={"path": "/etc/x"})
        assert here.received == []
        await here.ask("runner/call", name="files__read", arguments={"path": "/srv/x"})
        assert [method for method, _ in here.received] == ["runner/call"]
        assert here.rows("decision") == ["deny", "deny", "allow"]


async def test_t16_an_extension_method_cannot_make_a_call_that_needs_approval() -> None:
    async with stage(ASKED) as here:
        with pytest.raises(Refused):
            await here.ask("runner/call", name="files__read", arguments={"path": "/srv/x"})
        assert here.received == []


@pytest.mark.parametrize("name", ["delete_file", "DELETE_FILE", "delete\u200b_file", "files__delete_file"])
async def test_t15_an_extension_method_reaches_no_denied_tool_by_another_name(name: str) -> None:
    async with stage(DENIED) as here:
        with pytest.raises(UnknownTarget):
            await here.ask("runner/call", name=name)
        assert here.received == []


@pytest.mark.parametrize("name", ["DELETE_FILE", "delete_file\n", "delete\u200b_file", "delete_filе", "unlisted"])
async def test_t15_without_a_prefix_no_unlisted_name_passes_the_rules(name: str) -> None:
    async with stage(DENIED, prefix="") as here:
        with pytest.raises(UnknownTarget):
            await here.ask("tools/call", name=name, arguments={})
        assert here.received == []


@pytest.mark.parametrize("name", ["DELETE_FILE", "delete_file\n", "delete\u200b_file", " read"])
async def test_t15_without_rules_no_name_that_looks_like_another_passes(name: str) -> None:
    async with stage(prefix="") as here:
        with pytest.raises(UnknownTarget):
            await here.ask("tools/call", name=name, arguments={})
        await here.ask("tools/call", name="plainly_unlisted", arguments={})
        assert [params["name"] for _, params in here.received] == ["plainly_unlisted"]


def test_t18_an_approval_covers_answers_to_no_question() -> None:
    def binding(*, is_continued: bool, **more: object) -> str:
        exchange = Exchange("tools/call", {"name": "x", **more}, NOBODY, is_continued=is_continued)
        return bind(exchange, Target("files", "tool", "x"), "rules")

    answers: Params = {"confirm": {"everything": True}}
    plain = binding(is_continued=False)
    assert binding(is_continued=False, inputResponses=answers) != plain
    assert binding(is_continued=True, inputResponses=answers) == plain  # The next round of the same call.
    assert binding(is_continued=False, _meta={"com.example/target": "production"}) != plain
    assert binding(is_continued=False, _meta={"progressToken": 1, "traceparent": "x"}) == plain


@pytest.mark.parametrize(
    "uri",
    [
        "file:/etc/passwd",
        "file:etc/passwd",
        " file:///etc/passwd",
        "file://localhost:0/etc/passwd",
        "file:///ｅtc/passwd",
    ],
)
async def test_t15_other_spellings_of_a_file_do_not_pass_a_rule(uri: str) -> None:
    rule = {"resource": "mcp__files__file:///etc/**", "action": "deny"}
    async with stage(rule, prefix="") as here:
        with pytest.raises((UnknownTarget, Refused)):
            await here.ask("resources/read", uri=uri)
        assert here.received == []


async def test_t33_a_caller_that_is_denied_a_server_learns_nothing_of_it() -> None:
    async with stage({"tool": "mcp__files", "caller": ["bob"], "action": "deny"}) as here:
        shown, hidden = await here.ask("server/discover", "ada"), await here.ask("server/discover", "bob")
        assert "Handle with care" in str(shown) and "runner" in str(shown)
        assert "care" not in str(hidden) and "runner" not in str(hidden) and "files" not in str(hidden)
        here.server.connections[0].hang_up()
        here.server.way.clear()
        with pytest.raises(UnknownTarget) as known:
            await here.ask("tools/call", "bob", name="files__x")
        with pytest.raises(UnknownTarget) as unknown:
            await here.ask("tools/call", "bob", name="filez__x")
        assert known.value.message.replace("files", "filez") == unknown.value.message
        listed = await here.ask("tools/list", "bob")
        assert "dev.sluicegate/servers" not in (as_object(listed["_meta"]) or {})


async def test_a2_a_result_that_is_too_large_is_no_success_on_record() -> None:
    async with stage() as here:
        here.governance.limit(RateLimits(), {"files": Ceilings(result=50)})
        with pytest.raises(UpstreamProtocolError, match="max_result"):
            await here.ask("tools/call", name="files__read", arguments={})
        assert here.rows("outcome") == ["error"]


async def test_a_refused_call_is_no_failure_of_the_tool_on_record() -> None:
    async with stage(NOT_ETC) as here:
        await here.ask("tools/call", name="files__read", arguments={"path": "/etc/x"})
        assert here.rows("outcome") == ["refused"]


async def test_limits_hold_from_the_next_call_until_they_are_removed() -> None:
    async with stage() as here:
        here.governance.limit(RateLimits(per_caller=Rate(1, 3600.0)), {"files": Ceilings(arguments=20)})
        with pytest.raises(InvalidParams, match="max_arguments"):
            await here.ask("tools/call", name="files__read", arguments={"path": "x" * 20})
        with pytest.raises(RateLimited):
            await here.ask("tools/call", name="files__read", arguments={})
        here.governance.limit(RateLimits(), {})
        await here.ask("tools/call", name="files__read", arguments={"path": "x" * 20})
        assert here.rows("decision") == ["allow", "allow"]  # A call that comes too often is refused before.
        assert here.rows("outcome") == ["error", "ok"]


async def test_t12_a_state_that_is_used_again_counts_as_another_call() -> None:
    async with stage() as here:
        here.governance.limit(RateLimits(per_caller=Rate(1, 3600.0)), {})
        here.reply = {"resultType": "input_required", "inputRequests": {}, "requestState": "s"}
        first = await here.ask("tools/call", name="files__read", arguments={})
        state = first["requestState"]
        await here.ask("tools/call", name="files__read", arguments={}, requestState=state)
        with pytest.raises(RateLimited):
            await here.ask("tools/call", name="files__read", arguments={}, requestState=state)


async def test_t21_approved_instructions_are_shown_again_and_looking_changes_nothing() -> None:
    async with stage() as here:
        assert "Handle with care" in str(await here.ask("server/discover"))
        pin = next(pin for pin in await here.decisions.pins() if pin.kind == "instructions")
        await here.decisions.forget_pin("files", "instructions", "")
        await here.decisions.see([msgspec.structs.replace(pin, hash="other")])
        await here.review_again()
        assert "Handle with care" not in str(await here.ask("server/discover"))
        waiting = next(pin for pin in await here.decisions.pins() if pin.state == "pending")
        assert await here.decisions.approve_pin("files", "instructions", "", waiting.hash)
        await here.review_again()
        assert "Handle with care" in str(await here.ask("server/discover"))
        before = await here.decisions.pins()
        await here.review_again()
        assert await here.decisions.pins() == before


async def test_t20_texts_of_resources_and_prompts_that_hide_something_are_not_listed() -> None:
    def read(id: str) -> str:
        return id

    async with stage() as here:
        server = sluicegate.Server("notes")
        for name, text in (("plain", "A note."), ("odd", "A note.\u202e")):
            server.add_resource(f"note://{name}", lambda: "text", name=name, description=text)
            server.add_resource(f"note://{name}/{{id}}", read, name=name, description=text)
            server.add_prompt(lambda: "text", name=name, description=text)
        here.hub.mount("notes", MemoryUpstream(server))
        await here.hub.settled()
        await here.review_again()
        lists = {"resources/list": "resources", "resources/templates/list": "resourceTemplates"}
        lists |= {"prompts/list": "prompts"}
        for method, member in lists.items():
            names = str((await here.ask(method))[member])
            assert "odd" not in names and "plain" in names, method
        waiting = {pin.name for pin in await here.decisions.pins("notes") if pin.state == "pending"}
        assert waiting == {"note://odd", "note://odd/{id}", "odd"}


async def test_a_call_of_a_hidden_tool_is_on_record_as_denied() -> None:
    async with stage(DENIED) as here:
        with pytest.raises(UnknownTarget) as unknown:
            await here.ask("tools/call", name="files__delete_file", arguments={})
        here.governance.note_refusal(Exchange("tools/call", {"name": "files__delete_file"}, NOBODY), unknown.value)
        row = here.audit.rows[-1]
        assert (row.kind, row.server, row.name, row.verdict) == ("reject", "files", "delete_file", "deny")


@pytest.mark.parametrize("url", ["httpſ://evil.example/a", "httpſ://evil.example"])
async def test_T15_a_scheme_with_a_letter_like_an_s_is_judged_like_the_scheme(url: str) -> None:
    async with stage(
        {"tool": "mcp__files__read", "args": {"url": "https://evil.example/**"}, "action": "deny"}
    ) as here:
        params: Params = {"name": "files__read", "arguments": {"url": url}}
        reply = await here.hub(Exchange("tools/call", params, NOBODY))
        assert isinstance(reply, Result) and opened(reply)["isError"] is True and here.received == []
        rows = [(row.kind, row.verdict) for row in here.audit.rows if row.kind != "tool_def"]
        assert rows == [("decision", "deny"), ("outcome", "refused")]


async def test_a_fault_in_the_rules_refuses_the_call_with_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage() as here:

        def broken(*given: object) -> None:
            raise KeyError("httpx")

        monkeypatch.setattr("sluicegate.gate.policy.judge", broken)
        admission = Admission(on_refused=here.governance.note_refusal)
        with pytest.raises(Refused, match="nothing was run"):
            await admission(Exchange("tools/call", {"name": "files__read"}, NOBODY), here.hub)
        assert here.received == []
        rows = [(row.kind, row.verdict, row.name) for row in here.audit.rows if row.kind != "tool_def"]
        assert rows == [("reject", "policy_denied", "read")]
