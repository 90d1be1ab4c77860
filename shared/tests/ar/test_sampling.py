"""Sampling: each row by its own parameters, whatever stands beside it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from omnistage.ar.sampling import SamplingParams, SamplingRow, sample

VOCAB = 3000


def logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def row(prompt: list[int] | None = None, answer: list[int] | None = None, **params: Any) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), prompt or [], answer or [])


def one(values: list[float], **params: Any) -> int:
    return sample(torch.tensor([values]), [row(**params)])[0].token


def draws(values: list[float], count: int = 4000, **params: Any) -> dict[int, float]:
    """Frequencies of tokens over `count` positions of one seed."""
    table = torch.tensor([values]).repeat(count, 1)
    rows = [SamplingRow(SamplingParams(seed=3, **params), (), range(index)) for index in range(count)]
    return {token: times / count for token, times in Counter(s.token for s in sample(table, rows)).items()}


def test_greedy_is_the_exact_argmax_and_the_first_of_equals() -> None:
    table = logits(5)
    assert [s.token for s in sample(table, [row(temperature=0.0)] * 5)] == table.argmax(dim=-1).tolist()
    assert one([1.0, 7.0, 7.0, 2.0], temperature=0.0) == 1


MIXED = [
    row(temperature=0.0),
    row(temperature=1.0, seed=1),
    row(temperature=0.7, top_p=0.8, seed=2, answer=[1, 2]),
    row(temperature=1.3, top_k=20, seed=3, stream=4),
    row(temperature=1.0, frequency_penalty=1.0, presence_penalty=0.5, answer=[5, 5, 9], seed=9),
    row(temperature=1.0, repetition_penalty=1.3, prompt=[3, 4], seed=4, num_logprobs=3),
    row(temperature=0.0, logit_bias={8: 100.0}),
    row(temperature=1.0, suppress=(0, 1, 2), seed=-5),
]


def test_a_row_gets_the_same_whatever_stands_beside_it() -> None:
    table = logits(len(MIXED))
    together = sample(table, MIXED)
    for order in (list(range(8)), [3, 0, 7, 1, 6, 2, 5, 4]):
        shuffled = sample(table[order], [MIXED[index] for index in order])
        assert shuffled == [together[index] for index in order]
    for index, params in enumerate(MIXED):
        assert sample(table[index : index + 1], [params]) == [together[index]]


def test_logits_are_left_unchanged() -> None:
    table = logits(len(MIXED))
    before = table.clone()
    sample(table, MIXED)
    assert torch.equal(table, before)


def test_frequencies_follow_the_tempered_softmax() -> None:
    values = [2.0, 1.0, 0.0]
    for temperature in (0.5, 1.0, 2.0):
        weights = [math.exp(value / temperature) for value in values]
        found = draws(values, temperature=temperature)
        for token, weight in enumerate(weights):
            assert found[token] == pytest.approx(weight / sum(weights), abs=0.03)


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 99}, {0, 1, 2, 3}),
        ({"top_p": 1e-9}, {0}),
        ({"top_p": 0.49}, {0}),
        ({"top_p": 0.51}, {0, 1}),
        ({"top_p": 0.81}, {0, 1, 2}),
        ({"top_p": 1.0}, {0, 1, 2, 3}),
        ({"top_k": 3, "top_p": 0.9}, {0, 1, 2}),
        ({"top_k": 2, "top_p": 0.6}, {0}),
        ({"suppress": (0, 2)}, {1, 3}),
    ],
)
def test_what_top_k_top_p_and_suppression_leave(params: dict[str, Any], allowed: set[int]) -> None:
    values = [math.log(p) for p in (0.5, 0.3, 0.15, 0.05)]
    assert set(draws(values, count=800, temperature=1.0, **params)) == allowed


def test_a_flat_distribution_needs_more_than_the_first_look() -> None:
    found = draws([0.0] * 2000, count=3000, temperature=1.0, top_p=0.9)
    assert 1300 < len(found) <= 1800


@pytest.mark.parametrize(
    ("params", "token"),
    [
        ({}, 0),
        ({"answer": [0], "presence_penalty": 0.2}, 1),
        ({"answer": [0], "frequency_penalty": 0.05}, 0),
        ({"answer": [0, 0, 0], "frequency_penalty": 0.05}, 1),
        ({"answer": [1, 2], "presence_penalty": -0.2}, 1),
        ({"prompt": [0], "presence_penalty": 2.0}, 0),
        ({"prompt": [0], "repetition_penalty": 1.2}, 1),
        ({"answer": [3], "repetition_penalty": 0.5}, 0),
        ({"logit_bias": {2: 1.0}}, 2),
        ({"logit_bias": {0: -100.0, 1: -100.0}}, 2),
        ({"suppress": (0,)}, 1),
    ],
)
def test_penalties_and_biases(params: dict[str, Any], token: int) -> None:
    assert one([1.0, 0.9, 0.1, -1.0], temperature=0.0, **params) == token


def test_repetition_penalty_lowers_negative_logits_too() -> None:
    assert one([-1.0, -1.05], temperature=0.0, prompt=[0], repetition_penalty=1.2) == 1


def test_logprobs_are_the_models_own() -> None:
    table = logits(1)
    sampled = sample(table, [row(temperature=0.0, logit_bias={7: 1000.0}, num_logprobs=4)])[0]
    reference = torch.log_softmax(table[0], dim=-1)
    assert sampled.token == 7
    assert sampled.logprob == float(reference[7])
    assert [token for token, _ in sampled.top] == table[0].topk(4).indices.tolist()
    assert [value for _, value in sampled.top] == [float(reference[token]) for token, _ in sampled.top]


def test_zero_alternatives_still_give_the_chosen_ones_logprob() -> None:
    sampled = sample(logits(1), [row(temperature=0.0, num_logprobs=0)])[0]
    assert sampled.logprob is not None
    assert sampled.top == ()
    assert sample(logits(1), [row(temperature=0.0)])[0].logprob is None


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, 2**64 - 1, -(2**63)])
def test_seeds_of_64_bits_are_taken(seed: int) -> None:
    first, again = (sample(logits(1), [row(temperature=1.0, seed=seed)])[0].token for _ in range(2))
    assert first == again
