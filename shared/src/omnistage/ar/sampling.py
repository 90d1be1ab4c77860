"""How the next token is chosen from logits: per row, whatever the other rows ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from omnistage.ar.random import gumbel, signed

GREEDY_BELOW = 1e-5
"""Temperatures below this choose the likeliest token; dividing by them would overflow float32."""

_NUCLEUS_FIRST_LOOK = 1024


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one sequence samples.

    Attributes:
        temperature: below `GREEDY_BELOW` the likeliest token is taken.
        top_k: keep this many of the likeliest; 0 keeps all.
        top_p: keep the likeliest that together reach this probability.
        seed: key of the random numbers, 64 bits.
        stream: which stream of the seed's numbers.
        frequency_penalty: taken off once per earlier occurrence in the answer.
        presence_penalty: taken off when it occurred in the answer.
        repetition_penalty: divides positive and multiplies negative logits of all tokens seen, prompt included
            (Keskar et al., "CTRL", 2019).
        logit_bias: token -> added to its logit.
        suppress: tokens that are never chosen.
        num_logprobs: None for none, else how many alternatives beside the chosen one. Log-probabilities are the
            model's own, before everything above.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stream: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    suppress: tuple[int, ...] = ()
    num_logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether no random number is needed."""
        return self.temperature < GREEDY_BELOW

    @property
    def shapes_logits(self) -> bool:
        """Whether the row's logits change before the temperature."""
        penalised = self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0
        return bool(penalised or self.logit_bias or self.suppress)


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One row to sample: its parameters and what came before.

    Attributes:
        params: how.
        prompt: tokens of the prompt.
        answer: tokens generated so far; their number is the position of the random numbers.
    """

    params: SamplingParams
    prompt: Sequence[int]
    answer: Sequence[int]


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token, with log-probabilities (natural logarithm) where asked for; alternatives likeliest first."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[Sampled]:
    """Choose a token per row.

    Args:
        logits: [rows, vocab] float32, finite; left unchanged.
        rows: one for each row of `logits`.
    """
    shaped = [index for index, row in enumerate(rows) if row.params.shapes_logits]
    scores = logits
    if shaped:
        scores = logits.clone()
        for index in shaped:
            _shape(scores[index], rows[index])
    chosen: list[int] = torch.argmax(scores, dim=-1).tolist()
    drawn = [index for index, row in enumerate(rows) if not row.params.greedy]
    if drawn:
        for index, token in zip(drawn, _draw(scores[drawn], [rows[index] for index in drawn]), strict=True):
            chosen[index] = token
    return [_describe(logits[index], rows[index].params, token) for index, token in enumerate(chosen)]


def _draw(scores: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    device = scores.device
    temperatures = torch.tensor([row.params.temperature for row in rows], dtype=torch.float32, device=device)
    scores = scores / temperatures[:, None]
    for index, row in enumerate(rows):
        _keep_top(scores[index], row.params)
    positions = torch.tensor([len(row.answer) for row in rows], dtype=torch.int64, device=device)
    seeds = torch.tensor([signed(row.params.seed) for row in rows], dtype=torch.int64, device=device)
    streams = {row.params.stream for row in rows}
    if len(streams) == 1:
        noise = gumbel(seeds, positions, streams.pop(), scores.shape[1])
    else:
        noise = torch.cat(
            [
                gumbel(seeds[i : i + 1], positions[i : i + 1], row.params.stream, scores.shape[1])
                for i, row in enumerate(rows)
            ]
        )
    tokens: list[int] = torch.argmax(scores + noise, dim=-1).tolist()
    return tokens


def _shape(scores: Tensor, row: SamplingRow) -> None:
    """Apply bias, penalties and suppression to one row in place."""
    params = row.params
    device = scores.device
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*row.prompt, *row.answer}), dtype=torch.int64, device=device)
        values = scores[seen]
        scores[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if row.answer and (params.frequency_penalty or params.presence_penalty):
        counts = Counter(row.answer)
        seen = torch.tensor(list(counts), dtype=torch.int64, device=device)
        penalties = [count * params.frequency_penalty + params.presence_penalty for count in counts.values()]
        scores[seen] -= torch.tensor(penalties, dtype=scores.dtype, device=device)
    if params.logit_bias:
        tokens = torch.tensor(list(params.logit_bias), dtype=torch.int64, device=device)
        scores[tokens] += torch.tensor(list(params.logit_bias.values()), dtype=scores.dtype, device=device)
    if params.suppress:
        scores[list(params.suppress)] = -torch.inf


def _keep_top(scores: Tensor, params: SamplingParams) -> None:
    """Set what top_k and top_p leave out to -inf, in place. Ties at the border of top_k: the sort's first are kept."""
    vocab = scores.shape[0]
    if 0 < params.top_k < vocab:
        _keep_only(scores, torch.topk(scores, params.top_k).indices)
    if params.top_p >= 1.0:
        return
    normaliser = torch.logsumexp(scores, dim=-1)
    for size in (min(_NUCLEUS_FIRST_LOOK, vocab), vocab):
        values, indices = torch.topk(scores, size)
        before = torch.cumsum(torch.exp(values - normaliser), dim=0)
        if size == vocab or float(before[-1]) >= params.top_p:
            # The token that crosses the limit belongs to the nucleus, and the likeliest one always does.
            count = int((before < params.top_p).sum()) + 1
            _keep_only(scores, indices[:count])
            return


def _keep_only(scores: Tensor, indices: Tensor) -> None:
    kept = scores[indices]
    scores.fill_(-torch.inf)
    scores[indices] = kept


def _describe(logits: Tensor, params: SamplingParams, token: int) -> Sampled:
    if params.num_logprobs is None:
        return Sampled(token)
    logprobs = torch.log_softmax(logits, dim=-1)
    top: tuple[tuple[int, float], ...] = ()
    if params.num_logprobs:
        values, indices = torch.topk(logprobs, min(params.num_logprobs, logprobs.shape[0]))
        top = tuple(zip(indices.tolist(), values.tolist(), strict=True))
    return Sampled(token, float(logprobs[token]), top)
