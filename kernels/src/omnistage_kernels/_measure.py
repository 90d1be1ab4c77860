"""What a benchmark measures: one case is a function, its reference, and arguments made anew for each input set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """Attributes:
    label: the shape, for the reader.
    dtype: of the operands.
    kernel, reference: take the same arguments.
    make: arguments with fresh random content. Several sets in turn keep weights out of the cache, as in a model.
    bytes: least bytes that a call moves.
    flops: operations of a call; 0 where bytes decide.
    """

    label: str
    dtype: str
    kernel: Callable[..., Any]
    reference: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    bytes: int
    flops: int = 0
