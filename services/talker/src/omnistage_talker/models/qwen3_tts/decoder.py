"""The Qwen3 decoder (Qwen Team, "Qwen3 technical report", 2025): RMSNorm, grouped-query attention with normed queries
and keys, rotary positions, SwiGLU. Where keys and values are kept is the caller's business.

The talker's multimodal rotary positions have three rows, which are equal for speech: each pair of channels then turns
by the angle of plain rotary positions, whichever row it is assigned to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad, silu

from omnistage.ar.linear import MIN_ROWS, Product, make_product
from omnistage_talker.models.qwen3_tts.config import DecoderConfig
from omnistage_talker.models.qwen3_tts.weights import WeightSource

Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries [tokens, heads, head_dim], keys and values [tokens, kv_heads, head_dim], turned already) ->
[tokens, heads * head_dim]; stores the keys and values."""


@dataclass(slots=True)
class _Layer:
    input_norm: Tensor
    qkv: Product
    query_norm: Tensor
    key_norm: Tensor
    out: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product


class Decoder:
    """The layers and the final norm.

    Args:
        config: sizes.
        take: gives the weights.
        prefix: of their names.
        length: positions that are used.
    """

    def __init__(self, config: DecoderConfig, take: WeightSource, prefix: str, *, length: int) -> None:
        self.config = config
        self._layers = [_load_layer(config, take, f"{prefix}layers.{index}.") for index in range(config.num_layers)]
        self._norm = take(f"{prefix}norm.weight", (config.hidden_size,))
        self._cos, self._sin = _rotary_table(config, length, self._norm)

    def forward(self, hidden: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Run all layers.

        Args:
            hidden: [tokens, hidden_size] embeddings.
            positions: [tokens] int64.
            attention: see there.

        Returns:
            [tokens, hidden_size], before the final norm.
        """
        config = self.config
        heads, kv_heads, eps = config.num_heads, config.num_kv_heads, config.norm_eps
        cos, sin = self._cos[positions], self._sin[positions]
        for index, layer in enumerate(self._layers):
            mixed = layer.qkv(rms_norm(hidden, layer.input_norm, eps))
            mixed = mixed.view(hidden.shape[0], heads + 2 * kv_heads, config.head_dim)
            queries = _rotate(rms_norm(mixed[:, :heads], layer.query_norm, eps), cos, sin)
            keys = _rotate(rms_norm(mixed[:, heads : heads + kv_heads], layer.key_norm, eps), cos, sin)
            hidden = hidden + layer.out(attention(index, queries, keys, mixed[:, heads + kv_heads :]))
            gate, up = layer.gate_up(rms_norm(hidden, layer.mlp_norm, eps)).chunk(2, dim=-1)
            hidden = hidden + layer.down(silu(gate) * up)
        return hidden

    def normed(self, hidden: Tensor) -> Tensor:
        """The final norm."""
        return rms_norm(hidden, self._norm, self.config.norm_eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Zhang and Sennrich, "Root mean square layer normalization", 2019; in float32 whatever the dtype."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)


def padded(x: Tensor) -> Tensor:
    """Zero rows below x ([rows, width]) up to `padded_length`: a row's results then do not depend on the others."""
    missing = padded_length(x.shape[0]) - x.shape[0]
    return pad(x, (0, 0, 0, missing)) if missing else x


def padded_length(rows: int) -> int:
    """The next multiple of `MIN_ROWS`, which is what products need (`omnistage.ar.linear`).

    A multiple, since elementwise functions on a CPU go by 32 numbers at a time and compute the last few, of the last
    row, in another way; widths are multiples of 8, so there are no last few.
    """
    return max(1, -(-rows // MIN_ROWS)) * MIN_ROWS


def _load_layer(config: DecoderConfig, take: WeightSource, prefix: str) -> _Layer:
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    wide, narrow = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def weight(name: str, *shape: int) -> Tensor:
        return take(f"{prefix}{name}.weight", shape)

    queries = weight("self_attn.q_proj", wide, hidden)
    keys, values = (weight(f"self_attn.{name}_proj", narrow, hidden) for name in "kv")
    return _Layer(
        input_norm=weight("input_layernorm", hidden),
        qkv=make_product(torch.cat((queries, keys, values))),
        query_norm=weight("self_attn.q_norm", head_dim),
        key_norm=weight("self_attn.k_norm", head_dim),
        out=make_product(weight("self_attn.o_proj", hidden, wide)),
        mlp_norm=weight("post_attention_layernorm", hidden),
        gate_up=make_product(torch.cat([weight(f"mlp.{name}_proj", inner, hidden) for name in ("gate", "up")])),
        down=make_product(weight("mlp.down_proj", hidden, inner)),
    )


def _rotary_table(config: DecoderConfig, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, 1, head_dim / 2] (Su et al., "RoFormer", 2021)."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies[None, :]
    cos, sin = (function(angles)[:, None, :].to(like) for function in (torch.cos, torch.sin))
    return cos, sin


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (i, i + head_dim / 2) of [tokens, heads, head_dim] by the angles of their positions."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
