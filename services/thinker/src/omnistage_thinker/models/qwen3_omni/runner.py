"""Computes steps of the thinker for the AR core, and keeps what the talker is fed with."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from omnistage.ar.attention import plan_attention
from omnistage.ar.kv_cache import PagedKVCache
from omnistage.ar.linear import padded, padded_length
from omnistage.ar.runner import Emitted
from omnistage.ar.sampling import SamplingParams, SamplingRow, sample
from omnistage.ar.scheduler import Batch, Row
from omnistage.ar.sequence import Sequence
from omnistage_thinker.models.qwen3_omni.prompt import Prompt
from omnistage_thinker.models.qwen3_omni.thinker import Thinker, ThinkerInputs, ThinkerOutputs


@dataclass(slots=True)
class SpokenRows:
    """What the talker takes of a request: for each token that was fed, its embedding and the accepted hidden state.

    Attributes:
        embeds: [n, width] each, in order.
        accepted: likewise.
        count: tokens so far.
    """

    embeds: list[Tensor] = field(default_factory=list)
    accepted: list[Tensor] = field(default_factory=list)
    count: int = 0

    def add(self, start: int, embeds: Tensor, accepted: Tensor) -> None:
        """Rows from position `start` on; those that are here already (of a step that is computed again) are left."""
        assert start <= self.count, "a prefix whose hidden states nobody computed cannot be spoken"
        fresh = self.count - start
        if fresh < len(embeds):
            self.embeds.append(embeds[fresh:])
            self.accepted.append(accepted[fresh:])
            self.count = start + len(embeds)


@dataclass(eq=False, slots=True)
class ThinkerRequest:
    """The payload of a sequence. Its prompt's tokens are the real ones.

    Attributes:
        prompt: see there.
        sampling: how tokens are chosen.
        spoken: where rows for the talker go; None if nothing is to be spoken. A sequence that is spoken must be kept
            out of the prefix cache, which holds no hidden states.
    """

    prompt: Prompt
    sampling: SamplingParams
    spoken: SpokenRows | None = None


@dataclass(frozen=True, slots=True)
class Traced:
    """The numbers behind one token: [vocab] logits before anything is done to them, [width] the final hidden state."""

    logits: Tensor
    hidden: Tensor


Trace = dict[str, list[Traced]]
"""Request id -> its tokens' numbers, in order."""


