"""Choosing on the device equals choosing row by row."""

from __future__ import annotations

import pytest
import torch

from omnistage.ar.draw import Choice, choose, make_choices
from omnistage.ar.sampling import SamplingParams, SamplingRow, sample

ROWS = [
    Choice(temperature=0.0),
    Choice(temperature=0.9, top_k=50, seed=1),
    Choice(temperature=1.3, seed=(1 << 64) - 1),
    Choice(temperature=0.7, top_p=0.8, seed=7),
    Choice(temperature=1.0, top_k=5, top_p=0.5, seed=99),
    Choice(temperature=1.0, top_p=1e-6, seed=3),
    Choice(temperature=2.0, top_k=1, seed=4),
]
CPU = torch.device("cpu")


def chosen(logits: torch.Tensor, rows: list[Choice], positions: list[int], stream: int) -> list[int]:
    choices = make_choices(rows, positions, CPU)
    noise = choices.noise([stream + 1, stream], logits.shape[1])
    tokens: list[int] = choose(logits, choices, None if noise is None else noise[1]).tolist()
    return tokens


def one_by_one(logits: torch.Tensor, choices: list[Choice], position: int, stream: int) -> list[int]:
    rows = [
        SamplingRow(SamplingParams(row.temperature, row.top_k, row.top_p, row.seed, stream), (), range(position))
        for row in choices
    ]
    return [result.token for result in sample(logits, rows)]


@pytest.mark.parametrize("stream", [0, 15])
@pytest.mark.parametrize("rows", [ROWS, [row for row in ROWS if row.top_k], [row for row in ROWS if not row.top_k]])
def test_chooses_what_the_row_by_row_sampler_chooses(rows: list[Choice], stream: int) -> None:
    generator = torch.Generator().manual_seed(5)
    seen = set()
    for position in range(40):
        logits = 3 * torch.randn(len(rows), 2048, generator=generator)
        tokens = chosen(logits, rows, [position] * len(rows), stream)
        assert tokens == one_by_one(logits, rows, position, stream)
        seen.add(tuple(tokens))
    assert len(seen) == 40


def test_rows_that_take_the_likeliest_need_no_numbers() -> None:
    choices = make_choices([ROWS[0]] * 2, [0, 1], CPU)
    assert choices.noise([0], 8) is None
    assert choose(torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), choices, None).tolist() == [1, 0]


def test_what_is_minus_infinity_is_never_chosen() -> None:
    logits = torch.zeros(len(ROWS), 64)
    logits[:, 10:] = -torch.inf
    for position in range(50):
        assert max(chosen(logits, ROWS, [position] * len(ROWS), 0)) < 10


def test_streams_and_positions_give_other_tokens_and_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = torch.randn(1, 2048, generator=torch.Generator().manual_seed(2))
    row = Choice(temperature=1.0, seed=11)

    def tokens(positions: list[int], stream: int, before: int = 0) -> list[int]:
        rows = [Choice(seed=index) for index in range(before)] + [row] * len(positions)
        return chosen(logits.expand(len(rows), -1), rows, [0] * before + positions, stream)[before:]

    base = tokens(list(range(20)), 0)
    assert len(set(base)) > 10
    assert base != tokens(list(range(20)), 1)
    assert base == tokens(list(range(20)), 0, before=3)
    assert base == [tokens([position], 0)[0] for position in range(20)]
