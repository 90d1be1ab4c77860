"""Everything that requests hold while they run, and must not hold afterwards."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import psutil
from tests.support.inspection import consumers, entries, jetstream, metric
from tests.support.system import System

from omnistage.runtime.claims import CLAIMS_BUCKET

HELD = (
    "omnistage_slots_in_use",
    "omnistage_requests_running",
    "omnistage_waiting_requests",
    "omnistage_http_requests_in_flight",
    "omnistage_arena_used_bytes",
    "omnistage_queue_depth",
)
"""Metrics that are 0 while nothing runs."""


@dataclass(frozen=True)
class Leftovers:
    """What is there at a moment.

    Attributes:
        held: metrics and entries that must be 0 while nothing runs.
        consumers: of each class of messages.
        tasks, descriptors, resident_bytes: of all services' processes together.
    """

    held: dict[str, float]
    consumers: dict[str, int]
    tasks: float
    descriptors: int
    resident_bytes: int


async def leftovers(system: System) -> Leftovers:
    processes = [entry for entry in (await asyncio.to_thread(system.status))["processes"] if entry["metrics_port"]]

    async def total(name: str) -> float:
        return sum([await asyncio.to_thread(metric, entry["metrics_port"], name) for entry in processes])

    held = {name: await total(name) for name in HELD}
    held["announced"] = sum(len(entry["running"]) for entry in processes)
    async with system.bus() as bus, jetstream(system.state) as stream:
        held["claims"] = len(await (await bus.key_value(CLAIMS_BUCKET)).keys())
        held |= {f"entries {kind}": count for kind, count in (await entries(stream, system.state.namespace)).items()}
        readers = await consumers(stream, system.state.namespace)
    running = [psutil.Process(entry["pid"]) for entry in processes]
    return Leftovers(
        held,
        readers,
        await total("omnistage_tasks"),
        sum(process.num_fds() for process in running),
        sum(process.memory_info().rss for process in running),
    )


async def at_rest(system: System, within_s: float) -> Leftovers:
    """As soon as nothing is held any more, or what is there when the time has passed."""
    end = time.monotonic() + within_s
    while any((found := await leftovers(system)).held.values()) and time.monotonic() < end:
        await asyncio.sleep(0.5)
    return found
