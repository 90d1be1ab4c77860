"""The decoder: codes at 12.5 frames a second to 24 kHz, 1920 samples a frame, without look-ahead.

codebooks -> convolution -> transformer over a window of frames -> ConvNeXt stages (x2, x2) -> stages of transposed
convolution and dilated residual units (x8, x5, x4, x3) -> one channel, clamped to -1 to 1.

It runs in two parts. The first, up to the transformer, sees hundreds of frames back and costs little; the second makes
the samples, costs nearly all, and sees only some frames back. So frames that nobody hears run through the first alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

import torch
from torch import Tensor
from torch.nn import functional

from omnistage_codec.models.qwen3_tts.config import DecoderConfig
from omnistage_codec.models.qwen3_tts.history import History
from omnistage_codec.models.qwen3_tts.layers import (
    DEPTHWISE_KERNEL,
    RESIDUAL_KERNEL,
    CausalConv,
    CausalUpsampling,
    ConvNext,
    ResidualUnit,
    Snake,
)
from omnistage_codec.models.qwen3_tts.quantizer import CodebookReader
from omnistage_codec.models.qwen3_tts.transformer import AttentionShape, Layer, RmsNorm, take_gated_layer, view
from omnistage_codec.models.qwen3_tts.weights import Weights

_DILATIONS = (1, 3, 9)
_PRE_KERNEL = 3
_OUTER_KERNEL = 7


@dataclass(frozen=True)
class FrameTransformer:
    """The transformer over frames, between two projections."""

    shape: AttentionShape
    input_weight: Tensor
    input_bias: Tensor
    layers: tuple[Layer, ...]
    norm: RmsNorm
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
            shape=shape,
            input_weight=weights.take("input_proj.weight", width, latent),
            input_bias=weights.take("input_proj.bias", width),
            layers=tuple(
                take_gated_layer(weights.below(f"layers.{index}"), shape, config.intermediate_size, config.rms_norm_eps)
                for index in range(config.num_hidden_layers)
            ),
            norm=RmsNorm(weights.take("norm.weight", width), config.rms_norm_eps),
            output_weight=weights.take("output_proj.weight", latent, width),
            output_bias=weights.take("output_proj.bias", latent),
        )

    def __call__(self, x: Tensor, first_positions: Tensor, history: History) -> Tensor:
        x = functional.linear(x, self.input_weight, self.input_bias)
        here = view(self.shape, first_positions, x.shape[1], x.dtype)
        for layer in self.layers:
            x = layer(x, here, history)
        return functional.linear(self.norm(x), self.output_weight, self.output_bias)


@dataclass(frozen=True)
class UpsamplingStage:
    """Fewer channels, more columns: an activated transposed convolution and three dilated residual units."""

    activation: Snake
    upsampling: CausalUpsampling
    units: tuple[ResidualUnit, ...]

    @staticmethod
    def take(weights: Weights, inputs: int, outputs: int, rate: int) -> UpsamplingStage:
        block = weights.below("block")
        return UpsamplingStage(
            Snake.take(block.below("0"), inputs),
            CausalUpsampling.take(block.below("1"), inputs, outputs, 2 * rate, rate),
            tuple(
                ResidualUnit.take(block.below(str(index)), outputs, dilation)
                for index, dilation in enumerate(_DILATIONS, start=2)
            ),
        )

    def __call__(self, x: Tensor, history: History) -> Tensor:
        x = self.upsampling(self.activation(x), history)
        for unit in self.units:
            x = unit(x, history)
        return x


@dataclass(frozen=True)
class Decoder:
    """The whole network. It holds no state: a stream's state is its tails and how many frames it has had.

    Attributes:
        samples_per_frame: samples that a frame makes.
        voice_memory_frames: how many frames back the second part sees, rounded up.
    """

    semantic: CodebookReader
    acoustic: CodebookReader
    semantic_groups: int
    pre: CausalConv
    transformer: FrameTransformer
    latent_stages: tuple[tuple[CausalUpsampling, ConvNext], ...]
    first: CausalConv
    stages: tuple[UpsamplingStage, ...]
    last_activation: Snake
    last: CausalConv
    samples_per_frame: int
    voice_memory_frames: int

    @staticmethod
    def take(weights: Weights, config: DecoderConfig) -> Decoder:
        """Build it from a checkpoint's weights below "decoder". Raises ConfigError where they do not fit the config."""
        channels = [config.decoder_dim // 2**stage for stage in range(len(config.upsample_rates) + 1)]
        wave = weights.below("decoder")
        final = len(config.upsample_rates) + 1
        semantic, acoustic = _take_codebooks(weights.below("quantizer"), config)
        return Decoder(
            semantic=semantic,
            acoustic=acoustic,
            semantic_groups=config.num_semantic_quantizers,
            pre=CausalConv.take(weights.below("pre_conv"), config.codebook_dim, config.latent_dim, _PRE_KERNEL),
            transformer=FrameTransformer.take(weights.below("pre_transformer"), config),
            latent_stages=tuple(
                _take_latent_stage(weights.below(f"upsample.{index}"), config.latent_dim, ratio)
                for index, ratio in enumerate(config.upsampling_ratios)
            ),
            first=CausalConv.take(wave.below("0"), config.latent_dim, channels[0], _OUTER_KERNEL),
            stages=tuple(
                UpsamplingStage.take(wave.below(str(index + 1)), channels[index], channels[index + 1], rate)
                for index, rate in enumerate(config.upsample_rates)
            ),
            last_activation=Snake.take(wave.below(str(final)), channels[-1]),
            last=CausalConv.take(wave.below(str(final + 1)), channels[-1], 1, _OUTER_KERNEL),
            samples_per_frame=prod(config.upsample_rates) * prod(config.upsampling_ratios),
            voice_memory_frames=_voice_memory_frames(config),
        )

    def latents(self, codes: Tensor, first_positions: Tensor, history: History) -> Tensor:
        """The first part.

        Args:
            codes: [batch, frames, groups] int64, rows padded on the right.
            first_positions: [batch] int64, frames that each row has had before.
            history: what this part remembers of the rows.

        Returns:
            [batch, latent_dim, frames].
        """
        split = self.semantic_groups
        x = self.semantic(codes[..., :split]) + self.acoustic(codes[..., split:])
        x = self.pre(x.transpose(1, 2), history).transpose(1, 2)
        return self.transformer(x, first_positions, history).transpose(1, 2)

    def voice(self, latents: Tensor, history: History) -> Tensor:
        """The second part: [batch, latent_dim, frames] -> [batch, frames * samples_per_frame] within -1 to 1."""
        x = latents
        for upsampling, block in self.latent_stages:
            x = block(upsampling(x, history), history)
        x = self.first(x, history)
        for stage in self.stages:
            x = stage(x, history)
        return torch.clamp(self.last(self.last_activation(x), history).squeeze(1), -1.0, 1.0)


def _voice_memory_frames(config: DecoderConfig) -> int:
    """The columns that each layer of the second part looks back, in frames, and one for their alignment."""
    rate, frames = 1, 0.0
    for ratio in config.upsampling_ratios:
        rate *= ratio
        frames += (DEPTHWISE_KERNEL - 1) / rate
    frames += (_OUTER_KERNEL - 1) / rate
    for ratio in config.upsample_rates:
        frames += 1 / rate
        rate *= ratio
        frames += (RESIDUAL_KERNEL - 1) * sum(_DILATIONS) / rate
    return ceil(frames + (_OUTER_KERNEL - 1) / rate) + 1


def _take_codebooks(weights: Weights, config: DecoderConfig) -> tuple[CodebookReader, CodebookReader]:
    width = config.codebook_dim // 2
    acoustic = config.num_quantizers - config.num_semantic_quantizers

    def reader(name: str, groups: int) -> CodebookReader:
        return CodebookReader.take(weights.below(name), groups, config.codebook_size, width, config.codebook_dim)

    return reader("rvq_first", config.num_semantic_quantizers), reader("rvq_rest", acoustic)


def _take_latent_stage(weights: Weights, channels: int, ratio: int) -> tuple[CausalUpsampling, ConvNext]:
    upsampling = CausalUpsampling.take(weights.below("0"), channels, channels, ratio, ratio)
    return upsampling, ConvNext.take(weights.below("1"), channels)
