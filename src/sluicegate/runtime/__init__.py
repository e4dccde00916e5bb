"""What asyncio and the system lack, shared by all rooms."""
