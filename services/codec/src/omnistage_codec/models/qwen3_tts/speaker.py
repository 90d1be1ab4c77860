"""The speaker encoder: a log mel spectrogram to one vector.

ECAPA-TDNN (Desplanques et al., 2020) without batch norms: a dilated convolution, three blocks of cascaded narrow
convolutions with channel gates, all of them aggregated, and pooling by attention over time. Edges are reflected.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from omnistage_codec.models.qwen3.weights import Weights
from omnistage_codec.models.qwen3_tts.config import SpeakerConfig

_SMALLEST_VARIANCE = 1e-12


@dataclass(frozen=True)
class Pointwise:
    """The same matrix for every column."""

    weight: Tensor
    bias: Tensor

    @staticmethod
    def take(weights: Weights, inputs: int, outputs: int) -> Pointwise:
        return Pointwise(weights.take("weight", outputs, inputs, 1), weights.take("bias", outputs))

    def __call__(self, x: Tensor) -> Tensor:
        return functional.conv1d(x, self.weight, self.bias)


@dataclass(frozen=True)
class DelayLayer:
    """A dilated convolution with as many columns out as in, and a rectifier."""

    weight: Tensor
    bias: Tensor
    dilation: int

    @staticmethod
    def take(weights: Weights, inputs: int, outputs: int, kernel: int, dilation: int) -> DelayLayer:
        conv = weights.below("conv")
        return DelayLayer(conv.take("weight", outputs, inputs, kernel), conv.take("bias", outputs), dilation)

    @property
    def padding(self) -> tuple[int, int]:
        """Columns by which the edges are reflected."""
        total = (self.weight.shape[-1] - 1) * self.dilation
        return total // 2, total - total // 2

    def __call__(self, x: Tensor) -> Tensor:
        if any(self.padding):
            x = functional.pad(x, self.padding, mode="reflect")
        return functional.relu(functional.conv1d(x, self.weight, self.bias, dilation=self.dilation))


@dataclass(frozen=True)
class GatedBlock:
    """Slices of channels, each convolved together with what became of the slice before; a gate per channel."""

    entry: DelayLayer
    cascade: tuple[DelayLayer, ...]
    exit: DelayLayer
    squeeze: Pointwise
    excite: Pointwise

    @staticmethod
    def take(weights: Weights, channels: tuple[int, int], shape: tuple[int, int], config: SpeakerConfig) -> GatedBlock:
        """`channels` are those that enter and leave, `shape` is kernel and dilation."""
        (inputs, outputs), (kernel, dilation) = channels, shape
        slice_width = outputs // config.enc_res2net_scale
        cascade = weights.below("res2net_block.blocks")
        gate = weights.below("se_block")
        return GatedBlock(
            entry=DelayLayer.take(weights.below("tdnn1"), inputs, outputs, 1, 1),
            cascade=tuple(
                DelayLayer.take(cascade.below(str(index)), slice_width, slice_width, kernel, dilation)
                for index in range(config.enc_res2net_scale - 1)
            ),
            exit=DelayLayer.take(weights.below("tdnn2"), outputs, outputs, 1, 1),
            squeeze=Pointwise.take(gate.below("conv1"), outputs, config.enc_se_channels),
            excite=Pointwise.take(gate.below("conv2"), config.enc_se_channels, outputs),
        )

    def __call__(self, x: Tensor) -> Tensor:
        first, *slices = self.entry(x).chunk(len(self.cascade) + 1, dim=1)
        done = [first]
        for index, (layer, part) in enumerate(zip(self.cascade, slices, strict=True)):
            done.append(layer(part + done[-1] if index else part))
        y = self.exit(torch.cat(done, dim=1))
        gate = torch.sigmoid(self.excite(functional.relu(self.squeeze(y.mean(dim=2, keepdim=True)))))
        return x + gate * y


def _statistics(x: Tensor, share: Tensor | float) -> tuple[Tensor, Tensor]:
    """Mean and deviation over time, [batch, channels, 1] each; `share` is each column's, summing to one."""
    mean = (share * x).sum(dim=2, keepdim=True)
    variance = (share * (x - mean).square()).sum(dim=2, keepdim=True)
    return mean, variance.clamp(min=_SMALLEST_VARIANCE).sqrt()


@dataclass(frozen=True)
class AttentivePooling:
    """Mean and deviation over time, where each channel chooses the columns that count."""

    hidden: DelayLayer
    scores: Pointwise

    def __call__(self, x: Tensor) -> Tensor:
        mean, deviation = _statistics(x, 1.0 / x.shape[2])
        seen = torch.cat((x, mean.expand_as(x), deviation.expand_as(x)), dim=1)
        share = torch.softmax(self.scores(torch.tanh(self.hidden(seen))), dim=2)
        return torch.cat(_statistics(x, share), dim=1)


@dataclass(frozen=True)
class SpeakerEncoder:
    """The whole network."""

    first: DelayLayer
    blocks: tuple[GatedBlock, ...]
    aggregation: DelayLayer
    pooling: AttentivePooling
    output: Pointwise

    @staticmethod
    def take(weights: Weights, config: SpeakerConfig) -> SpeakerEncoder:
        """Build it from weights below "speaker_encoder". Raises ConfigError for one missing or of a wrong shape."""
        channels, kernels, dilations = config.enc_channels, config.enc_kernel_sizes, config.enc_dilations
        blocks = weights.below("blocks")
        inner = range(1, len(channels) - 1)
        total, pooling = channels[-1], weights.below("asp")
        return SpeakerEncoder(
            first=DelayLayer.take(blocks.below("0"), config.mel_dim, channels[0], kernels[0], dilations[0]),
            blocks=tuple(
                GatedBlock.take(
                    blocks.below(str(index)),
                    (channels[index - 1], channels[index]),
                    (kernels[index], dilations[index]),
                    config,
                )
                for index in inner
            ),
            aggregation=DelayLayer.take(
                weights.below("mfa"), sum(channels[index] for index in inner), total, kernels[-1], dilations[-1]
            ),
            pooling=AttentivePooling(
                DelayLayer.take(pooling.below("tdnn"), 3 * total, config.enc_attention_channels, 1, 1),
                Pointwise.take(pooling.below("conv"), config.enc_attention_channels, total),
            ),
            output=Pointwise.take(weights.below("fc"), 2 * total, config.enc_dim),
        )

    @property
    def min_columns(self) -> int:
        """The shortest spectrogram: reflecting needs more columns than are reflected."""
        layers = [self.first, self.aggregation, *(layer for block in self.blocks for layer in block.cascade)]
        return 1 + max(max(layer.padding) for layer in layers)

    def __call__(self, mel: Tensor) -> Tensor:
        """[time, bands], at least `min_columns` -> [enc_dim]."""
        x = self.first(mel.T[None].to(self.output.weight.dtype))
        seen = []
        for block in self.blocks:
            x = block(x)
            seen.append(x)
        pooled = self.pooling(self.aggregation(torch.cat(seen, dim=1)))
        return self.output(pooled)[0, :, 0]
