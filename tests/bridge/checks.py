"""What has to come of each thing that one client does with one server; every check says what was not carried as it is.

What is expected is worked out here, from the two revisions alone and by other means than the gateway's own.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from tests.bridge.clients import FOLDERS, PATIENCE, Client
from tests.bridge.servers import NOTE, PRIVATE, SOUND, content_of, tools_of
from tests.bridge.stage import Side

Json = dict[str, Any]


class Note(NamedTuple):
    """Something that two revisions have not in common, and what comes of it."""

    sentence: str
    loss: str = ""
    """As what it is counted; lists are not, for they belong to all servers together."""


NOTES: Final = {
    "a": Note(
        "Structured content that the client's revision does not have becomes a text block with JSON. Before 2025-06-18"
        " this is all structured content, up to 2025-11-25 everything but objects.",
        "structured content said as text",
    ),
    "b": Note("Links to resources become text blocks with name, URI and type.", "links to resources said as text"),
    "c": Note("Audio becomes an embedded resource with the same bytes.", "sounds embedded as resources"),
    "d": Note(
        "The client's revision has no elicitation. A session-era server gets an error (−32601), and its call continues."
        " For a server of 2026-07-28 the capability is missing, and the client gets an error that names it (−32603).",
        "questions that the caller cannot be asked",
    ),
    "e": Note("Progress arrives without its message: the client's revision has only numbers.", "words of progress"),
    "f": Note(
        "A multiple choice in a form becomes one yes-or-no field per option, and the answer becomes one list again.",
        "choices shown as switches",
    ),
    "g": Note(
        "A page that must be visited first (−32042) becomes a failed result with its address in the text.",
        "pages to visit said as text",
    ),
    "h": Note(
        "Definitions of tools come without fields that the client's revision does not have: titles, annotations, icons,"
        " `_meta`, output schemas."
    ),
    "i": Note(
        "An error code that only this server defines becomes −32603; its code, message and data are in `data.upstream`."
    ),
    "k": Note(
        "The client can show forms but not open pages. A session-era server gets an error (−32602); for a server of"
        " 2026-07-28 the capability is missing.",
        "questions that the caller cannot be asked",
    ),
    "l": Note(
        "In 2026-07-28 a client cannot refuse to sample. A client that does not want to answer does not retry the call,"
        " and the server gets an error after a time-out. This is not tried here. *questions whose caller did not come"
        " back*"
    ),
    "m": Note(
        "A client of 2026-07-28 asks for log messages with each call. Log messages of an older server are dropped where"
        " its transport does not show which call they belong to. Older clients get such messages from the level on that"
        " they set, unless another client has used the server.",
        "log messages that belong to no call",
    ),
    "n": Note(
        "The notification that a page was visited exists only in 2025-11-25. Clients of that revision get it, with the"
        " id that they know the page by; others do not.",
        "visits to pages that the caller cannot be told of",
    ),
    "o": Note(
        "The client's revision has no tools in sampling. A session-era server gets an error (−32602); for a server of"
        " 2026-07-28 the capability is missing.",
        "questions that the caller cannot be asked",
    ),
    "j": Note(
        "A model's answer of several blocks becomes one text, because the server's revision has one block.",
        "blocks of a model's answer joined into one text",
    ),
}


class Pair:
    """One client and one server."""

    def __init__(self, client: Client, server: Side) -> None:
        self.client = client
        self.server = server
        self.ours = client.revision
        self.theirs = server.revision
        self.uri = f"{server.name}+{NOTE}"

    def tool(self, name: str) -> str:
        """The name of a tool of the server, as the client knows it."""
        return f"{self.server.name}__{name}"


Check = Callable[[Pair], Awaitable[set[str]]]

VISITED: Final = "notifications/elicitation/complete"


async def listing(pair: Pair) -> set[str]:
    """Lists: all pages, with definitions in the shape of the client's revision."""
    tools = {tool["name"]: tool for tool in await whole(pair.client, "tools/list", "tools")}
    own = [name for name in tools if name.startswith(pair.tool(""))]
    expected = [pair.tool(tool["name"]) for tool in tools_of(pair.theirs)]
    assert own[: len(expected)] == expected, own  # A tool that grew since stands last.
    full = tools_of(pair.theirs)[0]
    wanted = _definition(pair, full)
    assert tools[pair.tool("everything")] == wanted
    if pair.theirs == "2026-07-28":
        several = tools[pair.tool("several")]
        assert ("outputSchema" in several) == (pair.ours == "2026-07-28"), several
    resources = await whole(pair.client, "resources/list", "resources")
    assert {"uri": pair.uri, "name": "one"} in resources
    templates = await whole(pair.client, "resources/templates/list", "resourceTemplates")
    assert {"uriTemplate": f"{pair.server.name}+note://{{name}}", "name": "note"} in templates
    prompts = await whole(pair.client, "prompts/list", "prompts")
    assert {"name": pair.tool("letter"), "arguments": [{"name": "to", "required": True}]} in prompts
    kept = {key: value for key, value in full.items() if key not in ("name", "execution")}
    is_less = any(wanted.get(key) != value for key, value in kept.items())
    return {"h"} if is_less or (pair.theirs == "2026-07-28" != pair.ours) else set()


