"""The server for the official conformance suite: what its scenarios use, and nothing else.

`python examples/everything.py` serves a client over stdio, and with `--http [PORT]` any number of clients over HTTP.
tests/conformance runs the suite against it.
"""

import asyncio
import base64
import json
import sys
from contextlib import suppress
from typing import Annotated

import msgspec

import sluicegate
from sluicegate import questions

server = sluicegate.Server("everything", version="1.0", title="Everything, for the conformance suite")

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
)
WAV = base64.b64decode("UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=")


# ---------------------------------------------------------------------------------------------- tools: kinds of content


@server.tool
def test_simple_text() -> str:
    """Answer with text."""
    return "This is a simple text response for testing."


@server.tool
def test_image_content() -> sluicegate.Image:
    """Answer with an image."""
    return sluicegate.Image(PNG, "image/png")


@server.tool
def test_audio_content() -> sluicegate.Audio:
    """Answer with audio."""
    return sluicegate.Audio(WAV, "audio/wav")


@server.tool
def test_embedded_resource() -> sluicegate.EmbeddedResource:
    """Answer with a resource and its contents."""
    return sluicegate.EmbeddedResource(
        "test://embedded-resource", text="This is an embedded resource content.", mime_type="text/plain"
    )


@server.tool
def test_multiple_content_types():
    """Answer with text, an image and a resource."""
    yield "Multiple content types test:"
    yield sluicegate.Image(PNG, "image/png")
    data = json.dumps({"test": "data", "value": 123})
    yield sluicegate.EmbeddedResource("test://mixed-content-resource", text=data, mime_type="application/json")


@server.tool
def test_error_handling() -> str:
    """Fail."""
    raise sluicegate.ToolError("This tool intentionally returns an error for testing")


# ---------------------------------------------------------------------------------------- tools: sent before the result


@server.tool
async def test_tool_with_logging():
    """Write three lines to the client's log."""
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        yield sluicegate.Log("info", line)
        await asyncio.sleep(0.05)
    yield "Tool with logging executed successfully"


@server.tool
def test_logging_tool():
    """Write a line to the log of a client that wants one."""
    yield sluicegate.Log("info", "Diagnostic trace logging activated")
    yield "Logging evaluated"


@server.tool
async def test_tool_with_progress():
    """Report progress three times."""
    for done in (0, 50, 100):
        yield sluicegate.Progress(done, total=100, message=f"Completed step {done} of 100")
        await asyncio.sleep(0.05)
    yield "Tool with progress executed successfully"


@server.tool
async def test_reconnection(call: sluicegate.Call) -> str:
    """Release the connection during the call; the result waits until the client returns."""
    call.end_response_early()
    await asyncio.sleep(0.1)
    return "Reconnection test completed successfully."


# ----------------------------------------------------------------------------------------------- tools: a question each


@server.tool
async def test_sampling(prompt: str, call: sluicegate.Call) -> str:
    """Ask the client's model.

    Args:
        prompt: what it is asked.
    """
    return f"LLM response: {(await call.sample(prompt, max_tokens=100)).text}"


@server.tool
async def test_missing_capability(call: sluicegate.Call) -> str:
    """Ask the client's model; the client must have declared sampling."""
    return (await call.sample("Are you there?", max_tokens=10)).text


class Response(msgspec.Struct):
    response: Annotated[str, msgspec.Meta(description="User's response")]


@server.tool
async def test_elicitation(message: str, call: sluicegate.Call) -> str:
    """Ask the user.

    Args:
        message: what the user is shown.
    """
    answer = await call.elicit(message, Response)
    return f"User response: action={answer.action}, content={msgspec.json.encode(answer.content).decode()}"


@server.tool
async def test_streaming_elicitation(call: sluicegate.Call) -> str:
    """Report progress, then ask the user."""
    await call.progress(50, total=100)
    return f"The user chose to {(await call.elicit('Go on?', Response)).action}."


