"""Attention of decoding rows over paged keys and values, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def paged_decode_attention(
    query: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor, *, kv_heads: int, scale: float
) -> Tensor:
    """See the package."""
    rows, heads, width = query.shape
    share, blocks = heads // kv_heads, keys.shape[0] // kv_heads
    index = torch.arange(kv_heads, device=query.device)[None, :, None] * blocks + tables[:, None, :]
    # [rows, kv_heads, keys of the table, width]
    seen, held = (part[index].view(rows, kv_heads, -1, width).float() for part in (keys, values))
    folded = query.view(rows, kv_heads, share, width).float() * scale
    scores = folded @ seen.transpose(2, 3)
    hidden = torch.arange(seen.shape[2], device=query.device)[None, :] >= lengths[:, None]
    weights = torch.softmax(scores.masked_fill(hidden[:, None, None], -torch.inf), dim=-1)
    mixed = weights.masked_fill((lengths == 0)[:, None, None, None], 0.0) @ held
    return mixed.reshape(rows, heads, width).to(query.dtype)
