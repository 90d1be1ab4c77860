"""code2wav: codes at 12.5 frames a second to 24 kHz.

The mean of the groups' embeddings -> transformer over a window of frames -> the network that makes samples, whose
stages look ahead: T frames make 1920 T - 555 samples, and what the last 555 would be is never made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omnistage_codec.models.qwen3.history import History
from omnistage_codec.models.qwen3.transformer import AttentionShape, WindowedLayers
from omnistage_codec.models.qwen3.voice import Voice, VoiceShape
from omnistage_codec.models.qwen3.weights import Weights
from omnistage_codec.models.qwen3_omni.config import Code2WavConfig


@dataclass(frozen=True)
class Decoder:
    """The whole network; implements `Network`.

    Attributes:
        embedding: [groups * codebook_size, hidden_size], group by group.
        offsets: [groups] int64, the first row of each group.
        voice_memory_frames: how many frames back the second part sees, rounded up.
    """

    embedding: Tensor
    offsets: Tensor
    layers: WindowedLayers
    waves: Voice
    voice_memory_frames: int

    @staticmethod
    def take(weights: Weights, config: Code2WavConfig) -> Decoder:
        """Build it from the weights below "code2wav". Raises ConfigError where they do not fit the config."""
        width, entries, groups = config.hidden_size, config.codebook_size, config.num_quantizers
        attention = AttentionShape(
            width=width,
            heads=config.num_attention_heads,
            key_heads=config.num_key_value_heads,
            head_dim=config.head_width,
            window=config.sliding_window,
            rope_theta=config.rope_theta,
        )
        shape = VoiceShape(
            latent_width=width,
            width=config.decoder_dim,
            latent_ratios=config.upsampling_ratios,
            rates=config.upsample_rates,
            cut_first=True,
        )
        embedding = weights.take("code_embedding.weight", groups * entries, width)
        return Decoder(
            embedding=embedding,
            offsets=torch.arange(groups, device=embedding.device) * entries,
            layers=WindowedLayers.take(
                weights.below("pre_transformer"),
                attention,
                config.num_hidden_layers,
                config.intermediate_size,
                config.rms_norm_eps,
            ),
            waves=Voice.take(weights, shape),
            voice_memory_frames=shape.memory_frames,
        )

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def lag_samples(self) -> int:
        """Samples that the last frame of a stream leaves open."""
        shape = self.waves.shape
        return shape.lead(len(shape.rates))

    def latents(self, codes: Tensor, first_positions: Tensor, history: History) -> Tensor:
        """See `Network.latents`."""
        x = self.embedding[codes + self.offsets].mean(dim=2)
        return self.layers(x, first_positions, history).transpose(1, 2)

    def voice(self, latents: Tensor, starts: Sequence[int], history: History) -> Tensor:
        """See `Network.voice`."""
        return self.waves(latents, starts, history)
