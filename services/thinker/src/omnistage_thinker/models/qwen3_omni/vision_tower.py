"""The vision tower: patches of pictures and videos to results of the decoder's width, one for each square of patches.

A vision transformer whose learned positions are interpolated to a picture's grid, with rotary positions over rows and
columns; each frame attends to itself. The output of some layers goes to the first layers of the decoder as well (Meng
et al., "DeepStack", 2024). Patches come square by square, so that those that are merged are neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu

from omnistage.ar.qwen3.positions import Grid
from omnistage.ar.qwen3.rotary import rotate
from omnistage.ar.qwen3.weights import WeightSource
from omnistage_thinker.models.qwen3_omni.config import VisionConfig
from omnistage_thinker.models.qwen3_omni.layers import Affine, LayerNorm, attend_within

_NORM_EPS = 1e-6
_ROPE_THETA = 10_000.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What pictures are to the decoder.

    Attributes:
        embeds: [tokens, output_width].
        deep: for each of the decoder's first layers, what is added to its output, [tokens, output_width].
    """

    embeds: Tensor
    deep: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: LayerNorm
    qkv: Affine
    output: Affine
    perceptron_norm: LayerNorm
    up: Affine
    down: Affine
    heads: int

    @staticmethod
    def take(take: WeightSource, prefix: str, config: VisionConfig) -> _Layer:
        width, inner = config.width, config.inner
        return _Layer(
            attention_norm=LayerNorm.take(take, f"{prefix}norm1", width, _NORM_EPS),
            qkv=Affine.take(take, f"{prefix}attn.qkv", 3 * width, width),
            output=Affine.take(take, f"{prefix}attn.proj", width, width),
            perceptron_norm=LayerNorm.take(take, f"{prefix}norm2", width, _NORM_EPS),
            up=Affine.take(take, f"{prefix}mlp.linear_fc1", inner, width),
            down=Affine.take(take, f"{prefix}mlp.linear_fc2", width, inner),
            heads=config.heads,
        )

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, frames: list[int]) -> Tensor:
        queries, keys, values = self.qkv(self.attention_norm(x)).view(len(x), 3, self.heads, -1).unbind(1)
        x = x + self.output(attend_within(rotate(queries, cos, sin), rotate(keys, cos, sin), values, frames))
        return x + self.down(gelu(self.up(self.perceptron_norm(x)), approximate="tanh"))


@dataclass(frozen=True, slots=True)
class _Merger:
    """Squares of patches to single rows; the norm is over a patch, or over the whole square."""

    norm: LayerNorm
    first: Affine
    second: Affine

    @staticmethod
    def take(take: WeightSource, prefix: str, config: VisionConfig, *, norm_square: bool) -> _Merger:
        square = config.width * config.merge_size**2
        return _Merger(
            norm=LayerNorm.take(take, f"{prefix}ln_q", square if norm_square else config.width, _NORM_EPS),
            first=Affine.take(take, f"{prefix}mlp.0", square, square),
            second=Affine.take(take, f"{prefix}mlp.2", config.output_width, square),
        )

    def __call__(self, x: Tensor) -> Tensor:
        normed = self.norm(x.view(-1, len(self.norm.weight))).view(-1, self.first.weight.shape[1])
        return self.second(gelu(self.first(normed)))


class VisionTower:
    """Loaded from the weights below a prefix."""

    def __init__(self, config: VisionConfig, take: WeightSource, prefix: str) -> None:
        self._config = config
        patch = (config.channels, config.patch_frames, config.patch_size, config.patch_size)
        weight = take(f"{prefix}patch_embed.proj.weight", (config.width, *patch))
        self._embed = Affine(weight.flatten(1), take(f"{prefix}patch_embed.proj.bias", (config.width,)))
        self._places = take(f"{prefix}pos_embed.weight", (config.grid_size**2, config.width))
        self._layers = [_Layer.take(take, f"{prefix}blocks.{index}.", config) for index in range(config.layers)]
        self._merger = _Merger.take(take, f"{prefix}merger.", config, norm_square=False)
        self._deep = {
            layer: _Merger.take(take, f"{prefix}merger_list.{index}.", config, norm_square=True)
            for index, layer in enumerate(config.deep_layers)
        }

    def __call__(self, patches: Tensor, grids: Sequence[Grid]) -> Seen:
        """Pictures or videos, one after the other.

        Args:
            patches: [patches, channels * patch_frames * patch_size^2], see `patches.to_patches`.
            grids: of each.
        """
        x = self._embed(patches.to(self._places))
        rows_columns = torch.cat([self._rows_columns(grid) for grid in grids]).to(x.device)
        sizes = torch.tensor([grid[1:] for grid in grids for _ in range(grid[0] * grid[1] * grid[2])], device=x.device)
        x = x + self._interpolated(rows_columns, sizes)
        cos, sin = self._turns(rows_columns)
        frames = [height * width for time, height, width in grids for _ in range(time)]
        deep = {}
        for index, layer in enumerate(self._layers):
            x = layer(x, cos, sin, frames)
            if index in self._deep:
                deep[index] = self._deep[index](x)
        return Seen(self._merger(x), tuple(deep[layer] for layer in self._config.deep_layers))

    def _rows_columns(self, grid: Grid) -> Tensor:
        """[patches, 2] int64: where each patch is in its frame."""
        time, height, width = grid
        size = self._config.merge_size
        both = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), dim=-1)
        squares = both.view(height // size, size, width // size, size, 2).transpose(1, 2)
        return squares.reshape(-1, 2).repeat(time, 1)

    def _interpolated(self, rows_columns: Tensor, sizes: Tensor) -> Tensor:
        """The learned grid, stretched over each picture so that the corners meet, between its four nearest places."""
        side = self._config.grid_size
        at = rows_columns * (side - 1) / (sizes - 1).clamp(min=1)
        low = at.floor().long()
        high = (low + 1).clamp(max=side - 1)
        share = at - low
        total = torch.zeros(len(at), self._places.shape[1], dtype=torch.float32, device=at.device)
        for row, row_share in ((low[:, 0], 1 - share[:, 0]), (high[:, 0], share[:, 0])):
            for column, column_share in ((low[:, 1], 1 - share[:, 1]), (high[:, 1], share[:, 1])):
                total = total + self._places[row * side + column] * (row_share * column_share)[:, None]
        return total.to(self._places.dtype)

    def _turns(self, rows_columns: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [patches, 1, head_dim / 2]: a half of the pairs by the row, a half by the column."""
        pairs = self._config.width // self._config.heads // 4
        frequencies = 1.0 / _ROPE_THETA ** (torch.arange(pairs, dtype=torch.float32) / pairs)
        angles = (rows_columns.float()[..., None] * frequencies.to(rows_columns.device)).flatten(1)[:, None]
        return angles.cos().to(self._places.dtype), angles.sin().to(self._places.dtype)
