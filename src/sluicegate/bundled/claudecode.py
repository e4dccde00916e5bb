"""`claudecode`: sessions with Claude Code. Its questions about permissions go to the approvals of the gateway."""

from collections.abc import Mapping, Sequence
from typing import Final

from sluicegate.bundled.agent import Agent
from sluicegate.gateway.loading import Services
from sluicegate.server import activation

# With "stdio", Claude Code asks on its own pipe whether it may use a tool, so the gateway needs no address for it.
_OPTIONS: Final = (
    *("-p", "--output-format", "stream-json", "--input-format", "stream-json", "--verbose"),
    *("--include-partial-messages", "--permission-prompt-tool", "stdio"),
)
_EVENTS: Final[Sequence[object]] = (
    {"when": {"type": "system", "subtype": "init"}, "session": "session_id"},
    {"when": {"type": "stream_event", "event.delta.type": "text_delta"}, "text": "event.delta.text"},
    {
        "when": {"type": "assistant"},
        **{"each": "message.content", "where": {"type": "tool_use"}, "tool": "name", "input": "input"},
    },
    {
        "when": {"type": "user"},
        **{"each": "message.content", "where": {"type": "tool_result"}, "output": "content", "failed": "is_error"},
    },
    {"when": {"type": "result"}, "session": "session_id"},
    {"when": {"type": "result", "is_error": True}, "error": "result"},
    # A failure without a sentence, such as too many turns, has only its kind.
    {"when": {"type": "result", "is_error": True}, "error": "subtype"},
    {
        "when": {"type": "result", "is_error": False},
        **{"ends": True, "keep": ["usage", "total_cost_usd", "num_turns", "duration_ms"]},
    },
)


@activation("claudecode")
class ClaudeCode(Agent):
    """Sessions with Claude Code, which can be continued and forked. Its answers are streams of events."""

    def __init__(
        self,
        services: Services,
        program: str = "claude",
        arguments: Sequence[str] = (),
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        env_pass: Sequence[str] = ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "CLAUDE_CONFIG_DIR"),
        file: str = "",
        silence: float = 600.0,
    ) -> None:
        """`program` is Claude Code, `arguments` are more of its options; the others are those of `Agent`."""
        super().__init__(
            services,
            [program, *_OPTIONS, *arguments],
            list(_EVENTS),
            resume=["--resume", "{session}"],
            fork=["--resume", "{session}", "--fork-session"],
            model=["--model", "{model}"],
            system=["--append-system-prompt={system}"],
            messages="claude",
            cwd=cwd,
            env=env,
            env_pass=env_pass,
            file=file,
            silence=silence,
        )
