"""The gated perceptron in plain PyTorch."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear, silu


def gated_mlp(x: Tensor, gate_up: Tensor, down: Tensor, residual: Tensor | None = None) -> Tensor:
    """See the package."""
    gate, up = linear(x, gate_up).chunk(2, dim=-1)
    out = linear(silu(gate) * up, down)
    return out if residual is None else residual + out
