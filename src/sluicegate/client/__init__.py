"""The typed client: `connect` to a server and call it from Python."""

from sluicegate.client.client import Client, StreamEvent
from sluicegate.client.connect import connect
from sluicegate.client.events import ChangeStream
from sluicegate.client.handlers import ElicitAnswer, ElicitRequest, SampleRequest

__all__ = ["ChangeStream", "Client", "ElicitAnswer", "ElicitRequest", "SampleRequest", "StreamEvent", "connect"]
