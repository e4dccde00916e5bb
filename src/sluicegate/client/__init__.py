"""The typed client: `connect` to a server and call it from Python."""

from sluicegate.client.answers import ElicitAnswer, ElicitRequest, SampleRequest
from sluicegate.client.client import Client, StreamEvent
from sluicegate.client.events import Changes
from sluicegate.client.opening import connect

__all__ = ["Changes", "Client", "ElicitAnswer", "ElicitRequest", "SampleRequest", "StreamEvent", "connect"]
