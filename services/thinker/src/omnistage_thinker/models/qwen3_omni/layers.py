"""Layers of the towers: affine maps, layer norms, and attention within segments, over [rows, width]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear, scaled_dot_product_attention

from omnistage.ar.qwen3.weights import WeightSource


@dataclass(frozen=True, slots=True)
class Affine:
    """weight x + bias."""

    weight: Tensor
    bias: Tensor

    @staticmethod
    def take(take: WeightSource, name: str, outputs: int, inputs: int) -> Affine:
        return Affine(take(f"{name}.weight", (outputs, inputs)), take(f"{name}.bias", (outputs,)))

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Ba et al., "Layer normalization", 2016."""

    weight: Tensor
    bias: Tensor
    eps: float

    @staticmethod
    def take(take: WeightSource, name: str, width: int, eps: float) -> LayerNorm:
        return LayerNorm(take(f"{name}.weight", (width,)), take(f"{name}.bias", (width,)), eps)

    def __call__(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def attend_within(queries: Tensor, keys: Tensor, values: Tensor, lengths: Sequence[int]) -> Tensor:
    """Every row attends to all rows of its own segment.

    Args:
        queries, keys, values: [rows, heads, head_dim].
        lengths: rows of each segment, in order.

    Returns:
        [rows, heads * head_dim].
    """
    parts = [
        scaled_dot_product_attention(*(x.transpose(0, 1) for x in segment)).transpose(0, 1).flatten(1)
        for segment in zip(*(torch.split(x, list(lengths)) for x in (queries, keys, values)), strict=True)
    ]
    return torch.cat(parts)