def _definition(pair: Pair, full: Json) -> Json:
    gone = {"execution"}
    if pair.ours < "2025-11-25":
        gone.add("icons")
    if pair.ours < "2025-06-18":
        gone |= {"title", "outputSchema", "_meta"}
    if pair.ours < "2025-03-26":
        gone.add("annotations")
    wanted = {key: value for key, value in full.items() if key not in gone}
    if pair.ours == "2025-03-26" and "title" in full:
        wanted["annotations"] = {**full["annotations"], "title": full["title"]}
    return {**wanted, "name": pair.tool("everything")}


async def calling(pair: Pair) -> set[str]:
    """Calls: text, failed results, and content of every kind."""
    client = pair.client
    assert (await client.call(pair.tool("echo"), {"text": "häñ\n\u2028"})).text == "häñ\n\u2028"
    failed = await client.call(pair.tool("fail"))
    assert failed.text == "There is no more of it." and failed.result["isError"] is True
    assert (await client.call(pair.tool("nothing"))).error["code"] == -32602
    result = (await client.call(pair.tool("everything"))).result
    marks: set[str] = set()
    expected = [_block(pair, block, marks) for block in content_of(pair.theirs)]
    if pair.theirs >= "2025-06-18" > pair.ours:
        marks.add("a")
        expected.append({"type": "text", "text": '{"total":3}'})
    found = result["content"]
    for block in found:
        if block["type"] == "resource" and block["resource"]["uri"].startswith("sluicegate:audio/"):
            block["resource"]["uri"] = "any"
    assert found == expected, found
    holds = pair.theirs >= "2025-06-18" and pair.ours >= "2025-06-18"
    assert result.get("structuredContent") == ({"total": 3} if holds else None), result
    if pair.theirs == "2026-07-28":
        several = (await client.call(pair.tool("several"))).result
        if pair.ours == "2026-07-28":
            assert several["structuredContent"] == [1, 2] and several["content"] == []
        else:
            marks.add("a")
            assert "structuredContent" not in several
            assert several["content"] == [{"type": "text", "text": "[1,2]"}]
    return marks


def _block(pair: Pair, block: Json, marks: set[str]) -> Json:
    match block["type"]:
        case "resource":
            return {**block, "resource": {**block["resource"], "uri": pair.uri}}
        case "audio" if pair.ours < "2025-03-26":
            marks.add("c")
            return {"type": "resource", "resource": {"uri": "any", "mimeType": "audio/wav", "blob": SOUND}}
        case "resource_link" if pair.ours < "2025-06-18":
            marks.add("b")
            return {"type": "text", "text": f"one: {pair.uri} (text/plain)"}
        case "resource_link":
            return {**block, "uri": pair.uri}
        case _:
            return block


async def progress(pair: Pair) -> set[str]:
    """Progress: with the caller's own token, in order, none lost."""
    has_words = pair.theirs >= "2025-03-26"
    for token in (0, "0", "a token"):
        outcome = await pair.client.call(pair.tool("count"), token=token)
        assert outcome.text == "counted"
        words = has_words and pair.ours >= "2025-03-26"
        expected = [
            {"progressToken": token, "progress": n, "total": 20, **({"message": f"at {n}"} if words else {})}
            for n in range(1, 21)
        ]
        found = [notice["params"] for notice in outcome.notices if notice["method"] == "notifications/progress"]
        assert found == expected, found
        assert all(type(params["progressToken"]) is type(token) for params in found)
    unwanted = await pair.client.call(pair.tool("count"))
    assert not [notice for notice in unwanted.notices if notice["method"] == "notifications/progress"]
    return {"e"} if has_words and pair.ours < "2025-03-26" else set()


