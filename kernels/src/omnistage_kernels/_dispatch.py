"""Which of the two forms of an operation a call takes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from torch import Tensor

from omnistage_kernels.settings import BACKENDS, backend

_log = logging.getLogger(__name__)
_forced: ContextVar[str | None] = ContextVar("forced", default=None)


def uses_kernel(op: str, like: Tensor) -> bool:
    """Whether an operation on such tensors goes to its kernel. The log says so once for each operation and device."""
    wanted = _forced.get() or backend()
    kernel = like.is_cuda if wanted == "auto" else wanted == "triton"
    _say(op, like.device.type, kernel)
    return kernel


@contextmanager
def forced(wanted: str) -> Iterator[None]:
    """Within it, all calls of this context go to the "triton" or the "reference" form."""
    if wanted not in BACKENDS:
        raise ValueError(f"no such form: {wanted!r}")
    token = _forced.set(wanted)
    try:
        yield
    finally:
        _forced.reset(token)


@cache
def _say(op: str, device: str, kernel: bool) -> None:
    _log.info("%s on %s: %s", op, device, "kernel" if kernel else "reference")
