"""Counter-based random numbers: a number is a function of its place, not of what was drawn before.

Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Keyed by the
request's seed and counted by (lane, position, stream), so that a request gets the same numbers whatever the batch,
and again after a crash.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROUND_A, _ROUND_B = 0xD2511F53, 0xCD9E8D57
_WEYL_A, _WEYL_B = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Ten rounds of Philox4x32.

    Args:
        counter: four int64 tensors that broadcast, each value in [0, 2**32).
        key: two of the same kind.

    Returns:
        Four int64 tensors with values in [0, 2**32).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # int64 wraps, so its upper half is signed: the mask makes it the upper word of the unsigned product.
        product_a, product_b = c0 * _ROUND_A, c2 * _ROUND_B
        c0 = ((product_b >> 32) & _MASK) ^ c1 ^ k0
        c2 = ((product_a >> 32) & _MASK) ^ c3 ^ k1
        c1, c3 = product_b & _MASK, product_a & _MASK
        k0, k1 = (k0 + _WEYL_A) & _MASK, (k1 + _WEYL_B) & _MASK
    return c0, c1, c2, c3


def _words(seeds: Tensor, positions: Tensor, streams: Tensor, count: int) -> Tensor:
    """[streams, rows, count] int64 words of 32 bits; word `i` is a function of (seed, position, stream, i)."""
    lanes = torch.arange(-(-count // 4), dtype=torch.int64, device=seeds.device)[None, None, :]
    counter = (
        lanes,
        (positions & _MASK)[None, :, None],
        (streams & _MASK)[:, None, None],
        ((positions >> 32) & _MASK)[None, :, None],
    )
    key = ((seeds & _MASK)[None, :, None], ((seeds >> 32) & _MASK)[None, :, None])
    words = torch.stack(philox4x32(counter, key), dim=-1)
    return words.flatten(2)[:, :, :count]


def uniform(seeds: Tensor, positions: Tensor, stream: int, count: int) -> Tensor:
    """Uniform numbers in the open interval (0, 1).

    Args:
        seeds: [rows] int64.
        positions: [rows] int64, e.g. the position in the answer.
        stream: which of the independent streams, e.g. the codebook; 0 to 2**32 - 1.
        count: numbers per row.

    Returns:
        [rows, count] float32, odd multiples of 2**-24: never 0 and never 1, so that logarithms are finite.
    """
    return _uniform(seeds, positions, torch.tensor([stream], device=seeds.device), count)[0]


def _uniform(seeds: Tensor, positions: Tensor, streams: Tensor, count: int) -> Tensor:
    # 23 bits and a half: with 24 the largest value would round to 1.
    return ((_words(seeds, positions, streams, count) >> 9).to(torch.float32) + 0.5) * 2.0**-23


def gumbel(seeds: Tensor, positions: Tensor, stream: int, count: int) -> Tensor:
    """Standard Gumbel numbers: the argmax of logits plus these is a draw from their softmax. Arguments as `uniform`.

    Returns:
        [rows, count] float32.
    """
    return gumbels(seeds, positions, torch.tensor([stream], device=seeds.device), count)[0]


def gumbels(seeds: Tensor, positions: Tensor, streams: Tensor, count: int) -> Tensor:
    """`gumbel` of several streams ([streams] int64) at once: [streams, rows, count] float32."""
    return _uniform(seeds, positions, streams, count).log_().neg_().log_().neg_()


def signed(seed: int) -> int:
    """The int64 with the low 64 bits of a seed."""
    low = seed & 0xFFFFFFFFFFFFFFFF
    return low - (1 << 64) if low >> 63 else low
