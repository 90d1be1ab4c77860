"""A decoder as the engine sees it: streams of codes in, samples out, many streams in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from omnistage.errors import OmnistageError, StageFailed
from omnistage_codec.models.base import FrameArray, Samples, Step, WaveFacts
from omnistage_codec.models.qwen3.history import History, Tails

Codes = NDArray[np.int32]

_LISTENED_FRAMES = 128
"""Most frames of a stream in one pass of the network's first part."""


class Network(Protocol):
    """Codes to samples, in two parts.

    The first sees hundreds of frames back and costs little; the second makes the samples, costs nearly all, and sees
    only some frames back. So frames that nobody hears run through the first alone. Neither holds state.
    """

    @property
    def device(self) -> torch.device: ...

    @property
    def voice_memory_frames(self) -> int:
        """How many frames back the second part sees, rounded up."""
        ...

    def latents(self, codes: torch.Tensor, first_positions: torch.Tensor, history: History) -> torch.Tensor:
        """The first part.

        Args:
            codes: [batch, frames, groups] int64, rows padded on the right.
            first_positions: [batch] int64, frames that each row has had before.
            history: what this part remembers of the rows.

        Returns:
            [batch, latent_width, frames].
        """
        ...

    def voice(self, latents: torch.Tensor, starts: Sequence[int], history: History) -> torch.Tensor:
        """The second part.

        Args:
            latents: the first part's.
            starts: frames that this part has had of each row's stream before.
            history: what this part remembers of the rows.

        Returns:
            [batch, frames * samples_per_frame] within -1 to 1, of which a stream's first `lag_samples` are void.
        """
        ...


@dataclass(frozen=True)
class Point:
    """Where a stream is: plain tensors and counts, which its frames alone determine. Never changed, only replaced.

    Attributes:
        unheard: frames of the context that have still to run through the network.
        latents: what the first part remembers.
        position: frames that it has had.
        unvoiced: [latent_width, n] the first part's last results, which the second has not had.
        voice: what the second part remembers.
        segment: the present segment.
        received: how many of its frames have come; None once it has ended.
    """

    unheard: Codes
    latents: Tails = field(default_factory=list)
    position: int = 0
    unvoiced: torch.Tensor | None = None
    voice: Tails = field(default_factory=list)
    segment: int = 0
    received: int | None = 0


class StreamState:
    """What one request needs between calls.

    Attributes:
        context: [n, groups] frames that sounded before each segment.
        point: where it is.
    """

    def __init__(self, context: Codes) -> None:
        self.context = context
        self.point = Point(context)

    def entered(self, step: Step[StreamState]) -> Point:
        """The point at which the step's frames go on; a segment after another begins with the context anew.

        Raises:
            StageFailed: these are not the frames that come next.
        """
        here = self.point
        if step.segment != here.segment:
            if here.received:
                raise StageFailed(f"segment {step.segment} came before segment {here.segment} had ended")
            fresh = here if here.received == 0 else Point(self.context)
            here = replace(fresh, segment=step.segment)
        if here.received is None:
            raise StageFailed(f"frames came after the end of segment {step.segment}")
        if step.segment_frame != here.received:
            raise StageFailed(
                f"segment {step.segment} was at frame {here.received}, but frame {step.segment_frame} came"
            )
        return here


@dataclass(eq=False)
class _Row:
    """A step on its way through the network.

    Attributes:
        point: where the stream is.
        codes: frames that are still to come.
        audible: of how many of the last frames samples are wanted.
        idle: whether the step has no frames: then there is time to make ready for the next one's.
        columns: what the first part made of the frames.
        waves: what the second part made of the columns.
    """

    point: Point
    codes: Codes
    audible: int
    idle: bool
    columns: list[torch.Tensor] = field(default_factory=list)
    waves: list[Samples] = field(default_factory=list)


