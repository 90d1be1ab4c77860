"""Rotary positions (Su et al., "RoFormer", 2021): pairs of channels turn by angles that grow with the position.

Multimodal positions have three axes (time, height, width), and each pair follows one of them. Where the axes are
interleaved, the pairs take turns from the fastest on: time, height, width, time, ..., as long as an axis has pairs
left; time has the rest ("Qwen3-VL technical report", 2025).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from omnistage.ar.qwen3.config import DecoderConfig
from omnistage.errors import ConfigError

Rotary = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Positions -> cosines and sines [tokens, 1, head_dim / 2]."""

RotaryMaker = Callable[[DecoderConfig, Tensor], Rotary]
"""(sizes, a tensor of the wanted dtype on the wanted device) -> rotary."""


def plain(length: int) -> RotaryMaker:
    """One axis, or several that are always equal; positions are [tokens] int64 below `length`."""

    def make(config: DecoderConfig, like: Tensor) -> Rotary:
        angles = torch.arange(length, dtype=torch.float32)[:, None] * _frequencies(config)[None, :]
        cos, sin = (function(angles)[:, None, :].to(like) for function in (torch.cos, torch.sin))
        return lambda positions: (cos[positions], sin[positions])

    return make


def interleaved(config: DecoderConfig, like: Tensor) -> Rotary:
    """Three axes; positions are [3, tokens] float32. Raises ConfigError if the config states no sections."""
    if config.sections is None:
        raise ConfigError("mrope_section is missing")
    axes = axes_of_pairs(config.sections).to(like.device)
    frequencies = _frequencies(config).to(like.device)

    def rotary(positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[axes].T * frequencies
        return torch.cos(angles)[:, None].to(like.dtype), torch.sin(angles)[:, None].to(like.dtype)

    return rotary


def axes_of_pairs(sections: tuple[int, int, int]) -> Tensor:
    """[head_dim / 2] int64, the axis that each pair follows."""
    axes = torch.zeros(sum(sections), dtype=torch.int64)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return axes


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (i, i + head_dim / 2) of [tokens, heads, head_dim] by the angles of their positions."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _frequencies(config: DecoderConfig) -> Tensor:
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    return 1.0 / config.rope_theta**exponents
