"""Attention over pages: the kernels against plain attention, and a row against the same row in company."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from omnistage_kernels._dispatch import forced
from omnistage_kernels._testing import allowed, assert_close, poisoned
from omnistage_kernels.paged_attention import TOLERANCE, paged_decode_attention

DTYPES = list(TOLERANCE)
BLOCK = 16


class Pages:
    """Rows of the given lengths, whose blocks lie in random order; what no row owns is NaN."""

    def __init__(self, lengths: list[int], heads: int, kv_heads: int, width: int, dtype: torch.dtype, device: str):
        wide = max(1, -(-max(lengths) // BLOCK))
        blocks = len(lengths) * wide + 1
        order = torch.randperm(blocks - 1)
        self.kv_heads, self.scale = kv_heads, width**-0.5
        self.query = torch.randn(len(lengths), heads, width).to(device, dtype)
        self.plain = [torch.randn(2, kv_heads, length, width).to(device, dtype) for length in lengths]
        pages = torch.full((2, kv_heads, blocks, BLOCK, width), torch.nan).to(device, dtype)
        tables = torch.full((len(lengths), wide), blocks - 1)
        for row, length in enumerate(lengths):
            for place in range(-(-length // BLOCK)):
                block = int(order[row * wide + place])
                tables[row, place] = block
                part = self.plain[row][:, :, place * BLOCK : (place + 1) * BLOCK]
                pages[:, :, block, : part.shape[2]] = part
        self.keys, self.values = (part.reshape(kv_heads * blocks, BLOCK * width).contiguous() for part in pages)
        self.tables = tables.to(device)
        self.lengths = torch.tensor(lengths, device=device)

    def attend(self, rows: slice = slice(None)) -> Tensor:
        return paged_decode_attention(
            self.query[rows], self.keys, self.values, self.tables[rows], self.lengths[rows],
            kv_heads=self.kv_heads, scale=self.scale,
        )  # fmt: skip

    def expected(self) -> Tensor:
        out = torch.zeros_like(self.query)
        for row, (keys, values) in enumerate(self.plain):
            if keys.shape[1]:
                share = self.query.shape[1] // self.kv_heads
                seen, held = (part.double().repeat_interleave(share, dim=0) for part in (keys, values))
                query = self.query[row].double()[:, None]
                mixed = scaled_dot_product_attention(query, seen, held, scale=self.scale)
                out[row] = mixed[:, 0].to(out.dtype)
        return out


@pytest.mark.usefixtures("matrix_dtype")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("lengths", "heads", "kv_heads", "width"),
    [([1, 5, 16], 2, 2, 16), ([17, 0, 33, 100], 4, 2, 32), ([300, 257, 1], 6, 2, 32), ([600], 2, 1, 16)],
    ids=str,
)
def test_the_kernel_equals_plain_attention(
    lengths: list[int], heads: int, kv_heads: int, width: int, dtype: torch.dtype, device: str
) -> None:
    pages = Pages(lengths, heads, kv_heads, width, dtype, device)
    with forced("triton"), poisoned():
        assert_close(pages.attend(), pages.expected(), allowed(TOLERANCE, dtype, device))


def test_the_reference_is_plain_attention(device: str) -> None:
    pages = Pages([5, 20, 0], 4, 2, 32, torch.float32, device)
    pages.keys.nan_to_num_()
    pages.values.nan_to_num_()
    with forced("reference"):
        assert_close(pages.attend(), pages.expected(), TOLERANCE[torch.float32])


@pytest.mark.usefixtures("matrix_dtype")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_depend_on_its_company(dtype: torch.dtype, device: str) -> None:
    pages = Pages([40, 3, 300, 17], 4, 2, 32, dtype, device)
    with forced("triton"):
        together = pages.attend()
        for row in range(4):
            assert torch.equal(pages.attend(slice(row, row + 1)), together[row : row + 1])


def test_the_measure_sees_a_key_too_many(device: str) -> None:
    pages = Pages([20, 9], 2, 1, 16, torch.float32, device)
    with forced("triton"):
        right = pages.attend()
        pages.lengths -= 1
        with pytest.raises(AssertionError, match="exceeds"):
            assert_close(pages.attend(), right, TOLERANCE[torch.float32])


def test_arguments_that_do_not_fit_are_named() -> None:
    pages = Pages([20, 9], 2, 1, 16, torch.float32, "cpu")
    pages.kv_heads = 3
    with pytest.raises(ValueError, match="query is"):
        pages.attend()
    pages.kv_heads = 1
    pages.tables = pages.tables.int()
    with pytest.raises(TypeError, match="tables are"):
        pages.attend()
    pages.tables, pages.keys = pages.tables.long(), pages.keys[:, :-1]
    with pytest.raises(ValueError, match="keys is"):
        pages.attend()
    pages.query = pages.query[..., :12]
    with pytest.raises(ValueError, match="head_dim"):
        pages.attend()
