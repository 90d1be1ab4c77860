"""Metadata between services: one protocol, two implementations."""

from omnistage.transport.bus import (
    MAX_BODY_BYTES,
    Bus,
    Claim,
    Handler,
    KeyValue,
    Log,
    Message,
    ObjectStore,
    Subscription,
    WorkQueue,
)
from omnistage.transport.connect import connect
from omnistage.transport.options import BusOptions
from omnistage.transport.stats import BusStats
from omnistage.transport.topology import Topology

__all__ = [
    "MAX_BODY_BYTES",
    "Bus",
    "BusOptions",
    "BusStats",
    "Claim",
    "Handler",
    "KeyValue",
    "Log",
    "Message",
    "ObjectStore",
    "Subscription",
    "Topology",
    "WorkQueue",
    "connect",
]
