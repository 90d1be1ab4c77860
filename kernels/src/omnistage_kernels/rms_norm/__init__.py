"""RMSNorm (Zhang and Sennrich, "Root mean square layer normalization", 2019), alone or after adding a residual."""

from __future__ import annotations

import torch
from torch import Tensor

from omnistage_kernels._checks import check_dense_rows, check_floating, check_like, check_shape
from omnistage_kernels._dispatch import uses_kernel
from omnistage_kernels.rms_norm import reference

__all__ = ["MAX_WIDTH", "TOLERANCE", "add_rms_norm", "rms_norm"]

MAX_WIDTH = 16384
"""A row is held by one program."""
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """weight * x / sqrt(mean(x ** 2) + eps); mean and quotient in float32.

    Args:
        x: [..., width], the last dimension contiguous; three dimensions may have any strides.
        weight: [width], dtype of `x`.
        eps: added to the mean square.

    Returns:
        Shape and dtype of `x`, contiguous.

    Raises:
        TypeError, ValueError: dtype, device or shape do not fit.
    """
    _check(x, weight)
    if uses_kernel("rms_norm", x):
        from omnistage_kernels.rms_norm import triton_impl

        return triton_impl.run(x, None, weight, eps)[0]
    return reference.rms_norm(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`rms_norm` of x + residual, and that sum (in the dtype of `x`). Arguments and errors as there."""
    _check(x, weight)
    check_like("residual", residual, x)
    check_shape("residual", residual, tuple(x.shape))
    check_dense_rows("residual", residual)
    if uses_kernel("add_rms_norm", x):
        from omnistage_kernels.rms_norm import triton_impl

        return triton_impl.run(x, residual, weight, eps)
    return reference.add_rms_norm(x, residual, weight, eps)


def _check(x: Tensor, weight: Tensor) -> None:
    check_floating("x", x)
    check_like("weight", weight, x)
    check_shape("weight", weight, tuple(x.shape[-1:]))
    check_dense_rows("x", x)
    if not 1 <= x.shape[-1] <= MAX_WIDTH:
        raise ValueError(f"x is {x.shape[-1]} wide, not 1 to {MAX_WIDTH}")
