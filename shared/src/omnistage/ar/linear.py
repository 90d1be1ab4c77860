"""Matrix products with constant weights: the bulk of a step's time."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

MIN_ROWS = 4
"""Fewer rows than this take other code paths in the CPU libraries (matrix by vector), which round differently. From
here on float32 products were equal bit for bit for every number of rows tried (1 to 512, one thread; MKL and oneDNN).
"""


class Product(Protocol):
    """Maps [rows, in] to [rows, out]."""

    def __call__(self, x: Tensor) -> Tensor: ...


class DenseProduct:
    """x @ weight.T with the library that torch chooses.

    Args:
        weight: [out, in].
    """

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self._weight)


class PackedProduct:
    """x @ weight.T with the weight laid out once for oneDNN's kernels.

    Measured on an AVX-512 AMD processor, one thread, float32, the products of a 135M Llama: 14 ms instead of 36 ms
    for 4 rows, 66 ms instead of 160 ms for 64.
    """

    def __init__(self, weight: Tensor) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 8)

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")
        return out


def make_product(weight: Tensor) -> Product:
    """The fastest product for a weight [out, in] where it lies."""
    packable = weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if packable and hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return PackedProduct(weight)
    return DenseProduct(weight)


def padded(x: Tensor) -> Tensor:
    """Zero rows below x ([rows, width]) up to `padded_length`: a row's results then do not depend on the others."""
    missing = padded_length(x.shape[0]) - x.shape[0]
    return pad(x, (0, 0, 0, missing)) if missing else x


def padded_length(rows: int) -> int:
    """The next multiple of `MIN_ROWS`, which is what products need.

    A multiple, since elementwise functions on a CPU go by 32 numbers at a time and compute the last few, of the last
    row, in another way; widths are multiples of 8, so there are no last few.
    """
    return max(1, -(-rows // MIN_ROWS)) * MIN_ROWS
