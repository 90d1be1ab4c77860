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

__all__ = [
    "MAX_BODY_BYTES",
    "Bus",
    "Claim",
    "Handler",
    "KeyValue",
    "Log",
    "Message",
    "ObjectStore",
    "Subscription",
    "WorkQueue",
]
