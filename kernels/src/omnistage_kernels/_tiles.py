"""Sizes of tiles."""

from __future__ import annotations


def power_of_two(size: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(size - 1, 0).bit_length()


def ceil_div(size: int, part: int) -> int:
    """How many parts cover a size."""
    return -(-size // part)
