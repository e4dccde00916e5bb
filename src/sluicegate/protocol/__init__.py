"""The protocol as pure functions and state machines: bytes ↔ messages. No asyncio, no files, no clock."""
