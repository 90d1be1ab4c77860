"""A client that stalls while it sends its request is told so or cut off; others are left alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from omnistage_gateway.limits import Limits
from omnistage_gateway.slow_reader import cutting_protocol
from omnistage_gateway.slow_sender import impatient_protocol

LIMIT_S = 0.3
BODY = json.dumps({"model": "tts-1", "voice": "alloy", "input": "A text.", "response_format": "pcm"}).encode()
HEAD = (
    b"POST /v1/audio/speech HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
    + f"content-length: {len(BODY)}\r\n\r\n".encode()
)
HEALTH = b"GET /health HTTP/1.1\r\nhost: gateway\r\n\r\n"


@pytest.fixture
async def url(make_stand: Any, serve: Any) -> AsyncIterator[str]:
    stand = make_stand(limits=Limits(read_s=LIMIT_S))
    protocol = cutting_protocol(60.0, lambda: None, impatient_protocol(LIMIT_S))
    async with serve(stand.app, http=protocol) as base:
        yield base
    assert stand.fake.idle
    assert stand.fake.completed == stand.fake.left


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """Until the end, which may be a reset: the client may still have been writing."""
    got = b""
    try:
        while piece := await reader.read(65_536):
            got += piece
    except ConnectionError:
        pass
    return got


async def answer_to(url: str, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """What comes until the server closes the connection, which the client leaves open."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    answer = asyncio.ensure_future(read_all(reader))
    async with asyncio.timeout(20):
        try:
            for piece in pieces:
                if not answer.done():
                    writer.write(piece)
                    await asyncio.sleep(pause_s)
            return await answer
        finally:
            writer.close()


@pytest.mark.parametrize("begun", [b"", b"POST /v1/au", HEAD[:-2], HEAD[:40]])
async def test_an_unfinished_head_is_closed_without_an_answer(url: str, begun: bytes) -> None:
    assert await answer_to(url, begun) == b""


async def test_a_head_that_trickles_is_closed(url: str) -> None:
    assert await answer_to(url, *(HEAD[at : at + 1] for at in range(20)), pause_s=LIMIT_S / 4) == b""


@pytest.mark.parametrize("begun", [b"", BODY[:10], BODY[:-1]])
async def test_an_unfinished_body_gets_a_408(url: str, begun: bytes) -> None:
    head, _, body = (await answer_to(url, HEAD, begun)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"\r\nconnection: close" in head
    assert b"\r\nx-request-id: " in head
    error = json.loads(body)["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "request_timeout", None)


async def test_a_body_that_trickles_gets_a_408(url: str) -> None:
    got = await answer_to(url, HEAD, *(BODY[at : at + 1] for at in range(8)), pause_s=LIMIT_S / 4)
    assert got.startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_nobody_reads_is_cut_off_after_the_answer(url: str) -> None:
    begun = HEALTH[:-2] + b"content-length: 5\r\n\r\nab"
    got = await answer_to(url, begun)
    assert got.startswith(b"HTTP/1.1 200 ")


async def test_a_next_request_that_stalls_is_closed_after_the_first_one_s_answer(url: str) -> None:
    got = await answer_to(url, HEAD + BODY + HEALTH[:20])
    assert got.count(b"HTTP/1.1 ") == 1
    assert got.startswith(b"HTTP/1.1 200 ")
    assert got.endswith(b"0\r\n\r\n")


async def test_between_requests_a_connection_may_rest(url: str) -> None:
    got = await answer_to(url, HEALTH, HEAD + BODY, HEALTH, HEALTH[:20], pause_s=LIMIT_S * 2)
    assert got.count(b"HTTP/1.1 200 ") == 3


async def test_an_answer_may_take_longer_than_the_request(make_stand: Any, serve: Any, events: Any) -> None:
    async def slow(work: Any) -> AsyncIterator[Any]:
        await asyncio.sleep(LIMIT_S * 3)
        yield events["text"]("Hm")
        yield events["done"]()

    stand = make_stand(limits=Limits(read_s=LIMIT_S))
    stand.fake.script = slow
    ask = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {len(ask)}\r\n"
    async with serve(stand.app, http=impatient_protocol(LIMIT_S)) as url:
        got = await answer_to(url, head.encode() + b"connection: close\r\nhost: gateway\r\n\r\n" + ask)
    assert got.startswith(b"HTTP/1.1 200 ")


async def test_a_large_body_may_take_its_time(url: str) -> None:
    piece = b" " * 70_000
    size = len(BODY) + 6 * len(piece)
    head = HEAD.replace(f"content-length: {len(BODY)}".encode(), f"content-length: {size}".encode())
    head = head.replace(b"\r\nhost", b"\r\nconnection: close\r\nhost")
    got = await answer_to(url, head, *[piece] * 6, BODY, pause_s=LIMIT_S / 3)
    assert got.startswith(b"HTTP/1.1 200 ")
