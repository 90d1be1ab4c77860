"""Tensors between two processes: the arena against a fresh shared-memory block per tensor and against Redis over TCP.

    python benchmarks/tensor_plane.py [--quick]

All paths run in turns within one run, with the same checksum and the same hand-over to threads, on uvloop. `put` is
timed in the writer, `get` in a reader in another process than the writer, `round_trip` is put, message, get, release
and put there, message, get and release here; its two messages are lines over pipes and cost what `message` says.
Results go to benchmarks/results/tensor_plane.csv.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import mmap
import os
import platform
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import hiredis
import msgspec
import numpy as np
import redis
import uvloop

from omnistage.contracts import TensorRef
from omnistage.errors import TensorGone
from omnistage.tensors import Array, RedisTensorStore, ShmTensorStore, TensorStore
from omnistage.tensors.store import checksum, run_copy, to_bytes, verified
from omnistage.testing.servers import running_valkey
from omnistage.testing.tensor_peer import NAMESPACE, Peer, Peers, pattern, serve

RESULTS = Path(__file__).parent / "results" / "tensor_plane.csv"
KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
ARENA_BYTES = 160 * MIB
LEASE_S = 600.0
WARM_UP = 2

Samples = dict[tuple[int, str, str], list[float]]


class FreshBlockStore:
    """A new file on tmpfs per tensor, mapped, written and unmapped: what an arena is compared with."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put(self, array: Array, *, request_id: str, lease_s: float) -> TensorRef:
        def write() -> TensorRef:
            data, dtype, shape = to_bytes(array)
            path = self._folder / f"{secrets.token_hex(8)}-{request_id}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.ftruncate(descriptor, data.nbytes)
            with mmap.mmap(descriptor, data.nbytes) as block:
                os.close(descriptor)
                block[:] = data
                digest = checksum(memoryview(block))
            return TensorRef(place="shm", id=path.name, dtype=dtype, shape=shape, nbytes=data.nbytes, checksum=digest)

        return await run_copy(write, array.nbytes)

    async def borrow(self, ref: TensorRef) -> Array:
        return await self.get(ref)

    async def get(self, ref: TensorRef) -> Array:
        def read() -> Array:
            try:
                descriptor = os.open(self._folder / ref.id, os.O_RDWR)
            except FileNotFoundError as error:
                raise TensorGone(ref.id) from error
            with mmap.mmap(descriptor, ref.nbytes) as block:
                os.close(descriptor)
                copy = np.empty(ref.nbytes, np.uint8)
                np.copyto(copy, np.frombuffer(block, np.uint8))
            return verified(copy, ref)

        return await run_copy(read, ref.nbytes)

    async def release(self, ref: TensorRef) -> None:
        (self._folder / ref.id).unlink()

    async def forget(self, request_id: str) -> int:
        held = [path for path in self._folder.iterdir() if path.name.endswith(f"-{request_id}")]
        for path in held:
            path.unlink()
        return len(held)

    async def sweep(self) -> int:
        return 0

    def usage(self) -> tuple[int, int]:
        return sum(path.stat().st_size for path in self._folder.iterdir()), 0

    async def close(self) -> None:
        return


async def open_store(path: str, place: str) -> TensorStore:
    if path == "arena":
        return await ShmTensorStore.open(
            Path(place), namespace=NAMESPACE, instance="benchmark", capacity_bytes=ARENA_BYTES
        )
    if path == "fresh_block":
        return FreshBlockStore(Path(place))
    return await RedisTensorStore.open(place, namespace=NAMESPACE, timeout_s=30)


async def timed(samples: list[float], work: Callable[[], Awaitable[Any]]) -> Any:
    begin = time.perf_counter()
    result = await work()
    samples.append((time.perf_counter() - begin) * 1e6)
    return result


async def measure(store: TensorStore, peer: Peer, array: Array, samples: Samples, path: str) -> None:
    """One sample of each operation."""
    size = array.nbytes

    async def round_trip() -> None:
        ref = await store.put(array, request_id="r", lease_s=LEASE_S)
        answer = msgspec.convert(await peer.call("echo", ref=ref, request_id="r"), TensorRef)
        await store.get(answer)
        await store.release(answer)

    sent = await timed(samples[size, path, "put"], lambda: store.put(array, request_id="r", lease_s=LEASE_S))
    await peer.call("release", ref=sent)
    theirs = await peer.put(size, lease_s=LEASE_S)
    read = await timed(samples[size, path, "get"], lambda: store.get(theirs))
    if not np.array_equal(read, pattern(size, 0)):
        raise SystemExit(f"{path} returned other bytes")
    await store.release(theirs)
    await timed(samples[size, path, "round_trip"], round_trip)


async def run(places: dict[str, str], sizes: tuple[int, ...], budget_bytes: int) -> tuple[Samples, float]:
    samples: Samples = defaultdict(list)
    messages: list[float] = []
    async with Peers() as peers:
        pairs: dict[str, tuple[TensorStore, Peer]] = {}
        for path, place in places.items():
            peer = await peers.start_command(sys.executable, __file__, "--peer", path, place)
            pairs[path] = await open_store(path, place), peer
        for size in sizes:
            array = pattern(size, 1)
            repeats = max(7, min(100, budget_bytes // size))
            for repeat in range(repeats + WARM_UP):
                kept = samples if repeat >= WARM_UP else defaultdict(list)
                for path, (store, peer) in pairs.items():
                    await measure(store, peer, array, kept, path)
                await timed(messages, lambda: pairs["arena"][1].call("usage"))
        for store, _ in pairs.values():
            await store.close()
    return samples, statistics.median(messages)


def run_all(sizes: tuple[int, ...], budget_bytes: int) -> tuple[Samples, float]:
    parent = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="omnistage-bench-", dir=parent if parent.is_dir() else None))
    (root / "fresh").mkdir()
    try:
        with running_valkey() as server:
            places = {"arena": str(root / "arena"), "fresh_block": str(root / "fresh"), "redis_tcp": server.url}
            return uvloop.run(run(places, sizes, budget_bytes))
    finally:
        shutil.rmtree(root)


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()} x{os.cpu_count()}"


def commit() -> str:
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def report(samples: Samples, message_us: float) -> None:
    versions = (
        f"python {platform.python_version()}, numpy {np.__version__}, redis {redis.__version__}, "
        f"hiredis {hiredis.__version__}"
    )
    same = {"date": datetime.date.today().isoformat(), "commit": commit(), "cpu": cpu_name(), "versions": versions}
    rows = []
    for (size, path, op), values in sorted(samples.items()):
        median_us = statistics.median(values)
        ratio = median_us / statistics.median(samples[size, "arena", op])
        rows.append(
            {
                **same,
                "size": size,
                "path": path,
                "op": op,
                "median_us": round(median_us, 1),
                "ratio_to_arena": round(ratio, 2),
            }
        )
        print(f"{size // KIB:>7} KiB  {op:<11} {path:<12} {median_us:>12.1f} us  {ratio:>7.2f} x arena")
    print(f"a message there and back: {message_us:.1f} us; {same['cpu']}; {versions}")
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


async def peer_main(path: str, place: str) -> None:
    await serve(await open_store(path, place))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats, up to 4 MiB, for a look")
    parser.add_argument("--peer", nargs=2, metavar=("PATH", "PLACE"), help="the other process; started by the first")
    arguments = parser.parse_args()
    if arguments.peer:
        uvloop.run(peer_main(*arguments.peer))
        return
    quick = arguments.quick
    report(*run_all(SIZES[:4] if quick else SIZES, (16 if quick else 512) * MIB))


if __name__ == "__main__":
    main()
