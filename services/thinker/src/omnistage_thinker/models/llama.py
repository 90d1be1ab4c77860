"""The Llama architecture (Touvron et al., 2023) on the paged KV cache: RMSNorm, rotary positions, grouped-query
attention, SwiGLU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, silu

from omnistage.ar.attention import attend
from omnistage.ar.kv_cache import KVShape, PagedKVCache
from omnistage.ar.linear import Product, make_product
from omnistage.ar.runner import SamplingRunner, StepInputs
from omnistage_thinker.models.base import Prepared, as_it_is


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes and constants of a checkpoint."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_length: int
    rope_theta: float
    norm_eps: float


@dataclass(slots=True)
class _Layer:
    input_norm: Tensor
    qkv: Product
    out: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product


WeightSource = Callable[[str], Tensor]
"""Gives a weight by its name in Hugging Face's LlamaForCausalLM, as float32. Each is asked for once."""


class LlamaModel:
    """A decoder over token ids; see `LogitsModel` and `TextModel`.

    Args:
        config: sizes.
        weight: where the weights come from.
        tied: whether the output product uses the token embeddings.
        device: where to compute.
        dtype: of weights and computation. float32 gives the numbers of the reference.
    """

    def __init__(
        self,
        config: LlamaConfig,
        weight: WeightSource,
        *,
        tied: bool,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config = config
        self.num_heads = config.num_heads
        self.max_length = config.max_length

        def load(name: str) -> Tensor:
            return weight(name).to(device=device, dtype=dtype)

        with torch.inference_mode():
            self._embedding = load("model.embed_tokens.weight")
            self._head = make_product(self._embedding if tied else load("lm_head.weight"))
            self._norm = load("model.norm.weight")
            self._layers = [_load_layer(f"model.layers.{index}.", load) for index in range(config.num_layers)]
            self._cos, self._sin = _rotary_table(config, device, dtype)

    word_rows = None

    def make_runner(self, num_blocks: int, block_tokens: int, *, batch_invariant: bool) -> SamplingRunner:
        """See `TextModel.make_runner`."""
        shape, like = self.cache_shape(num_blocks, block_tokens), self._embedding
        cache = PagedKVCache(shape, dtype=like.dtype, device=str(like.device))
        return SamplingRunner(self, cache, batch_invariant=batch_invariant)

    def prepare(self, ids: Sequence[int]) -> Prepared:
        """See `TextModel.prepare`."""
        return Prepared(tokens=tuple(ids), payload=as_it_is)

    def cache_shape(self, num_blocks: int, block_size: int) -> KVShape:
        """See `LogitsModel.cache_shape`."""
        config = self.config
        return KVShape(config.num_layers, config.num_kv_heads, config.head_dim, num_blocks, block_size)

    def forward(self, inputs: StepInputs, cache: PagedKVCache) -> Tensor:
        """See `LogitsModel.forward`."""
        config = self.config
        tokens = inputs.token_ids.shape[0]
        real = inputs.plan.num_tokens
        cos, sin = self._cos[inputs.positions], self._sin[inputs.positions]
        heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
        scale = width**-0.5
        hidden = embedding(inputs.token_ids, self._embedding)
        for index, layer in enumerate(self._layers):
            mixed = layer.qkv(_rms_norm(hidden, layer.input_norm, config.norm_eps))
            mixed = mixed.view(tokens, heads + 2 * kv_heads, width)
            turned = _rotate(mixed[:, : heads + kv_heads], cos, sin)
            cache.write(index, inputs.plan.write, turned[:real, heads:], mixed[:real, heads + kv_heads :])
            attended = attend(turned[:, :heads], inputs.plan, cache, index, scale=scale)
            hidden = hidden + layer.out(attended)
            gate, up = layer.gate_up(_rms_norm(hidden, layer.mlp_norm, config.norm_eps)).chunk(2, dim=-1)
            hidden = hidden + layer.down(silu(gate) * up)
        if not inputs.emit.shape[0]:
            return hidden.new_empty(0, config.vocab_size)
        last = _rms_norm(hidden[inputs.emit], self._norm, config.norm_eps)
        return self._head(last).float()


def _load_layer(prefix: str, load: WeightSource) -> _Layer:
    def joined(*names: str) -> Product:
        return make_product(torch.cat([load(f"{prefix}{name}.weight") for name in names]))

    return _Layer(
        input_norm=load(f"{prefix}input_layernorm.weight"),
        qkv=joined("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        out=joined("self_attn.o_proj"),
        mlp_norm=load(f"{prefix}post_attention_layernorm.weight"),
        gate_up=joined("mlp.gate_proj", "mlp.up_proj"),
        down=joined("mlp.down_proj"),
    )


def _rotary_table(config: LlamaConfig, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, 1, head_dim / 2] (Su et al., "RoFormer", 2021)."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    angles = torch.arange(config.max_length, dtype=torch.float32)[:, None] * frequencies[None, :]
    return tuple(f(angles)[:, None, :].to(device=device, dtype=dtype) for f in (torch.cos, torch.sin))  # type: ignore[return-value]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (i, i + head_dim / 2) of [tokens, heads, head_dim] by the angles of their positions."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Zhang and Sennrich, "Root mean square layer normalization", 2019; in float32 whatever the dtype."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)
