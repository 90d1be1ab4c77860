"""Rotary positions in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary(x: Tensor, positions: Tensor, frequencies: Tensor, axes: Tensor | None = None) -> Tensor:
    """See the package."""
    by_pair = positions[:, None] if axes is None else positions[axes].T
    angles = by_pair.float() * frequencies
    cos, sin = torch.cos(angles)[:, None], torch.sin(angles)[:, None]
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
