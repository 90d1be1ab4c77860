"""RMSNorm: the kernel against the reference, and a row against the same row in company."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from omnistage_kernels._dispatch import forced
from omnistage_kernels._testing import allowed, assert_close, poisoned
from omnistage_kernels.rms_norm import MAX_WIDTH, TOLERANCE, add_rms_norm, rms_norm

DTYPES = list(TOLERANCE)


def draw(*shape: int, dtype: torch.dtype, device: str) -> Tensor:
    return torch.randn(shape, device=device).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 64), (7, 100), (3, 5, 128), (2, 1024), (1, 3001), (0, 64)], ids=str)
def test_the_kernel_equals_the_reference(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    x, other = (draw(*shape, dtype=dtype, device=device) for _ in range(2))
    weight = draw(shape[-1], dtype=dtype, device=device)
    with forced("reference"):
        alone, (normed, total) = rms_norm(x, weight, 1e-6), add_rms_norm(x, other, weight, 1e-6)
    with forced("triton"), poisoned():
        assert_close(rms_norm(x, weight, 1e-6), alone, allowed(TOLERANCE, dtype, device))
        found, found_total = add_rms_norm(x, other, weight, 1e-6)
    assert_close(found, normed, allowed(TOLERANCE, dtype, device))
    assert_close(found_total, total, 0.0 if device == "cuda" else allowed(TOLERANCE, dtype, device))


def test_rows_with_strides_are_read_in_place(device: str) -> None:
    x = draw(5, 6, 64, dtype=torch.float32, device=device)[:, 1:4]
    weight = draw(64, dtype=torch.float32, device=device)
    with forced("triton"), poisoned():
        assert_close(rms_norm(x, weight, 1e-6), rms_norm(x.contiguous(), weight, 1e-6), 0.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_depend_on_its_company(dtype: torch.dtype, device: str) -> None:
    x, weight = draw(33, 100, dtype=dtype, device=device), draw(100, dtype=dtype, device=device)
    with forced("triton"):
        together = rms_norm(x, weight, 1e-6)
        for rows in (1, 2, 17):
            assert torch.equal(rms_norm(x[-rows:], weight, 1e-6), together[-rows:])


def test_the_measure_sees_another_epsilon(device: str) -> None:
    x, weight = draw(4, 64, dtype=torch.float32, device=device), draw(64, dtype=torch.float32, device=device)
    with forced("triton"), pytest.raises(AssertionError, match="exceeds"):
        assert_close(rms_norm(x, weight, 1e-2), rms_norm(x, weight, 1e-6), TOLERANCE[torch.float32])


def test_arguments_that_do_not_fit_are_named() -> None:
    x = torch.randn(2, 64)
    with pytest.raises(ValueError, match="weight is"):
        rms_norm(x, torch.ones(63), 1e-6)
    with pytest.raises(TypeError, match="weight is"):
        rms_norm(x, torch.ones(64, dtype=torch.bfloat16), 1e-6)
    with pytest.raises(TypeError, match="x is"):
        rms_norm(x.double(), torch.ones(64).double(), 1e-6)
    with pytest.raises(ValueError, match="residual is"):
        add_rms_norm(x, x[:1], torch.ones(64), 1e-6)
    with pytest.raises(ValueError, match="wide"):
        rms_norm(torch.ones(1, MAX_WIDTH + 1), torch.ones(MAX_WIDTH + 1), 1e-6)
