"""Tasks: run for callers that do not know them, passed through for those that do."""
