"""Streams as clients hear them: what arrived when, byte for byte."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

BYTES_PER_S = 2 * 24_000
"""16-bit mono at the packaged voice's rate."""


@dataclass(frozen=True)
class Ask:
    """A request whose answer depends on nothing but itself."""

    kind: str
    text: str
    seed: int
    max_tokens: int = 48

    @property
    def path(self) -> str:
        return "/v1/audio/speech" if self.kind == "speech" else "/v1/chat/completions"

    @property
    def body(self) -> dict[str, Any]:
        if self.kind == "speech":
            return {
                "model": "tts-1",
                "voice": "alloy",
                "input": self.text,
                "response_format": "pcm",
                "seed": self.seed,
            }
        return {
            "model": "gpt-4o-audio-preview",
            "modalities": ["text", "audio"],
            "audio": {"voice": "alloy", "format": "pcm16"},
            "stream": True,
            "messages": [{"role": "user", "content": self.text}],
            "seed": self.seed,
            "temperature": 0.8,
            "max_completion_tokens": self.max_tokens,
        }


@dataclass
class Played:
    """One answer while it arrives.

    Attributes:
        arrivals: monotonic time and bytes of sound received until then.
        failure: why it did not complete; empty if it did, or has not ended yet.
    """

    ask: Ask
    request_id: str = ""
    audio: bytearray = field(default_factory=bytearray)
    text: str = ""
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    failure: str = ""
    complete: bool = False

    @property
    def content(self) -> tuple[str, bytes]:
        """All that the client got."""
        return self.text, bytes(self.audio)

    def next_audio_s(self, moment: float) -> float | None:
        """Seconds from a moment to the next sound; None if none came."""
        return next((at - moment for at, _ in self.arrivals if at > moment), None)

    def silence_s(self, since: float, until: float) -> float:
        """How long the client heard nothing within a span of time, if it plays whatever it has without delay."""
        silence, dry_from = 0.0, None
        for at, total in self.arrivals:
            if dry_from is None:
                dry_from = at
            silence += max(0.0, min(at, until) - max(dry_from, since))
            arrived = total - self._before(at)
            dry_from = max(dry_from, at) + arrived / BYTES_PER_S
        return silence

    def _before(self, moment: float) -> int:
        return max((total for at, total in self.arrivals if at < moment), default=0)


async def play(client: httpx.AsyncClient, ask: Ask, played: Played) -> None:
    """Ask, and listen to the end; what goes wrong is noted in `played`."""
    try:
        async with client.stream("POST", ask.path, json=ask.body) as answer:
            played.request_id = answer.headers.get("x-request-id", "")
            if answer.status_code != 200:
                played.failure = f"{answer.status_code}: {(await answer.aread()).decode()[:300]}"
                return
            if ask.kind == "speech":
                async for piece in answer.aiter_bytes():
                    _hear(played, piece)
                played.complete = True
            else:
                await _listen(answer.aiter_lines(), played)
    except httpx.HTTPError as error:
        played.failure = repr(error)
    if not played.complete and not played.failure:
        played.failure = "the stream ended early"


async def _listen(lines: AsyncIterator[str], played: Played) -> None:
    async for line in lines:
        if line == "data: [DONE]":
            played.complete = not played.failure
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            if "error" in event:
                played.failure = json.dumps(event["error"])[:300]
            for choice in event.get("choices", ()):
                audio = choice["delta"].get("audio") or {}
                played.text += audio.get("transcript") or ""
                if audio.get("data"):
                    _hear(played, base64.b64decode(audio["data"]))


def _hear(played: Played, piece: bytes) -> None:
    played.audio += piece
    played.arrivals.append((time.monotonic(), len(played.audio)))
