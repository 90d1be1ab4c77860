"""Owning a partition: allocated from, published into and given back by one process that holds its file lock."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable

import numpy as np

from omnistage.errors import TensorError
from omnistage.tensors.arena import Block, PartitionMap, now_us, remove_file
from omnistage.tensors.slabs import UNIT_BYTES, SlabAllocator, Span
from omnistage.tensors.store import Array, ByteArray, wire_dtype


class OwnedPartition:
    """A partition that this process alone allocates from. Safe to use from several threads.

    Args:
        view: the mapping; what it holds already (adopted from a dead owner) stays held.
        descriptor: open file that carries the lock; closed with the partition.

    Raises:
        ValueError: the table contradicts itself.
    """

    def __init__(self, view: PartitionMap, descriptor: int) -> None:
        self.view = view
        self._descriptor = descriptor
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._live = {block.span.unit: block for block in view.held()}
        self._slabs = SlabAllocator(view.units, [block.span for block in self._live.values()])
        for block in view.published():
            if block.span.unit not in self._live:
                view.begin(block.span)

    @property
    def name(self) -> str:
        """File name: the id of this partition's blocks."""
        return self.view.path.name

    @property
    def capacity_bytes(self) -> int:
        """Bytes of all units."""
        return self.view.units * UNIT_BYTES

    def used_bytes(self) -> int:
        """Bytes of the blocks that are held or being written, with their padding."""
        with self._lock:
            self._collect_released()
            return (self.view.units - self._slabs.free_units) * UNIT_BYTES

    def allocate(self, nbytes: int) -> Span | None:
        """Room for so many bytes, or None. The caller hands it to `write`.

        Raises:
            TensorError: called in a fork of the owner.
        """
        if os.getpid() != self._process:
            raise TensorError("a forked process must open an arena partition of its own")
        with self._lock:
            self._collect_released()
            span = self._slabs.allocate(nbytes)
            if span is None and self._collect_expired():
                span = self._slabs.allocate(nbytes)
            return span

    def write(self, span: Span, array: Array, request: int, lease_us: int) -> tuple[Block, ByteArray]:
        """Copy an array into a span and publish it; returns the block and its bytes in place.

        The span is this call's own until then: on an error it is freed, whatever the caller has done meanwhile.
        """
        try:
            dtype = wire_dtype(array)
            block = Block(span, self.view.begin(span), request, lease_us)
            data = self.view.data(span)[: array.size * dtype.itemsize]
            np.copyto(data.view(dtype).reshape(array.shape), array)
        except BaseException:
            with self._lock:
                self._free(span)
            raise
        with self._lock:
            self._live[span.unit] = block
            self.view.publish(block, data.nbytes)
        return block, data

    def release(self, unit: int, generation: int) -> None:
        """Free the block at a unit if it is still this generation."""
        with self._lock:
            block = self._live.get(unit)
            if block is not None and block.generation == generation:
                self._free(block.span)

    def forget(self, request: int) -> int:
        """Free the blocks of a request (`arena.request_hash`); returns how many were still held."""
        with self._lock:
            self._collect_released()
            return self._collect(lambda block: block.request == request)

    def sweep(self) -> int:
        """Free what was released or is past its lease; returns how many blocks."""
        with self._lock:
            return self._collect_released() + self._collect_expired()

    def close(self) -> None:
        """Give the partition up: removed when it holds nothing, else left readable for others to adopt or sweep."""
        self.sweep()
        if not self._live:
            remove_file(self.view.path)
        # The mapping duplicates the descriptor and may outlive this call in a copy under way; the lock must not.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)

    def _collect_released(self) -> int:
        return self._collect(self.view.is_released) if self.view.take_dirty() else 0

    def _collect_expired(self) -> int:
        now = now_us()
        return self._collect(lambda block: block.lease_us <= now)

    def _collect(self, is_over: Callable[[Block], bool]) -> int:
        over = [block.span for block in self._live.values() if is_over(block)]
        for span in over:
            self._free(span)
        return len(over)

    def _free(self, span: Span) -> None:
        self._live.pop(span.unit, None)
        self.view.begin(span)
        self._slabs.free(span)
