"""Rotary positions of three axes, for the query and key heads of Qwen3-TTS 0.6B."""

from __future__ import annotations

import torch

from omnistage_kernels import rotary as op
from omnistage_kernels._measure import Case
from omnistage_kernels.rotary import reference

HEADS, WIDTH = 24, 128


def cases(device: str) -> list[Case]:
    """One case for each number of tokens."""
    return [_case(tokens, device) for tokens in (1, 64, 1024)]


def _case(tokens: int, device: str) -> Case:
    def make() -> tuple[object, ...]:
        x = torch.randn(tokens, HEADS, WIDTH, device=device, dtype=torch.bfloat16)
        pairs = torch.arange(WIDTH // 2, device=device)
        positions = torch.randint(0, 2000, (3, tokens), device=device)
        return x, positions, 1e6 ** -(pairs.float() * 2 / WIDTH), pairs % 3

    label = f"{tokens} x {HEADS} x {WIDTH}"
    return Case(label, "bfloat16", op.rotary, reference.rotary, make, 2 * tokens * HEADS * WIDTH * 2)
