"""The bus as the rest of the system sees it: work queues, logs, control, key-value and objects.

Implementations (`memory`, `jetstream`) pass one conformance suite, `omnistage.testing.bus_conformance`.
Bodies are bytes; encoding belongs to `omnistage.contracts`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from omnistage.subjects import Subjects
from omnistage.transport.stats import BusStats
from omnistage.transport.topology import Topology

MAX_BODY_BYTES = 256 * 1024
"""Largest body that the bus takes. Bulk belongs in the tensor plane; the broker's own limit is 1 MiB."""


@dataclass(frozen=True)
class Message:
    """A message as received.

    Attributes:
        subject: the subject it was published on (for live records: the log's subject, not the republished one).
        sequence: its position in the stream; 0 for control messages.
        previous: sequence of the record before it on the same subject; 0 if it is the first.
    """

    subject: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    sequence: int = 0
    previous: int = 0


class Claim(Protocol):
    """A work item held by this instance. A hint to the queue, never the fence: that is the log."""

    @property
    def message(self) -> Message: ...

    @property
    def deliveries(self) -> int:
        """1 for the first delivery. Grows with every redelivery, items given back included."""
        ...

    @property
    def token(self) -> str:
        """What another process needs to give this item back for a holder that died (`Bus.give_back`)."""
        ...

    async def ack(self) -> None:
        """The item is done: remove it."""
        ...

    async def nak(self, delay_s: float = 0.0) -> None:
        """Give the item back, to be delivered again after the delay."""
        ...

    async def in_progress(self) -> None:
        """Still at it: restart the redelivery clock."""
        ...


class WorkQueue(Protocol):
    """The items of one stage and model, shared by all its instances."""

    async def claim(self) -> Claim:
        """Wait for the next item and hold it. Cancellation-safe: an item delivered meanwhile is given back."""
        ...

    async def pending(self) -> int:
        """Items that no instance has held yet (an item that was given back may or may not be counted)."""
        ...

    async def close(self) -> None: ...


class Log(Protocol):
    """Records of one subject from the beginning, then as they come."""

    def __aiter__(self) -> AsyncIterator[Message]:
        """Records in order, without gaps or duplicates; never ends by itself."""
        ...

    async def close(self) -> None: ...


class KeyValue(Protocol):
    """A bucket of small values. Keys: [A-Za-z0-9_-.], without empty parts between dots."""

    async def put(self, key: str, value: bytes) -> int:
        """Store; returns the revision."""
        ...

    async def create(self, key: str, value: bytes) -> int | None:
        """Store only if the key is absent; None if it is there."""
        ...

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        """Store only if the key is still at that revision; None if it is not."""
        ...

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """Value and revision, or None."""
        ...

    async def delete(self, key: str) -> None: ...

    async def keys(self) -> list[str]: ...


class ObjectStore(Protocol):
    """A bucket of larger values that outlive a process (uploaded voices, artifacts of jobs)."""

    async def put(self, name: str, data: bytes) -> None: ...

    async def get(self, name: str) -> bytes | None: ...

    async def delete(self, name: str) -> None: ...

    async def names(self) -> list[str]: ...


class Subscription(Protocol):
    async def close(self) -> None: ...


Handler = Callable[[Message], Awaitable[None]]
ReconnectCallback = Callable[[], Awaitable[None]]


class Bus(Protocol):
    """All that a service asks of the broker.

    Every method raises BusUnavailable when the broker cannot be reached within the bus's timeout.
    """

    @property
    def subjects(self) -> Subjects:
        """Subjects of the namespace that this bus lives in."""
        ...

    @property
    def stats(self) -> BusStats: ...

    async def ensure(self, topology: Topology) -> None:
        """Create or reconcile the streams and consumers of a topology. Idempotent, safe from several processes.

        It is asserted again after every reconnect.
        """
        ...

    async def prune(self, topology: Topology) -> list[str]:
        """Remove the durable consumers of stages and models that a topology does not have; returns their names.

        Work that waits for them stays, should they be served again.
        """
        ...

    def on_reconnect(self, callback: ReconnectCallback) -> None:
        """Call it after every reconnect, once the topology stands again. Its errors are logged."""
        ...

    async def publish_work(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Put a work item into its queue; the same subject twice while the first is queued is one item.

        Raises:
            QueueFull: the stream is full.
            MessageTooLarge: body over MAX_BODY_BYTES.
        """
        ...

    async def work_queue(self, stage: str, model: str) -> WorkQueue:
        """Join the queue of a stage and model (creates its durable consumer if need be)."""
        ...

    async def give_back(self, token: str) -> None:
        """Give an item back on behalf of the holder that had claimed it (`Claim.token`)."""
        ...

    async def append(self, subject: str, body: bytes, headers: Mapping[str, str], *, expected: int) -> int:
        """Append a record to a log whose last record must have the sequence `expected` (0: the log is empty).

        Returns:
            The sequence of the new record, to be passed as the next `expected`.

        Raises:
            Fenced: the log's last record is another one; somebody else writes here, or it was purged.
            QueueFull: the stream is full.
            BusUnavailable: no answer in time; the record may or may not be there, so read before writing on.
            MessageTooLarge: body over MAX_BODY_BYTES.
        """
        ...

    async def read(self, subject: str, after: int = 0) -> list[Message]:
        """All records that a log holds now with a sequence above `after`, in order."""
        ...

    async def follow(self, subject: str, after: int = 0, *, fresh: bool = False) -> Log:
        """Records above `after`, first those that exist, then live ones; gaps of the live path are filled.

        On return nothing appended afterwards is missed.

        Args:
            fresh: the caller knows that the log holds no such record yet, and is itself about to have it written:
                saves the look at the history.
        """
        ...

    async def purge_request(self, request_id: str) -> None:
        """Remove every work item and every log record of a request."""
        ...

    async def survey(self) -> list[Message]:
        """The last message of every work item and log that the broker holds: what a crash may have left behind.

        Their `previous` is 0. Not a snapshot: what comes or goes meanwhile may or may not be among them.
        """
        ...

    async def send(self, subject: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send a control message: at most once, to whoever listens now."""
        ...

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        """Call the handler with each control message on a subject (wildcards allowed), one after the other."""
        ...

    async def key_value(self, bucket: str, *, ttl_s: float | None = None) -> KeyValue:
        """A bucket by its short name, created if need be; entries vanish after `ttl_s`."""
        ...

    async def object_store(self, bucket: str) -> ObjectStore: ...

    async def bury(self, stage: str, model: str, request_id: str, body: bytes, reason: str) -> None:
        """Keep a message that was given up on in class dead, with why."""
        ...

    @property
    def connected(self) -> bool: ...

    async def close(self) -> None:
        """Flush what was sent and leave. Idempotent."""
        ...
