"""The network that makes samples from latents at 12.5 columns a second; it costs nearly all, and sees some back.

ConvNeXt stages (x2, x2) -> stages of transposed convolution and dilated residual units (x8, x5, x4, x3) -> one channel,
clamped to -1 to 1.

A transposed convolution whose kernel is twice its stride spreads each column over two blocks, so that a block is made
of two columns. Qwen3-TTS cuts the last block off, which belongs to a column that has not come: each block is made of
the present column and the one before. Qwen3-Omni cuts the first one off as well: each block is made of the present
column and the next. That is the same causal network one block late, if nothing is there before the first block that is
whole; what is made of columns before the beginning is therefore zeroed, stage by stage. Those columns are the `lead`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

import torch
from torch import Tensor

from omnistage_codec.models.qwen3.history import History
from omnistage_codec.models.qwen3.layers import (
    DEPTHWISE_KERNEL,
    RESIDUAL_KERNEL,
    CausalConv,
    CausalUpsampling,
    ConvNext,
    ResidualUnit,
    Snake,
)
from omnistage_codec.models.qwen3.weights import Weights

_DILATIONS = (1, 3, 9)
OUTER_KERNEL = 7


@dataclass(frozen=True, kw_only=True)
class VoiceShape:
    """Sizes of the network.

    Attributes:
        latent_width: channels of the latents.
        width: channels after the first convolution; each stage halves them.
        latent_ratios, rates: columns out for each column in, of the ConvNeXt stages and of those after.
        cut_first: whether every transposed convolution of the later stages lacks its first block.
    """

    latent_width: int
    width: int
    latent_ratios: tuple[int, ...]
    rates: tuple[int, ...]
    cut_first: bool

    @property
    def samples_per_frame(self) -> int:
        return prod(self.latent_ratios) * prod(self.rates)

    @property
    def memory_frames(self) -> int:
        """The columns that each layer looks back, in frames, and one for their alignment."""
        rate, frames = 1, 0.0
        for ratio in self.latent_ratios:
            rate *= ratio
            frames += (DEPTHWISE_KERNEL - 1) / rate
        frames += (OUTER_KERNEL - 1) / rate
        for ratio in self.rates:
            frames += 1 / rate
            rate *= ratio
            frames += (RESIDUAL_KERNEL - 1) * sum(_DILATIONS) / rate
        return ceil(frames + (OUTER_KERNEL - 1) / rate) + 1

    def lead(self, stages: int) -> int:
        """Columns before the first whole block, after so many of the later stages."""
        columns = 0
        for rate in self.rates[:stages] if self.cut_first else ():
            columns = (columns + 1) * rate
        return columns


@dataclass(frozen=True)
class _Void:
    """Columns of a stage that are made of nothing: the first `lead` of each stream.

    Attributes:
        starts: frames that each row's stream had before.
        rate: columns of a frame.
    """

    starts: Sequence[int]
    rate: int
    lead: int

    def zeroed(self, x: Tensor) -> Tensor:
        for row, start in enumerate(self.starts):
            columns = self.lead - start * self.rate
            if columns > 0:
                x[row, :, :columns] = 0.0
        return x


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

    def __call__(self, x: Tensor, history: History, void: _Void) -> Tensor:
        x = void.zeroed(self.upsampling(self.activation(x), history))
        for unit in self.units:
            x = void.zeroed(unit(x, history))
        return x


@dataclass(frozen=True)
class Voice:
    """It holds no state: a stream's state is its tails and how many frames it has had."""

    shape: VoiceShape
    latent_stages: tuple[tuple[CausalUpsampling, ConvNext], ...]
    first: CausalConv
    stages: tuple[UpsamplingStage, ...]
    last_activation: Snake
    last: CausalConv

    @staticmethod
    def take(weights: Weights, shape: VoiceShape) -> Voice:
        """Build it from the weights "upsample" and "decoder" below a prefix. Raises ConfigError."""
        channels = [shape.width // 2**stage for stage in range(len(shape.rates) + 1)]
        wave, final = weights.below("decoder"), len(shape.rates) + 1
        return Voice(
            shape=shape,
            latent_stages=tuple(
                _take_latent_stage(weights.below(f"upsample.{index}"), shape.latent_width, ratio)
                for index, ratio in enumerate(shape.latent_ratios)
            ),
            first=CausalConv.take(wave.below("0"), shape.latent_width, channels[0], OUTER_KERNEL),
            stages=tuple(
                UpsamplingStage.take(wave.below(str(index + 1)), channels[index], channels[index + 1], rate)
                for index, rate in enumerate(shape.rates)
            ),
            last_activation=Snake.take(wave.below(str(final)), channels[-1]),
            last=CausalConv.take(wave.below(str(final + 1)), channels[-1], 1, OUTER_KERNEL),
        )

    def __call__(self, latents: Tensor, starts: Sequence[int], history: History) -> Tensor:
        """Make samples.

        Args:
            latents: [batch, latent_width, frames], rows padded on the right.
            starts: frames that each row's stream had before these.
            history: what the network remembers of the rows.

        Returns:
            [batch, frames * samples_per_frame] within -1 to 1; the stream's first `lead` samples are void.
        """
        x = latents
        for upsampling, block in self.latent_stages:
            x = block(upsampling(x, history), history)
        x = self.first(x, history)
        for count, stage in enumerate(self.stages, start=1):
            void = _Void(starts, x.shape[-1] * stage.upsampling.stride // latents.shape[-1], self.shape.lead(count))
            x = stage(x, history, void)
        return torch.clamp(self.last(self.last_activation(x), history).squeeze(1), -1.0, 1.0)


def _take_latent_stage(weights: Weights, channels: int, ratio: int) -> tuple[CausalUpsampling, ConvNext]:
    upsampling = CausalUpsampling.take(weights.below("0"), channels, channels, ratio, ratio)
    return upsampling, ConvNext.take(weights.below("1"), channels)
