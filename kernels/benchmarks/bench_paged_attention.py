"""Attention of decoding rows of Qwen3-TTS 0.6B: 16 heads, 8 kv heads, 128 channels."""

from __future__ import annotations

from functools import partial

import torch

from omnistage_kernels import paged_attention as op
from omnistage_kernels._measure import Case
from omnistage_kernels.paged_attention import reference

HEADS, KV_HEADS, WIDTH, BLOCK = 16, 8, 128, 16


def cases(device: str) -> list[Case]:
    """One case for each number of rows and of keys."""
    return [_case(rows, length, device) for rows in (1, 64, 128) for length in (200, 2000)]


def _case(rows: int, length: int, device: str) -> Case:
    def make() -> tuple[object, ...]:
        per_row = -(-length // BLOCK)
        shape = (KV_HEADS * (rows * per_row + 1), BLOCK * WIDTH)
        keys, values = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2))
        tables = torch.randperm(rows * per_row, device=device).view(rows, per_row)
        query = torch.randn(rows, HEADS, WIDTH, device=device, dtype=torch.bfloat16)
        return query, keys, values, tables, torch.full((rows,), length, device=device)

    settings = {"kv_heads": KV_HEADS, "scale": WIDTH**-0.5}
    kernel, truth = (
        partial(form, **settings) for form in (op.paged_decode_attention, reference.paged_decode_attention)
    )
    size = (2 * rows * length * KV_HEADS * WIDTH + 2 * rows * HEADS * WIDTH) * 2
    return Case(f"{rows} rows, {length} keys", "bfloat16", kernel, truth, make, size)
