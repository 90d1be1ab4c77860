"""A client that does not read slows only itself, and not for ever."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from omnistage.contracts import AnyWork
from omnistage.observability import names
from omnistage_gateway.dispatch.interface import AudioPiece, Event
from omnistage_gateway.slow_reader import cutting_protocol

LIMIT_S = 0.5
SPEAK = {"model": "tts-1", "voice": "alloy", "input": "A text.", "response_format": "pcm"}
PIECE = np.full(24_000, 100, np.int16)


async def long(work: AnyWork) -> AsyncIterator[Event]:
    """400 s of sound: 19 MB, more than what the system's own buffers swallow."""
    for _ in range(400):
        yield AudioPiece(PIECE, 24_000)
        await asyncio.sleep(0)


def opened(url: str, **options: Any) -> socket.socket:
    """A connection that has sent a speech request, with a small buffer for the answer."""
    parts = urlsplit(url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    connection.connect((parts.hostname, parts.port))
    body = json.dumps({**SPEAK, **options}).encode()
    head = "POST /v1/audio/speech HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
    connection.sendall(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def read_all(connection: socket.socket, pause_s: float = 0.0) -> int:
    """Bytes until the end of the answer; raises ConnectionError if it is cut off."""
    connection.settimeout(30)
    data, last = 0, b""
    while not last.endswith(b"0\r\n\r\n"):
        piece = connection.recv(1 << 18)
        if not piece:
            raise ConnectionError("cut off")
        data += len(piece)
        last = (last + piece)[-5:]
        if pause_s:
            time.sleep(pause_s)
    return data


@pytest.fixture
async def url(stand: Any, serve: Any) -> AsyncIterator[str]:
    stand.fake.script = long
    protocol = cutting_protocol(LIMIT_S, lambda: stand.metrics.add(names.SLOW_READERS))
    async with serve(stand.app, http=protocol) as base:
        yield base
    assert stand.fake.idle
    assert stand.pool.open == 0


async def test_who_stops_reading_is_cut_off_and_frees_everything(stand: Any, url: str) -> None:
    with await asyncio.to_thread(opened, url) as connection:
        async with asyncio.timeout(30):
            while not stand.fake.left:
                await asyncio.sleep(0.01)
        assert stand.fake.completed == []
        with pytest.raises(ConnectionError):
            await asyncio.to_thread(read_all, connection)
    assert stand.metrics.value(names.SLOW_READERS) == 1


async def test_others_are_served_meanwhile(stand: Any, url: str) -> None:
    with await asyncio.to_thread(opened, url), await asyncio.to_thread(opened, url) as reader:
        assert await asyncio.to_thread(read_all, reader) > 400 * 48_000
        assert len(stand.fake.completed) == 1


async def test_who_reads_slowly_but_steadily_is_served_to_the_end(stand: Any, url: str) -> None:
    with await asyncio.to_thread(opened, url) as connection:
        assert await asyncio.to_thread(read_all, connection, 0.01) > 400 * 48_000
    assert stand.metrics.value(names.SLOW_READERS) == 0


async def test_an_answer_in_one_piece_is_not_kept_for_ever(stand: Any, url: str) -> None:
    with await asyncio.to_thread(opened, url, stream=False) as connection:
        async with asyncio.timeout(30):
            while not stand.metrics.value(names.SLOW_READERS):
                await asyncio.sleep(0.01)
        with pytest.raises(ConnectionError):
            await asyncio.to_thread(read_whole, connection)


def read_whole(connection: socket.socket) -> None:
    connection.settimeout(30)
    total = 0
    while total < 400 * 48_000:
        piece = connection.recv(1 << 18)
        if not piece:
            raise ConnectionError("cut off")
        total += len(piece)
