"""Choosing a token in each of many rows without leaving the device: for models that choose many tokens a step.

The numbers are those of `sampling`: the same row with the same seed, position and stream chooses the same token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omnistage.ar.random import gumbels, signed
from omnistage.ar.sampling import GREEDY_BELOW


@dataclass(frozen=True, slots=True)
class Choice:
    """How one row chooses; fields as in `omnistage.ar.sampling.SamplingParams`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Choices:
    """How each row of a step chooses, on the device.

    Attributes:
        temperature: [rows, 1] float32, 1 where greedy.
        top_k: [rows, 1] int64, as large as any vocabulary where off.
        top_p: [rows, 1] float32.
        seed, position: [rows] int64.
        greedy: [rows] bool.
        drawn, limited: whether any row draws, and whether any that draws has a limit.
        most: the largest top_k where every row that draws has one, else 0.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    position: Tensor
    greedy: Tensor
    drawn: bool
    limited: bool
    most: int

    def noise(self, streams: Sequence[int], vocab: int) -> Tensor | None:
        """The random numbers of several streams, [streams, rows, vocab] float32; None where nobody draws."""
        if not self.drawn:
            return None
        return gumbels(self.seed, self.position, torch.tensor(streams, device=self.seed.device), vocab)


_NO_LIMIT = 1 << 40


def make_choices(rows: Sequence[Choice], positions: Sequence[int], device: torch.device) -> Choices:
    """Lay out a step.

    Args:
        rows: how each row chooses.
        positions: of each in its answer.
        device: where the logits are.
    """
    greedy = [row.temperature < GREEDY_BELOW for row in rows]

    def column(values: list[float] | list[int], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    drawing = [row for row, still in zip(rows, greedy, strict=True) if not still]
    return Choices(
        temperature=column([1.0 if g else r.temperature for r, g in zip(rows, greedy, strict=True)], torch.float32)[
            :, None
        ],
        top_k=column([row.top_k or _NO_LIMIT for row in rows], torch.int64)[:, None],
        top_p=column([row.top_p for row in rows], torch.float32)[:, None],
        seed=column([signed(row.seed) for row in rows], torch.int64),
        position=column(list(positions), torch.int64),
        greedy=torch.tensor(greedy, dtype=torch.bool, device=device),
        drawn=bool(drawing),
        limited=any(row.top_k or row.top_p < 1.0 for row in drawing),
        most=max((row.top_k for row in drawing), default=0) if all(row.top_k for row in drawing) else 0,
    )


def choose(scores: Tensor, choices: Choices, noise: Tensor | None) -> Tensor:
    """Choose a token per row.

    Args:
        scores: [rows, vocab] float32; -inf for what may not be chosen, one finite number per row at least.
        choices: for the same rows.
        noise: [rows, vocab] of one stream, from `Choices.noise`.

    Returns:
        [rows] int64.
    """
    likeliest = scores.argmax(dim=-1)
    if noise is None:
        return likeliest
    scaled = scores / choices.temperature
    if choices.limited:
        scaled = _limit(scaled, choices)
    return torch.where(choices.greedy, likeliest, (scaled + noise).argmax(dim=-1))


def _limit(scaled: Tensor, choices: Choices) -> Tensor:
    """-inf for all that top_k, and then top_p among what is left, leave out."""
    count = min(choices.most, scaled.shape[1])
    if count:
        # What comes after the largest top_k is left out of every row that draws, so it need not be put in order.
        values, order = scaled.topk(count, dim=-1)
    else:
        values, order = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(values.shape[1], device=scaled.device)[None, :]
    values = values.masked_fill(rank >= choices.top_k, -torch.inf)
    share = torch.exp(values - torch.logsumexp(values, dim=-1, keepdim=True))
    before = torch.cumsum(share, dim=-1).roll(1, dims=-1)
    # The likeliest always stays, and so does the one that crosses the limit.
    outside = (before >= choices.top_p) & (rank > 0) & (choices.top_p < 1.0)
    values = values.masked_fill(outside, -torch.inf)
    return torch.full_like(scaled, -torch.inf).scatter_(1, order, values)
