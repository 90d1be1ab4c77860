"""Layers of the decoder: causal convolutions up and down the time axis, and the activation between them.

Tensors are [batch, channels, time]. Weights have the checkpoint's shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from omnistage_codec.models.qwen3.history import History
from omnistage_codec.models.qwen3.weights import Weights

_SMALLEST_BETA = 1e-9
_NORM_EPS = 1e-6
_EXPANSION = 4
DEPTHWISE_KERNEL = 7
RESIDUAL_KERNEL = 7


@dataclass(frozen=True)
class CausalConv:
    """A convolution that sees the present column and those before it."""

    weight: Tensor
    bias: Tensor
    dilation: int = 1
    groups: int = 1

    @staticmethod
    def take(
        weights: Weights, inputs: int, outputs: int, kernel: int, *, dilation: int = 1, groups: int = 1
    ) -> CausalConv:
        conv = weights.below("conv")
        weight = conv.take("weight", outputs, inputs // groups, kernel)
        return CausalConv(weight, conv.take("bias", outputs), dilation, groups)

    def __call__(self, x: Tensor, history: History) -> Tensor:
        seen = history.join(x, (self.weight.shape[-1] - 1) * self.dilation)
        return functional.conv1d(seen, self.weight, self.bias, dilation=self.dilation, groups=self.groups)


@dataclass(frozen=True)
class CausalUpsampling:
    """A transposed convolution without look-ahead: `stride` columns out for each column in.

    An input column reaches `kernel` output columns from its own first one on, so each output needs the present input
    column and the `kernel / stride - 1` before it.
    """

    weight: Tensor
    bias: Tensor
    stride: int

    @staticmethod
    def take(weights: Weights, inputs: int, outputs: int, kernel: int, stride: int) -> CausalUpsampling:
        conv = weights.below("conv")
        return CausalUpsampling(conv.take("weight", inputs, outputs, kernel), conv.take("bias", outputs), stride)

    def __call__(self, x: Tensor, history: History) -> Tensor:
        width = self.weight.shape[-1] // self.stride - 1
        grown = functional.conv_transpose1d(history.join(x, width), self.weight, self.bias, stride=self.stride)
        return grown.narrow(-1, width * self.stride, x.shape[-1] * self.stride)


@dataclass(frozen=True)
class Snake:
    """x + sin(e^alpha x)^2 / e^beta, per channel."""

    frequency: Tensor
    strength: Tensor

    @staticmethod
    def take(weights: Weights, channels: int) -> Snake:
        # In float32 first: exponentials leave float16's range early, and the smallest beta is 0 there.
        alpha, beta = (weights.take(name, channels, dtype=torch.float32) for name in ("alpha", "beta"))
        frequency, strength = torch.exp(alpha), 1.0 / (torch.exp(beta) + _SMALLEST_BETA)
        return Snake(*(factor[:, None].to(weights.placement.dtype) for factor in (frequency, strength)))

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.strength * torch.sin(x * self.frequency).square()


@dataclass(frozen=True)
class ConvNext:
    """Depthwise causal convolution, norm over channels, and a two-layer perceptron per column, scaled and added."""

    depthwise: CausalConv
    norm_weight: Tensor
    norm_bias: Tensor
    up_weight: Tensor
    up_bias: Tensor
    down_weight: Tensor
    down_bias: Tensor
    gamma: Tensor

    @staticmethod
    def take(weights: Weights, channels: int) -> ConvNext:
        wide = channels * _EXPANSION
        return ConvNext(
            depthwise=CausalConv.take(weights.below("dwconv"), channels, channels, DEPTHWISE_KERNEL, groups=channels),
            norm_weight=weights.take("norm.weight", channels),
            norm_bias=weights.take("norm.bias", channels),
            up_weight=weights.take("pwconv1.weight", wide, channels),
            up_bias=weights.take("pwconv1.bias", wide),
            down_weight=weights.take("pwconv2.weight", channels, wide),
            down_bias=weights.take("pwconv2.bias", channels),
            gamma=weights.take("gamma", channels),
        )

    def __call__(self, x: Tensor, history: History) -> Tensor:
        y = self.depthwise(x, history).transpose(1, 2)
        y = functional.layer_norm(y, (y.shape[-1],), self.norm_weight, self.norm_bias, _NORM_EPS)
        y = functional.linear(
            functional.gelu(functional.linear(y, self.up_weight, self.up_bias)), self.down_weight, self.down_bias
        )
        return x + (self.gamma * y).transpose(1, 2)


@dataclass(frozen=True)
class ResidualUnit:
    """Two activated convolutions, the first of them dilated, added to their input."""

    first_activation: Snake
    dilated: CausalConv
    second_activation: Snake
    pointwise: CausalConv

    @staticmethod
    def take(weights: Weights, channels: int, dilation: int) -> ResidualUnit:
        return ResidualUnit(
            Snake.take(weights.below("act1"), channels),
            CausalConv.take(weights.below("conv1"), channels, channels, RESIDUAL_KERNEL, dilation=dilation),
            Snake.take(weights.below("act2"), channels),
            CausalConv.take(weights.below("conv2"), channels, channels, 1),
        )

    def __call__(self, x: Tensor, history: History) -> Tensor:
        y = self.dilated(self.first_activation(x), history)
        return x + self.pointwise(self.second_activation(y), history)
