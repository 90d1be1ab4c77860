"""Without a GPU the kernels are interpreted; that is decided before any of them is imported."""

from __future__ import annotations

import pytest
import torch

from omnistage_kernels import settings

if not torch.cuda.is_available():
    settings.interpret()


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)


@pytest.fixture
def matrix_dtype(dtype: torch.dtype, device: str) -> torch.dtype:
    """A dtype of matrix products; Triton's interpreter multiplies the bits of bfloat16 as if they were integers."""
    if dtype == torch.bfloat16 and device == "cpu":
        pytest.skip("Triton's interpreter has no matrix product of bfloat16: this one runs on a GPU only")
    return dtype
