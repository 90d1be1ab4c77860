"""Thread counts of numeric libraries, set before any of them is imported.

Measured on two cores: several torch processes with two threads each ran 26 to 50 times slower than with one thread
each and passive OpenMP waiting, because spinning threads take the cores from those that have work.
"""

from __future__ import annotations

import os
import sys

from omnistage.errors import ConfigError

_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(64 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}
"""For the C library's allocator, which reads it when a process starts: keep blocks of megabytes for the next use.
Giving each back to the kernel means to fault and clear its pages again (measured: a tenth of the codec's time)."""


def thread_environment(threads: int) -> dict[str, str]:
    """The variables that give a process its share of the cores."""
    return {name: str(threads) for name in _COUNTS} | {"OMP_WAIT_POLICY": "PASSIVE"}


def limit_threads(threads: int) -> None:
    """Set the thread count of this process.

    Raises:
        ConfigError: torch is imported already, so that the setting would come too late.
    """
    if "torch" in sys.modules:
        raise ConfigError("the thread count must be set before torch is imported")
    os.environ.update(thread_environment(threads))