class StreamedWave:
    """Implements `BatchWaveModel`. Neither seed nor voice matters: the frames say it all.

    Args:
        decoder: the network.
        facts: of the family.
        codebook_size: codes are less.
        step_frames: most frames of a stream in one pass of the part that makes samples.
        batch_invariant: one frame of one stream in each pass, so that no sum is ever taken in another order.
    """

    def __init__(
        self,
        decoder: Network,
        facts: WaveFacts,
        *,
        codebook_size: int,
        step_frames: int = 32,
        batch_invariant: bool = False,
    ) -> None:
        self._decoder = decoder
        self._codebook_size = codebook_size
        self._device = decoder.device
        self._step_frames = 1 if batch_invariant else step_frames
        self._batch_invariant = batch_invariant
        self._facts = facts

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
        try:
            return self._decode_batch(steps)
        except RuntimeError as error:  # torch's, out-of-memory included; no state has changed
            if len(steps) == 1:
                return [StageFailed(f"the decoder failed: {error}")]
            return [result for step in steps for result in self.decode_batch([step])]

    @torch.inference_mode()
    def _decode_batch(self, steps: Sequence[Step[StreamState]]) -> list[Samples | OmnistageError]:
        rows = [self._row(step) for step in steps]
        going = listening = [row for row in rows if isinstance(row, _Row)]
        while listening := [row for row in listening if len(row.codes)]:
            for batch in self._batches(listening):
                self._listen(batch)
        speaking = [row for row in going if self._hold(row)]
        while speaking := [row for row in speaking if row.point.unvoiced is not None]:
            for batch in self._batches(speaking):
                self._speak(batch)
        return [
            row if isinstance(row, OmnistageError) else self._finish(row, step)
            for row, step in zip(rows, steps, strict=True)
        ]

    def _batches(self, rows: list[_Row]) -> list[list[_Row]]:
        return [[row] for row in rows] if self._batch_invariant else [rows]

    def _row(self, step: Step[StreamState]) -> _Row | OmnistageError:
        try:
            frames = self._checked(step.frames)
            point = step.state.entered(step)
        except StageFailed as error:
            return error
        audible = max(0, len(frames) - step.silent)
        codes = np.concatenate((point.unheard, frames))
        return _Row(replace(point, unheard=point.unheard[:0]), codes, audible, idle=not len(frames))

    def _listen(self, rows: list[_Row]) -> None:
        """The first part, on the next frames of each row."""
        most = 1 if self._batch_invariant else _LISTENED_FRAMES
        counts = [min(len(row.codes), most) for row in rows]
        codes = np.zeros((len(rows), max(counts), self._facts.frame_width), np.int64)
        for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
            codes[index, :count] = row.codes[:count]
        history = History([row.point.latents for row in rows], counts)
        positions = torch.tensor([row.point.position for row in rows], device=self._device)
        columns = self._decoder.latents(torch.from_numpy(codes).to(self._device), positions, history)
        for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
            row.point = replace(row.point, latents=history.after[index], position=row.point.position + count)
            row.codes = row.codes[count:]
            row.columns.append(columns[index, :, :count])

    def _hold(self, row: _Row) -> bool:
        """Keep those columns that the second part is to have, now or later; whether now."""
        earlier = [] if row.point.unvoiced is None else [row.point.unvoiced]
        columns = torch.cat([*earlier, *row.columns], dim=1) if earlier or row.columns else None
        voice, most = row.point.voice, self._decoder.voice_memory_frames + row.audible
        if columns is not None and columns.shape[1] > most:
            columns, voice = columns[:, -most:].clone(), []
        row.point = replace(row.point, unvoiced=columns, voice=voice)
        return row.audible > 0 or row.idle

    def _speak(self, rows: list[_Row]) -> None:
        """The second part, on the next columns of each row."""
        waiting = [row.point.unvoiced for row in rows if row.point.unvoiced is not None]
        counts = [min(columns.shape[1], self._step_frames) for columns in waiting]
        batch = waiting[0].new_zeros((len(rows), waiting[0].shape[0], max(counts)))
        for index, (columns, count) in enumerate(zip(waiting, counts, strict=True)):
            batch[index, :, :count] = columns[:, :count]
        history = History([row.point.voice for row in rows], counts)
        starts = [row.point.position - columns.shape[1] for row, columns in zip(rows, waiting, strict=True)]
        waves = self._decoder.voice(batch, starts, history).float().cpu().numpy()
        for index, (row, columns, count) in enumerate(zip(rows, waiting, counts, strict=True)):
            rest = columns[:, count:].clone() if columns.shape[1] > count else None
            row.point = replace(row.point, unvoiced=rest, voice=history.after[index])
            row.waves.append(waves[index, : count * self._facts.samples_per_frame])

    def _finish(self, row: _Row, step: Step[StreamState]) -> Samples:
        """Move the step's state on; the samples that its frames make final, in memory of their own."""
        received = step.segment_frame + len(step.frames)
        step.state.point = replace(row.point, received=None if step.segment_end else received)
        samples = np.zeros(len(step.frames) * self._facts.samples_per_frame, np.float32)
        wanted = row.audible * self._facts.samples_per_frame
        if wanted:
            samples[-wanted:] = np.concatenate(row.waves)[-wanted:]
        before = max(0, self._facts.lag_samples - step.segment_frame * self._facts.samples_per_frame)
        return samples[before:]

    def _checked(self, frames: FrameArray) -> Codes:
        """The frames as they are, if they are frames. Raises StageFailed."""
        width = self._facts.frame_width
        if frames.ndim != 2 or frames.shape[1] != width or frames.dtype != np.int32:
            raise StageFailed(
                f"the layout {self._facts.layout} is [frames, {width}] int32, not {list(frames.shape)} {frames.dtype}"
            )
        if frames.size and not (frames.min() >= 0 and frames.max() < self._codebook_size):
            raise StageFailed(f"a code is not within 0 to {self._codebook_size - 1}: {frames.min()} to {frames.max()}")
        return frames
