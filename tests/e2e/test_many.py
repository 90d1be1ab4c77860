"""Many at once: everything completes, and nobody gets another's answer."""

from __future__ import annotations

import asyncio
import base64
import random
from typing import Any

import numpy as np
import pytest
from tests.support.inspection import metric
from tests.support.speech import decode, distance, recognize, words
from tests.support.system import System

pytestmark = [pytest.mark.e2e, pytest.mark.load, pytest.mark.timeout(900)]

_WHO = ("The teacher", "The doctor", "My brother", "The children")
_DOES = ("opened the window", "closed the door", "found the letter", "saw the river")
_WHERE = ("in the morning", "before the war", "after dinner", "near the mountain")


def lines() -> list[str]:
    """24 short sentences of everyday words, no two alike."""
    every = [f"{who} {does} {where}." for who in _WHO for does in _DOES for where in _WHERE]
    return random.Random(3).sample(every, 24)


async def speech(client: Any, text: str) -> tuple[str, str]:
    body = await client.audio.speech.create(model="tts-1", voice="echo", input=text, response_format="pcm")
    return text, await asyncio.to_thread(recognize, np.frombuffer(await body.aread(), "<i2"), 24_000)


async def chat(client: Any, country: str) -> tuple[str, str]:
    answer = await client.chat.completions.create(
        model="gpt-4o-audio-preview",
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "flac"},
        temperature=0,
        max_completion_tokens=24,
        messages=[{"role": "user", "content": f"What is the capital of {country}?"}],
    )
    audio = answer.choices[0].message.audio
    return audio.transcript, await asyncio.to_thread(recognize, *decode(base64.b64decode(audio.data)))


async def test_32_requests_at_once(system: System) -> None:
    countries = ("France", "Germany", "Japan", "China", "Russia", "Egypt", "England", "Greece")
    async with system.async_client(timeout=600) as client:
        results = await asyncio.gather(
            *(speech(client, text) for text in lines()), *(chat(client, country) for country in countries)
        )
    said = [words(text) for text, _ in results]
    wrong = total = 0
    for number, (text, heard) in enumerate(results):
        distances = [distance(other, words(heard)) for other in said]
        others = min(away for other, away in enumerate(distances) if other != number)
        assert distances[number] < others, f"{text!r} was answered with {heard!r}"
        if number < 24:
            wrong += distance(said[number], words(heard))
            total += len(said[number])
    assert wrong / total <= 0.25


def work_done(system: System) -> dict[str, float]:
    """Instance -> work items that it has brought to an end."""
    return {
        entry["instance"]: metric(entry["metrics_port"], "omnistage_work_done_total")
        for entry in system.status()["processes"]
        if entry["service"] in ("thinker", "talker", "codec")
    }


async def test_both_instances_of_every_stage_share_the_load(system: System) -> None:
    before = await asyncio.to_thread(work_done, system)
    assert len(before) == 6
    async with system.async_client(timeout=600) as client:
        await asyncio.gather(*(chat(client, f"country number {number}") for number in range(24)))
    after = await asyncio.to_thread(work_done, system)
    shares = {instance: after[instance] - count for instance, count in before.items()}
    for service in ("thinker", "talker", "codec"):
        of_service = [done for instance, done in shares.items() if instance.startswith(service)]
        assert sum(of_service) == 24
        assert min(of_service) >= 3, shares


async def test_a_stage_is_scaled_while_streams_run(system: System) -> None:
    async with system.async_client(timeout=600) as client:
        asking = asyncio.gather(*(chat(client, f"island number {number}") for number in range(12)))
        await asyncio.to_thread(system.omnistage, "scale", "codec=3")
        assert len(await asyncio.to_thread(system.processes, "codec")) == 3
        await asyncio.to_thread(system.omnistage, "scale", "codec=2")
        assert len(await asyncio.to_thread(system.processes, "codec")) == 2
        assert len(await asyncio.to_thread(system.processes, "talker")) == 2
        results = await asking
    assert all(text and heard for text, heard in results)
