"""Which units of a partition are free: a buddy allocator with eight size classes per power of two. No I/O.

Blocks are cut from power-of-two runs (Knowlton, "A fast storage allocator", 1965) and trimmed to their size class;
the tail goes back at once. So a block wastes at most an eighth of its run, and neighbours merge again when freed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

UNIT_BYTES = 4096
"""Smallest block, and the alignment of all blocks: one page on x86-64."""


class Span(NamedTuple):
    """A run of units: index of the first, and how many."""

    unit: int
    units: int


def class_units(nbytes: int) -> int:
    """Units that a block of so many bytes takes: the next size class, an eighth of a power of two apart."""
    units = max(1, -(-nbytes // UNIT_BYTES))
    step = max(1, (1 << (units - 1).bit_length()) >> 4)
    return -(-units // step) * step


class SlabAllocator:
    """Free runs of a partition of `units` units, except for the spans that are taken from the start."""

    def __init__(self, units: int, taken: Iterable[Span] = ()) -> None:
        self._units = units
        self._free: list[dict[int, None]] = [{} for _ in range(units.bit_length())]
        self.free_units = 0
        cursor = 0
        for span in sorted(taken):
            if span.unit < cursor or span.units < 1 or span.unit + span.units > units:
                raise ValueError(f"{span} overlaps another or lies outside of {units} units")
            self._give(Span(cursor, span.unit - cursor))
            cursor = span.unit + span.units
        self._give(Span(cursor, units - cursor))

    def allocate(self, nbytes: int) -> Span | None:
        """A span for so many bytes, or None when no run is long enough. The most recently freed comes first."""
        if nbytes > self._units * UNIT_BYTES:
            return None
        wanted = min(class_units(nbytes), self._units)
        order = (wanted - 1).bit_length()
        found = next((o for o in range(order, len(self._free)) if self._free[o]), None)
        if found is None:
            return self._allocate_joined(wanted)
        unit, _ = self._free[found].popitem()
        self.free_units -= 1 << found
        self._give(Span(unit + wanted, (1 << found) - wanted))
        return Span(unit, wanted)

    def free(self, span: Span) -> None:
        """Give a span back; it must be one that `allocate` returned or that was taken from the start."""
        self._give(span)
        assert self.free_units <= self._units, f"{span} was freed twice"

    def _allocate_joined(self, wanted: int) -> Span | None:
        """A span over adjacent runs: buddies of a length that is no power of two never merge into one run."""
        runs = sorted((unit, 1 << order) for order, free in enumerate(self._free) for unit in free)
        start = end = -1
        for unit, length in runs:
            if unit != end:
                start = unit
            end = unit + length
            if end - start >= wanted:
                self._take_range(start, end)
                self._give(Span(start + wanted, end - start - wanted))
                return Span(start, wanted)
        return None

    def _take_range(self, start: int, end: int) -> None:
        for order, free in enumerate(self._free):
            for unit in [u for u in free if start <= u < end]:
                del free[unit]
                self.free_units -= 1 << order

    def _give(self, span: Span) -> None:
        unit, remaining = span
        while remaining > 0:
            aligned = (unit & -unit).bit_length() - 1 if unit else remaining.bit_length() - 1
            order = min(aligned, remaining.bit_length() - 1)
            self._merge(unit, order)
            self.free_units += 1 << order
            unit += 1 << order
            remaining -= 1 << order

    def _merge(self, unit: int, order: int) -> None:
        while order + 1 < len(self._free):
            buddy = unit ^ (1 << order)
            if buddy not in self._free[order]:
                break
            del self._free[order][buddy]
            unit = min(unit, buddy)
            order += 1
        self._free[order][unit] = None
