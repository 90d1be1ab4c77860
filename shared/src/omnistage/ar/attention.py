"""Causal attention over the paged KV cache for torch on any device.

Each query sees the keys up to its own position. Scores and softmax are computed over tables padded to whole blocks;
the weighted sum of values goes by segments of a fixed number of keys, in order. So the order of every sum depends on
positions alone, and a query gives the same bits whether it is computed alone, in a batch, or within a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from omnistage.ar.kv_cache import PagedKVCache
from omnistage.ar.linear import MIN_ROWS
from omnistage.ar.scheduler import Row

SEGMENT_KEYS = 128
"""Keys per partial sum. MKL splits longer sums by their length, from about 192 on, so padding would change them."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a step with equally many queries, attended to in one batched product.

    Attributes:
        tokens: [batch * queries] index of their tokens within the step.
        batch: number of sequences.
        queries: tokens of each.
        gather: index for `PagedKVCache`, [kv_heads * batch * blocks].
        bias: [batch, rows, keys] 0 where visible, else -inf. The rows are the queries of the heads that share a kv
            head, and padding up to `MIN_ROWS`.
    """

    tokens: Tensor
    batch: int
    queries: int
    gather: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What all layers of a step share.

    Attributes:
        num_tokens: tokens of the step.
        write: where their keys and values go, [kv_heads * tokens].
        groups: a partition of the tokens.
        segment: keys per partial sum; None for one sum.
    """

    num_tokens: int
    write: Tensor
    groups: tuple[Group, ...]
    segment: int | None


def plan_attention(
    rows: Sequence[Row], cache: PagedKVCache, *, share: int, batch_invariant: bool = True
) -> AttentionPlan:
    """Lay out a step. Decoding rows are grouped by padded length, each chunk is a group of its own.

    Args:
        rows: of the step, in the order of its tokens.
        cache: where the sequences' blocks lie.
        share: how many heads share a kv head.
        batch_invariant: sum by segments and pad small products, see the module's docstring.
    """
    block_size = cache.shape.block_size
    by_shape: dict[tuple[int, int], list[tuple[int, Row]]] = {}
    slots: list[int] = []
    offset = 0
    for row in rows:
        table = row.sequence.block_table
        positions = range(row.start, row.start + row.count)
        slots += [table[p // block_size] * block_size + p % block_size for p in positions]
        blocks = -(-(row.start + row.count) // block_size)
        # A power of two of blocks: few groups, and no short sequence is padded to more than twice its length.
        key = (1, 1 << (blocks - 1).bit_length()) if row.count == 1 else (row.count, -offset)
        by_shape.setdefault(key, []).append((offset, row))
        offset += row.count
    min_rows = MIN_ROWS if batch_invariant else 1
    groups = tuple(_make_group(members, cache, share, min_rows) for members in by_shape.values())
    write = cache.slot_index(torch.tensor(slots, dtype=torch.int64, device=cache.keys.device)).reshape(-1)
    return AttentionPlan(offset, write, groups, SEGMENT_KEYS if batch_invariant else None)


def _make_group(members: list[tuple[int, Row]], cache: PagedKVCache, share: int, min_rows: int) -> Group:
    device = cache.keys.device
    block_size = cache.shape.block_size
    count = members[0][1].count
    used = [-(-(row.start + count) // block_size) for _, row in members]
    width = max(used)
    tables = [
        row.sequence.block_table[:blocks] + [cache.null_block] * (width - blocks)
        for (_, row), blocks in zip(members, used, strict=True)
    ]
    steps = torch.arange(count, device=device)
    tokens = torch.tensor([offset for offset, _ in members], device=device)[:, None] + steps
    positions = torch.tensor([row.start for _, row in members], device=device)[:, None] + steps
    hidden = torch.arange(width * block_size, device=device)[None, None, :] > positions[:, :, None]
    bias = torch.zeros(hidden.shape, dtype=cache.keys.dtype, device=device).masked_fill_(hidden, -torch.inf)
    bias = bias.repeat_interleave(share, dim=1)
    if bias.shape[1] < min_rows:
        bias = pad(bias, (0, 0, 0, min_rows - bias.shape[1]))
    gather = cache.gather_index(torch.tensor(tables, dtype=torch.int64, device=device))
    return Group(tokens.reshape(-1), len(members), count, gather, bias)


def attend(query: Tensor, plan: AttentionPlan, cache: PagedKVCache, layer: int, *, scale: float) -> Tensor:
    """Attention of all tokens of a step in one layer, after `PagedKVCache.write`.

    Args:
        query: [tokens, heads, head_dim]; heads is a multiple of kv_heads. Rows past `plan.num_tokens` are padding.
        plan: of this step.
        cache: keys and values.
        layer: which one.
        scale: factor of the scores, usually head_dim ** -0.5.

    Returns:
        [tokens, heads * head_dim]; zeros in padding rows.
    """
    out = torch.zeros(query.shape[0], query.shape[1] * query.shape[2], dtype=query.dtype, device=query.device)
    scaled = query * scale
    for group in plan.groups:
        out[group.tokens] = _attend_group(scaled[group.tokens], group, cache, layer, plan.segment)
    return out


def _attend_group(query: Tensor, group: Group, cache: PagedKVCache, layer: int, segment: int | None) -> Tensor:
    kv_heads, head_dim = cache.shape.num_kv_heads, cache.shape.head_dim
    batch, queries = group.batch, group.queries
    share = query.shape[1] // kv_heads
    rows, padded = queries * share, group.bias.shape[1]
    keys = cache.keys[layer].index_select(0, group.gather).view(kv_heads * batch, -1, head_dim)
    values = cache.values[layer].index_select(0, group.gather).view(kv_heads * batch, -1, head_dim)
    # [batch, queries, kv_heads, share, head_dim] -> [kv_heads * batch, queries * share, head_dim]
    folded = query.view(batch, queries, kv_heads, share, head_dim).permute(2, 0, 1, 3, 4)
    folded = folded.reshape(kv_heads * batch, rows, head_dim)
    if rows < padded:
        folded = pad(folded, (0, 0, 0, padded - rows))
    scores = torch.bmm(folded, keys.transpose(1, 2))
    scores.view(kv_heads, *group.bias.shape).add_(group.bias)
    weights = torch.softmax(scores, dim=-1)
    mixed = _mix(weights, values, segment or values.shape[1])[:, :rows]
    mixed = mixed.reshape(kv_heads, batch, queries, share, head_dim).permute(1, 2, 0, 3, 4)
    return mixed.reshape(batch * queries, -1)


def _mix(weights: Tensor, values: Tensor, segment: int) -> Tensor:
    """Weighted sum over keys ([n, rows, keys] by [n, keys, head_dim]), `segment` keys at a time."""
    out = torch.bmm(weights[:, :, :segment], values[:, :segment])
    for start in range(segment, values.shape[1], segment):
        out += torch.bmm(weights[:, :, start : start + segment], values[:, start : start + segment])
    return out
