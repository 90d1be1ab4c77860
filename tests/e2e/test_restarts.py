"""Parts of the system die or are replaced while streams run; what was accepted is completed, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from httpx2 import RemoteProtocolError
from tests.support.inspection import entries, jetstream
from tests.support.sentences import PARAGRAPH, PLAIN
from tests.support.system import System, running_system

from omnistage.launcher.folder import MARK
from omnistage.runtime.claims import CLAIM_TTL_S, CLAIMS_BUCKET
from omnistage.runtime.context import REQUESTS_BUCKET, TOMBSTONE_TTL_S
from omnistage.subjects import FEED, OUT, WORK

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(600)]

PACED = """
version: 1
engines:
  smollm2: {settings: {pace: 10}}
  heart: {settings: {pace: 2.5}}
  heart-wave: {settings: {pace: 2.5}}
"""
"""What would be computed in a moment takes seconds, so that it is under way when something dies."""

SENTENCES = PARAGRAPH.split(". ")
TEXTS = [" ".join(f"{SENTENCES[(first + more) % len(SENTENCES)]}." for more in range(2)) for first in range(4)]
QUESTION = "Tell me about the sea."


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, root: Path) -> str:
    overlay = tmp_path_factory.mktemp("models") / "paced.yaml"
    overlay.write_text(PACED)
    return f"{root / 'deploy' / 'models.yaml'},{overlay}"


@pytest.fixture(scope="module")
def paced(tmp_path_factory: pytest.TempPathFactory, models: str) -> Iterator[System]:
    with running_system(tmp_path_factory.mktemp("restarts"), scale="talker=2", models=models) as running:
        yield running


async def speak(client: openai.AsyncOpenAI, text: str, began: asyncio.Event | None = None) -> bytes:
    """A whole spoken answer, as samples; `began` is set with its first bytes."""
    sound = b""
    request = client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=text, response_format="pcm", extra_body={"seed": 7}
    )
    async with request as answer:
        async for part in answer.iter_bytes():
            sound += part
            if began is not None:
                began.set()
    return sound


async def converse(client: openai.AsyncOpenAI, began: asyncio.Event | None = None) -> tuple[str, str]:
    """Transcript and base64 samples of a spoken answer to the question."""
    transcript = sound = ""
    stream: Any = await client.chat.completions.create(
        model="gpt-4o-audio-preview",
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "pcm16"},
        temperature=0,
        seed=7,
        max_completion_tokens=24,
        stream=True,
        messages=[{"role": "user", "content": QUESTION}],
    )
    async for chunk in stream:
        audio = getattr(chunk.choices[0].delta, "audio", None) if chunk.choices else None
        if audio:
            transcript += getattr(audio, "transcript", None) or ""
            sound += getattr(audio, "data", None) or ""
            if began is not None:
                began.set()
    return transcript, sound


async def all_at_once(client: openai.AsyncOpenAI, disturb: Callable[[], Awaitable[None]] | None = None) -> list[Any]:
    """Answers to everything; `disturb` runs once each of them has begun."""
    begun = [asyncio.Event() for _ in range(len(TEXTS) + 1)]
    async with asyncio.timeout(240), asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[Any]] = [
            group.create_task(speak(client, text, event)) for text, event in zip(TEXTS, begun, strict=False)
        ]
        tasks.append(group.create_task(converse(client, begun[-1])))
        for event in begun:
            await event.wait()
        if disturb is not None:
            await disturb()
            assert not all(task.done() for task in tasks), "nothing was under way any more"
    return [task.result() for task in tasks]


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.1)


def pid_of(system: System, service: str) -> int:
    return int(system.processes(service)[0]["pid"])


@pytest.mark.parametrize("server", ["nats", "tensors"])
async def test_streams_outlive_a_server(paced: System, server: str) -> None:
    async with paced.async_client() as client:
        undisturbed = await all_at_once(client)
        pid = await asyncio.to_thread(pid_of, paced, server)

        async def kill() -> None:
            psutil.Process(pid).kill()

        disturbed = await all_at_once(client, kill)
        assert [number for number, answer in enumerate(disturbed) if answer != undisturbed[number]] == []

    async def back() -> bool:
        processes = (await asyncio.to_thread(paced.status))["processes"]
        again = next(process for process in processes if process["service"] == server)
        return again["pid"] not in (None, pid) and {process["state"] for process in processes} == {"ready"}

    await until(back)
    assert len(await asyncio.to_thread(paced.processes, "talker")) == 2


@pytest.mark.parametrize(
    ("services", "retries"),
    [
        (("codec", "talker", "thinker"), 0),
        # The official client's default: a connection that was kept open may be closed while a request is on its way.
        (("gateway",), 2),
    ],
    ids=["stages", "gateway"],
)
async def test_services_are_replaced_under_load_without_a_failed_request(
    paced: System, services: tuple[str, ...], retries: int
) -> None:
    over = asyncio.Event()

    async def keep_asking(client: openai.AsyncOpenAI, number: int) -> int:
        expected = await speak(client, PLAIN[number])
        answers = 0
        while not over.is_set():
            assert await speak(client, PLAIN[number]) == expected
            answers += 1
        return answers

    before = {service: await asyncio.to_thread(paced.processes, service) for service in services}
    async with paced.async_client(max_retries=retries) as client, asyncio.TaskGroup() as group:
        asking = [group.create_task(keep_asking(client, number)) for number in range(3)]
        talk = group.create_task(converse(client))
        try:
            said = await asyncio.to_thread(paced.omnistage, "restart", *services)
        finally:
            over.set()
    assert [line.partition(" -> ")[0] for line in said.splitlines()] == [
        process["name"] for service in services for process in before[service]
    ]
    assert min(task.result() for task in asking) >= 1
    assert all(talk.result())
    for service in services:
        after = await asyncio.to_thread(paced.processes, service)
        assert len(after) == len(before[service])
        assert {process["state"] for process in after} == {"ready"}
        assert {process["pid"] for process in after}.isdisjoint(process["pid"] for process in before[service])


async def test_requests_of_a_killed_gateway_end_everywhere(paced: System) -> None:
    pid = await asyncio.to_thread(pid_of, paced, "gateway")
    async with paced.async_client() as client, jetstream(paced.state) as stream:
        begun = [asyncio.Event() for _ in TEXTS]
        asking = [asyncio.create_task(speak(client, text, event)) for text, event in zip(TEXTS, begun, strict=True)]
        for event in begun:
            await event.wait()
        psutil.Process(pid).kill()
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(result) for result in results} == {RemoteProtocolError}

        async def nothing_left() -> bool:
            processes = (await asyncio.to_thread(paced.status))["processes"]
            left = await entries(stream, paced.state.namespace)
            return left == {WORK: 0, FEED: 0, OUT: 0} and not any(process["running"] for process in processes)

        await until(nothing_left, 20)
        assert len(await speak(client, PLAIN[0])) > 1000


async def claims_and_tombstones(system: System) -> tuple[list[str], list[str]]:
    async with system.bus() as bus:
        claims = await bus.key_value(CLAIMS_BUCKET, ttl_s=CLAIM_TTL_S)
        tombstones = await bus.key_value(REQUESTS_BUCKET, ttl_s=TOMBSTONE_TTL_S)
        return await claims.keys(), await tombstones.keys()


async def run_until_killed(system: System) -> tuple[list[psutil.Process], set[str]]:
    """Have requests under way and kill the launcher; its children, and the requests that stages had claimed."""
    async with system.async_client() as client:
        asking = [asyncio.create_task(speak(client, text)) for text in TEXTS]

        async def claimed() -> bool:
            return len((await claims_and_tombstones(system))[0]) >= len(TEXTS)

        await until(claimed)
        keys, _ = await claims_and_tombstones(system)
        children = psutil.Process(system.process.pid).children(recursive=True)
        system.process.kill()
        await asyncio.gather(*asking, return_exceptions=True)
    return children, {key.split(".")[1] for key in keys}


async def test_a_start_after_the_launcher_was_killed_is_clean(tmp_path: Path, models: str) -> None:
    with running_system(tmp_path, models=models) as first:
        children, requests = await run_until_killed(first)
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, timeout=10)
        assert alive == []
    with running_system(tmp_path, models=models) as second:
        assert second.state.pid != first.state.pid
        processes = (await asyncio.to_thread(second.status))["processes"]
        assert {process["state"] for process in processes} == {"ready"}
        assert not any(process["running"] or process["queue"] for process in processes)
        claims, tombstones = await claims_and_tombstones(second)
        assert claims == []
        assert requests <= set(tombstones)
        async with jetstream(second.state) as stream:
            assert await entries(stream, second.state.namespace) == {WORK: 0, FEED: 0, OUT: 0}
        instances = {process["instance"] for process in processes}
        assert owners(Path(second.state.arena)) <= instances
        mine = {process["pid"] for process in processes} | {second.process.pid}
        assert set(marked(second.data)) <= mine
        async with second.async_client() as client:
            assert len(await speak(client, PLAIN[0])) > 1000


def owners(arena: Path) -> set[str]:
    """Instances to which the partitions of an arena belong."""
    return {path.name.split(".")[1] for path in arena.iterdir()}


def marked(data: Path) -> Iterator[int]:
    """Processes that belong to a data folder."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get(MARK) == str(data) and process.status() != psutil.STATUS_ZOMBIE:
                yield process.pid
