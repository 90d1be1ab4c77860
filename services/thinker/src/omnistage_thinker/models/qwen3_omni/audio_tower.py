"""The audio tower: log-mel spectrograms at 100 columns a second to 13 results a second, of the decoder's width.

Chunks of a second are convolved apart (a third of the columns by three convolutions of stride two, which leave 13 of
100) and get positions of their own; a transformer then attends within windows of some chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor
from torch.nn.functional import conv2d, gelu, linear, pad

from omnistage.ar.qwen3.weights import WeightSource
from omnistage_thinker.models.qwen3_omni.config import AudioConfig
from omnistage_thinker.models.qwen3_omni.layers import Affine, LayerNorm, attend_within

_CONVOLUTIONS = 3
_NORM_EPS = 1e-5
_LONGEST_WAVE = 10_000.0
"""Of the sinusoidal positions (Vaswani et al., "Attention is all you need", 2017)."""


def halved(size: int) -> int:
    """What three convolutions of stride two leave of so many rows or columns."""
    for _ in range(_CONVOLUTIONS):
        size = (size + 1) // 2
    return size


def audio_tokens(frames: int, chunk_frames: int) -> int:
    """How many results so many columns give."""
    chunks, rest = divmod(frames, chunk_frames)
    return chunks * halved(chunk_frames) + halved(rest)


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: LayerNorm
    query: Affine
    key: Affine
    value: Affine
    output: Affine
    perceptron_norm: LayerNorm
    up: Affine
    down: Affine
    heads: int

    @staticmethod
    def take(take: WeightSource, prefix: str, config: AudioConfig) -> _Layer:
        width, inner = config.width, config.inner
        query, key, value, output = (
            Affine.take(take, f"{prefix}self_attn.{name}", width, width)
            for name in ("q_proj", "k_proj", "v_proj", "out_proj")
        )
        return _Layer(
            attention_norm=LayerNorm.take(take, f"{prefix}self_attn_layer_norm", width, _NORM_EPS),
            query=query,
            key=key,
            value=value,
            output=output,
            perceptron_norm=LayerNorm.take(take, f"{prefix}final_layer_norm", width, _NORM_EPS),
            up=Affine.take(take, f"{prefix}fc1", inner, width),
            down=Affine.take(take, f"{prefix}fc2", width, inner),
            heads=config.heads,
        )

    def __call__(self, x: Tensor, windows: list[int]) -> Tensor:
        normed = self.attention_norm(x)
        queries, keys, values = (
            affine(normed).view(len(x), self.heads, -1) for affine in (self.query, self.key, self.value)
        )
        x = x + self.output(attend_within(queries, keys, values, windows))
        return x + self.down(gelu(self.up(self.perceptron_norm(x))))


class AudioTower:
    """Loaded from the weights below a prefix."""

    def __init__(self, config: AudioConfig, take: WeightSource, prefix: str) -> None:
        self._config = config
        channels, width = config.channels, config.width
        self._convolutions = [
            (
                take(f"{prefix}conv2d{index + 1}.weight", (channels, channels if index else 1, 3, 3)),
                take(f"{prefix}conv2d{index + 1}.bias", (channels,)),
            )
            for index in range(_CONVOLUTIONS)
        ]
        self._flat = take(f"{prefix}conv_out.weight", (width, channels * halved(config.mel_bins)))
        self._layers = [_Layer.take(take, f"{prefix}layers.{index}.", config) for index in range(config.layers)]
        self._norm = LayerNorm.take(take, f"{prefix}ln_post", width, _NORM_EPS)
        self._first = Affine.take(take, f"{prefix}proj1", width, width)
        self._second = Affine.take(take, f"{prefix}proj2", config.output_width, width)
        self._places = _sinusoids(halved(config.chunk_frames), width).to(self._flat)

    def __call__(self, log_mel: Tensor) -> Tensor:
        """One clip; what else is computed beside it changes nothing.

        Args:
            log_mel: [mel_bins, frames], at least one.

        Returns:
            [`audio_tokens`, output_width].
        """
        x = self._convolved(log_mel.to(self._flat))
        window = self._config.window_chunks * halved(min(log_mel.shape[1], self._config.chunk_frames))
        full, rest = divmod(len(x), window)
        windows = [window] * full + ([rest] if rest else [])
        for layer in self._layers:
            x = layer(x, windows)
        return self._second(gelu(self._first(self._norm(x))))

    def _convolved(self, log_mel: Tensor) -> Tensor:
        """[rows, width]: chunks, padded to the longest with zeros, convolved, and cut to their own length again."""
        size = min(self._config.chunk_frames, log_mel.shape[1])
        chunks = torch.split(log_mel, size, dim=1)
        x = torch.stack([pad(chunk, (0, size - chunk.shape[1])) for chunk in chunks])[:, None]
        for weight, bias in self._convolutions:
            x = gelu(conv2d(x, weight, bias, stride=2, padding=1))
        columns = linear(x.permute(0, 3, 1, 2).flatten(2), self._flat)
        columns = columns + self._places[: columns.shape[1]]
        return torch.cat([made[: halved(chunk.shape[1])] for made, chunk in zip(columns, chunks, strict=True)])


def _sinusoids(length: int, width: int) -> Tensor:
    """[length, width]: sines, then cosines, of wavelengths from one to `_LONGEST_WAVE`."""
    half = width // 2
    scales = torch.exp(-log(_LONGEST_WAVE) / (half - 1) * torch.arange(half, dtype=torch.float32))
    angles = torch.arange(length, dtype=torch.float32)[:, None] * scales
    return torch.cat((angles.sin(), angles.cos()), dim=1)
