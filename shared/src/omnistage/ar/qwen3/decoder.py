"""The Qwen3 decoder (Qwen Team, "Qwen3 technical report", 2025): RMSNorm, grouped-query attention with normed queries
and keys, rotary positions, SwiGLU or experts of that form. Where keys and values are kept is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from omnistage.ar.linear import Product, make_product
from omnistage.ar.qwen3.config import DecoderConfig
from omnistage.ar.qwen3.perceptron import Experts, Perceptron
from omnistage.ar.qwen3.rotary import RotaryMaker, rotate
from omnistage.ar.qwen3.weights import WeightSource

Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries [tokens, heads, head_dim], keys and values [tokens, kv_heads, head_dim], turned already) ->
[tokens, heads * head_dim]; stores the keys and values."""


Between = Callable[[int, Tensor], Tensor]
"""(layer, its output [tokens, hidden_size]) -> the next layer's input."""


@dataclass(slots=True)
class _Layer:
    input_norm: Tensor
    qkv: Product
    query_norm: Tensor
    key_norm: Tensor
    out: Product
    mlp_norm: Tensor
    perceptron: Perceptron | Experts


class Decoder:
    """The layers and the final norm.

    Args:
        config: sizes.
        take: gives the weights.
        prefix: of their names.
        rotary: what positions are: `rotary.plain`, `rotary.interleaved`.
    """

    def __init__(self, config: DecoderConfig, take: WeightSource, prefix: str, *, rotary: RotaryMaker) -> None:
        self.config = config
        self._layers = [
            _load_layer(config, take, f"{prefix}layers.{index}.", index) for index in range(config.num_layers)
        ]
        self._norm = take(f"{prefix}norm.weight", (config.hidden_size,))
        self._rotary = rotary(config, self._norm)

    def forward(
        self, hidden: Tensor, positions: Tensor, attention: Attention, *, between: Between | None = None
    ) -> Tensor:
        """Run all layers.

        Args:
            hidden: [tokens, hidden_size] embeddings.
            positions: of the tokens, as the rotary takes them.
            attention: see there.
            between: sees each layer's output, and may change it.

        Returns:
            [tokens, hidden_size], before the final norm.
        """
        config = self.config
        heads, kv_heads, eps = config.num_heads, config.num_kv_heads, config.norm_eps
        cos, sin = self._rotary(positions)
        for index, layer in enumerate(self._layers):
            mixed = layer.qkv(rms_norm(hidden, layer.input_norm, eps))
            mixed = mixed.view(hidden.shape[0], heads + 2 * kv_heads, config.head_dim)
            queries = rotate(rms_norm(mixed[:, :heads], layer.query_norm, eps), cos, sin)
            keys = rotate(rms_norm(mixed[:, heads : heads + kv_heads], layer.key_norm, eps), cos, sin)
            hidden = hidden + layer.out(attention(index, queries, keys, mixed[:, heads + kv_heads :]))
            hidden = hidden + layer.perceptron(rms_norm(hidden, layer.mlp_norm, eps))
            if between is not None:
                hidden = between(index, hidden)
        return hidden

    def normed(self, hidden: Tensor) -> Tensor:
        """The final norm."""
        return rms_norm(hidden, self._norm, self.config.norm_eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Zhang and Sennrich, "Root mean square layer normalization", 2019; in float32 whatever the dtype."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)


def _load_layer(config: DecoderConfig, take: WeightSource, prefix: str, index: int) -> _Layer:
    hidden, head_dim = config.hidden_size, config.head_dim
    wide, narrow = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def weight(name: str, *shape: int) -> Tensor:
        return take(f"{prefix}{name}.weight", shape)

    queries = weight("self_attn.q_proj", wide, hidden)
    keys, values = (weight(f"self_attn.{name}_proj", narrow, hidden) for name in "kv")
    perceptron: Perceptron | Experts
    if config.experts is not None and index not in config.experts.dense_layers:
        perceptron = Experts(config.experts, hidden, take, f"{prefix}mlp.")
    else:
        perceptron = Perceptron(hidden, config.intermediate_size, take, f"{prefix}mlp.")
    return _Layer(
        input_norm=weight("input_layernorm", hidden),
        qkv=make_product(torch.cat((queries, keys, values))),
        query_norm=weight("self_attn.q_norm", head_dim),
        key_norm=weight("self_attn.k_norm", head_dim),
        out=make_product(weight("self_attn.o_proj", hidden, wide)),
        mlp_norm=weight("post_attention_layernorm", hidden),
        perceptron=perceptron,
    )
