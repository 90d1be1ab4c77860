"""Answering a chat request: as one JSON object, or as server-sent events."""

from __future__ import annotations

import asyncio
import base64
import math
import time
from dataclasses import dataclass, field
from typing import Any

from omnistage.contracts import TextDelta, TextDone, TokenLogprob
from omnistage_gateway.answer import Sender, server_event, to_json
from omnistage_gateway.chat_run import run_answers
from omnistage_gateway.chat_shapes import Head, choice_piece, logprobs_of, padded
from omnistage_gateway.context import Gateway
from omnistage_gateway.served import fingerprint
from omnistage_gateway.translate import ChatJob
from omnistage_gateway.usage import Answered, chat_usage


@dataclass
class _Said:
    """One answer as it grows."""

    audio_id: str
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    audio: bytearray = field(default_factory=bytearray)
    finish_reason: str | None = None
    expires_at: int = 0


class _Base:
    """What both kinds of answer do: remember what was said, and keep the transcripts."""

    def __init__(self, gateway: Gateway, job: ChatJob, head: Head, sender: Sender) -> None:
        self._gateway = gateway
        self._job = job
        self._head = head
        self._sender = sender
        self._said = [_Said(f"audio_{head.id.removeprefix('chatcmpl-')}_{index}") for index in range(len(job.plans))]

    @property
    def _speaks(self) -> bool:
        return self._job.audio_format is not None

    async def _remember(self, said: _Said) -> None:
        said.expires_at = math.floor(time.time() + self._gateway.limits.transcript_s)
        await self._gateway.transcripts.put(said.audio_id, "".join(said.text), said.expires_at)


class Whole(_Base):
    """One JSON object at the end."""

    async def begin(self) -> None:
        """Nothing is sent before the end."""

    async def text(self, index: int, delta: TextDelta) -> None:
        self._said[index].text.append(delta.text)
        self._said[index].logprobs.extend(delta.logprobs)

    async def audio(self, index: int, data: bytes) -> None:
        self._said[index].audio += data

    async def finish(self, index: int, done: TextDone) -> None:
        self._said[index].finish_reason = done.finish_reason
        if self._speaks:
            await self._remember(self._said[index])

    async def end(self, answers: list[Answered]) -> None:
        """All answers are complete."""
        choices = [self._choice(index, said) for index, said in enumerate(self._said)]
        await self._sender.whole("application/json", to_json(self._head.completion(choices, chat_usage(answers))))

    def _choice(self, index: int, said: _Said) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(said.text),
            "refusal": None,
            "annotations": [],
        }
        if self._speaks:
            message["content"] = None
            message["audio"] = {
                "id": said.audio_id,
                "data": base64.b64encode(said.audio).decode("ascii"),
                "expires_at": said.expires_at,
                "transcript": "".join(said.text),
            }
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs_of(said.logprobs) if self._job.logprobs else None,
            "finish_reason": said.finish_reason,
        }


class Streamed(_Base):
    """Server-sent events as things arrive; pieces of several answers are interleaved."""

    def __init__(self, gateway: Gateway, job: ChatJob, head: Head, sender: Sender) -> None:
        super().__init__(gateway, job, head, sender)
        self._turn = asyncio.Lock()

    async def begin(self) -> None:
        async with self._turn:
            if self._sender.started:
                return
            await self._sender.start("text/event-stream; charset=utf-8", shape="events")
            for index, said in enumerate(self._said):
                opening: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
                if self._speaks:
                    opening = {"role": "assistant", "refusal": None, "audio": {"id": said.audio_id, "transcript": ""}}
                await self._sender.chunk(self._event(choice_piece(index, opening)))

    async def text(self, index: int, delta: TextDelta) -> None:
        self._said[index].text.append(delta.text)
        piece: dict[str, Any] = {"audio": {"transcript": delta.text}} if self._speaks else {"content": delta.text}
        logprobs = logprobs_of(delta.logprobs) if self._job.logprobs else None
        await self._emit(choice_piece(index, piece, logprobs=logprobs))

    async def audio(self, index: int, data: bytes) -> None:
        await self._emit(choice_piece(index, {"audio": {"data": base64.b64encode(data).decode("ascii")}}))

    async def finish(self, index: int, done: TextDone) -> None:
        if self._speaks:
            await self._remember(self._said[index])
            await self._emit(choice_piece(index, {"audio": {"expires_at": self._said[index].expires_at}}))
        await self._emit(choice_piece(index, {}, finish_reason=done.finish_reason))

    async def end(self, answers: list[Answered]) -> None:
        """All answers are complete."""
        usage = b""
        if self._job.include_usage:
            usage = server_event({**self._head.chunk([]), "usage": chat_usage(answers)})
        await self._sender.end(usage + b"data: [DONE]\n\n")

    async def _emit(self, choice: dict[str, Any]) -> None:
        async with self._turn:
            await self._sender.chunk(self._event(choice))

    def _event(self, choice: dict[str, Any]) -> bytes:
        chunk = self._head.chunk([choice])
        if self._job.include_usage:
            chunk["usage"] = None
        return server_event(padded(chunk) if self._job.obfuscate else chunk)


async def complete(gateway: Gateway, job: ChatJob, request_id: str, sender: Sender) -> None:
    """Run the request and send what comes.

    Raises:
        OmnistageError: it failed; if nothing was sent yet, the status is still open.
    """
    head = Head(
        id=f"chatcmpl-{request_id}",
        created=int(time.time()),
        model=job.model,
        system_fingerprint=fingerprint(gateway.models, job.model, gateway.version),
    )
    sink = (Streamed if job.stream else Whole)(gateway, job, head, sender)
    await sink.end(await run_answers(gateway, job, request_id, sink))
