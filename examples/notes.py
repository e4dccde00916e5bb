"""A complete server: tools, resources and a template, a prompt, completion, log messages, updates and a question.

It works the same for clients of 2024-11-05 to 2025-11-25 and of 2026-07-28.
"""

from dataclasses import dataclass
from typing import Literal

import sluicegate

server = sluicegate.Server("notes", version="1.0", instructions="Notes are short texts under a day's name.")
notes = {"monday": "Buy bread.", "tuesday": "Call Ada."}

Day = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


@dataclass
class Written:
    day: str
    length: int


@dataclass
class Confirmation:
    sure: bool


@server.tool(annotations={"readOnlyHint": False, "idempotentHint": True})
def write(day: Day, text: str) -> Written:
    """Write the note of a day and replace the old one.

    Args:
        day: the day of the note.
        text: the text of the note.
    """
    notes[day] = text
    server.resource_updated(f"note://{day}")
    return Written(day, len(text))


@server.tool(annotations={"destructiveHint": True})
async def forget(day: Day, call: sluicegate.Call):
    """Forget the note of a day, after asking."""
    if day not in notes:
        raise sluicegate.ToolError(f"There is no note for {day}.")
    answer = await call.elicit(f"Forget what was noted for {day}?", Confirmation)
    if answer.content is None or not answer.content.sure:
        yield "Kept."
        return
    del notes[day]
    yield sluicegate.Log("notice", f"the note of {day} is gone")
    yield "Forgotten."


@server.resource("note://{day}", mime_type="text/plain")
def note(day: str) -> str:
    """The note of one day."""
    return notes.get(day, "")


@server.resource("notes://all", mime_type="text/plain")
def all_notes() -> str:
    """All notes, a line each."""
    return "\n".join(f"{day}: {text}" for day, text in notes.items())


@server.prompt
def plan(day: str) -> str:
    """Make a plan out of a note.

    Args:
        day: the day of the note.
    """
    return f"Make a plan for {day} out of this note: {notes.get(day, 'nothing yet')}"


@server.complete("plan", "day")
@server.complete("note://{day}", "day")
def days(value: str) -> list[str]:
    return [day for day in sorted(notes) if day.startswith(value)]


if __name__ == "__main__":
    sluicegate.run(server)
