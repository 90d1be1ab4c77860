"""Rotary positions (Su et al., "RoFormer", 2021) on one axis or several."""

from __future__ import annotations

import torch
from torch import Tensor

from omnistage_kernels._checks import check_dense_rows, check_floating, check_shape
from omnistage_kernels._dispatch import uses_kernel
from omnistage_kernels.rotary import reference

__all__ = ["TOLERANCE", "rotary"]

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 5e-4}


def rotary(x: Tensor, positions: Tensor, frequencies: Tensor, axes: Tensor | None = None) -> Tensor:
    """Turn the pairs (i, i + head_dim / 2) by position * frequency; all in float32, rounded once.

    Args:
        x: [tokens, heads, head_dim], the last dimension contiguous.
        positions: [tokens], or [number of axes, tokens] if `axes` is given; any real dtype.
        frequencies: [head_dim / 2] float32, radians per position.
        axes: [head_dim / 2] int64, the axis that each pair follows. Interleaved sections of pairs are one such table.

    Returns:
        Shape and dtype of `x`, contiguous.

    Raises:
        TypeError, ValueError: dtype or shape do not fit.
    """
    check_floating("x", x)
    check_dense_rows("x", x)
    if x.dim() != 3 or x.shape[-1] % 2:
        raise ValueError(f"x is {tuple(x.shape)}, not [tokens, heads, an even head_dim]")
    pairs = x.shape[-1] // 2
    check_shape("frequencies", frequencies, (pairs,))
    if frequencies.dtype != torch.float32:
        raise TypeError(f"frequencies are {frequencies.dtype}, not float32")
    if axes is None:
        check_shape("positions", positions, (x.shape[0],))
    else:
        check_shape("axes", axes, (pairs,))
        check_shape("positions", positions, (positions.shape[0], x.shape[0]))
    if uses_kernel("rotary", x):
        from omnistage_kernels.rotary import triton_impl

        return triton_impl.run(x, positions, frequencies, axes)
    return reference.rotary(x, positions, frequencies, axes)
