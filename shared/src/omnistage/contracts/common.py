"""What every message is made of. Imports msgspec and the standard library only.

Evolution (docs/adr/0002): within major version 1 a message may gain fields with defaults and a union may gain
members; nothing is renamed, removed or retyped. What must not be ignored is marked with its version (`since`, `SINCE`).
Golden bytes of each release are kept in the tests.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from omnistage.contracts.versions import FIRST_VERSION

CONTRACT_VERSION = 1
"""Minor contract version that this code speaks: raised by each additive change.

Presences announce it; the `omni-contract` header of work carries the version that the work needs (`needed_version`).
"""

Place = Literal["memory", "shm", "redis"]


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all structs on the wire: frozen, keyword-only, defaults left out of the bytes."""

    SINCE: ClassVar[int] = FIRST_VERSION
    """Version that brought the message, where readers that do not know it must not get it."""


class Inline(Message, frozen=True, kw_only=True, omit_defaults=True, tag="inline"):
    """A small array inside the message itself.

    Attributes:
        data: C-contiguous little-endian bytes.
        dtype: numpy's name of the element type, e.g. "float32", "int16".
        shape: sizes of the axes.
    """

    data: bytes
    dtype: str
    shape: tuple[int, ...]


class TensorRef(Message, frozen=True, kw_only=True, omit_defaults=True, tag="ref"):
    """A block in the tensor plane: where the bytes lie, and how to know that they are still the same bytes.

    Attributes:
        place: which kind of store holds it.
        id: the arena file and partition (shm) or the key (redis, memory).
        offset: bytes from the start of the arena file (shm), else 0.
        dtype, shape, nbytes: as in Inline; nbytes without padding.
        generation: the block's use counter when it was published; a reader compares it before and after its copy.
        checksum: xxh3_64 of the bytes.
        lease: unix time in seconds after which the block may be reclaimed.
    """

    place: Place
    id: str
    offset: int = 0
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    generation: int = 0
    checksum: int = 0
    lease: float = 0.0


Payload = Inline | TensorRef
"""Bytes of a chunk: inline when small, else by reference."""


class Failure(Message, frozen=True, kw_only=True, omit_defaults=True):
    """An error as it travels: everything that `omnistage.errors.OmnistageError` carries."""

    code: str
    message: str
    status: int = 500
    retryable: bool = False
    param: str | None = None
    stage: str | None = None
    retry_after_s: float | None = None


class Work(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Base of work items: one per request and node, claimed by any free instance.

    Attributes:
        request_id: the request, the same at every stage.
        pipeline: name in `omnistage.pipelines.CATALOGUE`.
        node: the node of that pipeline which this item is for.
        route: node -> engine key of models.yaml, for every node that takes part.
    """

    request_id: str
    pipeline: str
    node: str
    route: dict[str, str]


class Record(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the records in a feed or out log: one subject, one writer at a time.

    Opened, Released, End and Failed rule the log. All others are data, those that later versions bring included: they
    take a position, and readers that do not know them skip them.

    Attributes:
        request_id: the request.
        edge: name of the pipeline edge, "source-destination".
        epoch: number of the holder that wrote it; a new holder opens the log with the next one.
        seq: 0-based position among the data records of this edge (opened and end do not count).
    """

    request_id: str
    edge: str
    epoch: int
    seq: int = 0


class Opened(Record, frozen=True, kw_only=True, omit_defaults=True, tag="opened"):
    """A holder takes the log. From here on the server refuses the holders before it.

    Its `seq` says where it goes on: data records from there on, if there are any, are written again.
    """

    instance: str


class Released(Record, frozen=True, kw_only=True, omit_defaults=True, tag="released"):
    """A holder gives the log up in order (drain, hand-over). An `opened` without it or an end means a crash."""


class End(Record, frozen=True, kw_only=True, omit_defaults=True, tag="end"):
    """The edge is complete. A log without it is unfinished, never a success.

    Attributes:
        count: how many data records the edge carried.
    """

    count: int


class Failed(Record, frozen=True, kw_only=True, omit_defaults=True, tag="error"):
    """The edge ends here, because of an error."""

    failure: Failure


class UnknownRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A data record of a kind that a later version brought. Read, never written.

    Attributes:
        kind: its tag.
    """

    kind: str = msgspec.field(name="type")


def payload_nbytes(payload: Payload) -> int:
    """Number of bytes that a payload holds or refers to."""
    return len(payload.data) if isinstance(payload, Inline) else payload.nbytes
