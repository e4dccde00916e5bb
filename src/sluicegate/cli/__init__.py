"""The command `sluicegate`, with a module for each of its commands. Data goes to stdout, messages to stderr."""
