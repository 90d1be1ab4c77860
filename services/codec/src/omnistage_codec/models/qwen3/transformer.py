"""Causal transformers whose queries see a fixed number of positions, themselves included.

Both of the codec's are pre-norm with scaled branches; the decoder's has RMS norms and a gated perceptron, the
encoder's has layer norms and a plain one. Tensors are [batch, time, width].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from omnistage_codec.models.qwen3.history import History
from omnistage_codec.models.qwen3.weights import Weights


class Branch(Protocol):
    """A norm or a perceptron: column by column."""

    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class RmsNorm:
    """x / sqrt(mean(x^2) + eps), weighted; computed in float32."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)


@dataclass(frozen=True)
class LayerNorm:
    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (x.shape[-1],), self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class GatedPerceptron:
    """down(silu(gate x) * up x)."""

    gate: Tensor
    up: Tensor
    down: Tensor

    @staticmethod
    def take(weights: Weights, width: int, inner: int) -> GatedPerceptron:
        return GatedPerceptron(
            weights.take("gate_proj.weight", inner, width),
            weights.take("up_proj.weight", inner, width),
            weights.take("down_proj.weight", width, inner),
        )

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(
            functional.silu(functional.linear(x, self.gate)) * functional.linear(x, self.up), self.down
        )


@dataclass(frozen=True)
class Perceptron:
    """down(gelu(up x))."""

    up: Tensor
    down: Tensor

    @staticmethod
    def take(weights: Weights, width: int, inner: int) -> Perceptron:
        return Perceptron(weights.take("fc1.weight", inner, width), weights.take("fc2.weight", width, inner))

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(functional.gelu(functional.linear(x, self.up)), self.down)


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """Sizes of an attention layer.

    Attributes:
        width: columns of the stream.
        heads, key_heads: query heads, and key and value heads (a divisor).
        head_dim: width of a head.
        window: positions that a query sees, itself included.
        rope_theta: base of the rotary frequencies.
    """

    width: int
    heads: int
    key_heads: int
    head_dim: int
    window: int
    rope_theta: float


@dataclass(frozen=True)
class View:
    """What depends on positions alone, shared by all layers of a pass.

    Attributes:
        cosines, sines: [batch, 1, time, head_dim] of the rotation at each position.
        visible: [batch, 1, time, window - 1 + time] which of the joined keys a query sees.
    """

    cosines: Tensor
    sines: Tensor
    visible: Tensor


def view(shape: AttentionShape, first_positions: Tensor, time: int, dtype: torch.dtype) -> View:
    """The view of rows whose first columns stand at the given positions ([batch] int64)."""
    device = first_positions.device
    steps = torch.arange(time, device=device)
    half = torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float32) / shape.head_dim
    angles = (first_positions[:, None] + steps).float()[..., None] / (shape.rope_theta**half)
    doubled = torch.cat((angles, angles), dim=-1)[:, None]
    earlier = shape.window - 1
    keys = torch.arange(earlier + time, device=device)
    in_window = (keys >= steps[:, None]) & (keys <= steps[:, None] + earlier)
    exists = keys >= (earlier - first_positions)[:, None]
    return View(doubled.cos().to(dtype), doubled.sin().to(dtype), (in_window & exists[:, None])[:, None])


def _rotated(x: Tensor, here: View) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * here.cosines + torch.cat((-right, left), dim=-1) * here.sines


@dataclass(frozen=True)
class Attention:
    """Rotary attention over a sliding window; keys and values of the window are what a stream remembers."""

    shape: AttentionShape
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor

    @staticmethod
    def take(weights: Weights, shape: AttentionShape) -> Attention:
        inner, key_inner = shape.heads * shape.head_dim, shape.key_heads * shape.head_dim
        return Attention(
            shape,
            weights.take("q_proj.weight", inner, shape.width),
            weights.take("k_proj.weight", key_inner, shape.width),
            weights.take("v_proj.weight", key_inner, shape.width),
            weights.take("o_proj.weight", shape.width, inner),
        )

    def __call__(self, x: Tensor, here: View, history: History) -> Tensor:
        earlier = self.shape.window - 1
        query = _rotated(self._heads(x, self.query), here)
        key = history.join(_rotated(self._heads(x, self.key), here), earlier, axis=-2)
        value = history.join(self._heads(x, self.value), earlier, axis=-2)
        groups = self.shape.heads // self.shape.key_heads
        if groups > 1:
            key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=here.visible)
        return functional.linear(mixed.transpose(1, 2).flatten(2), self.output)

    def _heads(self, x: Tensor, weight: Tensor) -> Tensor:
        batch, time, _ = x.shape
        return functional.linear(x, weight).view(batch, time, -1, self.shape.head_dim).transpose(1, 2)


@dataclass(frozen=True)
class Layer:
    """Attention and perceptron, each normed before, scaled after, and added."""

    attention_norm: Branch
    attention: Attention
    attention_scale: Tensor
    perceptron_norm: Branch
    perceptron: Branch
    perceptron_scale: Tensor

    def __call__(self, x: Tensor, here: View, history: History) -> Tensor:
        x = x + self.attention_scale * self.attention(self.attention_norm(x), here, history)
        return x + self.perceptron_scale * self.perceptron(self.perceptron_norm(x))


def take_gated_layer(weights: Weights, shape: AttentionShape, inner: int, eps: float) -> Layer:
    """A layer of the decoder."""
    return Layer(
        attention_norm=RmsNorm(weights.take("input_layernorm.weight", shape.width), eps),
        attention=Attention.take(weights.below("self_attn"), shape),
        attention_scale=weights.take("self_attn_layer_scale.scale", shape.width),
        perceptron_norm=RmsNorm(weights.take("post_attention_layernorm.weight", shape.width), eps),
        perceptron=GatedPerceptron.take(weights.below("mlp"), shape.width, inner),
        perceptron_scale=weights.take("mlp_layer_scale.scale", shape.width),
    )


def take_plain_layer(weights: Weights, shape: AttentionShape, inner: int, eps: float) -> Layer:
    """A layer of the encoder."""

    def norm(name: str) -> LayerNorm:
        return LayerNorm(weights.take(f"{name}.weight", shape.width), weights.take(f"{name}.bias", shape.width), eps)

    return Layer(
        attention_norm=norm("input_layernorm"),
        attention=Attention.take(weights.below("self_attn"), shape),
        attention_scale=weights.take("self_attn_layer_scale.scale", shape.width),
        perceptron_norm=norm("post_attention_layernorm"),
        perceptron=Perceptron.take(weights.below("mlp"), shape.width, inner),
        perceptron_scale=weights.take("mlp_layer_scale.scale", shape.width),
    )


@dataclass(frozen=True)
class WindowedLayers:
    """Gated layers and a norm: the decoders' transformer over frames."""

    shape: AttentionShape
    layers: tuple[Layer, ...]
    norm: RmsNorm

    @staticmethod
    def take(weights: Weights, shape: AttentionShape, count: int, inner: int, eps: float) -> WindowedLayers:
        return WindowedLayers(
            shape=shape,
            layers=tuple(
                take_gated_layer(weights.below(f"layers.{index}"), shape, inner, eps) for index in range(count)
            ),
            norm=RmsNorm(weights.take("norm.weight", shape.width), eps),
        )

    def __call__(self, x: Tensor, first_positions: Tensor, history: History) -> Tensor:
        """[batch, time, width], rows' first columns at the given positions ([batch] int64)."""
        here = view(self.shape, first_positions, x.shape[1], x.dtype)
        for layer in self.layers:
            x = layer(x, here, history)
        return self.norm(x)
