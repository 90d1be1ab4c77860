"""The decoder: codes at 12.5 frames a second to 24 kHz, 1920 samples a frame, without look-ahead.

codebooks -> convolution -> transformer over a window of frames -> the network that makes samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from omnistage_codec.models.qwen3.history import History
from omnistage_codec.models.qwen3.layers import CausalConv
from omnistage_codec.models.qwen3.transformer import AttentionShape, WindowedLayers
from omnistage_codec.models.qwen3.voice import Voice, VoiceShape
from omnistage_codec.models.qwen3.weights import Weights
from omnistage_codec.models.qwen3_tts.config import DecoderConfig
from omnistage_codec.models.qwen3_tts.quantizer import CodebookReader

_PRE_KERNEL = 3


@dataclass(frozen=True)
class FrameTransformer:
    """The transformer over frames, between two projections."""

    input_weight: Tensor
    input_bias: Tensor
    layers: WindowedLayers
    output_weight: Tensor
    output_bias: Tensor

    @staticmethod
    def take(weights: Weights, config: DecoderConfig) -> FrameTransformer:
        width, latent = config.hidden_size, config.latent_dim
        shape = AttentionShape(
            width=width,
            heads=config.num_attention_heads,
            key_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            window=config.sliding_window,
            rope_theta=config.rope_theta,
        )
        return FrameTransformer(
            input_weight=weights.take("input_proj.weight", width, latent),
            input_bias=weights.take("input_proj.bias", width),
            layers=WindowedLayers.take(
                weights, shape, config.num_hidden_layers, config.intermediate_size, config.rms_norm_eps
            ),
            output_weight=weights.take("output_proj.weight", latent, width),
            output_bias=weights.take("output_proj.bias", latent),
        )

    def __call__(self, x: Tensor, first_positions: Tensor, history: History) -> Tensor:
        x = self.layers(functional.linear(x, self.input_weight, self.input_bias), first_positions, history)
        return functional.linear(x, self.output_weight, self.output_bias)


@dataclass(frozen=True)
class Decoder:
    """The whole network; implements `Network`.

    Attributes:
        voice_memory_frames: how many frames back the second part sees, rounded up.
    """

    semantic: CodebookReader
    acoustic: CodebookReader
    semantic_groups: int
    pre: CausalConv
    transformer: FrameTransformer
    waves: Voice
    voice_memory_frames: int

    @staticmethod
    def take(weights: Weights, config: DecoderConfig) -> Decoder:
        """Build it from a checkpoint's weights below "decoder". Raises ConfigError where they do not fit the config."""
        semantic, acoustic = _take_codebooks(weights.below("quantizer"), config)
        shape = VoiceShape(
            latent_width=config.latent_dim,
            width=config.decoder_dim,
            latent_ratios=config.upsampling_ratios,
            rates=config.upsample_rates,
            cut_first=False,
        )
        return Decoder(
            semantic=semantic,
            acoustic=acoustic,
            semantic_groups=config.num_semantic_quantizers,
            pre=CausalConv.take(weights.below("pre_conv"), config.codebook_dim, config.latent_dim, _PRE_KERNEL),
            transformer=FrameTransformer.take(weights.below("pre_transformer"), config),
            waves=Voice.take(weights, shape),
            voice_memory_frames=shape.memory_frames,
        )

    @property
    def device(self) -> torch.device:
        return self.pre.weight.device

    @property
    def samples_per_frame(self) -> int:
        return self.waves.shape.samples_per_frame

    def latents(self, codes: Tensor, first_positions: Tensor, history: History) -> Tensor:
        """See `Network.latents`."""
        split = self.semantic_groups
        x = self.semantic(codes[..., :split]) + self.acoustic(codes[..., split:])
        x = self.pre(x.transpose(1, 2), history).transpose(1, 2)
        return self.transformer(x, first_positions, history).transpose(1, 2)

    def voice(self, latents: Tensor, starts: Sequence[int], history: History) -> Tensor:
        """See `Network.voice`."""
        return self.waves(latents, starts, history)


def _take_codebooks(weights: Weights, config: DecoderConfig) -> tuple[CodebookReader, CodebookReader]:
    width = config.codebook_dim // 2
    acoustic = config.num_quantizers - config.num_semantic_quantizers

    def reader(name: str, groups: int) -> CodebookReader:
        return CodebookReader.take(weights.below(name), groups, config.codebook_size, width, config.codebook_dim)

    return reader("rvq_first", config.num_semantic_quantizers), reader("rvq_rest", acoustic)
