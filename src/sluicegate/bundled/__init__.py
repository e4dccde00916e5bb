"""Activations that come with sluicegate. Each is off unless the configuration names it."""
