"""Computes steps of the talker for the AR core: a step makes whole frames.

A sequence's tokens are placeholders for its prompt, then frames: tuples of codes, group 0 first. The end is a frame of
one code, the codec's end token, which has no other groups.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from omnistage.ar.attention import plan_attention
from omnistage.ar.draw import choose, make_choices
from omnistage.ar.kv_cache import PagedKVCache
from omnistage.ar.linear import padded, padded_length
from omnistage.ar.runner import Emitted
from omnistage.ar.scheduler import Batch, Row
from omnistage.ar.sequence import Sequence
from omnistage_talker.models.qwen3.request import FrameRequest
from omnistage_talker.models.qwen3.talker import FrameTalker, TalkerInputs

Frame = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Traced:
    """The numbers behind one frame.

    Attributes:
        embeds: [width] the input of the position that emitted it.
        hidden: [width] after the final norm.
        logits: [vocab] of group 0, before anything is done to them.
        residual: [groups - 1, vocab] of the other groups.
    """

    embeds: Tensor
    hidden: Tensor
    logits: Tensor
    residual: Tensor


Trace = dict[str, list[Traced]]
"""Request id -> its frames' numbers, in order."""


class FrameRunner:
    """Implements `omnistage.ar.runner.Runner`; the payload of its sequences is a `FrameRequest`.

    Args:
        talker: the model.
        cache: of the model's shape.
        batch_invariant: a row's result does not depend on the other rows, bit for bit (`omnistage.ar.linear`).
        trace: where given, each frame's numbers are added.
    """

    def __init__(
        self, talker: FrameTalker, cache: PagedKVCache, *, batch_invariant: bool = True, trace: Trace | None = None
    ) -> None:
        self._talker = talker
        self._cache = cache
        self._share = talker.frames.talker.num_heads // talker.frames.talker.num_kv_heads
        self._invariant = batch_invariant
        self._trace = trace
        self._end = talker.frames.end
        forbidden = torch.arange(talker.frames.talker.vocab_size) >= talker.frames.predictor.vocab_size
        forbidden[self._end] = False
        self._forbidden = forbidden.to(cache.keys.device)

    def step(self, batch: Batch) -> list[Emitted]:
        """See `Runner.step`. A row whose numbers are not finite fails alone."""
        emitting = batch.emitting
        with torch.inference_mode():
            inputs = self._inputs(batch.rows)
            hidden, logits = self._talker.forward(inputs, self._cache)
            if not emitting:
                return []
            kept: list[Tensor] | None = None if self._trace is None else []
            frames, finite = self._frames(hidden, logits, [row.sequence for row in emitting], kept)
            if self._trace is not None and kept is not None:
                residual = torch.stack(kept, dim=1)
                for index, row in enumerate(emitting):
                    numbers = Traced(inputs.embeds[inputs.emit[index]], hidden[index], logits[index], residual[index])
                    self._trace.setdefault(row.sequence.request_id, []).append(numbers)
        return [
            self._emitted(codes, ok)
            for codes, ok in zip(frames.tolist()[: len(emitting)], finite.tolist()[: len(emitting)], strict=True)
        ]

    def discard(self, blocks: list[int]) -> None:
        """See `Runner.discard`."""
        self._cache.clear(blocks)

    def _emitted(self, codes: list[int], finite: bool) -> Emitted:
        if not finite:
            return Emitted((), failure="the model's logits are not finite")
        return Emitted((self._end,) if codes[0] == self._end else tuple(codes))

    def _frames(
        self, hidden: Tensor, logits: Tensor, sequences: list[Sequence], kept: list[Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """The next frame of each row ([rows, groups]) and whether its numbers are finite ([rows])."""
        requests: list[FrameRequest] = [sequence.payload for sequence in sequences]
        positions = [sequence.num_generated for sequence in sequences]
        missing = hidden.shape[0] - len(requests)
        device = hidden.device
        finite = torch.isfinite(logits.sum(dim=-1))
        # Zeros instead of what is not finite: it fails anyway, and choosing needs one finite number per row.
        scores = torch.where(finite[:, None], logits, 0.0)
        scores = self._shape(scores, sequences).masked_fill(self._forbidden, -torch.inf)
        own = [request.sampling for request in requests]
        padding = own[:1] * missing
        places = positions + [0] * missing
        wanted = make_choices([s.first for s in own + padding], places, device)
        noise = wanted.noise([0], scores.shape[1])
        first = choose(scores, wanted, None if noise is None else noise[0])
        choices = make_choices([s.residual for s in own + padding], places, device)
        embedded = self._talker.codec_embeddings.codec(first)
        rest, good = self._talker.predictor.complete(hidden, embedded, choices, logits=kept)
        # An end has no other groups, so their numbers say nothing about it.
        return torch.cat((first[:, None], rest), dim=1), finite & (good | (first == self._end))

    def _shape(self, scores: Tensor, sequences: list[Sequence]) -> Tensor:
        """Repetition penalty, and no end before its time."""
        rows: list[int] = []
        codes: list[int] = []
        penalties: list[float] = []
        early: list[int] = []
        for index, sequence in enumerate(sequences):
            request: FrameRequest = sequence.payload
            if sequence.num_generated < request.sampling.min_frames:
                early.append(index)
            if request.sampling.repetition_penalty != 1.0:
                seen = request.seen(_frames_of(sequence, sequence.num_prompt, len(sequence.tokens)))
                rows += [index] * len(seen)
                codes += seen
                penalties += [request.sampling.repetition_penalty] * len(seen)
        scores = scores.clone()
        if rows:
            values = scores[rows, codes]
            penalty = torch.tensor(penalties, dtype=scores.dtype, device=scores.device)
            scores[rows, codes] = torch.where(values > 0, values / penalty, values * penalty)
        if early:
            scores[early, self._end] = -torch.inf
        return scores

    def _inputs(self, rows: Seq[Row]) -> TalkerInputs:
        emit: list[int] = []
        total = 0
        for row in rows:
            total += row.count
            if row.emits:
                emit.append(total - 1)
        device = self._cache.keys.device
        embeds = self._embeds(rows)
        plan = plan_attention(rows, self._cache, share=self._share, batch_invariant=self._invariant)
        return TalkerInputs(
            embeds=padded(embeds) if self._invariant else embeds,
            positions=self._positions(rows, total),
            emit=torch.tensor(self._pad(emit) if emit else [], dtype=torch.int64, device=device),
            plan=plan,
        )

    def _positions(self, rows: Seq[Row], total: int) -> Tensor:
        """[tokens] int64, or [3, tokens] float32 of talkers with three axes; padded."""
        device = self._cache.keys.device
        if self._talker.axes == 1:
            flat = [position for row in rows for position in range(row.start, row.start + row.count)]
            return torch.tensor(self._pad(flat), dtype=torch.int64, device=device)
        placed = torch.cat([_placed(row, device) for row in rows], dim=1)
        return pad(placed, (0, padded_length(total) - total)) if self._invariant else placed

    def _embeds(self, rows: Seq[Row]) -> Tensor:
        """[tokens, width]: the prompt's rows as they are, frames as the sum of their codes plus their text."""
        frames: list[Frame] = []
        texts: list[Tensor] = []
        for row in rows:
            request: FrameRequest = row.sequence.payload
            begin, end = row.sequence.num_prompt, row.start + row.count
            for position in range(max(row.start, begin), end):
                texts.append(request.text.row(position - begin))
            frames += _frames_of(row.sequence, row.start, end)
        fed: Tensor | None = None
        if frames:
            codes = torch.tensor(frames, dtype=torch.int64, device=self._cache.keys.device)
            fed = self._talker.codec_embeddings.frames(codes) + torch.stack(texts)
        parts: list[Tensor] = []
        taken = 0
        for row in rows:
            request = row.sequence.payload
            end = row.start + row.count
            parts.append(request.prefill[row.start : end])
            count = end - max(row.start, row.sequence.num_prompt)
            if fed is not None and count > 0:
                parts.append(fed[taken : taken + count])
                taken += count
        return torch.cat(parts)

    def _pad(self, values: list[int]) -> list[int]:
        missing = padded_length(len(values)) - len(values) if self._invariant else 0
        return values + [0] * missing


def _frames_of(sequence: Sequence, start: int, end: int) -> list[Frame]:
    """The frames at positions `start` to `end`."""
    tokens: list[Any] = sequence.tokens
    return tokens[max(start, sequence.num_prompt) : end]


def _placed(row: Row, device: torch.device) -> Tensor:
    """[3, count]: the prompt's positions, then one after the other."""
    request: FrameRequest = row.sequence.payload
    assert request.positions is not None, "this talker's requests have positions"
    end, begin = row.start + row.count, row.sequence.num_prompt
    given = request.positions[:, row.start : end]
    later = torch.arange(max(row.start, begin), max(end, begin), dtype=torch.float32, device=device) - begin
    return torch.cat((given, (later + request.next_position).expand(3, -1)), dim=1)
