"""The gated perceptron: the kernels against the reference, and a row against the same row in company."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from omnistage_kernels._dispatch import forced
from omnistage_kernels._testing import allowed, assert_close, poisoned
from omnistage_kernels.gated_mlp import MAX_ROWS, TOLERANCE, gated_mlp

DTYPES = list(TOLERANCE)


def arguments(rows: int, hidden: int, inner: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(rows, hidden, device=device)
    gate_up = torch.randn(2 * inner, hidden, device=device) * hidden**-0.5
    down = torch.randn(hidden, inner, device=device) * inner**-0.5
    return x.to(dtype), gate_up.to(dtype), down.to(dtype)


@pytest.mark.usefixtures("matrix_dtype")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 64, 128), (3, 64, 256), (17, 128, 64), (0, 64, 64)], ids=str)
def test_the_kernel_equals_the_reference(shape: tuple[int, int, int], dtype: torch.dtype, device: str) -> None:
    x, gate_up, down = arguments(*shape, dtype, device)
    residual = torch.randn_like(x)
    with forced("reference"):
        wide = [part.double() for part in (x, gate_up, down, residual)]
        plain = gated_mlp_in_float64(*wide[:3]).to(dtype)
        added = (wide[3] + gated_mlp_in_float64(*wide[:3])).to(dtype)
        assert_close(gated_mlp(x, gate_up, down), plain, allowed(TOLERANCE, dtype, device))
    with forced("triton"), poisoned():
        assert_close(gated_mlp(x, gate_up, down), plain, allowed(TOLERANCE, dtype, device))
        assert_close(gated_mlp(x, gate_up, down, residual), added, allowed(TOLERANCE, dtype, device))


def gated_mlp_in_float64(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (x @ gate_up.T).chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up) @ down.T


@pytest.mark.usefixtures("matrix_dtype")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_depend_on_its_company(dtype: torch.dtype, device: str) -> None:
    x, gate_up, down = arguments(33, 64, 128, dtype, device)
    with forced("triton"):
        together = gated_mlp(x, gate_up, down)
        for rows in (1, 2, 17):
            assert torch.equal(gated_mlp(x[:rows], gate_up, down), together[:rows])


def test_the_measure_sees_halves_that_are_swapped(device: str) -> None:
    x, gate_up, down = arguments(2, 64, 64, torch.float32, device)
    swapped = torch.cat((gate_up[64:], gate_up[:64]))
    with forced("triton"), pytest.raises(AssertionError, match="exceeds"):
        assert_close(gated_mlp(x, swapped, down), gated_mlp(x, gate_up, down), TOLERANCE[torch.float32])


def test_arguments_that_do_not_fit_are_named() -> None:
    x, gate_up, down = arguments(2, 64, 64, torch.float32, "cpu")
    with pytest.raises(ValueError, match="x is"):
        gated_mlp(torch.zeros(MAX_ROWS + 1, 64), gate_up, down)
    with pytest.raises(ValueError, match="gate_up is"):
        gated_mlp(x, gate_up[:-1], down)
    with pytest.raises(ValueError, match="multiples of 64"):
        gated_mlp(x, gate_up[:66], down[:, :33])
    with pytest.raises(ValueError, match="residual is"):
        gated_mlp(x, gate_up, down, x[:1])
    with pytest.raises(ValueError, match="not contiguous"):
        gated_mlp(x, gate_up, down.T.contiguous().T)
