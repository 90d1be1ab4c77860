"""Attention of decoding rows, one query each, over keys and values in pages; several heads may share a kv head.

The pages ("Efficient memory management for large language model serving with PagedAttention", Kwon et al., 2023) are
those of one layer; grouped queries are Ainslie et al., "GQA", 2023.
"""

from __future__ import annotations

import torch
from torch import Tensor

from omnistage_kernels._checks import check_dense_rows, check_floating, check_like, check_shape
from omnistage_kernels._dispatch import uses_kernel
from omnistage_kernels.paged_attention import reference

__all__ = ["TOLERANCE", "paged_decode_attention"]

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 6e-3, torch.float16: 1e-3}


def paged_decode_attention(
    query: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor, *, kv_heads: int, scale: float
) -> Tensor:
    """softmax(scale * query keys^T) values over the first `lengths` keys of each row.

    Args:
        query: [rows, heads, head_dim]; heads is a multiple of kv_heads, head_dim a power of two from 16 to 256.
        keys, values: [kv_heads * blocks, block_size * head_dim], the kv head outside; block_size a multiple of 16.
        tables: [rows, width] int64 or int32, blocks of each row in order; what lies past its length is not read.
        lengths: [rows] of the same dtype, 0 to width * block_size.
        kv_heads: number of them.
        scale: of the scores.

    Returns:
        [rows, heads, head_dim], dtype of `query`; zeros where the length is 0.

    Raises:
        TypeError, ValueError: dtype, device or shape do not fit.
    """
    check_floating("query", query)
    check_dense_rows("query", query)
    if query.dim() != 3 or query.shape[1] % kv_heads:
        raise ValueError(f"query is {tuple(query.shape)}, not [rows, a multiple of {kv_heads} heads, head_dim]")
    rows, _, width = query.shape
    if not 16 <= width <= 256 or width & (width - 1):
        raise ValueError(f"head_dim is {width}, not a power of two from 16 to 256")
    for name, part in (("keys", keys), ("values", values)):
        check_like(name, part, query)
        check_shape(name, part, tuple(keys.shape))
        if part.dim() != 2 or part.shape[0] % kv_heads or part.shape[1] % (16 * width) or not part.is_contiguous():
            raise ValueError(f"{name} is {tuple(part.shape)}, not [kv_heads * blocks, block_size * head_dim]")
    check_shape("lengths", lengths, (rows,))
    check_shape("tables", tables, (rows, *tables.shape[1:2]))
    if tables.dtype not in (torch.int32, torch.int64) or tables.dtype != lengths.dtype:
        raise TypeError(f"tables are {tables.dtype}, lengths {lengths.dtype}; both must be int64 or both int32")
    if uses_kernel("paged_decode_attention", query):
        from omnistage_kernels.paged_attention import triton_impl

        return triton_impl.run(query, keys, values, tables, lengths, kv_heads, scale)
    return reference.paged_decode_attention(query, keys, values, tables, lengths, kv_heads=kv_heads, scale=scale)
