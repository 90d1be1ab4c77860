"""Tensors of a checkpoint by name, each to be taken exactly once."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from omnistage.config.paths import inside
from omnistage.errors import ConfigError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where and how weights are held.

    Attributes:
        device: torch's name of it.
        dtype: element type that the network computes in.
    """

    device: str = "cpu"
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Weights:
    """Part of a checkpoint: everything below a prefix. Loading is strict: what is missing or left over is a fault."""

    tensors: dict[str, Tensor]
    placement: Placement
    prefix: str = ""
    taken: set[str] = field(default_factory=set)

    def below(self, part: str) -> Weights:
        """The weights below a further part of the name."""
        return Weights(self.tensors, self.placement, f"{self.prefix}{part}.", self.taken)

    def has(self, name: str) -> bool:
        return f"{self.prefix}{name}" in self.tensors

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A weight of its declared shape, on the placement's device.

        Args:
            dtype: element type; None for the placement's.

        Raises:
            ConfigError: there is none of that name, or it has another shape.
        """
        full = f"{self.prefix}{name}"
        found = self.tensors.get(full)
        if found is None:
            raise ConfigError(f"the checkpoint has no weight {full}")
        if tuple(found.shape) != shape:
            raise ConfigError(f"weight {full} is {list(found.shape)}, but the config says {list(shape)}")
        self.taken.add(full)
        return found.to(device=self.placement.device, dtype=dtype or self.placement.dtype)

    def check_all_taken(self) -> None:
        """Raises ConfigError if the checkpoint holds weights that nothing asked for."""
        left = sorted(set(self.tensors) - self.taken)
        if left:
            more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
            raise ConfigError(f"the checkpoint has weights that the config does not explain: {left[:_SHOWN]}{more}")


def read_tensors(folder: Path, prefix: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint folder whose names begin with a prefix, in one file or in shards.

    Raises:
        ConfigError: no such file, or one that cannot be read.
    """
    tensors: dict[str, Tensor] = {}
    for path in _files(folder, prefix):
        try:
            with safe_open(path, framework="pt") as file:
                tensors.update({name: file.get_tensor(name) for name in file.keys() if name.startswith(prefix)})  # noqa: SIM118 - no mapping
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
    return tensors


def _files(folder: Path, prefix: str) -> list[Path]:
    index = folder / _INDEX
    if not index.exists():
        return [folder / _SINGLE]
    try:
        names: dict[str, str] = json.loads(index.read_text())["weight_map"]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{index} cannot be read: {error}") from error
    wanted = {str(file) for weight, file in names.items() if weight.startswith(prefix)}
    return [inside(folder, name) for name in sorted(wanted)]
