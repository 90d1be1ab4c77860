"""Instances that stand still and wake again, and a machine that is too busy."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from tests.support.inspection import metric
from tests.support.presences import Presences, watching
from tests.support.progress import Progress, log_subject, progress, take_over
from tests.support.sentences import PARAGRAPH
from tests.support.streams import Ask, Played, play
from tests.support.system import System

from omnistage.contracts import Presence
from omnistage.transport import Bus

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(400)]

STOPPED_S = 5.0
BUSY_S, BUSY_LONG_S = 15.0, 60.0
ENGINES = {"thinker": "smollm2", "talker": "heart", "codec": "heart-wave"}
SPEECH = Ask("speech", PARAGRAPH[:420], seed=3)
CHAT = Ask("chat", "Tell me a long story about a dog.", seed=4, max_tokens=90)


async def holder(bus: Bus, presences: Presences, played: Played, stage: str) -> tuple[Presence, str, Progress]:
    """Wait until an instance of a stage has sent some of a stream; it, the stage's log, and how far that is."""
    async with asyncio.timeout(60):
        while True:
            await asyncio.sleep(0.05)
            found = presences.holders(played.request_id).get(stage)
            if found is not None:
                subject = log_subject(bus, stage, ENGINES[stage], played.request_id)
                state = await progress(bus, subject)
                if state.chunks and not state.over and state.holder == found.instance:
                    return found, subject, state


@pytest.mark.parametrize("stage", ENGINES)
async def test_a_holder_that_wakes_is_heard_only_when_it_holds_the_request_again(paced: System, stage: str) -> None:
    ask = CHAT if stage == "thinker" else SPEECH
    async with (
        paced.bus() as bus,
        watching(bus) as presences,
        httpx.AsyncClient(base_url=paced.url, timeout=180) as client,
        asyncio.TaskGroup() as group,
    ):
        await presences.wait_ready(stage, 2)
        undisturbed, played = Played(ask), Played(ask)
        await play(client, ask, undisturbed)
        listening = group.create_task(play(client, ask, played))
        first, subject, state = await holder(bus, presences, played, stage)
        os.kill(first.pid, signal.SIGSTOP)
        try:
            woken = asyncio.get_running_loop().time() + STOPPED_S
            taken = await take_over(bus, subject, state.last, first.instance, STOPPED_S)
            await asyncio.sleep(max(0.0, woken - asyncio.get_running_loop().time()))
        finally:
            os.kill(first.pid, signal.SIGCONT)
        assert taken is not None, "nobody took over while the holder stood still"
        second = next(found for found in presences.ready(stage, within_s=60) if found.instance == taken.holder)
        over = (await progress(bus, subject)).over
        os.kill(second.pid, signal.SIGKILL)
        presences.forget(second.instance)
        await listening
    assert not over, "the request ended before the second holder was killed"
    assert (played.failure, played.complete) == ("", True)
    assert played.content == undisturbed.content


@contextmanager
def busy_cores() -> Iterator[None]:
    """Two processes for each core that do nothing but use it."""
    spin = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(spin) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def redeliveries(system: System) -> float:
    return sum(
        metric(entry["metrics_port"], "omnistage_redeliveries_total")
        for service in ENGINES
        for entry in system.processes(service)
    )


async def _nobody_takes_over(paced: System, busy_s: float) -> None:
    finished: list[Played] = []
    loop = asyncio.get_running_loop()

    async def keep_listening(client: httpx.AsyncClient, seed: int, end: float) -> None:
        while loop.time() < end:
            played = Played(Ask("chat" if seed % 2 else "speech", PARAGRAPH[:300], seed=seed))
            finished.append(played)
            await play(client, played.ask, played)

    async with (
        paced.bus() as bus,
        watching(bus) as presences,
        httpx.AsyncClient(base_url=paced.url, timeout=180) as client,
    ):
        for stage in ENGINES:
            await presences.wait_ready(stage, 2)
        before = await asyncio.to_thread(redeliveries, paced)
        with busy_cores():
            async with asyncio.TaskGroup() as group:
                for seed in range(6):
                    group.create_task(keep_listening(client, seed, loop.time() + busy_s))
        after = await asyncio.to_thread(redeliveries, paced)
    print(f"\nbusy for {busy_s:.0f} s: {len(finished)} streams, {after - before:.0f} of them taken over")
    assert [played.failure for played in finished if not played.complete] == []
    assert after == before


async def test_nobody_takes_over_from_a_live_holder_on_a_busy_machine(paced: System) -> None:
    await _nobody_takes_over(paced, BUSY_S)


@pytest.mark.chaos_long
async def test_nobody_takes_over_from_a_live_holder_on_a_machine_that_is_busy_for_long(paced: System) -> None:
    await _nobody_takes_over(paced, BUSY_LONG_S)
