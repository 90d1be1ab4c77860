"""The kernels on a GPU: each is tested there, then timed against its reference, eager and compiled, and the byte floor.

    python benchmarks/kernels_gpu.py --out benchmarks/results/kernels.csv

Times are those of CUDA graph replays, so that launches cost what they cost in a captured frame; several sets of
arguments take turns, so that weights come from memory as they do in a model. Without a GPU it says so and ends.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kernels"
sys.path[:0] = [str(PACKAGE / "src"), str(PACKAGE / "benchmarks")]

from omnistage_kernels._dispatch import forced  # noqa: E402 - found where the package is not installed, too
from omnistage_kernels._measure import Case  # noqa: E402

COLUMNS = (
    "date", "commit", "card", "versions", "op", "case", "dtype",
    "kernel_us", "eager_us", "compiled_us", "floor_us", "eager_over_kernel", "compiled_over_kernel",
)  # fmt: skip
MEMORY_BYTES_PER_S = {"H200": 4.8e12, "H100": 3.35e12, "A100": 2.0e12}
"""Of the vendor's data sheets."""
SETS, REPLAYS = 8, 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "kernels.csv")
    parser.add_argument("--commit", default="", help="where there is no repository: what is measured")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("kernels_gpu: no CUDA device here, so there is nothing to measure")
        return 0
    # Without the project's settings: they name plugins that a machine with a GPU need not have.
    bare = ["-c", os.devnull, "--rootdir", str(PACKAGE), "--import-mode=importlib", "-p", "no:cacheprovider"]
    path = {**os.environ, "PYTHONPATH": str(PACKAGE / "src")}
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *bare, str(PACKAGE / "tests")], env=path, check=False
    )
    if tested.returncode:
        return tested.returncode
    write(options.out, options.commit)
    return 0


def write(out: Path, commit: str) -> None:
    """Measure every case; rows are appended."""
    fresh = not out.exists()
    with out.open("a", newline="") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow(COLUMNS)
        for path in sorted((PACKAGE / "benchmarks").glob("bench_*.py")):
            for case in importlib.import_module(path.stem).cases("cuda"):
                row = (*fixed(commit), path.stem.removeprefix("bench_"), *measured(case))
                writer.writerow(row)
                print(*row[4:], sep="  ", flush=True)


def fixed(commit: str) -> tuple[str, ...]:
    """Date, commit, card, versions."""
    import triton

    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    versions = f"torch {torch.__version__}, triton {triton.__version__}"
    return datetime.now(UTC).date().isoformat(), commit or asked.stdout.strip(), torch.cuda.get_device_name(), versions


def measured(case: Case) -> tuple[str, ...]:
    """Times of a case in microseconds, and ratios."""
    sets = [case.make() for _ in range(SETS)]
    with forced("triton"):
        kernel = replayed(case.kernel, sets)
    eager = replayed(case.reference, sets)
    torch._dynamo.reset()
    compiled = replayed(torch.compile(case.reference), sets)
    card = next((name for name in MEMORY_BYTES_PER_S if name in torch.cuda.get_device_name()), None)
    floor = "" if card is None else f"{case.bytes / MEMORY_BYTES_PER_S[card] * 1e6:.2f}"
    times = (f"{kernel:.2f}", f"{eager:.2f}", f"{compiled:.2f}", floor)
    return case.label, case.dtype, *times, f"{eager / kernel:.2f}", f"{compiled / kernel:.2f}"


def replayed(call: Callable[..., Any], sets: list[tuple[Any, ...]]) -> float:
    """Median microseconds of a call within a graph of one call for each set."""
    for arguments in sets[:2] * 3:
        call(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call(*arguments) for arguments in sets]
    times = [timed(graph) / len(sets) for _ in range(REPLAYS)]
    del kept
    return statistics.median(times)


def timed(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds of a replay."""
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch leaves it untyped
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch leaves it untyped
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1000


if __name__ == "__main__":
    sys.exit(main())
