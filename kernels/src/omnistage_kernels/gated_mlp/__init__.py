"""The gated perceptron SwiGLU (Shazeer, "GLU variants improve transformer", 2020) for few rows."""

from __future__ import annotations

import torch
from torch import Tensor

from omnistage_kernels._checks import check_floating, check_like, check_shape
from omnistage_kernels._dispatch import uses_kernel
from omnistage_kernels.gated_mlp import reference

__all__ = ["MAX_ROWS", "TOLERANCE", "gated_mlp"]

MAX_ROWS = 256
"""Above it a general matrix product is faster."""
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def gated_mlp(x: Tensor, gate_up: Tensor, down: Tensor, residual: Tensor | None = None) -> Tensor:
    """down(silu(gate x) * up x), plus the residual if there is one.

    Args:
        x: [rows, hidden], at most `MAX_ROWS`, contiguous.
        gate_up: [2 * inner, hidden], the gate's rows first; inner and hidden are multiples of 64.
        down: [hidden, inner].
        residual: [rows, hidden].

    Returns:
        [rows, hidden], dtype of `x`.

    Raises:
        TypeError, ValueError: dtype, device or shape do not fit.
    """
    check_floating("x", x)
    if x.dim() != 2 or x.shape[0] > MAX_ROWS:
        raise ValueError(f"x is {tuple(x.shape)}, not [at most {MAX_ROWS} rows, hidden]")
    hidden, inner = down.shape
    check_shape("x", x, (x.shape[0], hidden))
    check_shape("gate_up", gate_up, (2 * inner, hidden))
    if inner % 64 or hidden % 64:
        raise ValueError(f"inner {inner} and hidden {hidden} must be multiples of 64")
    parts = {"x": x, "gate_up": gate_up, "down": down} | ({} if residual is None else {"residual": residual})
    for name, part in parts.items():
        check_like(name, part, x)
        if not part.is_contiguous():
            raise ValueError(f"{name} is not contiguous")
    if residual is not None:
        check_shape("residual", residual, tuple(x.shape))
    if uses_kernel("gated_mlp", x):
        from omnistage_kernels.gated_mlp import triton_impl

        return triton_impl.run(x, gate_up, down, residual)
    return reference.gated_mlp(x, gate_up, down, residual)
