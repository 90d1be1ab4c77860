"""Checks of arguments that several operations share."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_floating(name: str, x: Tensor) -> None:
    """Raises TypeError if the dtype is none that the kernels compute with."""
    if x.dtype not in DTYPES:
        raise TypeError(f"{name} is {x.dtype}, not float32, bfloat16 or float16")


def check_like(name: str, x: Tensor, like: Tensor) -> None:
    """Raises TypeError if a tensor has another dtype or device than the first argument."""
    if x.dtype != like.dtype or x.device != like.device:
        raise TypeError(f"{name} is {x.dtype} on {x.device}, not {like.dtype} on {like.device}")


def check_shape(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """Raises ValueError if the shape is another one."""
    if tuple(x.shape) != shape:
        raise ValueError(f"{name} is {tuple(x.shape)}, not {shape}")


def check_dense_rows(name: str, x: Tensor) -> None:
    """Raises ValueError if the last dimension is not contiguous."""
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        raise ValueError(f"the last dimension of {name} is not contiguous")
