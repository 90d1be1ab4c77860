"""What the tests of all operations share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor


def error(out: Tensor, expected: Tensor) -> float:
    """Relative error of norms in float64; NaN anywhere gives NaN, which passes no comparison."""
    wide, truth = out.double(), expected.double()
    if truth.numel() == 0:
        return 0.0
    return float((wide - truth).norm() / truth.norm().clamp(min=1e-30))


def assert_close(out: Tensor, expected: Tensor, tolerance: float) -> None:
    """Shape, dtype and relative error. Raises AssertionError."""
    assert out.shape == expected.shape
    assert out.dtype == expected.dtype
    found = error(out, expected)
    assert found <= tolerance, f"relative error {found:.3g} exceeds {tolerance:.3g}"


def allowed(tolerances: Mapping[torch.dtype, float], dtype: torch.dtype, device: str) -> float:
    """The tolerance of a test. Triton's interpreter cuts float32 to bfloat16 where a GPU rounds: an error of up to one
    unit in the last place (2 ** -7) in place of half, and of one sign."""
    if dtype == torch.bfloat16 and device == "cpu":
        return 4 * tolerances[dtype]
    return tolerances[dtype]


@contextmanager
def poisoned() -> Iterator[None]:
    """Within it `torch.empty` and `torch.empty_like` give NaN, so that an output left unwritten shows."""
    patch = pytest.MonkeyPatch()
    for name in ("empty", "empty_like"):
        plain = getattr(torch, name)

        def filled(*args: object, _plain: object = plain, **kwargs: object) -> Tensor:
            made: Tensor = _plain(*args, **kwargs)  # type: ignore[operator]
            return made.fill_(torch.nan) if made.is_floating_point() else made

        patch.setattr(torch, name, filled)
    try:
        yield
    finally:
        patch.undo()
