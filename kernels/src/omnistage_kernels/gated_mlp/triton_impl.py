"""The gated perceptron in Triton, as two kernels that read each weight once for up to 128 rows.

The weights are the tall side of each product: their rows fill the matrix unit's tiles, and the few rows of `x` are its
narrow side. So the order of sums does not depend on the number of rows, and no row of the unit is wasted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from omnistage_kernels._tiles import ceil_div, power_of_two


@dataclass(frozen=True, slots=True)
class Tiles:
    """Attributes:
    features: rows of the weights in a program.
    depth: elements of a row in a step.
    warps, stages: of a program.
    splits: parts into which the sums of the second product are divided, each a program of its own.
    """

    features: int = 16
    depth: int = 64
    warps: int = 4
    stages: int = 4
    splits: int = 1


UP, DOWN = Tiles(depth=128), Tiles(depth=128, splits=4)
_MIN_ROWS, _MAX_ROWS = 16, 128


def run(
    x: Tensor, gate_up: Tensor, down: Tensor, residual: Tensor | None, up_tiles: Tiles = UP, down_tiles: Tiles = DOWN
) -> Tensor:
    """See the package. Tiles are the same for any number of rows."""
    rows, hidden = x.shape
    inner = down.shape[1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    block = min(_MAX_ROWS, max(_MIN_ROWS, power_of_two(rows)))
    precision = "ieee" if x.dtype == torch.float32 else "tf32"
    between = torch.empty((rows, inner), dtype=x.dtype, device=x.device)
    gate_up_kernel[(inner // up_tiles.features, ceil_div(rows, block))](
        x, gate_up, between, rows, inner, hidden, FEATURES=up_tiles.features, ROWS=block,
        DEPTH=_depth(up_tiles, hidden), PRECISION=precision, num_warps=up_tiles.warps, num_stages=up_tiles.stages,
    )  # fmt: skip
    splits = down_tiles.splits if inner % (64 * down_tiles.splits) == 0 else 1
    alone = splits == 1
    parts = out if alone else torch.empty((splits, rows, hidden), dtype=torch.float32, device=x.device)
    added = out if residual is None else residual
    down_kernel[(hidden // down_tiles.features, ceil_div(rows, block), splits)](
        between, down, parts, added, rows, hidden, inner, inner // splits, FEATURES=down_tiles.features, ROWS=block,
        DEPTH=_depth(down_tiles, inner // splits), ADD=alone and residual is not None, PRECISION=precision,
        num_warps=down_tiles.warps, num_stages=down_tiles.stages,
    )  # fmt: skip
    if not alone:
        size = rows * hidden
        join_kernel[(ceil_div(size, 512),)](
            parts, added, out, size, SPLITS=splits, ADD=residual is not None, BLOCK=512, num_warps=4
        )
    return out


def _depth(tiles: Tiles, length: int) -> int:
    depth = tiles.depth
    while length % depth:
        depth //= 2
    return depth


@triton.jit
def gate_up_kernel(
    x, weights, out, rows, inner, hidden,
    FEATURES: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    feature = tl.program_id(0).to(tl.int64) * FEATURES + tl.arange(0, FEATURES)
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = (row < rows)[None, :]
    step = tl.arange(0, DEPTH)
    gate_place = weights + feature[:, None] * hidden + step[None, :]
    up_place = gate_place + inner.to(tl.int64) * hidden
    x_place = x + row[None, :] * hidden + step[:, None]
    gate = tl.zeros([FEATURES, ROWS], tl.float32)
    up = tl.zeros([FEATURES, ROWS], tl.float32)
    for start in range(0, hidden, DEPTH):
        value = tl.load(x_place + start, mask=inside, other=0.0)
        gate = tl.dot(tl.load(gate_place + start), value, gate, input_precision=PRECISION)
        up = tl.dot(tl.load(up_place + start), value, up, input_precision=PRECISION)
    made = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row[None, :] * inner + feature[:, None], made.to(out.dtype.element_ty), mask=inside)


@triton.jit
def down_kernel(
    x, weights, out, residual, rows, hidden, inner, part,
    FEATURES: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, ADD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    feature = tl.program_id(0).to(tl.int64) * FEATURES + tl.arange(0, FEATURES)
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(2).to(tl.int64)
    inside = (row < rows)[None, :]
    step = split * part + tl.arange(0, DEPTH)
    weight_place = weights + feature[:, None] * inner + step[None, :]
    x_place = x + row[None, :] * inner + step[:, None]
    total = tl.zeros([FEATURES, ROWS], tl.float32)
    for start in range(0, part, DEPTH):
        value = tl.load(x_place + start, mask=inside, other=0.0)
        total = tl.dot(tl.load(weight_place + start), value, total, input_precision=PRECISION)
    place = row[None, :] * hidden + feature[:, None]
    if ADD:
        total += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + split * rows * hidden + place, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def join_kernel(parts, residual, out, size, SPLITS: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + split * size + place, mask=inside, other=0.0)
    if ADD:
        total += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)
