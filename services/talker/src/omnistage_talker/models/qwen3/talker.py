"""A talker's decoder on the paged KV cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from omnistage.ar.attention import AttentionPlan, attend
from omnistage.ar.kv_cache import KVShape, PagedKVCache
from omnistage.ar.linear import make_product
from omnistage.ar.qwen3.decoder import Decoder
from omnistage.ar.qwen3.rotary import RotaryMaker
from omnistage.ar.qwen3.weights import WeightSource
from omnistage_talker.models.qwen3.config import FrameConfig
from omnistage_talker.models.qwen3.embeddings import PREFIX, CodecEmbeddings
from omnistage_talker.models.qwen3.predictor import CodePredictor


@dataclass(frozen=True, slots=True)
class TalkerInputs:
    """Tensors of a step.

    Attributes:
        embeds: [tokens, width]; zero rows up to `linear.padded_length`.
        positions: as the rotary takes them; padded likewise.
        emit: [emitting rows] index into the tokens; padded likewise.
        plan: for attention.
    """

    embeds: Tensor
    positions: Tensor
    emit: Tensor
    plan: AttentionPlan


class FrameTalker:
    """A loaded checkpoint's talker with its code predictor.

    Args:
        frames: sizes.
        take: gives the weights.
        rotary: what positions are.
        axes: of a position: 1, or 3 for time, height and width.

    Attributes:
        codec_embeddings: what frames are embedded as.
        predictor: the code predictor.
    """

    def __init__(self, frames: FrameConfig, take: WeightSource, *, rotary: RotaryMaker, axes: int) -> None:
        self.frames = frames
        self.axes = axes
        with torch.inference_mode():
            self.predictor = CodePredictor(frames, take)
            self.codec_embeddings = CodecEmbeddings(frames, take, self.predictor.tables)
            self._decoder = Decoder(frames.talker, take, f"{PREFIX}model.", rotary=rotary)
            size = (frames.talker.vocab_size, frames.talker.hidden_size)
            self._head = make_product(take(f"{PREFIX}codec_head.weight", size))

    def cache_shape(self, num_blocks: int, block_size: int) -> KVShape:
        """Sizes of a KV cache for this model."""
        config = self.frames.talker
        return KVShape(config.num_layers, config.num_kv_heads, config.head_dim, num_blocks, block_size)

    def forward(self, inputs: TalkerInputs, cache: PagedKVCache) -> tuple[Tensor, Tensor]:
        """Write the step's KV into the cache.

        Returns:
            The emitting tokens' hidden states [emit, width] after the final norm, and their logits [emit, vocab]
            float32.
        """
        plan, scale = inputs.plan, self.frames.talker.head_dim**-0.5
        real = plan.num_tokens

        def attention(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            cache.write(layer, plan.write, keys[:real], values[:real])
            return attend(queries, plan, cache, layer, scale=scale)

        hidden = self._decoder.forward(inputs.embeds, inputs.positions, attention)
        emitted = self._decoder.normed(hidden[inputs.emit])
        if not len(emitted):
            return emitted, emitted.new_empty(0, self.frames.talker.vocab_size)
        return emitted, self._head(emitted).float()
