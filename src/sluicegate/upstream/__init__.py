"""Our client side: servers in child processes and at URLs. Thin shells that move bytes; `protocol/` reads messages."""
