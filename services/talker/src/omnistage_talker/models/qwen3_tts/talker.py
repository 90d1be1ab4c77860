"""The talker: what its text is embedded as, and its decoder."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding

from omnistage.ar.linear import padded
from omnistage.ar.qwen3.rotary import plain
from omnistage.ar.qwen3.weights import Weights
from omnistage_talker.models.qwen3.embeddings import PREFIX, CodecEmbeddings
from omnistage_talker.models.qwen3.projection import Projection
from omnistage_talker.models.qwen3.talker import FrameTalker
from omnistage_talker.models.qwen3_tts.config import Qwen3TTSConfig


class Embeddings:
    """Everything that a position of the talker may hold, as rows of its width.

    Text goes through the projection; codec tokens, frames and speaker embeddings do not.
    """

    def __init__(self, config: Qwen3TTSConfig, weights: Weights, codec: CodecEmbeddings) -> None:
        width, inner = config.talker.hidden_size, config.text_hidden_size
        self.codec = codec.codec
        self.frames = codec.frames
        self.device, self.dtype, self.width = codec.device, codec.dtype, codec.width
        self._text = weights.take(f"{PREFIX}model.text_embedding.weight", (config.text_vocab_size, inner))
        self._project = Projection(
            weights.take, f"{PREFIX}text_projection.linear_fc", inputs=inner, inner=inner, outputs=width
        )
        with torch.inference_mode():
            self.tts_bos, self.tts_eos, self.tts_pad = self.text(
                [config.text.tts_bos, config.text.tts_eos, config.text.tts_pad]
            )

    def text(self, ids: list[int]) -> Tensor:
        """[n, width] of text tokens; the same bits however they are cut into calls."""
        rows = padded(embedding(torch.tensor(ids, dtype=torch.int64, device=self.device), self._text))
        return self._project(rows)[: len(ids)]


class Talker(FrameTalker):
    """A loaded checkpoint's talker with its code predictor.

    The multimodal rotary positions have three rows, which are equal for speech: each pair of channels then turns by the
    angle of plain rotary positions, whichever row it is assigned to.

    Args:
        config: of the checkpoint.
        weights: of the checkpoint.
        length: positions that are used, at most those that it was made for.
    """

    def __init__(self, config: Qwen3TTSConfig, weights: Weights, *, length: int) -> None:
        super().__init__(config.frames, weights.take, rotary=plain(length), axes=1)
        self.config = config
        with torch.inference_mode():
            self.embeddings = Embeddings(config, weights, self.codec_embeddings)
