"""All that the codec answers."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from omnistage.contracts import (
    AudioDelta,
    AudioDone,
    DecodeFrames,
    EncodedReference,
    EncodeReference,
    FinishReason,
    FrameChunk,
    Payload,
)
from omnistage.errors import TensorError
from omnistage.observability import names
from omnistage.runtime.context import RequestContext
from omnistage.runtime.worker import Handlers
from omnistage_codec.engine import CodecEngine, Frames

Context = RequestContext[CodecEngine]


async def decode_frames(context: Context, work: DecodeFrames) -> None:
    """Turn the frames that arrive into sound, and send it as soon as it exists.

    After a crash decoding begins anew with the segment that was not delivered whole; no sample is sent twice.
    """
    edge = context.output("gateway")
    sounds = [record for record in edge.earlier if isinstance(record, AudioDelta)]
    segment = sounds[-1].segment if sounds else 0
    first_offset = min((sound.offset for sound in sounds if sound.segment == segment), default=0)
    delivered = sounds[-1].offset + sounds[-1].payload.shape[0] if sounds else 0
    blocks = _Blocks(context)
    ending = _Ending()
    frames = _arriving(context, blocks, ending, first_segment=segment)
    pieces = context.engine.decoder.decode(
        frames,
        seed=work.seed,
        voice=work.voice,
        context=None if work.context is None else await context.unpack(work.context),
        first_frames=work.first_frames,
        first_offset=first_offset,
        skip_samples=delivered,
        reading=context.meta.reading,
    )
    async with aclosing(frames), aclosing(pieces):
        async for piece in pieces:
            await edge.send(
                AudioDelta,
                payload=await context.pack(piece.samples, "gateway"),
                sample_rate_hz=piece.sample_rate_hz,
                offset=piece.offset,
                segment=piece.segment,
                text=piece.text,
            )
            await blocks.release_before(piece.segment)
    if ending.reason is not None and not any(isinstance(record, AudioDone) for record in edge.earlier):
        await edge.send(AudioDone, finish_reason=ending.reason)
    await edge.finish()
    await blocks.release_all()


async def encode_reference(context: Context, work: EncodeReference) -> None:
    """Turn a recording into codes and a speaker embedding."""
    edge = context.output("gateway")
    if not any(isinstance(record, EncodedReference) for record in edge.earlier):
        engine = context.engine.references
        samples = await context.unpack(work.payload)
        reference = await engine.encode(samples, work.sample_rate_hz, tenant=context.meta.tenant)
        embedding = reference.embedding
        await edge.send(
            EncodedReference,
            codes=await context.pack(reference.codes, "gateway"),
            embedding=None if embedding is None else await context.pack(embedding, "gateway"),
            frame_rate_hz=engine.facts.frame_rate_hz,
            fingerprint=engine.facts.fingerprint,
        )
    await edge.finish()
    await context.release(work.payload)


class _Blocks:
    """Blocks of segments whose sound is not logged yet: whoever takes over needs them again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._held: deque[tuple[int, Payload]] = deque()

    def hold(self, segment: int, payload: Payload) -> None:
        self._held.append((segment, payload))

    async def release_before(self, segment: int) -> None:
        """Sound of this segment is logged, so all of the segments before it is."""
        while self._held and self._held[0][0] < segment:
            await self._context.release(self._held.popleft()[1])

    async def release_all(self) -> None:
        while self._held:
            await self._context.release(self._held.popleft()[1])


@dataclass
class _Ending:
    """Why the frames stopped, once the talker has said so."""

    reason: FinishReason | None = None


async def _arriving(
    context: Context, blocks: _Blocks, ending: _Ending, *, first_segment: int
) -> AsyncGenerator[Frames, None]:
    """The frames from a segment on; blocks of those before it may be gone, and nobody needs them."""
    reader = await context.input()
    async for record in reader:
        if not isinstance(record, FrameChunk) or record.segment < first_segment:
            continue
        try:
            frames = await context.unpack(record.payload, borrow=True)
        except TensorError:
            await reader.ask_again(record.seq)
            continue
        blocks.hold(record.segment, record.payload)
        ending.reason = record.finish_reason
        context.metrics.add(names.FRAMES, record.frames, model=context.engine_key)
        yield Frames(
            frames=frames,
            segment=record.segment,
            segment_frame=record.segment_frame,
            segment_end=record.segment_end,
            text=record.text,
        )


HANDLERS: Handlers = {DecodeFrames: decode_frames, EncodeReference: encode_reference}
