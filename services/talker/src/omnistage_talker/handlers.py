"""All that the talker answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np

from omnistage.contracts import DecodeFrames, FrameChunk, Record, SpeakText, TextChunk, VoiceReference
from omnistage.errors import TensorError
from omnistage.observability import names
from omnistage.runtime.context import RequestContext
from omnistage.runtime.edges import EdgeWriter
from omnistage.runtime.worker import Handlers
from omnistage_talker.engine import Speaker, SpokenFrames
from omnistage_talker.models.base import FrameArray, Reference

Context = RequestContext[Speaker]


async def speak_text(context: Context, work: SpeakText) -> None:
    """Turn text into acoustic frames as it arrives."""
    edge = context.output("codec")
    heard = work.speech.reference.codes if work.speech.reference is not None else None
    await context.start(
        DecodeFrames(
            **context.onward("codec"),
            seed=work.speech.seed,
            voice=work.speech.voice,
            context=heard,
            first_frames=work.speech.first_frames,
        )
    )
    segment, frame = _position(edge.earlier)
    lenient = work.text is None
    pieces = _arriving(context) if work.text is None else _given(work.text)
    spoken = context.engine.speak(
        pieces,
        work.speech,
        reference=await _reference(context, work.speech.reference),
        first_segment=segment,
        first_frame=frame,
        earlier=await _frames(context, edge.earlier, segment) if frame and context.engine.needs_earlier else None,
        lenient=lenient,
        reading=context.meta.reading,
    )
    async with aclosing(pieces), aclosing(spoken):
        async for chunk in spoken:
            await _send(context, edge, chunk)
    await edge.finish()


async def _send(context: Context, edge: EdgeWriter, chunk: SpokenFrames) -> None:
    context.metrics.add(names.FRAMES, len(chunk.frames), model=context.engine_key)
    await edge.send(
        FrameChunk,
        payload=await context.pack(chunk.frames, "codec"),
        frames=len(chunk.frames),
        segment=chunk.segment,
        segment_frame=chunk.segment_frame,
        segment_end=chunk.segment_end,
        text=chunk.text,
        finish_reason=chunk.finish_reason,
    )


async def _reference(context: Context, reference: VoiceReference | None) -> Reference | None:
    if reference is None:
        return None
    codes, embedding = reference.codes, reference.embedding
    return Reference(
        codes=None if codes is None else await context.unpack(codes),
        text=reference.text,
        embedding=None if embedding is None else await context.unpack(embedding),
    )


async def _frames(context: Context, earlier: list[Record], segment: int) -> FrameArray | None:
    """The frames of a segment that an earlier holder has sent; None if not all of them are there any more."""
    chunks = [record for record in earlier if isinstance(record, FrameChunk) and record.segment == segment]
    try:
        return np.concatenate([await context.unpack(chunk.payload) for chunk in chunks])
    except TensorError:
        return None


def _position(earlier: list[Record]) -> tuple[int, int]:
    """Segment and frame at which a new holder goes on; chunks are cut alike every time, so none is split."""
    chunks = [record for record in earlier if isinstance(record, FrameChunk)]
    if not chunks:
        return 0, 0
    last = chunks[-1]
    return (last.segment + 1, 0) if last.segment_end else (last.segment, last.segment_frame + last.frames)


async def _given(text: str) -> AsyncGenerator[str, None]:
    yield text


async def _arriving(context: Context) -> AsyncGenerator[str, None]:
    async for record in await context.input():
        if isinstance(record, TextChunk):
            yield record.text


HANDLERS: Handlers = {SpeakText: speak_text}
