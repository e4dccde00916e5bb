"""Features that asyncio and the operating system lack, shared by all rooms."""
