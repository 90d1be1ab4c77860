"""Engines that are stuck while the event loops of their processes live on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import psutil
import pytest
from tests.chaos.conftest import paced_system
from tests.chaos.test_hang import ENGINES, holder
from tests.support.leftovers import at_rest
from tests.support.listening import SENTENCES, all_ready, differences, listen
from tests.support.presences import watching
from tests.support.progress import take_over
from tests.support.streams import Ask, Played, play

from omnistage.runtime.worker import STALL_S

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(400)]

ALLOWED_S = 10.0
"""What a step of each packaged engine may take."""
TAKEN_OVER_S = ALLOWED_S + STALL_S + 10.0
SPEECH = [Ask("speech", ". ".join(SENTENCES[at : at + 6]) + ".", seed=at) for at in (0, 3)]
CHAT = Ask("chat", "Tell me a long story about a dog.", seed=4, max_tokens=90)
ASKS = {"thinker": CHAT, "talker": SPEECH[0], "codec": SPEECH[1]}


async def test_another_instance_goes_on_for_each_engine_that_is_stuck(tmp_path: Path, root: Path) -> None:
    """One engine of each stage at a time; its instance ends itself and comes back."""
    (wedge := tmp_path / "wedge").mkdir()
    environment = {"PYTHONPATH": str(root / "tests" / "chaos" / "wedging"), "WEDGE": str(wedge)}
    with paced_system(tmp_path, root, environment=environment) as system:
        async with (
            system.bus() as bus,
            watching(bus) as presences,
            httpx.AsyncClient(base_url=system.url, timeout=180) as client,
        ):
            undisturbed = await listen(client, list(ASKS.values()))
            streams = {stage: Played(ask) for stage, ask in ASKS.items()}
            async with asyncio.TaskGroup() as group:
                for played in streams.values():
                    group.create_task(play(client, played.ask, played))
                waits = []
                for stage in ENGINES:
                    first, subject, state = await holder(bus, presences, streams[stage], stage)
                    (wedge / str(first.pid)).touch()
                    began = time.monotonic()
                    wait = group.create_task(take_over(bus, subject, state.last, first.instance, TAKEN_OVER_S))
                    waits.append((stage, first, began, wait))
            for stage, first, began, wait in waits:
                taken = wait.result()
                assert taken is not None, f"nobody took over from the {stage}"
                print(f"\nstuck {stage}: taken over after {taken.opened - began:.1f} s")
                assert not psutil.pid_exists(first.pid), "an instance whose engine is stuck ends itself"
        assert differences(list(streams.values()), undisturbed) == []
        await all_ready(system)
        assert {name: value for name, value in (await at_rest(system, 15.0)).held.items() if value} == {}