@server.tool
async def test_elicitation_sep1034_defaults(call: sluicegate.Call) -> str:
    """Ask the user with a form that has a default for each kind of field."""
    form: dict[str, object] = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "User name", "default": "John Doe"},
            "age": {"type": "integer", "description": "User age", "default": 30},
            "score": {"type": "number", "description": "User score", "default": 95.5},
            "status": {
                "type": "string",
                "description": "User status",
                "enum": ["active", "inactive", "pending"],
                "default": "active",
            },
            "verified": {"type": "boolean", "description": "Verification status", "default": True},
        },
        "required": [],
    }
    answer = await call.elicit("Please review and update the form fields with defaults", form)
    return f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}"


@server.tool
async def test_elicitation_sep1330_enums(call: sluicegate.Call) -> str:
    """Ask the user with a form that has every kind of choice."""
    options = ["option1", "option2", "option3"]
    form: dict[str, object] = {
        "type": "object",
        "properties": {
            "untitledSingle": {"type": "string", "description": "Select one option", "enum": options},
            "titledSingle": {
                "type": "string",
                "description": "Select one option with titles",
                "oneOf": titled("First Option", "Second Option", "Third Option"),
            },
            "legacyEnum": {
                "type": "string",
                "description": "Select one option (legacy)",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {
                "type": "array",
                "description": "Select multiple options",
                "minItems": 1,
                "maxItems": 3,
                "items": {"type": "string", "enum": options},
            },
            "titledMulti": {
                "type": "array",
                "description": "Select multiple options with titles",
                "minItems": 1,
                "maxItems": 3,
                "items": {"anyOf": titled("First Choice", "Second Choice", "Third Choice")},
            },
        },
        "required": [],
    }
    answer = await call.elicit("Please select options from the enum fields", form)
    return f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}"


def titled(*titles: str) -> list[dict[str, str]]:
    return [{"const": f"value{number}", "title": title} for number, title in enumerate(titles, 1)]


# -------------------------------------------------------------------------------- tools: questions under a name, rounds


class Name(msgspec.Struct):
    name: str


class Color(msgspec.Struct):
    color: str


class Confirmation(msgspec.Struct):
    ok: bool


class Context(msgspec.Struct):
    context: str


@server.tool
async def test_input_required_result_elicitation(call: sluicegate.Call) -> str:
    """Ask the user for a name."""
    answer = (await call.ask_all({"user_name": questions.form("What is your name?", Name)}))["user_name"]
    return f"Hello, {answer.content.name if answer.content else 'stranger'}!"


@server.tool
async def test_input_required_result_sampling(call: sluicegate.Call) -> str:
    """Ask the client's model a question."""
    ask = questions.sampling("What is the capital of France?", max_tokens=100)
    return f"Sampling result: {(await call.ask_all({'capital_question': ask}))['capital_question'].text}"


@server.tool
async def test_input_required_result_list_roots(call: sluicegate.Call) -> str:
    """Ask the client for its roots."""
    roots = (await call.ask_all({"client_roots": questions.roots()}))["client_roots"]
    return f"Found {len(roots)} root(s): {', '.join(root.uri for root in roots)}"


@server.tool
async def test_input_required_result_request_state(call: sluicegate.Call) -> str:
    """Ask the user to confirm; the retry must contain the server's state."""
    answer = (await call.ask_all({"confirm": questions.form("Please confirm", Confirmation)}))["confirm"]
    return f"state-ok: the user chose to {answer.action}"


@server.tool
async def test_input_required_result_tampered_state(call: sluicegate.Call) -> str:
    """Ask the user to confirm; a state of another origin is refused."""
    answer = (await call.ask_all({"confirm": questions.form("Please confirm", Confirmation)}))["confirm"]
    return f"integrity-ok: the user chose to {answer.action}"


@server.tool
async def test_input_required_result_multiple_inputs(call: sluicegate.Call) -> str:
    """Ask the user, the model and the client at once."""
    answers = await call.ask_all(
        {
            "user_name": questions.form("What is your name?", Name),
            "greeting": questions.sampling("Generate a greeting", max_tokens=50),
            "client_roots": questions.roots(),
        }
    )
    return "; ".join(f"{key}: {answer}" for key, answer in answers.items())


