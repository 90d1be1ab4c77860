"""Rotary positions: the kernel against the reference on one axis and on three."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from omnistage_kernels._dispatch import forced
from omnistage_kernels._testing import allowed, assert_close, poisoned
from omnistage_kernels.rotary import TOLERANCE, rotary

DTYPES = list(TOLERANCE)


def arguments(tokens: int, heads: int, width: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(tokens, heads, width, device=device).to(dtype)
    positions = torch.randint(0, 2000, (3, tokens), device=device)
    frequencies = 1e6 ** -(torch.arange(width // 2, device=device, dtype=torch.float32) * 2 / width)
    return x, positions, frequencies


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 16), (5, 3, 64), (7, 2, 128), (3, 5, 24)], ids=str)
def test_the_kernel_equals_the_reference(shape: tuple[int, int, int], dtype: torch.dtype, device: str) -> None:
    x, positions, frequencies = arguments(*shape, dtype, device)
    axes = torch.arange(shape[-1] // 2, device=device) % 3
    with forced("reference"):
        one, three = rotary(x, positions[0], frequencies), rotary(x, positions, frequencies, axes)
    with forced("triton"), poisoned():
        assert_close(rotary(x, positions[0], frequencies), one, allowed(TOLERANCE, dtype, device))
        assert_close(rotary(x, positions, frequencies, axes), three, allowed(TOLERANCE, dtype, device))


def test_equal_positions_on_all_axes_are_one_axis(device: str) -> None:
    x, positions, frequencies = arguments(6, 2, 64, torch.float32, device)
    axes = torch.arange(32, device=device) % 3
    with forced("triton"):
        single = rotary(x, positions[0], frequencies)
        assert torch.equal(rotary(x, positions[:1].expand(3, -1), frequencies, axes), single)
        with pytest.raises(AssertionError, match="exceeds"):
            assert_close(rotary(x, positions[0] + 1, frequencies), single, TOLERANCE[torch.float32])


def test_a_row_does_not_depend_on_its_company(device: str) -> None:
    x, positions, frequencies = arguments(9, 2, 64, torch.bfloat16, device)
    with forced("triton"):
        together = rotary(x, positions[0], frequencies)
        assert torch.equal(rotary(x[4:5], positions[0, 4:5], frequencies), together[4:5])


def test_arguments_that_do_not_fit_are_named() -> None:
    x, positions, frequencies = arguments(4, 2, 32, torch.float32, "cpu")
    with pytest.raises(ValueError, match="positions"):
        rotary(x, positions, frequencies)
    with pytest.raises(ValueError, match="frequencies"):
        rotary(x, positions[0], frequencies[:-1])
    with pytest.raises(TypeError, match="frequencies"):
        rotary(x, positions[0], frequencies.double())
    with pytest.raises(ValueError, match="x is"):
        rotary(x[..., :31], positions[0], frequencies)
