"""A request that kills whoever runs it, among good ones."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from tests.chaos.conftest import paced_system
from tests.support.inspection import jetstream
from tests.support.sentences import PLAIN
from tests.support.streams import Ask, Played, play

from omnistage.subjects import DEAD, Subjects

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(400)]

WORD = "xylophone"
GOOD = [Ask("speech", " ".join(PLAIN[number : number + 5]), seed=number) for number in range(8)]


async def heard(client: httpx.AsyncClient) -> list[tuple[str, bytes]]:
    """What all good requests give, asked at once."""
    streams = [Played(ask) for ask in GOOD]
    async with asyncio.TaskGroup() as group:
        for played in streams:
            group.create_task(play(client, played.ask, played))
    assert [played.failure for played in streams if not played.complete] == []
    return [played.content for played in streams]


async def test_a_request_that_crashes_the_talker_ends_and_harms_no_other(tmp_path: Path, root: Path) -> None:
    crashing = {"PYTHONPATH": str(root / "tests" / "chaos" / "crashing")}
    with paced_system(tmp_path, root, environment=crashing) as system:
        async with httpx.AsyncClient(base_url=system.url, timeout=180) as client:
            undisturbed = await heard(client)
            async with asyncio.TaskGroup() as group:
                good = group.create_task(heard(client))
                await asyncio.sleep(1.0)
                body = {"model": "tts-1", "voice": "alloy", "input": f"She plays the {WORD}."}
                poisoned = await client.post("/v1/audio/speech", json=body)
            restarts = sum(entry["restarts"] for entry in system.processes("talker"))
        assert poisoned.status_code == 500
        assert poisoned.json()["error"]["code"] == "poisoned"
        assert good.result() == undisturbed
        assert restarts == 3
        async with jetstream(system.state) as stream:
            subjects = Subjects(system.state.namespace)
            subject = subjects.dead("talker", "heart", poisoned.headers["x-request-id"])
            buried = await stream.get_last_msg(subjects.stream(DEAD), subject)
        assert WORD.encode() in (buried.data or b"")
