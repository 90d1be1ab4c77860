"""The talker: what its inputs are embedded as, and its decoder on the paged KV cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, silu

from omnistage.ar.attention import AttentionPlan, attend
from omnistage.ar.kv_cache import KVShape, PagedKVCache
from omnistage.ar.linear import make_product, padded
from omnistage.ar.qwen3.decoder import Decoder
from omnistage.ar.qwen3.rotary import plain
from omnistage.ar.qwen3.weights import Weights
from omnistage_talker.models.qwen3_tts.config import Qwen3TTSConfig
from omnistage_talker.models.qwen3_tts.predictor import CodePredictor

_PREFIX = "talker."


class Embeddings:
    """Everything that a position of the talker may hold, as rows of its width.

    Text goes through the projection; codec tokens, frames and speaker embeddings do not.
    """

    def __init__(self, config: Qwen3TTSConfig, weights: Weights, residual: tuple[Tensor, ...]) -> None:
        width, inner = config.talker.hidden_size, config.text_hidden_size
        self._codec = weights.take(f"{_PREFIX}model.codec_embedding.weight", (config.talker.vocab_size, width))
        self._residual = residual
        self._text = weights.take(f"{_PREFIX}model.text_embedding.weight", (config.text_vocab_size, inner))
        projection = f"{_PREFIX}text_projection.linear_fc"
        self._in = make_product(weights.take(f"{projection}1.weight", (inner, inner)))
        self._in_bias = weights.take(f"{projection}1.bias", (inner,))
        self._out = make_product(weights.take(f"{projection}2.weight", (width, inner)))
        self._out_bias = weights.take(f"{projection}2.bias", (width,))
        with torch.inference_mode():
            self.tts_bos, self.tts_eos, self.tts_pad = self.text(
                [config.text.tts_bos, config.text.tts_eos, config.text.tts_pad]
            )

    @property
    def device(self) -> torch.device:
        return self._codec.device

    @property
    def dtype(self) -> torch.dtype:
        return self._codec.dtype

    @property
    def width(self) -> int:
        return self._codec.shape[1]

    def text(self, ids: list[int]) -> Tensor:
        """[n, width] of text tokens; the same bits however they are cut into calls."""
        rows = padded(embedding(torch.tensor(ids, dtype=torch.int64, device=self.device), self._text))
        projected = self._out(silu(self._in(rows) + self._in_bias)) + self._out_bias
        return projected[: len(ids)]

    def codec(self, ids: Tensor) -> Tensor:
        """[n, width] of tokens of group 0 and special ones ([n] int64)."""
        return embedding(ids, self._codec)

    def frames(self, codes: Tensor) -> Tensor:
        """[n, width] of whole frames ([n, groups] int64): the sum over groups, added in their order."""
        total = embedding(codes[:, 0], self._codec)
        for group, table in enumerate(self._residual, start=1):
            total = total + embedding(codes[:, group], table)
        return total


@dataclass(frozen=True, slots=True)
class TalkerInputs:
    """Tensors of a step.

    Attributes:
        embeds: [tokens, width]; zero rows up to `linear.padded_length`.
        positions: [tokens] int64; padded likewise.
        emit: [emitting rows] index into the tokens; padded likewise.
        plan: for attention.
    """

    embeds: Tensor
    positions: Tensor
    emit: Tensor
    plan: AttentionPlan


class Talker:
    """A loaded checkpoint's talker with its code predictor.

    Args:
        config: of the checkpoint.
        weights: of the checkpoint.
        length: positions that are used, at most those that it was made for.
    """

    def __init__(self, config: Qwen3TTSConfig, weights: Weights, *, length: int) -> None:
        self.config = config
        with torch.inference_mode():
            self.predictor = CodePredictor(config, weights)
            self.embeddings = Embeddings(config, weights, self.predictor.tables)
            self._decoder = Decoder(config.talker, weights.take, f"{_PREFIX}model.", rotary=plain(length))
            size = (config.talker.vocab_size, config.talker.hidden_size)
            self._head = make_product(weights.take(f"{_PREFIX}codec_head.weight", size))

    def cache_shape(self, num_blocks: int, block_size: int) -> KVShape:
        """Sizes of a KV cache for this model."""
        config = self.config.talker
        return KVShape(config.num_layers, config.num_kv_heads, config.head_dim, num_blocks, block_size)

    def forward(self, inputs: TalkerInputs, cache: PagedKVCache) -> tuple[Tensor, Tensor]:
        """Write the step's KV into the cache.

        Returns:
            The emitting tokens' hidden states [emit, width] after the final norm, and their logits [emit, vocab]
            float32.
        """
        plan, scale = inputs.plan, self.config.talker.head_dim**-0.5
        real = plan.num_tokens

        def attention(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            cache.write(layer, plan.write, keys[:real], values[:real])
            return attend(queries, plan, cache, layer, scale=scale)

        hidden = self._decoder.forward(inputs.embeds, inputs.positions, attention)
        emitted = self._decoder.normed(hidden[inputs.emit])
        if not len(emitted):
            return emitted, emitted.new_empty(0, self.config.talker.vocab_size)
        return emitted, self._head(emitted).float()
