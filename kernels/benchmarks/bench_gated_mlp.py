"""The gated perceptron of Qwen3-TTS's code predictor (1024, 3072) and of the 1.7B backbone (2048, 6144)."""

from __future__ import annotations

import torch

from omnistage_kernels import gated_mlp as op
from omnistage_kernels._measure import Case
from omnistage_kernels.gated_mlp import reference


def cases(device: str) -> list[Case]:
    """One case for each shape and number of rows."""
    shapes = ((1024, 3072), (2048, 6144))
    return [_case(rows, hidden, inner, device) for hidden, inner in shapes for rows in (1, 8, 64, 128)]


def _case(rows: int, hidden: int, inner: int, device: str) -> Case:
    def make() -> tuple[object, ...]:
        x = torch.randn(rows, hidden, device=device, dtype=torch.bfloat16)
        gate_up = torch.randn(2 * inner, hidden, device=device, dtype=torch.bfloat16) * hidden**-0.5
        down = torch.randn(hidden, inner, device=device, dtype=torch.bfloat16) * inner**-0.5
        return x, gate_up, down, x

    size = (3 * inner * hidden + 3 * rows * hidden) * 2
    label = f"{rows} x {hidden} x {inner}"
    return Case(label, "bfloat16", op.gated_mlp, reference.gated_mlp, make, size, 6 * rows * hidden * inner)
