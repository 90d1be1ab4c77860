"""Several clients at once, and what is done to the system while they listen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import httpx
from tests.support.inspection import metric
from tests.support.sentences import PARAGRAPH
from tests.support.streams import Ask, Played, play
from tests.support.system import System

SENTENCES = PARAGRAPH.split(". ")
MIXED = (
    Ask("chat", "Tell me about the sea.", seed=1, max_tokens=24),
    Ask("chat", "What do bakers do all night?", seed=2, max_tokens=24),
    Ask("speech", ". ".join(SENTENCES[0:2]) + ".", seed=3),
    Ask("speech", ". ".join(SENTENCES[3:5]) + ".", seed=4),
)
HEARD_S = 60.0


async def listen(
    client: httpx.AsyncClient, asks: Sequence[Ask] = MIXED, disturb: Callable[[], Awaitable[object]] | None = None
) -> list[Played]:
    """Play all asks side by side; `disturb` runs as soon as each of them has been heard."""
    streams = [Played(ask) for ask in asks]
    async with asyncio.TaskGroup() as group:
        for played in streams:
            group.create_task(play(client, played.ask, played))
        if disturb is not None:
            while not all(played.arrivals or played.failure for played in streams):
                await asyncio.sleep(0.02)
            assert not all(played.complete for played in streams), "nothing was under way any more"
            await disturb()
    return streams


def differences(heard: Sequence[Played], undisturbed: Sequence[Played]) -> list[str]:
    """Which streams did not complete, or not with the bytes of the undisturbed run, in words."""
    found = [f"{played.ask.kind} {played.ask.seed}: {played.failure}" for played in heard if not played.complete]
    found += [
        f"{played.ask.kind} {played.ask.seed}: {len(played.audio)} bytes of sound for {len(other.audio)}, or other ones"
        for played, other in zip(heard, undisturbed, strict=True)
        if played.complete and played.content != other.content
    ]
    return found


def heard_of(streams: Sequence[Played], fault_at: float) -> str:
    """When clients heard something again after a fault, and how long they heard nothing."""
    waits = [wait for played in streams if (wait := played.next_audio_s(fault_at)) is not None]
    silences = [played.silence_s(fault_at, fault_at + HEARD_S) for played in streams]
    return f"next sound after at most {max(waits, default=0.0):.2f} s, silence of at most {max(silences):.2f} s"


async def total(system: System, name: str, *services: str) -> float:
    """Sum of a metric over all instances of some services, or of all."""
    processes = (await asyncio.to_thread(system.status))["processes"]
    ports = [
        entry["metrics_port"]
        for entry in processes
        if entry["metrics_port"] and (not services or entry["service"] in services)
    ]
    return sum([await asyncio.to_thread(metric, port, name) for port in ports])


async def all_ready(system: System, timeout_s: float = 90.0) -> float:
    """Seconds until every process of the system is ready."""
    began = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while {entry["state"] for entry in (await asyncio.to_thread(system.status))["processes"]} != {"ready"}:
            await asyncio.sleep(0.1)
    return time.monotonic() - began
