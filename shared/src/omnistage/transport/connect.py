"""Opening a bus from its address."""

from __future__ import annotations

from urllib.parse import urlsplit

from omnistage.transport.addresses import MEMORY, checked
from omnistage.transport.bus import Bus
from omnistage.transport.jetstream import JetStreamBus
from omnistage.transport.memory import MemoryBus, shared_broker
from omnistage.transport.options import BusOptions


async def connect(
    url: str,
    namespace: str,
    *,
    name: str,
    user: str | None = None,
    password: str | None = None,
    options: BusOptions | None = None,
) -> Bus:
    """Open the bus of a namespace.

    Args:
        url: "memory://" for a broker inside this process (shared by all buses of the namespace on this event
            loop), or "nats://host:port", several with commas.
        namespace: first token of every subject.
        name: what the broker shows for this connection.
        user, password: credentials, if the broker asks for them.
        options: limits and times.

    Raises:
        BusUnavailable: nobody answers at the address.
        ConfigError: the address or the credentials are wrong.
    """
    if urlsplit(checked(url)[0]).scheme == MEMORY:
        return MemoryBus(shared_broker(namespace), namespace, options)
    bus = JetStreamBus(namespace, options)
    await bus.open(url, name=name, user=user, password=password)
    return bus
