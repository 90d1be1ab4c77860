from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.tensors.slabs import UNIT_BYTES, SlabAllocator, Span, class_units

UNITS = st.integers(1, 700)
OPERATIONS = st.lists(st.tuples(st.booleans(), st.integers(0, 300 * UNIT_BYTES)), max_size=120)


def assert_disjoint(spans: list[Span], units: int) -> None:
    end = 0
    for span in sorted(spans):
        assert span.unit >= end
        end = span.unit + span.units
    assert end <= units


@given(UNITS, OPERATIONS)
@settings(max_examples=300, deadline=None)
def test_blocks_never_overlap_and_all_that_is_freed_comes_back(units: int, operations: list[tuple[bool, int]]) -> None:
    slabs = SlabAllocator(units)
    live: list[Span] = []
    for frees, amount in operations:
        if frees and live:
            slabs.free(live.pop(amount % len(live)))
        elif (span := slabs.allocate(amount)) is not None:
            assert span.units * UNIT_BYTES >= amount
            assert span.units == min(class_units(amount), units)
            live.append(span)
        assert_disjoint(live, units)
        assert slabs.free_units == units - sum(span.units for span in live)
    for span in live:
        slabs.free(span)
    assert slabs.allocate(units * UNIT_BYTES) == Span(0, units)
    assert slabs.free_units == 0


@given(UNITS, OPERATIONS, st.integers(0, 300 * UNIT_BYTES))
@settings(max_examples=200, deadline=None)
def test_none_means_that_no_run_is_long_enough(units: int, operations: list[tuple[bool, int]], last: int) -> None:
    slabs = SlabAllocator(units)
    live: list[Span] = []
    for frees, amount in operations:
        if frees and live:
            slabs.free(live.pop(amount % len(live)))
        elif (span := slabs.allocate(amount)) is not None:
            live.append(span)
    longest, end = 0, 0
    for span in [*sorted(live), Span(units, 0)]:
        longest = max(longest, span.unit - end)
        end = span.unit + span.units
    fits = last <= units * UNIT_BYTES and min(class_units(last), units) <= longest
    assert (slabs.allocate(last) is not None) == fits


@given(UNITS, OPERATIONS)
@settings(max_examples=100, deadline=None)
def test_an_allocator_rebuilt_from_what_is_taken_goes_on(units: int, operations: list[tuple[bool, int]]) -> None:
    first = SlabAllocator(units)
    live = [span for _, amount in operations if (span := first.allocate(amount)) is not None][::2]
    second = SlabAllocator(units, live)
    assert second.free_units == units - sum(span.units for span in live)
    while (span := second.allocate(1)) is not None:
        live.append(span)
    assert_disjoint(live, units)
    assert sum(span.units for span in live) == units


@given(st.integers(0, 1 << 32))
def test_a_size_class_wastes_little(nbytes: int) -> None:
    units = class_units(nbytes)
    assert units * UNIT_BYTES >= nbytes
    assert class_units(units * UNIT_BYTES) == units
    needed = max(1, -(-nbytes // UNIT_BYTES))
    assert (units - needed) * 8 < needed


@pytest.mark.parametrize("taken", [[Span(0, 5), Span(4, 2)], [Span(8, 3)], [Span(3, 0)], [Span(-1, 2)]])
def test_contradictory_spans_are_refused(taken: list[Span]) -> None:
    with pytest.raises(ValueError, match="overlaps"):
        SlabAllocator(10, taken)
