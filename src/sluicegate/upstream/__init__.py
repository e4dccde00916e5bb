"""Connections to servers: child processes and URLs. Thin shells that move bytes; `protocol/` interprets messages."""
