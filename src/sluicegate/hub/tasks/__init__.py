"""Tasks (protocol §3.8): run for callers that do not know them, passed through for those that do."""
