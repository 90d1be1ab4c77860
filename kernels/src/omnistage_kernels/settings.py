"""What the environment may say to the kernels; the only reader of it."""

from __future__ import annotations

import os
from functools import cache

BACKENDS = ("auto", "triton", "reference")


@cache
def backend() -> str:
    """`OMNISTAGE_KERNELS`: "auto" (the kernel where the tensors are on a CUDA device), "triton" or "reference".

    Raises:
        ValueError: it is something else.
    """
    value = os.environ.get("OMNISTAGE_KERNELS", "auto")
    if value not in BACKENDS:
        raise ValueError(f"OMNISTAGE_KERNELS must be one of {', '.join(BACKENDS)}, not {value!r}")
    return value


def interpret() -> None:
    """Let Triton interpret kernels on the CPU; of effect for kernels that are imported afterwards."""
    os.environ["TRITON_INTERPRET"] = "1"
