"""RMSNorm in Triton: some rows a program, each read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from omnistage_kernels._tiles import ceil_div, power_of_two

_TILE = 1024
"""Elements of a program where rows are narrower. It depends on the width alone, and so does the order of sums."""


def run(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normed rows, and the sum (or `x` where there is no residual)."""
    width = x.shape[-1]
    shaped = _three(x)
    other = shaped if residual is None else _three(residual)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = out if residual is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = power_of_two(width)
    rows, per_program = shaped.shape[0] * shaped.shape[1], max(1, _TILE // block)
    if rows:
        rms_norm_kernel[(ceil_div(rows, per_program),)](
            shaped, other, weight, out, total, rows, shaped.shape[1], width,
            shaped.stride(0), shaped.stride(1), other.stride(0), other.stride(1), eps,
            ADD=residual is not None, ROWS=per_program, BLOCK=block, num_warps=4 if block <= 2048 else 8,
        )  # fmt: skip
    return out, total if residual is not None else x


def _three(x: Tensor) -> Tensor:
    """[outer, inner, width] without a copy where there are three dimensions already."""
    return x if x.dim() == 3 else x.reshape(-1, 1, x.shape[-1])


@triton.jit
def rms_norm_kernel(
    x, residual, weight, out, total, rows, inner, width, x_outer, x_inner, r_outer, r_inner, eps,
    ADD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows)[:, None] & (column < width)
    outer, rest = row // inner, row % inner
    value = tl.load(x + (outer * x_outer + rest * x_inner)[:, None] + column, mask=mask, other=0.0)
    place = row[:, None] * width + column
    if ADD:
        added = tl.load(residual + (outer * r_outer + rest * r_inner)[:, None] + column, mask=mask, other=0.0)
        value = (value.to(tl.float32) + added.to(tl.float32)).to(out.dtype.element_ty)
        tl.store(total + place, value, mask=mask)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=1) / width + eps)
    normed = (wide * scale[:, None]).to(out.dtype.element_ty).to(tl.float32)
    factor = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    tl.store(out + place, (normed * factor).to(out.dtype.element_ty), mask=mask)
