"""Pages for people, at a local address of their own."""
