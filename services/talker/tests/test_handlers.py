"""What the handler sends for Qwen3-TTS: frames inline, and after a new holder took over only the rest of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from omnistage.contracts import (
    DecodeFrames,
    FrameChunk,
    Inline,
    Payload,
    Record,
    SpeakText,
    SpeechOptions,
    TensorRef,
    VoiceReference,
    Work,
)
from omnistage.errors import TensorGone
from omnistage.runtime.context import RequestContext
from omnistage_talker.engine import Speaker
from omnistage_talker.engine.frames import FrameConfig, FrameEngine
from omnistage_talker.handlers import speak_text
from omnistage_talker.models.qwen3_tts.model import Qwen3TTS

Array = NDArray[Any]
TEXT = "One two three, and more."


def inline(array: Array) -> Inline:
    return Inline(data=array.tobytes(), dtype=str(array.dtype), shape=array.shape)


GONE = TensorRef(place="memory", id="x", dtype="int32", shape=(1, 16), nbytes=64)


@dataclass
class Edge:
    """An output edge that keeps what is sent."""

    earlier: list[Record] = field(default_factory=list)
    sent: list[FrameChunk] = field(default_factory=list)
    finished: bool = False

    async def send(self, kind: type[FrameChunk], **fields: Any) -> None:
        seq = len(self.earlier) + len(self.sent)
        self.sent.append(kind(request_id="r", edge="talker-codec", epoch=1, seq=seq, **fields))

    async def finish(self) -> None:
        self.finished = True


@dataclass
class Meta:
    reading: str = "stream"


class Metrics:
    def add(self, *_: object, **__: object) -> None: ...


class Context:
    """The part of a request's context that the handler uses."""

    engine_key = "tts"

    def __init__(self, engine: Speaker, earlier: list[Record] | None = None) -> None:
        self.engine = engine
        self.meta = Meta()
        self.metrics = Metrics()
        self.edge = Edge(earlier or [])
        self.started: list[Work] = []

    def output(self, _destination: str) -> Edge:
        return self.edge

    def onward(self, node: str) -> dict[str, Any]:
        return {"request_id": "r", "pipeline": "speech", "node": node, "route": {}}

    async def start(self, work: Work) -> None:
        self.started.append(work)

    async def pack(self, array: Array, _destination: str) -> Payload:
        return inline(array)

    async def unpack(self, payload: Payload) -> Array:
        if not isinstance(payload, Inline):
            raise TensorGone("the block was released")
        return np.frombuffer(payload.data, payload.dtype).reshape(payload.shape)


async def speak(engine: Speaker, speech: SpeechOptions, earlier: list[Record] | None = None) -> Context:
    context = Context(engine, earlier)
    work = SpeakText(
        request_id="r", pipeline="speech", node="talker", route={"talker": "tts"}, speech=speech, text=TEXT
    )
    await speak_text(cast("RequestContext[Speaker]", context), work)
    assert context.edge.finished
    return context


@pytest.fixture(name="engine")
async def _engine(made: dict[str, Path]) -> AsyncIterator[FrameEngine]:
    engine = FrameEngine(Qwen3TTS(made["base"], context=256), FrameConfig(kv_tokens=1024, guard=None))
    yield engine
    await engine.close()


@pytest.fixture(name="speech")
def _speech() -> SpeechOptions:
    rng = np.random.default_rng(1)
    return SpeechOptions(
        voice="mine",
        seed=3,
        max_frames=12,
        reference=VoiceReference(
            codes=inline(rng.integers(0, 2048, (9, 16)).astype(np.int32)),
            text="What it says.",
            embedding=inline(rng.standard_normal(16).astype(np.float32)),
        ),
    )


async def test_frames_go_inline_as_int32_rows_and_the_codec_hears_the_recording(
    engine: FrameEngine, speech: SpeechOptions
) -> None:
    context = await speak(engine, speech)
    (started,) = context.started
    assert isinstance(started, DecodeFrames)
    assert speech.reference is not None
    assert started.context == speech.reference.codes
    sent = context.edge.sent
    assert [chunk.frames for chunk in sent] == [1, 2, 4, 5]
    for chunk in sent:
        assert isinstance(chunk.payload, Inline)
        assert (chunk.payload.dtype, chunk.payload.shape) == ("int32", (chunk.frames, 16))
        assert len(chunk.payload.data) == chunk.frames * 16 * 4
    assert [chunk.segment_end for chunk in sent] == [False, False, False, True]
    assert [chunk.finish_reason for chunk in sent] == [None, None, None, "length"]


async def test_a_timbre_alone_is_no_context_for_the_codec(engine: FrameEngine, speech: SpeechOptions) -> None:
    assert speech.reference is not None
    timbre = SpeechOptions(voice="", max_frames=3, reference=VoiceReference(embedding=speech.reference.embedding))
    (started,) = (await speak(engine, timbre)).started
    assert isinstance(started, DecodeFrames)
    assert started.context is None


@pytest.mark.parametrize("gone", [False, True])
async def test_a_new_holder_sends_the_rest(engine: FrameEngine, speech: SpeechOptions, gone: bool) -> None:
    whole = (await speak(engine, speech)).edge.sent
    for count in range(1, len(whole) + 1):
        earlier: list[Record] = list(whole[:count])
        if gone:
            first = whole[0]
            earlier[0] = FrameChunk(request_id="r", edge=first.edge, epoch=1, seq=0, payload=GONE, frames=first.frames)
        rest = (await speak(engine, speech, earlier)).edge.sent
        assert rest == whole[count:]
