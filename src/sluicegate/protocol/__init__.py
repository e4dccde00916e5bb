"""The protocol, pure: bytes ↔ messages ↔ conversation. No asyncio, no files, no clock.

The one rule: nothing here waits. Give it bytes and values, it gives back values and bytes.
"""
