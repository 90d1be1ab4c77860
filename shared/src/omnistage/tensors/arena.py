"""The layout of an arena: a folder of partition files, and what any process may read and write in one.

A partition file is one header page, a table with eight 64-bit words per unit of 4 KiB, and the units. A block is a
run of units; the table row of its first unit describes it. Who writes what (docs/adr/0006):

- the owner alone writes `generation`: odd while the block is free or being written, even once it is published;
- any process may write `released`: the generation it no longer needs. A late write thus never frees a later block.

Rows and words are aligned, so each is written by one store. Where stores may be seen out of order (arm64), a torn
copy is still found by its checksum.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from omnistage.errors import TensorGone
from omnistage.tensors.slabs import UNIT_BYTES, Span
from omnistage.tensors.store import ByteArray

MAGIC = int.from_bytes(b"omniarn1", "little")
"""First word of a partition that is ready; its last character is the version of the layout."""

_NAME = re.compile(r"[a-z0-9_-]+\.[a-z0-9_-]+\.[0-9a-f]{16}\.arena")

_ROW_WORDS = 8
_GENERATION, _RELEASED, _REQUEST, _LEASE_US, _NBYTES, _UNITS = range(6)
_HEAD_MAGIC, _HEAD_UNITS, _HEAD_DIRTY = range(3)


class Block(NamedTuple):
    """A published block as the table tells it. `request` is `request_hash`; `lease_us` unix time in microseconds."""

    span: Span
    generation: int
    request: int
    lease_us: int


def request_hash(request_id: str) -> int:
    """The 64 bits by which a block names its request."""
    return xxhash.xxh3_64_intdigest(request_id.encode())


def now_us() -> int:
    """Unix time in microseconds, the unit of leases in the table."""
    return time.time_ns() // 1000


def data_offset(units: int) -> int:
    """Bytes before the first unit in the file of a partition of so many units."""
    table_bytes = units * _ROW_WORDS * 8
    return UNIT_BYTES + -(-table_bytes // UNIT_BYTES) * UNIT_BYTES


def file_bytes(units: int) -> int:
    """Size of the file of a partition: its units and 1.6 % for the table."""
    return data_offset(units) + units * UNIT_BYTES


def is_partition_name(name: str) -> bool:
    """Whether a name, perhaps from a message, is that of a partition file and of nothing else."""
    return _NAME.fullmatch(name) is not None


def partition_files(folder: Path) -> list[Path]:
    """The partition files of an arena, in order of name."""
    try:
        return sorted(path for path in folder.iterdir() if is_partition_name(path.name))
    except (FileNotFoundError, NotADirectoryError):
        return []


class PartitionMap:
    """A partition file mapped into this process. Closed by dropping it, once no copy uses it any more."""

    def __init__(self, path: Path, descriptor: int, *, units: int) -> None:
        self.path = path
        self.units = units
        mapped = mmap.mmap(descriptor, file_bytes(units))
        self._head: NDArray[np.uint64] = np.frombuffer(mapped, np.uint64, UNIT_BYTES // 8)
        table = np.frombuffer(mapped, np.uint64, units * _ROW_WORDS, offset=UNIT_BYTES)
        self._table: NDArray[np.uint64] = table.reshape(units, _ROW_WORDS)
        self._data: ByteArray = np.frombuffer(mapped, np.uint8, units * UNIT_BYTES, offset=data_offset(units))

    @classmethod
    def open(cls, folder: Path, name: str) -> PartitionMap:
        """Map a partition of this arena.

        Raises:
            TensorGone: there is no such partition (any more).
        """
        if not is_partition_name(name):
            raise TensorGone(f"{name!r} names no partition")
        try:
            descriptor = os.open(folder / name, os.O_RDWR | os.O_NOFOLLOW)
        except OSError as error:
            raise TensorGone(f"partition {name} is gone ({errno.errorcode.get(error.errno or 0)})") from error
        try:
            return cls.of_descriptor(folder / name, descriptor)
        finally:
            os.close(descriptor)

    @classmethod
    def of_descriptor(cls, path: Path, descriptor: int) -> PartitionMap:
        """Map a partition that is open already.

        Raises:
            TensorGone: it was never finished, or has another layout.
        """
        # Read, not mapped: touching a hole of an unfinished file on a full tmpfs would be SIGBUS.
        head = os.pread(descriptor, 16, 0)
        magic, units = (int.from_bytes(head[i : i + 8], "little") for i in (0, 8))
        if magic != MAGIC or os.fstat(descriptor).st_size != file_bytes(units):
            raise TensorGone(f"{path.name} is no finished partition of this layout")
        return cls(path, descriptor, units=units)

    def prefault(self, *, fresh: bool) -> None:
        """Touch every page, so that no copy pays for page faults and zeroing; only in a fresh file by writing."""
        for part in (self._table.reshape(-1).view(np.uint8), self._data):
            pages = part[:: mmap.PAGESIZE]
            if fresh:
                pages[:] = 0
            else:
                pages.max()

    def finish(self) -> None:
        """Mark a new partition as ready to be opened by others."""
        self._head[_HEAD_UNITS] = self.units
        self._head[_HEAD_MAGIC] = MAGIC

    def data(self, span: Span) -> ByteArray:
        """The bytes of a span, in place."""
        return self._data[span.unit * UNIT_BYTES : (span.unit + span.units) * UNIT_BYTES]

    def offset(self, unit: int) -> int:
        """Where a unit begins in the file."""
        return data_offset(self.units) + unit * UNIT_BYTES

    def unit_at(self, offset: int) -> int:
        """The unit that begins at an offset in the file.

        Raises:
            TensorGone: none does.
        """
        unit, rest = divmod(offset - data_offset(self.units), UNIT_BYTES)
        if rest or not 0 <= unit < self.units:
            raise TensorGone(f"no block begins at {self.path.name}@{offset}")
        return unit

    def begin(self, span: Span) -> int:
        """Owner: take the block out of readers' sight; returns the generation that it will be published as."""
        generation = int(self._table[span.unit, _GENERATION]) | 1
        self._table[span.unit, _GENERATION] = generation
        return generation + 1

    def publish(self, block: Block, nbytes: int) -> None:
        """Owner: let readers see a block that has been written."""
        row = self._table[block.span.unit]
        row[_REQUEST] = block.request
        row[_LEASE_US] = block.lease_us
        row[_NBYTES] = nbytes
        row[_UNITS] = block.span.units
        row[_GENERATION] = block.generation

    def is_readable(self, unit: int, generation: int, nbytes: int) -> bool:
        """Whether the block is still published as this generation, unreleased and within its lease."""
        row = self._table[unit]
        return (
            int(row[_GENERATION]) == generation
            and generation % 2 == 0
            and int(row[_RELEASED]) != generation
            and int(row[_NBYTES]) == nbytes
            and int(row[_LEASE_US]) > now_us()
        )

    def copy_out(self, offset: int, generation: int, nbytes: int) -> ByteArray:
        """A private copy of a block.

        Raises:
            TensorGone: the block was not, or did not stay, what the reference says.
        """
        block = self.look_at(offset, generation, nbytes)
        copy = np.empty(nbytes, np.uint8)
        np.copyto(copy, block)
        if not self.is_readable(self.unit_at(offset), generation, nbytes):
            raise TensorGone(f"block {self.path.name}@{offset} was taken back while it was read")
        return copy

    def look_at(self, offset: int, generation: int, nbytes: int) -> ByteArray:
        """A block in its place, not to be written to.

        Raises:
            TensorGone: the block is not what the reference says.
        """
        unit = self.unit_at(offset)
        span = Span(unit, -(-nbytes // UNIT_BYTES))
        if span.unit + span.units > self.units or not self.is_readable(unit, generation, nbytes):
            raise TensorGone(f"block {self.path.name}@{offset} is gone")
        block = self.data(span)[:nbytes]
        block.flags.writeable = False
        return block

    def release(self, unit: int, generation: int) -> bool:
        """Any process: say that nobody needs this generation any more; returns whether it was still held."""
        row = self._table[unit]
        if int(row[_GENERATION]) != generation or generation % 2 or int(row[_RELEASED]) == generation:
            return False
        row[_RELEASED] = generation
        self._head[_HEAD_DIRTY] = 1
        return True

    def take_dirty(self) -> bool:
        """Owner: whether somebody released a block since the last call. Ask before looking, so that none is missed."""
        if not self._head[_HEAD_DIRTY]:
            return False
        self._head[_HEAD_DIRTY] = 0
        return True

    def is_released(self, block: Block) -> bool:
        """Whether some process has released this block."""
        return int(self._table[block.span.unit, _RELEASED]) == block.generation

    def published(self) -> list[Block]:
        """Every block that was published and not taken back by its owner, in order of place."""
        generation = self._table[:, _GENERATION]
        heads = np.flatnonzero((generation > 0) & (generation % np.uint64(2) == 0))
        return [
            Block(Span(int(unit), int(row[_UNITS])), int(row[_GENERATION]), int(row[_REQUEST]), int(row[_LEASE_US]))
            for unit in heads
            for row in (self._table[unit],)
        ]

    def held(self) -> list[Block]:
        """The published blocks that are neither released nor past their lease."""
        now = now_us()
        return [block for block in self.published() if not self.is_released(block) and block.lease_us > now]


def allocate_file(descriptor: int, size: int) -> None:
    """Give a new file its size and all of its storage now.

    A sparse file would fail at the first write to a page that tmpfs has no room for, by SIGBUS.

    Raises:
        OSError: ENOSPC when the filesystem is too small.
    """
    fallocate = getattr(os, "posix_fallocate", None)
    if fallocate is not None:
        fallocate(descriptor, 0, size)
        return
    zeros = bytes(1 << 20)
    written = 0
    while written < size:
        written += os.write(descriptor, zeros[: size - written])


def remove_file(path: Path) -> None:
    """Unlink a file that another process may have unlinked already."""
    with suppress(FileNotFoundError):
        path.unlink()
