"""Where and in what a family computes, and from which folder, by the options that it is loaded with."""

from __future__ import annotations

from pathlib import Path

import torch

from omnistage.ar.qwen3.weights import DTYPES
from omnistage.errors import ConfigError
from omnistage_codec.models import ModelOptions
from omnistage_codec.models.qwen3.weights import Placement


def needed_checkpoint(options: ModelOptions, family: str) -> Path:
    """The folder of the checkpoint. Raises ConfigError if none is named."""
    if options.checkpoint is None:
        raise ConfigError(f"a {family} codec engine needs a checkpoint")
    return options.checkpoint


def make_placement(options: ModelOptions) -> Placement:
    """Device and element type. Raises ConfigError for those that cannot be used."""
    dtype = DTYPES.get(options.dtype)
    if dtype is None:
        raise ConfigError(f"dtype {options.dtype!r} is not one of {', '.join(DTYPES)}")
    try:
        torch.empty(0, device=options.device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {options.device!r} cannot be used: {error}") from error
    if dtype == torch.float32:
        # Who asks for float32 asks for the reference's numbers; TF32 keeps ten bits of the mantissa.
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
    return Placement(device=options.device, dtype=dtype)
