"""Rows of a text model's width to rows of the talker's."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import silu

from omnistage.ar.linear import make_product, padded
from omnistage.ar.qwen3.weights import WeightSource


class Projection:
    """Two layers with biases; loaded from the weights below a prefix."""

    def __init__(self, take: WeightSource, prefix: str, *, inputs: int, inner: int, outputs: int) -> None:
        self._in = make_product(take(f"{prefix}1.weight", (inner, inputs)))
        self._in_bias = take(f"{prefix}1.bias", (inner,))
        self._out = make_product(take(f"{prefix}2.weight", (outputs, inner)))
        self._out_bias = take(f"{prefix}2.bias", (outputs,))

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, inputs] -> [n, outputs]; the same bits however rows are cut into calls."""
        projected = self._out(silu(self._in(padded(rows)) + self._in_bias)) + self._out_bias
        return projected[: len(rows)]