class ThinkerRunner:
    """Implements `omnistage.ar.runner.Runner`; the payload of its sequences is a `ThinkerRequest`.

    Args:
        thinker: the model.
        cache: of the model's shape.
        batch_invariant: a row's result does not depend on the other rows, bit for bit (`omnistage.ar.linear`).
        trace: where given, each token's numbers are added.
    """

    def __init__(
        self, thinker: Thinker, cache: PagedKVCache, *, batch_invariant: bool = True, trace: Trace | None = None
    ) -> None:
        self._thinker = thinker
        self._cache = cache
        self._share = thinker.config.text.num_heads // thinker.config.text.num_kv_heads
        self._invariant = batch_invariant
        self._trace = trace

    def step(self, batch: Batch) -> list[Emitted]:
        """See `Runner.step`. A row whose logits are not finite fails alone."""
        emitting = batch.emitting
        with torch.inference_mode():
            inputs = self._inputs(batch.rows)
            outputs = self._thinker.forward(inputs, self._cache)
            self._keep(batch.rows, inputs, outputs)
            if not emitting:
                return []
            logits = outputs.logits[: len(emitting)]
            finite: list[bool] = torch.isfinite(logits.sum(dim=-1)).tolist()
            good = [index for index, ok in enumerate(finite) if ok]
            rows = [_sampling_row(emitting[index].sequence) for index in good]
            sampled = sample(logits[good], rows) if good else []
            if self._trace is not None:
                for index, row in enumerate(emitting):
                    numbers = Traced(logits[index], outputs.hidden[index])
                    self._trace.setdefault(row.sequence.request_id, []).append(numbers)
        emitted = [Emitted(0, failure="the model's logits are not finite")] * len(emitting)
        for index, result in zip(good, sampled, strict=True):
            emitted[index] = Emitted(result.token, result.logprob, result.top)
        return emitted

    def discard(self, blocks: list[int]) -> None:
        """See `Runner.discard`."""
        self._cache.clear(blocks)

    def _keep(self, rows: Seq[Row], inputs: ThinkerInputs, outputs: ThinkerOutputs) -> None:
        offset = 0
        for row in rows:
            request: ThinkerRequest = row.sequence.payload
            here = slice(offset, offset + row.count)
            if request.spoken is not None and outputs.accepted is not None:
                # Copies: a view would keep the whole step's tensors.
                request.spoken.add(row.start, inputs.embeds[here].clone(), outputs.accepted[here].clone())
            offset += row.count

    def _inputs(self, rows: Seq[Row]) -> ThinkerInputs:
        emit: list[int] = []
        total = 0
        for row in rows:
            total += row.count
            if row.emits:
                emit.append(total - 1)
        device = self._cache.keys.device
        embeds = torch.cat([self._row_embeds(row) for row in rows])
        positions = torch.cat([_row_positions(row, device) for row in rows], dim=1)
        deep = self._deep(rows, embeds)
        if self._invariant:
            missing = padded_length(total) - total
            embeds, deep = padded(embeds), tuple(padded(layer) for layer in deep)
            positions = torch.nn.functional.pad(positions, (0, missing))
            emit += [0] * (padded_length(len(emit)) - len(emit) if emit else 0)
        return ThinkerInputs(
            embeds=embeds,
            positions=positions,
            deep=deep,
            emit=torch.tensor(emit, dtype=torch.int64, device=device),
            plan=plan_attention(rows, self._cache, share=self._share, batch_invariant=self._invariant),
        )

    def _row_embeds(self, row: Row) -> Tensor:
        request: ThinkerRequest = row.sequence.payload
        end, begin = row.start + row.count, row.sequence.num_prompt
        given = request.prompt.embeds[row.start : end]
        tokens: list[Any] = row.sequence.tokens[max(row.start, begin) : end]
        if not tokens:
            return given
        ids = torch.tensor(tokens, dtype=torch.int64, device=given.device)
        return torch.cat((given, self._thinker.embed(ids)))

    def _deep(self, rows: Seq[Row], embeds: Tensor) -> tuple[Tensor, ...]:
        """Additions to the first layers; none at all where no row of the step has any."""
        pieces = [row.sequence.payload.prompt.deep for row in rows]
        if not any(pieces):
            return ()
        layers = tuple(torch.zeros_like(embeds) for _ in self._thinker.config.vision.deep_layers)
        offset = 0
        for row, deep in zip(rows, pieces, strict=True):
            for layer, rows_of_layer in zip(layers, deep, strict=False):
                part = rows_of_layer[row.start : row.start + row.count]
                layer[offset : offset + len(part)] = part
            offset += row.count
        return layers


def _row_positions(row: Row, device: torch.device) -> Tensor:
    """[3, count]: the prompt's, then one after the other."""
    prompt: Prompt = row.sequence.payload.prompt
    end, begin = row.start + row.count, row.sequence.num_prompt
    given = prompt.positions[:, row.start : end]
    later = torch.arange(max(row.start, begin), max(end, begin), dtype=torch.float32, device=device) - begin
    return torch.cat((given, (later + prompt.next_position).expand(3, -1)), dim=1)


def _sampling_row(sequence: Sequence) -> SamplingRow:
    params: SamplingParams = sequence.payload.sampling
    prompt: Prompt = sequence.payload.prompt
    # The sequence's own tokens of the prompt are keys of the prefix cache, not always ids.
    answer: list[Any] = sequence.tokens[sequence.num_prompt :]
    return SamplingRow(params, prompt.ids, answer)
