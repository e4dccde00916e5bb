"""Native clients: they call tools as methods and get their events as notifications."""
