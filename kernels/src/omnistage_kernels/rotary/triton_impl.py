"""Rotary positions in Triton: one program a token, which makes its angles once for all heads."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from omnistage_kernels._tiles import power_of_two


def run(x: Tensor, positions: Tensor, frequencies: Tensor, axes: Tensor | None) -> Tensor:
    """See the package."""
    tokens, heads, width = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        axis_stride = positions.stride(0) if axes is not None else 0
        rotary_kernel[(tokens,)](
            x, positions, frequencies, frequencies if axes is None else axes, out, heads, width // 2,
            x.stride(0), x.stride(1), axis_stride, positions.stride(-1),
            AXES=axes is not None, HEADS=power_of_two(heads), PAIRS=power_of_two(width // 2), num_warps=4,
        )  # fmt: skip
    return out


@triton.jit
def rotary_kernel(
    x, positions, frequencies, axes, out, heads, pairs, x_token, x_head, axis_stride, token_stride,
    AXES: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, PAIRS)
    inside = pair < pairs
    frequency = tl.load(frequencies + pair, mask=inside, other=0.0)
    if AXES:
        axis = tl.load(axes + pair, mask=inside, other=0).to(tl.int64)
        position = tl.load(positions + axis * axis_stride + token * token_stride, mask=inside, other=0).to(tl.float32)
    else:
        position = tl.load(positions + token * token_stride).to(tl.float32)
    angle = position * frequency
    cos, sin = tl.cos(angle)[None, :], tl.sin(angle)[None, :]
    head = tl.arange(0, HEADS)[:, None]
    mask = (head < heads) & inside[None, :]
    place = x + token * x_token + head * x_head + pair[None, :]
    first = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(place + pairs, mask=mask, other=0.0).to(tl.float32)
    target = out + token * heads * pairs * 2 + head * pairs * 2 + pair[None, :]
    kind = out.dtype.element_ty
    tl.store(target, (first * cos - second * sin).to(kind), mask=mask)
    tl.store(target + pairs, (second * cos + first * sin).to(kind), mask=mask)
