"""An agent with the MCP servers of this folder, for the models of Anthropic or OpenAI. Needs the SDK of one of them.

    python examples/agent.py anthropic MODEL "What has changed in this folder today?"

Calls that no rule allows are asked about on the terminal. The model may give parts of its task to sub-agents.
"""

# pyright: basic, reportMissingImports=false
import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import sluicegate
from sluicegate.toolbox.view import View

Agent = Callable[[View, str, str], Awaitable[str]]


async def with_anthropic(box: View, model: str, task: str) -> str:
    """What Anthropic's model answers in the end."""
    import anthropic

    client = anthropic.AsyncAnthropic()
    messages: list[Any] = [{"role": "user", "content": task}]
    while True:
        tools: Any = box.definitions("anthropic")
        async with client.messages.stream(model=model, max_tokens=4096, tools=tools, messages=messages) as stream:
            reply = await stream.get_final_message()
        answers = await box.answer("anthropic", reply)
        messages += [{"role": "assistant", "content": reply.content}, *answers]
        if not answers or answers.stop:
            return "".join(block.text for block in reply.content if block.type == "text")


async def with_openai(box: View, model: str, task: str) -> str:
    """What OpenAI's model answers in the end."""
    import openai

    client = openai.AsyncOpenAI()
    items: list[Any] = [{"role": "user", "content": task}]
    while True:
        tools: Any = box.definitions("openai")
        reply: Any = None
        async for event in await client.responses.create(model=model, tools=tools, input=items, stream=True):
            if event.type == "response.completed":
                reply = event.response
        answers = await box.answer("openai", reply)
        items += [*reply.output, *answers]
        if not answers or answers.stop:
            return reply.output_text


AGENTS: dict[str, Agent] = {"anthropic": with_anthropic, "openai": with_openai}


async def main(api: str, model: str, task: str) -> None:
    numbers = itertools.count(1)

    async def delegate(task: str) -> str:
        """Give a part of the task to a sub-agent; returns what it found out."""
        async with box.view(f"helper-{next(numbers)}", deny=["delegate"], max_calls=20) as view:
            return await AGENTS[api](view, model, task)

    async with sluicegate.Toolbox.load(add=[delegate], on_permission="terminal", ready=30) as box:
        print(await AGENTS[api](box, model, task))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