async def logging(pair: Pair) -> set[str]:
    """Log messages: of the level that the client asked for, with the call that caused them or with none."""
    for level, lines in (("info", ["info", "warning"]), ("debug", ["debug", "info", "warning"])):
        outcome = await pair.client.call(pair.tool("mutter"), level=level)
        found = lines_of(outcome.notices, "peer")  # All session-era clients are told what belongs to no call.
        assert found == [{"level": each, "logger": "peer", "data": f"a line of {each}"} for each in lines], found
    if pair.client.is_modern:
        outcome = await pair.client.call(pair.tool("mutter"))
        assert not outcome.notices, outcome.notices
        is_one_channel = pair.server.over == "stdio" or pair.theirs == "2024-11-05"
        return {"m"} if is_one_channel and pair.theirs != "2026-07-28" else set()
    if pair.theirs != "2026-07-28":
        for level, lines in (("error", ["error"]), ("debug", ["info", "error"])):
            logger = f"{pair.server.name}, heard by {client_over(pair)} at {level}"
            told = await pair.client.call(pair.tool("mumble"), {"text": logger}, level=level)
            assert told.text == "mumbled"
            await pair.client.until(
                lambda logger=logger, lines=lines: len(lines_of(pair.client.notices, logger)) >= len(lines)
            )
            await pair.client.call(pair.tool("echo"), {"text": "What came twice would be here by now."})
            assert [line["data"] for line in lines_of(pair.client.notices, logger)] == lines
    return set()


def lines_of(notices: Sequence[Json], logger: str) -> list[Json]:
    """The log lines of one logger."""
    found = [notice["params"] for notice in notices if notice["method"] == "notifications/message"]
    return [params for params in found if params.get("logger") == logger]


async def cancelling(pair: Pair) -> set[str]:
    """Cancelling: the server's work ends, and the client gets nothing more."""
    client, ticket = pair.client, f"{pair.ours} {client_over(pair)}"
    params = {"name": pair.tool("hang"), "arguments": {"text": ticket}}
    request = client.message("tools/call", params, token="hanging")
    seen = client.count("notifications/progress")
    client.start(request)
    await client.heard("notifications/progress", seen + 1)
    client.cancel(request)
    assert (await client.call(pair.tool("ended"), {"text": ticket})).text == "ended"
    return set()


def client_over(pair: Pair) -> str:
    """Something that tells the clients of one revision apart."""
    return str(id(pair.client))


async def eliciting(pair: Pair) -> set[str]:
    """Forms: the server asks during a call and gets the client's answer."""
    if pair.theirs < "2025-06-18":
        return set()
    outcome = await pair.client.call(pair.tool("choose"))
    if pair.ours < "2025-06-18":
        assert not outcome.questions
        if pair.theirs == "2026-07-28":
            assert outcome.error["code"] == -32603 and "elicitation" in outcome.error["message"], outcome
        else:
            assert outcome.text == "refused: -32601"
        return {"d"}
    content: Json = {"colour": "green"} | ({} if pair.theirs == "2025-06-18" else {"toppings": ["cheese", "ham"]})
    assert json.loads(outcome.text) == ["accept", content], outcome.text
    (question,) = outcome.questions
    assert question["params"]["message"] == f"[{pair.server.name}] Which?"
    return {"f"} if pair.ours == "2025-06-18" < pair.theirs else set()


async def sampling(pair: Pair) -> set[str]:
    """Sampling: the server asks the client's model during a call."""
    outcome = await pair.client.call(pair.tool("ponder"))
    (question,) = outcome.questions
    assert question["method"] == "sampling/createMessage" and question["params"]["maxTokens"] == 10
    if pair.ours < "2025-11-25":
        said: object = {"type": "text", "text": "42"}
    elif pair.theirs < "2025-11-25":
        said = {"type": "text", "text": "4\n2"}
    else:
        said = [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]
    assert json.loads(outcome.text) == said, outcome.text
    return {"j"} if pair.ours >= "2025-11-25" > pair.theirs else set()


