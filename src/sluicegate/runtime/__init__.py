"""Additions to asyncio and to the operating system's interfaces, shared by all rooms."""
