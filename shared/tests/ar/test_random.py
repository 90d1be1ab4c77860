"""Counter-based random numbers: right, and a function of their place alone."""

from __future__ import annotations

import math

import pytest
import torch

from omnistage.ar.random import gumbel, philox4x32, uniform


def words(values: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([value], dtype=torch.int64) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    out = philox4x32(words(counter), words(key))  # type: ignore[arg-type]
    assert tuple(int(word) for word in out) == expected


def draw(seeds: list[int], positions: list[int], stream: int = 0, count: int = 1000) -> torch.Tensor:
    return uniform(torch.tensor(seeds), torch.tensor(positions), stream, count)


def test_numbers_do_not_depend_on_the_other_rows_or_on_how_many_are_asked_for() -> None:
    together = draw([5, -7, 2**62], [0, 9, 2**33])
    assert torch.equal(together[1:2], draw([-7], [9]))
    assert torch.equal(together[2:3, :17], draw([2**62], [2**33], count=17))


@pytest.mark.parametrize(
    ("seed", "position", "stream"),
    [(6, 3, 1), (5, 4, 1), (5, 3, 2), (5 + 2**32, 3, 1), (5, 3 + 2**32, 1)],
)
def test_each_part_of_the_place_matters(seed: int, position: int, stream: int) -> None:
    same = draw([5], [3], 1) == draw([seed], [position], stream)
    assert same.float().mean() < 0.01


def test_uniform_numbers_are_uniform_and_never_zero_or_one() -> None:
    numbers = draw(list(range(64)), [0] * 64, count=16384).double().flatten()
    assert float(numbers.min()) > 0.0
    assert float(numbers.max()) < 1.0
    assert float(numbers.mean()) == pytest.approx(0.5, abs=0.002)
    assert float(numbers.var()) == pytest.approx(1 / 12, abs=0.001)


def test_the_ends_of_the_interval_are_finite_after_two_logarithms() -> None:
    for word in (0, 0xFFFFFFFF):
        number = (torch.tensor([word]) >> 9).to(torch.float32).add(0.5) * 2.0**-23
        assert 0.0 < float(number) < 1.0
        assert math.isfinite(-math.log(-math.log(float(number))))


def test_gumbel_argmax_draws_from_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    rows = 20000
    noise = gumbel(torch.full((rows,), 11), torch.arange(rows), 0, 4)
    counts = torch.bincount((logits + noise).argmax(dim=-1), minlength=4) / rows
    assert torch.allclose(counts, torch.softmax(logits, dim=-1), atol=0.012)
