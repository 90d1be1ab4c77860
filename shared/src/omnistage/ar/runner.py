"""What computes a step. The engine knows only `Runner`; `SamplingRunner` makes one from a model that gives logits."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from omnistage.ar.attention import AttentionPlan, plan_attention
from omnistage.ar.kv_cache import KVShape, PagedKVCache
from omnistage.ar.linear import MIN_ROWS
from omnistage.ar.sampling import SamplingParams, SamplingRow, sample
from omnistage.ar.scheduler import Batch, Row
from omnistage.ar.sequence import Sequence, Token


@dataclass(frozen=True, slots=True)
class Emitted:
    """What one emitting row gave.

    Attributes:
        token: the next token; meaningless where `failure` is set.
        logprob: its log-probability, where asked for.
        top: the likeliest alternatives (token, log-probability), where asked for.
        extra: what else the runner has for the reader, e.g. a hidden state.
        failure: why this row has no token. The other rows are not affected.
    """

    token: Token
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    extra: Any = None
    failure: str | None = None


class Runner(Protocol):
    """Computes steps. Called from the engine's thread only, one call at a time."""

    def step(self, batch: Batch) -> list[Emitted]:
        """Compute the rows of a batch, write their KV, and emit for each emitting row, in order.

        Computing a row again gives the same KV and the same emission: after an error the engine repeats rows alone.
        """
        ...

    def discard(self, blocks: list[int]) -> None:
        """These blocks were only a failed sequence's: make their content harmless."""
        ...


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Tensors of a step for a model that reads token ids.

    Attributes:
        token_ids: [tokens] int64; padded with zeros up to `MIN_ROWS`.
        positions: [tokens] int64.
        emit: [emitting rows] index into the tokens; padded likewise.
        plan: for attention.
    """

    token_ids: Tensor
    positions: Tensor
    emit: Tensor
    plan: AttentionPlan


class LogitsModel(Protocol):
    """A decoder over token ids."""

    num_heads: int
    max_length: int

    def cache_shape(self, num_blocks: int, block_size: int) -> KVShape:
        """Sizes of a cache for this model."""
        ...

    def forward(self, inputs: StepInputs, cache: PagedKVCache) -> Tensor:
        """Write the step's KV into the cache and return logits [len(inputs.emit), vocab] float32."""
        ...


class SamplingRunner:
    """Runs a `LogitsModel` and samples. The payload of its sequences is `SamplingParams`.

    Args:
        model: the decoder.
        cache: of the model's shape.
        batch_invariant: a row's result does not depend on the other rows, bit for bit (see `attention`, `linear`).
    """

    def __init__(self, model: LogitsModel, cache: PagedKVCache, *, batch_invariant: bool = True) -> None:
        self._model = model
        self._cache = cache
        self._share = model.num_heads // cache.shape.num_kv_heads
        self._invariant = batch_invariant

    def step(self, batch: Batch) -> list[Emitted]:
        """See `Runner.step`. A row whose logits are not finite fails alone."""
        emitting = batch.emitting
        with torch.inference_mode():
            inputs = self._inputs(batch.rows)
            logits = self._model.forward(inputs, self._cache)[: len(emitting)]
            if not emitting:
                return []
            # One non-finite number makes the sum non-finite, and a sum is much cheaper than a look at each.
            finite: list[bool] = torch.isfinite(logits.sum(dim=-1)).tolist()
            good = [index for index, ok in enumerate(finite) if ok]
            rows = [_sampling_row(emitting[index].sequence) for index in good]
            sampled = sample(logits if len(good) == len(emitting) else logits[good], rows) if good else []
        emitted = [Emitted(0, failure="the model's logits are not finite")] * len(emitting)
        for index, result in zip(good, sampled, strict=True):
            emitted[index] = Emitted(result.token, result.logprob, result.top)
        return emitted

    def discard(self, blocks: list[int]) -> None:
        """See `Runner.discard`: a later user of the blocks must not meet non-finite numbers behind its own tokens."""
        self._cache.clear(blocks)

    def _inputs(self, rows: Seq[Row]) -> StepInputs:
        token_ids: list[Token] = []
        positions: list[int] = []
        emit: list[int] = []
        for row in rows:
            end = row.start + row.count
            token_ids += row.sequence.tokens[row.start : end]
            positions += range(row.start, end)
            if row.emits:
                emit.append(len(token_ids) - 1)
        device = self._cache.keys.device
        plan = plan_attention(rows, self._cache, share=self._share, batch_invariant=self._invariant)
        return StepInputs(
            token_ids=torch.tensor(self._pad(token_ids), dtype=torch.int64, device=device),
            positions=torch.tensor(self._pad(positions), dtype=torch.int64, device=device),
            emit=torch.tensor(self._pad(emit) if emit else [], dtype=torch.int64, device=device),
            plan=plan,
        )

    def _pad(self, values: list[Any]) -> list[Any]:
        missing = MIN_ROWS - len(values) if self._invariant else 0
        return values + [0] * missing if missing > 0 else values


def _sampling_row(sequence: Sequence) -> SamplingRow:
    params: SamplingParams = sequence.payload
    tokens: list[Any] = sequence.tokens
    if params.shapes_logits:
        return SamplingRow(params, tokens[: sequence.num_prompt], tokens[sequence.num_prompt :])
    return SamplingRow(params, (), range(sequence.num_generated))
