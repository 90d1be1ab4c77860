"""No room: in shared memory, in the work queue, in the logs. Whatever fits is completed, the rest is refused aloud."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest
from nats.js import JetStreamContext
from tests.chaos.conftest import paced_system
from tests.support.inspection import jetstream
from tests.support.leftovers import at_rest
from tests.support.listening import MIXED, differences, listen, total
from tests.support.streams import Ask, Played, play
from tests.support.system import System, running_system

from omnistage.launcher.folder import DataFolder
from omnistage.subjects import FEED, WORK, Subjects

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(400)]

SPEECH = [ask for ask in MIXED if ask.kind == "speech"]
TINY_SHM = ("sh", "-c", 'mount -t tmpfs -o size=2m tmpfs /dev/shm && exec "$@"', "sh")
HIDDEN = [("unshare", "--mount"), ("unshare", "--user", "--map-root-user", "--mount")]


def little_shared_memory() -> tuple[tuple[str, ...], dict[str, str]]:
    """How to run a system whose /dev/shm has 2 MiB; where nobody may arrange that, one without an arena."""
    for hidden in HIDDEN:
        within = (*hidden, *TINY_SHM)
        if subprocess.run([*within, "true"], check=False, capture_output=True).returncode == 0:
            return within, {}
    return (), {"OMNISTAGE_ARENA_MB": "0"}


async def nothing_left(system: System) -> dict[str, float]:
    return {name: value for name, value in (await at_rest(system, 15.0)).held.items() if value}


async def heard_from(system: System) -> list[Played]:
    async with httpx.AsyncClient(base_url=system.url, timeout=180) as client:
        return await listen(client)


async def test_without_shared_memory_everything_goes_through_the_tensor_server(
    paced: System, tmp_path: Path, root: Path
) -> None:
    undisturbed = await heard_from(paced)
    within, environment = little_shared_memory()
    with paced_system(tmp_path, root, environment, within=within) as system:
        assert differences(await heard_from(system), undisturbed) == []
        assert await total(system, "omnistage_arena_capacity_bytes") == 0
        assert await nothing_left(system) == {}


async def test_a_small_arena_spills_to_the_tensor_server(paced: System, tmp_path: Path, root: Path) -> None:
    undisturbed = await heard_from(paced)
    with paced_system(tmp_path, root, {"OMNISTAGE_ARENA_MB": "1"}) as system:
        assert differences(await heard_from(system), undisturbed) == []
        spills = await total(system, "omnistage_tensor_spills_total")
        print(f"\nan arena of 1 MiB: {spills:.0f} blocks spilled")
        assert spills > 0
        assert await nothing_left(system) == {}


def test_an_arena_larger_than_the_memory_is_refused_at_start(tmp_path: Path) -> None:
    began = time.monotonic()
    with (
        pytest.raises(AssertionError, match="no room for an arena partition"),
        running_system(tmp_path, environment={"OMNISTAGE_ARENA_MB": str(1 << 24)}),
    ):
        pass
    print(f"\nrefused after {time.monotonic() - began:.1f} s")
    folder = DataFolder(tmp_path / "data")
    assert not folder.arena.exists()
    assert [path.name for path in folder.run.iterdir()] == ["lock"]


@asynccontextmanager
async def limited(system: System, kind: str) -> AsyncIterator[Callable[..., Awaitable[None]]]:
    """Changes the limits of a stream of the running system; they are as before afterwards."""
    state = system.state
    name = Subjects(state.namespace).stream(kind)
    client = await nats.connect(state.bus_url, user=state.bus_user, password=state.bus_password)

    async def api(action: str, body: Any = None) -> dict[str, Any]:
        request = json.dumps(body).encode() if body else b""
        answer: dict[str, Any] = json.loads((await client.request(f"$JS.API.STREAM.{action}.{name}", request)).data)
        assert "error" not in answer, answer
        return answer

    before = (await api("INFO"))["config"]

    async def limit(**limits: int) -> None:
        await api("UPDATE", before | limits)

    try:
        yield limit
    finally:
        await limit()
        await client.close()


async def messages(broker: JetStreamContext, system: System, kind: str) -> int:
    return (await broker.stream_info(Subjects(system.state.namespace).stream(kind))).state.messages


async def asked(client: httpx.AsyncClient, ask: Ask) -> Played:
    played = Played(ask)
    await play(client, ask, played)
    return played


async def test_a_full_work_queue_refuses_what_is_new_and_loses_nothing(paced: System) -> None:
    async with httpx.AsyncClient(base_url=paced.url, timeout=180) as client, limited(paced, WORK) as limit:
        undisturbed = await listen(client, SPEECH)
        refusals: list[httpx.Response] = []

        async def fill() -> None:
            async with jetstream(paced.state) as broker:
                await limit(max_msgs=await messages(broker, paced, WORK))
            began = time.monotonic()
            refusals.append(await client.post(SPEECH[0].path, json=SPEECH[0].body))
            print(f"\nrefused after {time.monotonic() - began:.2f} s")

        assert differences(await listen(client, SPEECH, fill), undisturbed) == []
        assert refusals[0].status_code == 503
        assert refusals[0].json()["error"]["code"] == "queue_full"
        assert int(refusals[0].headers["retry-after"]) >= 1
        assert differences([await asked(client, ask) for ask in SPEECH], undisturbed) == []
    assert await nothing_left(paced) == {}


async def test_a_stage_waits_for_room_in_the_queue_of_the_next_one(paced: System) -> None:
    """Two items run and a third one fits: its fourth finds room as soon as the two have ended."""
    async with httpx.AsyncClient(base_url=paced.url, timeout=180) as client, limited(paced, WORK) as limit:
        undisturbed = await listen(client, SPEECH)
        waited: list[Played] = []

        async def squeeze() -> None:
            async with jetstream(paced.state) as broker:
                await limit(max_msgs=await messages(broker, paced, WORK) + 1)
            waited.append(await asked(client, SPEECH[1]))

        assert differences(await listen(client, SPEECH[:1], squeeze), undisturbed[:1]) == []
        assert differences(waited, undisturbed[1:]) == []
    assert await nothing_left(paced) == {}


async def test_streams_wait_for_room_in_a_full_log(paced: System) -> None:
    async with httpx.AsyncClient(base_url=paced.url, timeout=180) as client, limited(paced, FEED) as limit:
        undisturbed = await listen(client, SPEECH)

        async def fill_for_a_while() -> None:
            await limit(max_bytes=1)
            await asyncio.sleep(2.0)
            await limit(max_bytes=64 << 20)

        assert differences(await listen(client, SPEECH, fill_for_a_while), undisturbed) == []
    assert await nothing_left(paced) == {}


async def test_a_log_that_stays_full_is_an_error_and_no_hang(paced: System) -> None:
    async with httpx.AsyncClient(base_url=paced.url, timeout=180) as client:
        (undisturbed,) = await listen(client, SPEECH[:1])
        async with limited(paced, FEED) as limit:
            await limit(max_bytes=1)
            began = time.monotonic()
            refused = await client.post(SPEECH[0].path, json=SPEECH[0].body)
            print(f"\nno room in a log: refused after {time.monotonic() - began:.1f} s")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
        assert differences([await asked(client, SPEECH[0])], [undisturbed]) == []
    assert await nothing_left(paced) == {}
