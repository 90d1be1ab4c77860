"""A client that leaves at any point leaves nothing behind: no request, no encoder, no task."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from omnistage.contracts import AnyWork, GenerateText, TextDelta
from omnistage.observability import names
from omnistage_gateway.dispatch.interface import AudioPiece, Event

SPEECH = "/v1/audio/speech"
CHAT = "/v1/chat/completions"
SPEAK = {"model": "tts-1", "voice": "alloy", "input": "A text."}
ASK: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}
AUDIO = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "speech": (SPEECH, SPEAK),
    "speech-wav-fast": (SPEECH, {**SPEAK, "response_format": "wav", "speed": 3}),
    "speech-events": (SPEECH, {**SPEAK, "stream_format": "sse"}),
    "speech-whole": (SPEECH, {**SPEAK, "stream": False}),
    "chat": (CHAT, ASK),
    "chat-stream": (CHAT, {**ASK, "stream": True}),
    "chat-audio-stream": (CHAT, {**ASK, **AUDIO, "stream": True}),
    "chat-four-audio": (CHAT, {**ASK, **AUDIO, "stream": True, "n": 4}),
    "chat-four-whole": (CHAT, {**ASK, **AUDIO, "n": 4}),
}
STREAMS = [name for name in KINDS if not name.endswith("whole") and name != "chat"]


def request_bytes(path: str, body: dict[str, Any], cut: int | None = None) -> bytes:
    data = json.dumps(body).encode()
    lines = (
        f"POST {path} HTTP/1.1",
        "host: gateway",
        "content-type: application/json",
        f"content-length: {len(data)}",
        "\r\n",
    )
    return "\r\n".join(lines).encode() + data[:cut]


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


async def endless(work: AnyWork) -> AsyncIterator[Event]:
    for number in range(10**9):
        if isinstance(work, GenerateText):
            yield TextDelta(request_id="r", edge="e", epoch=1, text=f" {number}")
        if not isinstance(work, GenerateText) or work.speech is not None:
            yield AudioPiece(np.full(2400, 100, np.int16), 24_000)
        await asyncio.sleep(0.001)


@pytest.fixture
async def clean(stand: Any, url: str) -> AsyncIterator[None]:
    """Afterwards everything is as before."""
    before = asyncio.all_tasks()
    yield
    await until(lambda: stand.fake.idle and stand.pool.open == 0)
    await until(lambda: asyncio.all_tasks() <= before | {asyncio.current_task()})
    assert stand.fake.completed == []


@pytest.mark.parametrize("kind", KINDS)
async def test_while_it_waits_in_line(stand: Any, url: str, clean: None, kind: str) -> None:
    stand.fake.line = asyncio.Event()
    _, writer = await connect(url)
    writer.write(request_bytes(*KINDS[kind]))
    await until(lambda: stand.fake.waiting == KINDS[kind][1].get("n", 1))
    await leave(writer)
    await until(lambda: stand.fake.idle)
    assert stand.fake.works == []


@pytest.mark.parametrize("kind", KINDS)
async def test_before_the_first_event(stand: Any, url: str, clean: None, kind: str) -> None:
    async def silent(work: AnyWork) -> AsyncIterator[Event]:
        await asyncio.Event().wait()
        async for event in endless(work):
            yield event

    stand.fake.script = silent
    _, writer = await connect(url)
    writer.write(request_bytes(*KINDS[kind]))
    await until(lambda: stand.fake.active == KINDS[kind][1].get("n", 1))
    await leave(writer)
    await until(lambda: stand.fake.idle)


@pytest.mark.parametrize("kind", STREAMS)
async def test_in_the_middle(stand: Any, url: str, clean: None, kind: str) -> None:
    stand.fake.script = endless
    reader, writer = await connect(url)
    writer.write(request_bytes(*KINDS[kind]))
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(2000)
    await leave(writer)
    await until(lambda: stand.fake.idle)


async def test_at_random_points_many_times(stand: Any, url: str, clean: None) -> None:
    stand.fake.script = endless
    chance = random.Random(4)

    async def visit() -> None:
        reader, writer = await connect(url)
        writer.write(request_bytes(*KINDS[chance.choice(list(KINDS))]))
        if chance.random() < 0.5:
            await asyncio.sleep(chance.random() * 0.05)
        else:
            # Answers in one piece never begin here, so reading has an end of its own.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await reader.read(chance.randrange(1, 20_000))
        await leave(writer)

    for _ in range(10):
        await asyncio.gather(*(visit() for _ in range(10)))
    await until(lambda: stand.fake.idle)
    in_flight = [stand.metrics.value(names.HTTP_IN_FLIGHT, endpoint=path) for path in (SPEECH, CHAT)]
    assert in_flight == [0, 0]
    assert len(stand.fake.left) == len(stand.fake.works)


async def test_while_it_sends_its_own_body(stand: Any, url: str, clean: None) -> None:
    _, writer = await connect(url)
    writer.write(request_bytes(SPEECH, SPEAK, cut=5))
    await until(lambda: stand.metrics.value(names.HTTP_IN_FLIGHT, endpoint=SPEECH) == 1)
    await leave(writer)
    await until(lambda: stand.metrics.value(names.HTTP_IN_FLIGHT, endpoint=SPEECH) == 0)
    assert stand.metrics.value(names.HTTP_REQUESTS, endpoint=SPEECH, status="499") == 1


async def test_a_client_that_does_not_read_holds_the_request_back(stand: Any, url: str, clean: None) -> None:
    taken = 0

    async def counted(work: AnyWork) -> AsyncIterator[Event]:
        nonlocal taken
        async for event in endless(work):
            taken += 1
            yield event

    stand.fake.script = counted
    reader, writer = await connect(url)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(request_bytes(SPEECH, {**SPEAK, "response_format": "wav", "sample_rate": 48_000}))
    seen = -1
    async with asyncio.timeout(60):
        while taken != seen or taken == 0:
            seen = taken
            await asyncio.sleep(0.3)
    assert taken < 100_000
    await leave(writer)
    await until(lambda: stand.fake.idle)


async def test_the_server_stops_while_streams_run(stand: Any, serve: Any) -> None:
    stand.fake.script = endless
    async with serve(stand.app) as url:
        reader, writer = await connect(url)
        writer.write(request_bytes(*KINDS["speech"]))
        await reader.readuntil(b"\r\n\r\n")
        await leave(writer)
    assert stand.fake.idle
    assert stand.pool.open == 0
