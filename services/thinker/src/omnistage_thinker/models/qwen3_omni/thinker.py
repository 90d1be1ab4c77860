"""The thinker: its towers, and its decoder on the paged KV cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding

from omnistage.ar.attention import AttentionPlan, attend
from omnistage.ar.kv_cache import KVShape, PagedKVCache
from omnistage.ar.linear import make_product
from omnistage.ar.qwen3.decoder import Decoder
from omnistage.ar.qwen3.rotary import interleaved
from omnistage.ar.qwen3.weights import WeightSource
from omnistage_thinker.models.qwen3_omni.audio_tower import AudioTower
from omnistage_thinker.models.qwen3_omni.config import ThinkerConfig
from omnistage_thinker.models.qwen3_omni.vision_tower import VisionTower

PREFIX = "thinker."


@dataclass(frozen=True, slots=True)
class ThinkerInputs:
    """Tensors of a step.

    Attributes:
        embeds: [tokens, width]; zero rows up to `linear.padded_length`.
        positions: [3, tokens] float32; padded likewise.
        deep: what is added to the output of the first layers, [tokens, width] each; padded likewise.
        emit: [emitting rows] index into the tokens; padded likewise.
        plan: for attention.
    """

    embeds: Tensor
    positions: Tensor
    deep: tuple[Tensor, ...]
    emit: Tensor
    plan: AttentionPlan


@dataclass(frozen=True, slots=True)
class ThinkerOutputs:
    """What a step gives.

    Attributes:
        logits: [emit, vocab] float32.
        hidden: [emit, width] after the final norm.
        accepted: [tokens, width] of the layer that the talker takes; None where there is no talker.
    """

    logits: Tensor
    hidden: Tensor
    accepted: Tensor | None


class Thinker:
    """A loaded checkpoint's thinker.

    Args:
        config: of the checkpoint.
        take: gives its weights.
    """

    def __init__(self, config: ThinkerConfig, take: WeightSource) -> None:
        self.config = config
        text = config.text
        size = (text.vocab_size, text.hidden_size)
        with torch.inference_mode():
            self._embedding = take(f"{PREFIX}model.embed_tokens.weight", size)
            self._decoder = Decoder(text, take, f"{PREFIX}model.", rotary=interleaved)
            self._head = make_product(take(f"{PREFIX}lm_head.weight", size))
            self.audio_tower = AudioTower(config.audio, take, f"{PREFIX}audio_tower.")
            self.vision_tower = VisionTower(config.vision, take, f"{PREFIX}visual.")

    @property
    def device(self) -> torch.device:
        return self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    def embed(self, ids: Tensor) -> Tensor:
        """[n, width] of tokens ([n] int64)."""
        return embedding(ids, self._embedding)

    def cache_shape(self, num_blocks: int, block_size: int) -> KVShape:
        """Sizes of a KV cache for this model."""
        text = self.config.text
        return KVShape(text.num_layers, text.num_kv_heads, text.head_dim, num_blocks, block_size)

    def forward(self, inputs: ThinkerInputs, cache: PagedKVCache) -> ThinkerOutputs:
        """Write the step's KV into the cache, and compute."""
        plan, scale = inputs.plan, self.config.text.head_dim**-0.5
        real, accept = plan.num_tokens, self.config.accept_layer
        accepted: Tensor | None = None

        def attention(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            cache.write(layer, plan.write, keys[:real], values[:real])
            return attend(queries, plan, cache, layer, scale=scale)

        def between(layer: int, output: Tensor) -> Tensor:
            nonlocal accepted
            if layer < len(inputs.deep):
                output = output + inputs.deep[layer]
            if layer + 1 == accept:
                accepted = output[:real]
            return output

        hidden = self._decoder.forward(inputs.embeds, inputs.positions, attention, between=between)
        emitted = self._decoder.normed(hidden[inputs.emit])
        if not len(emitted):
            return ThinkerOutputs(emitted.new_empty(0, self.config.text.vocab_size), emitted, accepted)
        return ThinkerOutputs(self._head(emitted).float(), emitted, accepted)
