"""The bus inside one process: for tests and for running everything in one process."""

from omnistage.transport.memory.bus import MemoryBroker, MemoryBus, shared_broker

__all__ = ["MemoryBroker", "MemoryBus", "shared_broker"]