async def arming(pair: Pair) -> set[str]:
    """Sampling with tools, where both revisions have it."""
    if pair.theirs < "2025-11-25":
        return set()
    outcome = await pair.client.call(pair.tool("arm"))
    if pair.ours >= "2025-11-25":
        (question,) = outcome.questions
        assert [tool["name"] for tool in question["params"]["tools"]] == ["spade"]
        assert question["params"]["toolChoice"] == {"mode": "auto"}
        assert outcome.text == "assistant"
        return set()
    assert not outcome.questions
    if pair.theirs == "2026-07-28":
        assert outcome.error["code"] == -32603 and "sampling.tools" in outcome.error["message"], outcome
    else:
        assert outcome.text == "refused: -32602"
    return {"o"}


async def rooting(pair: Pair) -> set[str]:
    """Roots: a server that asks for them during a call gets the client's folders."""
    outcome = await pair.client.call(pair.tool("folders"))
    assert [question["method"] for question in outcome.questions] == ["roots/list"]
    assert json.loads(outcome.text) == FOLDERS
    return set()


async def refusing(pair: Pair) -> set[str]:
    """Refusals: the client's error reaches the server or, where the revision has no such error, the client."""
    if pair.client.is_modern:
        return {"l"} if pair.theirs != "2026-07-28" else set()
    pair.client.refusal = {"code": -1, "message": "The user said no."}
    try:
        outcome = await pair.client.call(pair.tool("ponder"))
    finally:
        pair.client.refusal = None
    if pair.theirs == "2026-07-28":
        assert outcome.result["isError"] is True and "The user said no." in outcome.text, outcome
    else:
        assert outcome.text == "refused: -1", outcome
    return set()


async def leaving(pair: Pair) -> set[str]:
    """Cancelling during a question: the question is withdrawn, and the server's work ends."""
    client, ticket = pair.client, f"left by {pair.ours} {client_over(pair)}"
    if client.is_modern:
        return set()  # Its request has ended with the question: there is nothing that it could cancel.
    params = {"name": pair.tool("dither"), "arguments": {"text": ticket}}
    request = client.message("tools/call", params)
    cancelled, asked = client.count("notifications/cancelled"), len(client.questions)
    client.is_silent = True
    try:
        client.start(request)
        question = await client.asked(asked + 1)
        client.cancel(request)
        await client.heard("notifications/cancelled", cancelled + 1)
    finally:
        client.is_silent = False
    assert client.last("notifications/cancelled")["params"]["requestId"] == question["id"]
    assert (await client.call(pair.tool("ended"), {"text": ticket})).text == "ended"
    return set()


async def browsing(pair: Pair) -> set[str]:
    """Pages: the server sends the client to a URL during a call, where both revisions have it."""
    if pair.theirs < "2025-11-25":
        return set()
    seen = pair.client.count(VISITED)
    outcome = await pair.client.call(pair.tool("browse"), {"text": f"look {client_over(pair)}"})
    if pair.ours >= "2025-11-25":
        assert outcome.text == "accept"
        (question,) = outcome.questions
        assert question["params"]["url"] == "https://example.com/look"
        assert ("elicitationId" in question["params"]) == (pair.ours == "2025-11-25")
        if pair.ours == "2025-11-25" == pair.theirs:
            await pair.client.heard(VISITED, seen + 1)
            assert pair.client.last(VISITED)["params"]["elicitationId"] == question["params"]["elicitationId"]
        return {"n"} if pair.ours == "2026-07-28" > pair.theirs else set()
    assert not outcome.questions
    if pair.theirs == "2026-07-28":
        assert outcome.error["code"] == -32603 and "elicitation.url" in outcome.error["message"], outcome
    else:
        # Either it has no elicitation at all, or not this kind.
        assert outcome.text == ("refused: -32602" if pair.ours == "2025-06-18" else "refused: -32601")
    return {"k" if pair.ours == "2025-06-18" else "d"}


