"""Clients that leave, at any point: five seconds later nothing of their requests is left anywhere."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import pytest
from tests.support.inspection import consumers, entries, jetstream, metric
from tests.support.sentences import PARAGRAPH
from tests.support.system import System

from omnistage.subjects import FEED, OUT, WORK

pytestmark = [pytest.mark.e2e, pytest.mark.load, pytest.mark.timeout(600)]

TIMES = 200
AT_ONCE = 8


async def leave(client: httpx.AsyncClient, number: int) -> None:
    """Ask for something and go away after a random time."""
    chance = random.Random(number)
    body: dict[str, Any]
    if number % 2:
        path, body = "/v1/audio/speech", {"model": "tts-1", "voice": "alloy", "input": PARAGRAPH}
    else:
        path = "/v1/chat/completions"
        body = {
            "model": "gpt-4o-audio-preview",
            "modalities": ["text", "audio"],
            "audio": {"voice": "alloy", "format": "pcm16"},
            "stream": True,
            "messages": [{"role": "user", "content": "Tell me a long story."}],
        }
    try:
        async with asyncio.timeout(chance.choice([0.0, 0.01, 0.05, 0.2, 0.6]) * (0.5 + chance.random())):
            async with client.stream("POST", path, json=body) as answer:
                async for _ in answer.aiter_bytes():
                    pass
    except TimeoutError:
        return


def held(system: System) -> dict[str, float]:
    """What is held now: by what the processes announce, and by their metrics."""
    processes = [entry for entry in system.status()["processes"] if entry["metrics_port"]]
    assert len(processes) == 7

    def total(name: str) -> float:
        return sum(metric(entry["metrics_port"], name) for entry in processes)

    return {
        "announced": sum(len(entry["running"]) for entry in processes),
        "queued": sum(entry["queue"] for entry in processes),
        "slots": total("omnistage_slots_in_use"),
        "requests": total("omnistage_requests_running") + total("omnistage_waiting_requests"),
        "http": total("omnistage_http_requests_in_flight"),
        "arena": total("omnistage_arena_used_bytes"),
    }


def tasks(system: System) -> float:
    return sum(
        metric(entry["metrics_port"], "omnistage_tasks")
        for entry in system.status()["processes"]
        if entry["metrics_port"]
    )


async def test_nothing_is_left_of_200_clients_that_left(system: System) -> None:
    namespace = system.state.namespace
    async with jetstream(system.state) as stream:
        await asyncio.sleep(3)
        consumers_before, tasks_before = await consumers(stream, namespace), await asyncio.to_thread(tasks, system)
        async with httpx.AsyncClient(base_url=system.url, timeout=60) as client:
            for start in range(0, TIMES, AT_ONCE):
                await asyncio.gather(*(leave(client, number) for number in range(start, start + AT_ONCE)))
        await asyncio.sleep(5)
        assert set((await asyncio.to_thread(held, system)).values()) == {0}
        assert await entries(stream, namespace) == {WORK: 0, FEED: 0, OUT: 0}
        assert await consumers(stream, namespace) == consumers_before
        assert await asyncio.to_thread(tasks, system) <= tasks_before + 2
    async with system.async_client() as client:
        answer = await client.audio.speech.create(model="tts-1", voice="alloy", input="Still here.")
        assert len(await answer.aread()) > 1000
