"""All that the talker answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from omnistage.contracts import DecodeFrames, FrameChunk, Record, SpeakText, TextChunk
from omnistage.observability import names
from omnistage.runtime.context import RequestContext
from omnistage.runtime.edges import EdgeWriter
from omnistage.runtime.worker import Handlers
from omnistage_talker.engine import SpeechEngine, SpokenFrames


async def speak_text(context: RequestContext[SpeechEngine], work: SpeakText) -> None:
    """Turn text into acoustic frames, clause by clause as it arrives."""
    edge = context.output("codec")
    await context.start(DecodeFrames(**context.onward("codec"), seed=work.speech.seed, voice=work.speech.voice))
    segment, frame = _position(edge.earlier)
    lenient = work.text is None
    pieces = _arriving(context) if work.text is None else _given(work.text)
    spoken = context.engine.speak(
        pieces,
        work.speech,
        first_segment=segment,
        first_frame=frame,
        lenient=lenient,
        reading=context.meta.reading,
    )
    async with aclosing(pieces), aclosing(spoken):
        async for chunk in spoken:
            await _send(context, edge, chunk)
    await edge.finish()


async def _send(context: RequestContext[SpeechEngine], edge: EdgeWriter, chunk: SpokenFrames) -> None:
    context.metrics.add(names.FRAMES, len(chunk.frames), model=context.engine_key)
    await edge.send(
        FrameChunk,
        payload=await context.pack(chunk.frames, "codec"),
        frames=len(chunk.frames),
        segment=chunk.segment,
        segment_frame=chunk.segment_frame,
        segment_end=chunk.segment_end,
        text=chunk.text,
    )


def _position(earlier: list[Record]) -> tuple[int, int]:
    """Segment and frame at which a new holder goes on; chunks are cut alike every time, so none is split."""
    chunks = [record for record in earlier if isinstance(record, FrameChunk)]
    if not chunks:
        return 0, 0
    last = chunks[-1]
    return (last.segment + 1, 0) if last.segment_end else (last.segment, last.segment_frame + last.frames)


async def _given(text: str) -> AsyncGenerator[str, None]:
    yield text


async def _arriving(context: RequestContext[SpeechEngine]) -> AsyncGenerator[str, None]:
    async for record in await context.input():
        if isinstance(record, TextChunk):
            yield record.text


HANDLERS: Handlers = {SpeakText: speak_text}
