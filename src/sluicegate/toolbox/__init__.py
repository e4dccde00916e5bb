"""MCP tools inside an agent's loop: definitions that model APIs accept, and answers to a model's calls."""
