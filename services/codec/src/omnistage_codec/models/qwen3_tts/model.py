"""The family's decoder as the engine sees it: streams of codes in, samples out, many streams in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from omnistage.errors import OmnistageError, StageFailed
from omnistage_codec.models.base import FrameArray, Samples, Step, WaveFacts
from omnistage_codec.models.qwen3_tts.config import DecoderConfig, TokenizerConfig
from omnistage_codec.models.qwen3_tts.decoder import Decoder
from omnistage_codec.models.qwen3_tts.history import History, Tails
from omnistage_codec.models.qwen3_tts.layout import LAYOUT

Codes = NDArray[np.int32]


class StreamState:
    """What one request needs between calls: plain tensors, which its frames alone determine.

    Attributes:
        context: [n, groups] frames that sounded before each segment.
        waiting: frames of the context that the present segment's decoder has still to hear.
        tails: what the layers remember.
        position: frames that they have heard.
        segment: the present segment.
        received: how many of its frames have come; None once it has ended.
    """

    def __init__(self, context: Codes) -> None:
        self.context = context
        self.waiting = context
        self.tails: Tails = []
        self.position = 0
        self.segment: int | None = None
        self.received: int | None = None

    def enter(self, step: Step[StreamState]) -> None:
        """Go on with the step's segment; a new one begins with the context anew.

        Raises:
            StageFailed: these are not the frames that come next.
        """
        if step.segment != self.segment:
            if self.received is not None:
                raise StageFailed(f"segment {step.segment} came before segment {self.segment} had ended")
            if self.segment is not None:
                self.waiting, self.tails, self.position = self.context, [], 0
            self.segment, self.received = step.segment, 0
        if self.received is None:
            raise StageFailed(f"frames came after the end of segment {step.segment}")
        if step.segment_frame != self.received:
            raise StageFailed(
                f"segment {step.segment} was at frame {self.received}, but frame {step.segment_frame} came"
            )
        self.received = None if step.segment_end else self.received + len(step.frames)


@dataclass(eq=False)
class _Row:
    """A step on its way through the passes."""

    state: StreamState
    codes: Codes
    unheard: int
    waves: list[Samples]

    def rest(self) -> int:
        return len(self.codes)


class Qwen3TTSWave:
    """Implements `BatchWaveModel`. Neither seed nor voice matters: the frames say it all.

    Args:
        decoder: the network.
        config: what the checkpoint says about it.
        step_frames: most frames of a stream in one pass.
        batch_invariant: one frame of one stream in each pass, so that no sum is ever taken in another order.
    """

    def __init__(
        self, decoder: Decoder, config: TokenizerConfig, *, step_frames: int = 32, batch_invariant: bool = False
    ) -> None:
        self._decoder = decoder
        self._sizes: DecoderConfig = config.decoder_config
        self._device = decoder.last.weight.device
        self._step_frames = 1 if batch_invariant else step_frames
        self._batch_invariant = batch_invariant
        self._facts = WaveFacts(
            family="qwen3_tts",
            layout=LAYOUT,
            frame_width=self._sizes.num_quantizers,
            frame_dtype="int32",
            frame_rate_hz=config.output_sample_rate / config.decode_upsample_rate,
            sample_rate_hz=config.output_sample_rate,
            samples_per_frame=config.decode_upsample_rate,
            lookahead_frames=0,
        )

    @property
    def facts(self) -> WaveFacts:
        return self._facts

    def new_state(self, *, seed: int, voice: str, context: FrameArray | None = None) -> StreamState:
        if context is None:
            context = np.empty((0, self._facts.frame_width), np.int32)
        return StreamState(self._checked(context).copy())

    def decode(
        self, state: StreamState, frames: FrameArray, *, segment: int, segment_frame: int, segment_end: bool
    ) -> Samples:
        step = Step(state=state, frames=frames, segment=segment, segment_frame=segment_frame, segment_end=segment_end)
        (result,) = self.decode_batch([step])
        if isinstance(result, OmnistageError):
            raise result
        return result

    def decode_batch(self, steps: Sequence[Step[StreamState]]) -> list[Samples | OmnistageError]:
        rows = [self._row(step) for step in steps]
        going = [row for row in rows if isinstance(row, _Row)]
        while going := [row for row in going if row.rest()]:
            for batch in [[row] for row in going] if self._batch_invariant else [going]:
                self._pass(batch)
        return [row if isinstance(row, OmnistageError) else _joined(row) for row in rows]

    def _row(self, step: Step[StreamState]) -> _Row | OmnistageError:
        try:
            frames = self._checked(step.frames)
            step.state.enter(step)
        except StageFailed as error:
            return error
        context, step.state.waiting = step.state.waiting, step.state.waiting[:0]
        return _Row(step.state, np.concatenate((context, frames)), len(context) * self._facts.samples_per_frame, [])

    @torch.inference_mode()
    def _pass(self, rows: list[_Row]) -> None:
        """The next frames of each row."""
        counts = [min(row.rest(), self._step_frames) for row in rows]
        codes = np.zeros((len(rows), max(counts), self._facts.frame_width), np.int64)
        for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
            codes[index, :count] = row.codes[:count]
        history = History([row.state.tails for row in rows], counts)
        positions = torch.tensor([row.state.position for row in rows], device=self._device)
        waves = self._decoder(torch.from_numpy(codes).to(self._device), positions, history).float().cpu().numpy()
        for row, count, wave, tails in zip(rows, counts, waves, history.after, strict=True):
            row.state.tails, row.state.position = tails, row.state.position + count
            row.codes = row.codes[count:]
            row.waves.append(wave[: count * self._facts.samples_per_frame])

    def _checked(self, frames: FrameArray) -> Codes:
        """The frames as they are, if they are frames. Raises StageFailed."""
        width = self._facts.frame_width
        if frames.ndim != 2 or frames.shape[1] != width or frames.dtype != np.int32:
            raise StageFailed(
                f"the layout {LAYOUT} is [frames, {width}] int32, not {list(frames.shape)} {frames.dtype}"
            )
        if frames.size and not (frames.min() >= 0 and frames.max() < self._sizes.codebook_size):
            raise StageFailed(
                f"a code is not within 0 to {self._sizes.codebook_size - 1}: {frames.min()} to {frames.max()}"
            )
        return frames


def _joined(row: _Row) -> Samples:
    """What is heard of a row, in memory of its own."""
    samples = np.concatenate([np.empty(0, np.float32), *row.waves])
    return samples[row.unheard :].copy() if row.unheard else samples
