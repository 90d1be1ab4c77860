"""The bus over NATS JetStream."""

from omnistage.transport.jetstream.bus import JetStreamBus

__all__ = ["JetStreamBus"]