@server.tool
async def test_input_required_result_multi_round(call: sluicegate.Call) -> str:
    """Ask the user twice, one question after the other."""
    first = (await call.ask_all({"step1": questions.form("Step 1: What is your name?", Name)}))["step1"]
    second = (await call.ask_all({"step2": questions.form("Step 2: What is your favorite color?", Color)}))["step2"]
    name = first.content.name if first.content else "somebody"
    return f"Multi-round complete for {name} who likes {second.content.color if second.content else 'none'}"


@server.tool
async def test_input_required_result_capabilities(call: sluicegate.Call) -> str:
    """Ask only the questions that the client declared to support."""
    asks: dict[str, questions.Ask[object]] = {}
    if "elicitation" in call.client.capabilities:
        asks["elicit_input"] = questions.form("Elicitation input", Name)
    if "sampling" in call.client.capabilities:
        asks["sample_input"] = questions.sampling("Sample request", max_tokens=50)
    received: list[str] = []
    for name, ask in asks.items():
        with suppress(sluicegate.InputRefused):  # A gateway may declare it on behalf of many clients.
            received += await call.ask_all({name: ask})
    return f"capabilities-ok: received {', '.join(received) or 'nothing'}"


# ------------------------------------------------------------------------------------------ tools: definitions, changes


@server.tool
def test_custom_headers(
    region: Annotated[str, msgspec.Meta(description="Where.", extra_json_schema={"x-mcp-header": "Region"})],
) -> str:
    """Take an argument that is also sent as the header Mcp-Param-Region."""
    return f"Region: {region}"


@server.tool(
    input_schema={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    }
)
def json_schema_2020_12_tool(**arguments: object) -> str:
    """Take arguments with a schema of many keywords."""
    return f"JSON Schema 2020-12 tool called with: {json.dumps(arguments)}"


@server.tool
def test_trigger_tool_change() -> str:
    """Change the list of tools, and change it back."""
    server.add_tool(test_simple_text, name="test_passing_tool")
    server.remove_tool("test_passing_tool")
    return "Mutation triggered"


@server.tool
def test_trigger_prompt_change() -> str:
    """Change the list of prompts, and change it back."""
    server.add_prompt(test_simple_prompt, name="test_passing_prompt")
    server.remove_prompt("test_passing_prompt")
    return "Mutation triggered"


# ------------------------------------------------------------------------------------------------------------ resources


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A fixed text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """A fixed image."""
    return PNG


@server.resource("test://template/{id}/data", mime_type="application/json")
def template(id: str) -> str:
    """One resource per id."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.resource("test://watched-resource", mime_type="text/plain")
def watched_resource() -> str:
    """A text that can be subscribed to."""
    return "Watched resource content"


# -------------------------------------------------------------------------------------------------------------- prompts


@server.prompt
def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@server.prompt
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with two arguments.

    Args:
        arg1: First test argument
        arg2: Second test argument
    """
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.complete("test_prompt_with_arguments", "arg1")
def complete_arg1(value: str) -> list[str]:
    return [word for word in ("paris", "park", "party", "testing") if word.startswith(value)]


@server.prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> list[sluicegate.UserMessage]:
    """A prompt that contains a resource.

    Args:
        resourceUri: URI of the resource to embed
    """
    text = "Embedded resource content for testing."
    return [
        sluicegate.UserMessage(sluicegate.EmbeddedResource(resourceUri, text=text, mime_type="text/plain")),
        sluicegate.UserMessage("Please process the embedded resource above."),
    ]


@server.prompt
def test_prompt_with_image() -> list[sluicegate.UserMessage]:
    """A prompt that contains an image."""
    return [
        sluicegate.UserMessage(sluicegate.Image(PNG, "image/png")),
        sluicegate.UserMessage("Please analyze the image above."),
    ]


@server.prompt
async def test_input_required_result_prompt(call: sluicegate.Call) -> str:
    """A prompt that asks the user for its topic."""
    ask = questions.form("What context should the prompt use?", Context)
    answer = (await call.ask_all({"user_context": ask}))["user_context"]
    return f"Prompt with context: {answer.content.context if answer.content else 'none'}"


if __name__ == "__main__":
    if "--http" in sys.argv:
        sluicegate.run(server, http=True, port=int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    else:
        sluicegate.run(server)
