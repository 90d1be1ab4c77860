"""The bytes of the paged KV cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KVShape:
    """Sizes of the cache of one model."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_blocks: int
    block_size: int


class PagedKVCache:
    """Keys and values by block.

    The kv head is outside of the block, so that gathered blocks of one head are one contiguous run and go into a
    batched product without another copy. One more block than the pool has follows the others: it stays zero and fills
    the tables of short sequences up to the length of the longest.

    Attributes:
        keys: [layers, kv_heads * (blocks + 1), block_size * head_dim].
        values: same.
        null_block: id of the block of zeros.

    Raises:
        ValueError: the block size is no multiple of 16. Vector lanes would then fall differently for different
            lengths, and sums would round differently.
    """

    def __init__(self, shape: KVShape, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        if shape.block_size % 16:
            raise ValueError(f"block_size must be a multiple of 16, not {shape.block_size}")
        self.shape = shape
        self.null_block = shape.num_blocks
        size = (shape.num_layers, shape.num_kv_heads * (shape.num_blocks + 1), shape.block_size * shape.head_dim)
        self.keys = torch.zeros(size, dtype=dtype, device=device)
        self.values = torch.zeros(size, dtype=dtype, device=device)
        self._heads = torch.arange(shape.num_kv_heads, device=device) * (shape.num_blocks + 1)

    def gather_index(self, tables: Tensor) -> Tensor:
        """Rows of a layer's keys that hold the blocks `tables` ([batch, blocks]): [kv_heads * batch * blocks]."""
        return (self._heads[:, None] + tables.reshape(1, -1)).reshape(-1)

    def slot_index(self, slots: Tensor) -> Tensor:
        """Rows of a layer viewed as [.., head_dim] for slots ([tokens], block * block_size + offset).

        Returns:
            [kv_heads, tokens] int64.
        """
        return self._heads[:, None] * self.shape.block_size + slots[None, :]

    def write(self, layer: int, index: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store new tokens of a layer.

        Args:
            layer: which one.
            index: from `slot_index`, flattened.
            keys, values: [tokens, kv_heads, head_dim].
        """
        width = self.shape.head_dim
        self.keys[layer].view(-1, width).index_copy_(0, index, keys.transpose(0, 1).reshape(-1, width))
        self.values[layer].view(-1, width).index_copy_(0, index, values.transpose(0, 1).reshape(-1, width))

    def clear(self, blocks: list[int]) -> None:
        """Zero blocks, so that non-finite numbers of a failed sequence do not outlive it."""
        index = self.gather_index(torch.tensor([blocks], dtype=torch.int64, device=self.keys.device))
        self.keys[:, index] = 0
        self.values[:, index] = 0
