"""Attention of decoding rows in Triton: one program a row, kv head and run of `SPLIT` keys, then one that joins runs.

Within a run the softmax is computed as keys come (Milakov and Gimelshein, "Online normalizer calculation for softmax",
2018); runs are joined in order. Where a run begins and ends depends on positions alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from omnistage_kernels._tiles import ceil_div, power_of_two

SPLIT = 256
"""Keys of a run."""
_TILE = 64
_MIN_GROUP = 16
"""Rows of the smallest matrix product."""
_LOG2_E = 1.4426950408889634


def run(
    query: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor, kv_heads: int, scale: float
) -> Tensor:
    """See the package."""
    rows, heads, width = query.shape
    share, block_size = heads // kv_heads, keys.shape[1] // width
    splits = max(1, ceil_div(tables.shape[1] * block_size, SPLIT))
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if not out.numel():
        return out
    sums = query.new_empty((rows, heads, splits, width) if splits > 1 else (1,), dtype=torch.float32)
    marks = query.new_empty((2, rows, heads, splits) if splits > 1 else (2, 1), dtype=torch.float32)
    attend_kernel[(rows, kv_heads, splits)](
        query, keys, values, tables, lengths, out, sums, marks[0], marks[1],
        scale * _LOG2_E, keys.shape[0] // kv_heads, heads, splits,
        query.stride(0), query.stride(1), tables.stride(0), tables.stride(1), lengths.stride(0),
        SHARE=share, GROUP=max(_MIN_GROUP, power_of_two(share)), WIDTH=width, BLOCK_SIZE=block_size,
        TILE=_TILE, RUN=SPLIT, WHOLE=splits == 1,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32", num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        join_kernel[(rows, heads)](
            out, sums, marks[0], marks[1], lengths, heads, splits, lengths.stride(0), WIDTH=width, RUN=SPLIT,
            num_warps=1,
        )  # fmt: skip
    return out


@triton.jit
def attend_kernel(
    query, keys, values, tables, lengths, out, sums, peaks, totals,
    scale, blocks, heads, splits, q_row, q_head, t_row, t_column, l_row,
    SHARE: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr, RUN: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    length = tl.load(lengths + row * l_row)
    begin = split * RUN
    if begin < length or WHOLE:
        member, channel = tl.arange(0, GROUP), tl.arange(0, WIDTH)
        head = kv_head * SHARE + member
        ours = (member < SHARE)[:, None]
        q = tl.load(query + row * q_row + head[:, None] * q_head + channel[None, :], mask=ours, other=0.0)
        peak = tl.full([GROUP], float("-inf"), tl.float32)
        total = tl.zeros([GROUP], tl.float32)
        mixed = tl.zeros([GROUP, WIDTH], tl.float32)
        for start in range(begin, tl.minimum(begin + RUN, length), TILE):
            key = start + tl.arange(0, TILE)
            seen = key < length
            block = tl.load(tables + row * t_row + (key // BLOCK_SIZE) * t_column, mask=seen, other=0).to(tl.int64)
            place = ((kv_head * blocks + block) * BLOCK_SIZE + key % BLOCK_SIZE)[:, None] * WIDTH + channel[None, :]
            k = tl.load(keys + place, mask=seen[:, None], other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
            scores = tl.where(seen[None, :], scores, float("-inf"))
            higher = tl.maximum(peak, tl.max(scores, axis=1))
            weight = tl.exp2(scores - higher[:, None])
            shrink = tl.exp2(peak - higher)
            v = tl.load(values + place, mask=seen[:, None], other=0.0)
            total = total * shrink + tl.sum(weight, axis=1)
            mixed = mixed * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
            peak = higher
        if WHOLE:
            result = mixed / tl.where(total > 0, total, 1.0)[:, None]
            target = out + (row * heads + head)[:, None] * WIDTH + channel[None, :]
            tl.store(target, result.to(out.dtype.element_ty), mask=ours)
        else:
            part = (row * heads + head) * splits + split
            tl.store(sums + part[:, None] * WIDTH + channel[None, :], mixed, mask=ours)
            tl.store(peaks + part, peak, mask=member < SHARE)
            tl.store(totals + part, total, mask=member < SHARE)


@triton.jit
def join_kernel(
    out, sums, peaks, totals, lengths, heads, splits, l_row, WIDTH: tl.constexpr, RUN: tl.constexpr
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.arange(0, WIDTH)
    count = tl.cdiv(tl.load(lengths + row * l_row), RUN)
    first = (row * heads + head) * splits
    peak = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    mixed = tl.zeros([WIDTH], tl.float32)
    for split in range(0, count):
        here = tl.load(peaks + first + split)
        higher = tl.maximum(peak, here)
        old, new = tl.exp2(peak - higher), tl.exp2(here - higher)
        total = total * old + tl.load(totals + first + split) * new
        mixed = mixed * old + tl.load(sums + (first + split) * WIDTH + channel) * new
        peak = higher
    result = mixed / tl.where(total > 0, total, 1.0)
    tl.store(out + (row * heads + head) * WIDTH + channel, result.to(out.dtype.element_ty))
