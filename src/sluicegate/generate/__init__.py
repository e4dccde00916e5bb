"""Typed code for calling tools: `model` reads their schemas, the other modules write TypeScript and Python."""
