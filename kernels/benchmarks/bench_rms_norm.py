"""RMSNorm after a residual, at the widths of Qwen3-TTS 0.6B and 1.7B."""

from __future__ import annotations

import torch

from omnistage_kernels import rms_norm as op
from omnistage_kernels._measure import Case
from omnistage_kernels.rms_norm import reference


def cases(device: str) -> list[Case]:
    """One case for each width and number of rows."""
    return [_case(rows, width, device) for width in (1024, 2048) for rows in (1, 64, 1024)]


def _case(rows: int, width: int, device: str) -> Case:
    def make() -> tuple[object, ...]:
        x, residual = torch.randn(2, rows, width, device=device, dtype=torch.bfloat16)
        return x, residual, torch.randn(width, device=device, dtype=torch.bfloat16), 1e-6

    size = (4 * rows + 1) * width * 2
    return Case(f"{rows} x {width}", "bfloat16", op.add_rms_norm, reference.add_rms_norm, make, size)