async def visiting(pair: Pair) -> set[str]:
    """Pages that a server of 2025-11-25 demands to be visited first (−32042)."""
    if pair.theirs != "2025-11-25":
        return set()
    seen, visitor = pair.client.count(VISITED), f"visitor {client_over(pair)}"
    outcome = await pair.client.call(pair.tool("gate"), {"text": visitor})
    match pair.ours:
        case "2025-11-25":
            assert outcome.error["code"] == -32042
            assert outcome.error["data"]["elicitations"][0]["url"] == "https://example.com/in"
            await pair.client.heard(VISITED, seen + 1)
            assert pair.client.last(VISITED)["params"] == {"elicitationId": visitor}
            assert (await pair.client.call(pair.tool("gate"), {"text": visitor})).text == "come in"
        case "2026-07-28":
            assert outcome.text == "come in"
            (question,) = outcome.questions
            message = f"[{pair.server.name}] Please sign in."
            assert question["params"] == {"mode": "url", "message": message, "url": "https://example.com/in"}
        case _:
            assert outcome.result["isError"] is True and "https://example.com/in" in outcome.text, outcome
            return {"g", "n"}
    return set()


async def reading(pair: Pair) -> set[str]:
    """Resources, prompts and completion, with the names that the gateway gives them."""
    client = pair.client
    read = (await client.request("resources/read", {"uri": pair.uri})).result
    assert read["contents"] == [{"uri": pair.uri, "mimeType": "text/plain", "text": "one"}]
    params: Json = {"name": pair.tool("letter"), "arguments": {"to": "Ada"}}
    prompt = (await client.request("prompts/get", params)).result
    words = {"type": "text", "text": "A letter to Ada."}
    assert prompt["messages"] == [{"role": "user", "content": words}]
    argument = {"name": "to", "value": "A"}
    wish: Json = {"ref": {"type": "ref/prompt", "name": pair.tool("letter")}, "argument": argument}
    if pair.ours >= "2025-06-18":
        wish["context"] = {"arguments": {"tone": "kind"}}
    values = (await client.request("completion/complete", wish)).result["completion"]["values"]
    knows_context = pair.ours >= "2025-06-18" and pair.theirs >= "2025-06-18"
    assert values == (["Ada", "kind"] if knows_context else ["Ada"]), values
    return set()


async def failing(pair: Pair) -> set[str]:
    """Errors: mapped where the eras have different codes, unchanged otherwise."""
    client, marks = pair.client, set[str]()
    missing = f"{pair.server.name}+note://none"
    error = (await client.request("resources/read", {"uri": missing})).error
    assert error["code"] == (-32602 if client.is_modern else -32002), error
    assert error["data"]["uri"] == missing, error
    error = (await client.call(pair.tool("stumble"))).error
    assert error["message"] == "I stumbled."
    if pair.theirs == "2026-07-28":
        assert error["code"] == 77 and error["data"] == {"over": "a stone"}, error
    elif client.is_modern:
        marks.add("i")
        upstream = {"code": PRIVATE, "message": "I stumbled.", "data": {"over": "a stone"}}
        assert error["code"] == -32603 and error["data"] == {"upstream": upstream}, error
    else:
        assert error["code"] == PRIVATE and error["data"] == {"over": "a stone"}, error
    assert (await client.request("tools/unheard-of")).error["code"] == -32601
    return marks


async def batching(pair: Pair) -> set[str]:
    """Batches of messages, which only 2025-03-26 has."""
    if pair.ours != "2025-03-26":
        return set()
    client = pair.client
    calls = [
        client.message("tools/call", {"name": pair.tool("echo"), "arguments": {"text": word}}) for word in ("1", "2")
    ]
    notice = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
    first, ping, second = await client.batch([calls[0], notice, client.message("ping"), calls[1]])
    assert [answer["result"]["content"][0]["text"] for answer in (first, second)] == ["1", "2"]
    assert ping["result"] == {}
    return set()


CHECKS: Final[dict[str, Check]] = {
    "list": listing,
    "call": calling,
    "progress": progress,
    "log": logging,
    "cancel": cancelling,
    "elicitation": eliciting,
    "sampling": sampling,
    "sampling with tools": arming,
    "roots": rooting,
    "refusal": refusing,
    "leaving": leaving,
    "pages": browsing,
    "pages first": visiting,
    "resources, prompts, completion": reading,
    "errors": failing,
    "batches": batching,
}


async def whole(client: Client, method: str, member: str) -> list[Json]:
    """All pages of a list."""
    found: list[Json] = []
    cursor: Json = {}
    for _ in range(int(PATIENCE)):
        page = (await client.request(method, cursor)).result
        found += page[member]
        if "nextCursor" not in page:
            return found
        cursor = {"cursor": page["nextCursor"]}
    raise AssertionError(f"{method} has no end")
