"""The encoder: a 24 kHz waveform to codes, one frame for each 1920 samples begun.

Strided causal convolutions (/4, /5, /6, /8) -> transformer over a window at 25 positions a second -> one more strided
convolution (/2) -> codebooks. Clips of a batch are padded on the right; before each layer that could see the padding
it is replaced by what the layer would pad the clip with alone, so that a clip's codes do not depend on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from omnistage_codec.models.qwen3.history import History
from omnistage_codec.models.qwen3.transformer import AttentionShape, Layer, take_plain_layer, view
from omnistage_codec.models.qwen3.weights import Weights
from omnistage_codec.models.qwen3_tts.config import EncoderConfig, TokenizerConfig
from omnistage_codec.models.qwen3_tts.quantizer import CodebookSearch

_DOWNSAMPLING = 2


@dataclass(frozen=True)
class Clips:
    """Columns of several clips.

    Attributes:
        columns: [batch, channels, time], padded on the right.
        lengths: [batch] int64, how many columns belong to each clip.
    """

    columns: Tensor
    lengths: Tensor

    def beyond(self) -> Tensor:
        """[batch, 1, time] bool: the columns that are padding."""
        return (torch.arange(self.columns.shape[-1], device=self.lengths.device) >= self.lengths[:, None])[:, None]


@dataclass(frozen=True)
class StridedConv:
    """A causal convolution over as many whole strides as the clip has begun.

    Attributes:
        replicate: whether it is padded with the outermost columns; else with zeros.
    """

    weight: Tensor
    bias: Tensor | None
    stride: int = 1
    dilation: int = 1
    replicate: bool = False

    @staticmethod
    def take(
        weights: Weights, inputs: int, outputs: int, kernel: int, *, stride: int = 1, dilation: int = 1
    ) -> StridedConv:
        conv = weights.below("conv")
        return StridedConv(
            conv.take("weight", outputs, inputs, kernel), conv.take("bias", outputs), stride=stride, dilation=dilation
        )

    def __call__(self, clips: Clips) -> Clips:
        x = clips.columns
        if self.replicate:
            last = x.gather(-1, (clips.lengths - 1)[:, None, None].expand(-1, x.shape[1], 1))
            x = torch.where(clips.beyond(), last, x)
        elif self.stride > 1:
            x = x.masked_fill(clips.beyond(), 0.0)
        before = (self.weight.shape[-1] - 1) * self.dilation + 1 - self.stride
        after = -x.shape[-1] % self.stride
        x = functional.pad(x, (before, after), mode="replicate" if self.replicate else "constant")
        y = functional.conv1d(x, self.weight, self.bias, stride=self.stride, dilation=self.dilation)
        return Clips(y, -(-clips.lengths // self.stride))


@dataclass(frozen=True)
class ResidualBlock:
    """Two activated convolutions, the first of them dilated, through fewer channels, added to their input."""

    narrowing: StridedConv
    widening: StridedConv

    @staticmethod
    def take(weights: Weights, channels: int, config: EncoderConfig, depth: int) -> ResidualBlock:
        inner = channels // config.compress
        dilation = config.dilation_growth_rate**depth
        return ResidualBlock(
            StridedConv.take(weights.below("block.1"), channels, inner, config.residual_kernel_size, dilation=dilation),
            StridedConv.take(weights.below("block.3"), inner, channels, 1),
        )

    def __call__(self, clips: Clips) -> Clips:
        inner = self.narrowing(Clips(functional.elu(clips.columns), clips.lengths))
        return Clips(
            clips.columns + self.widening(Clips(functional.elu(inner.columns), inner.lengths)).columns, clips.lengths
        )


@dataclass(frozen=True)
class WaveEncoder:
    """Samples to columns at 25 a second."""

    first: StridedConv
    stages: tuple[tuple[tuple[ResidualBlock, ...], StridedConv], ...]
    last: StridedConv

    @staticmethod
    def take(weights: Weights, config: EncoderConfig) -> WaveEncoder:
        layers, channels, index = weights.below("layers"), config.num_filters, 1
        first = StridedConv.take(layers.below("0"), 1, channels, config.kernel_size)
        stages = []
        for rate in reversed(config.upsampling_ratios):
            blocks = tuple(
                ResidualBlock.take(layers.below(str(index + depth)), channels, config, depth)
                for depth in range(config.num_residual_layers)
            )
            index += config.num_residual_layers + 1  # one more for the activation between
            down = StridedConv.take(layers.below(str(index)), channels, 2 * channels, 2 * rate, stride=rate)
            stages.append((blocks, down))
            channels, index = 2 * channels, index + 1
        last = StridedConv.take(layers.below(str(index + 1)), channels, config.hidden_size, config.last_kernel_size)
        return WaveEncoder(first, tuple(stages), last)

    def __call__(self, clips: Clips) -> Clips:
        clips = self.first(clips)
        for blocks, down in self.stages:
            for block in blocks:
                clips = block(clips)
            clips = down(Clips(functional.elu(clips.columns), clips.lengths))
        return self.last(Clips(functional.elu(clips.columns), clips.lengths))


@dataclass(frozen=True)
class Encoder:
    """The whole network."""

    wave: WaveEncoder
    shape: AttentionShape
    layers: tuple[Layer, ...]
    downsampling: StridedConv
    semantic: CodebookSearch
    acoustic: CodebookSearch
    groups: int

    @staticmethod
    def take(weights: Weights, config: TokenizerConfig) -> Encoder:
        """Build it from a checkpoint's weights below "encoder". Raises ConfigError where they do not fit the config."""
        sizes = config.encoder_config
        width = sizes.hidden_size
        shape = AttentionShape(
            width=width,
            heads=sizes.num_attention_heads,
            key_heads=sizes.num_key_value_heads,
            head_dim=sizes.head_dim,
            window=sizes.sliding_window,
            rope_theta=sizes.rope_theta,
        )
        semantic, acoustic = _take_codebooks(weights.below("quantizer"), sizes)
        down = weights.take("downsample.conv.weight", width, width, 2 * _DOWNSAMPLING)
        return Encoder(
            wave=WaveEncoder.take(weights.below("encoder"), sizes),
            shape=shape,
            layers=tuple(
                take_plain_layer(
                    weights.below(f"encoder_transformer.layers.{index}"), shape, sizes.intermediate_size, sizes.norm_eps
                )
                for index in range(sizes.num_hidden_layers)
            ),
            downsampling=StridedConv(down, None, stride=_DOWNSAMPLING, replicate=True),
            semantic=semantic,
            acoustic=acoustic,
            groups=config.encoder_valid_num_quantizers,
        )

    def __call__(self, clips: Sequence[Tensor]) -> list[Tensor]:
        """Codes [frames, groups] int64 of each clip ([samples], at least one)."""
        lengths = torch.tensor([len(clip) for clip in clips], device=clips[0].device)
        padded = torch.nn.utils.rnn.pad_sequence(list(clips), batch_first=True)[:, None]
        latents = self.latents(self.contexts(self.wave(Clips(padded, lengths))))
        codes = self.codes(latents)
        return [row[:frames] for row, frames in zip(codes, latents.lengths.tolist(), strict=True)]

    def contexts(self, clips: Clips) -> Clips:
        """What the transformer makes of the columns."""
        x = clips.columns.transpose(1, 2)
        here = view(self.shape, torch.zeros_like(clips.lengths), x.shape[1], x.dtype)
        history = History([[] for _ in clips.lengths], [x.shape[1]] * len(clips.lengths))
        for layer in self.layers:
            x = layer(x, here, history)
        return Clips(x.transpose(1, 2), clips.lengths)

    def latents(self, contexts: Clips) -> Clips:
        """One column a frame."""
        return self.downsampling(contexts)

    def codes(self, latents: Clips) -> Tensor:
        """[batch, frames, groups]: both stacks of codebooks look at the same vectors."""
        vectors = latents.columns.transpose(1, 2)
        semantic_groups = len(self.semantic.codebooks)
        semantic = self.semantic(vectors, semantic_groups)
        return torch.cat((semantic, self.acoustic(vectors, self.groups - semantic_groups)), dim=-1)


def _take_codebooks(weights: Weights, config: EncoderConfig) -> tuple[CodebookSearch, CodebookSearch]:
    acoustic = config.num_quantizers - config.num_semantic_quantizers

    def search(name: str, groups: int) -> CodebookSearch:
        part = weights.below(f"{name}_residual_vector_quantizer")
        return CodebookSearch.take(part, groups, config.codebook_size, config.codebook_dim, config.hidden_size)

    return search("semantic", config.num_semantic_quantizers), search("acoustic", acoustic)
