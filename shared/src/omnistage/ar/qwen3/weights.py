"""Reads weights from a Hugging Face folder: one safetensors file, or several with an index. Strict about names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from omnistage.ar.qwen3.config import read_json
from omnistage.errors import ConfigError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_NAMED = 5

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

WeightSource = Callable[[str, tuple[int, ...]], Tensor]
"""Gives a weight by name, checked against its shape, in the wanted dtype on the wanted device."""


class Weights:
    """The tensors of a checkpoint below a prefix; use `open_weights`.

    `take` gives each tensor, `check_all_taken` complains about what nobody took.
    """

    def __init__(self, folder: Path, owners: dict[str, Any], *, device: str, dtype: torch.dtype) -> None:
        self._folder = folder
        self._owners = owners
        self._device = device
        self._dtype = dtype
        self._taken: set[str] = set()
        self._missing: list[str] = []

    def has(self, name: str) -> bool:
        return name in self._owners

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A weight. One that is missing is noted for `check_all_taken` and is zeros until then.

        Raises:
            ConfigError: it has another shape, or cannot be read.
        """
        if name not in self._owners:
            self._missing.append(name)
            return torch.zeros(shape, dtype=self._dtype, device=self._device)
        self._taken.add(name)
        try:
            tensor: Tensor = self._owners[name].get_tensor(name)
        except SafetensorError as error:
            raise ConfigError(f"{self._folder}: the tensor {name} cannot be read: {error}") from error
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"{self._folder}: the tensor {name} has shape {tuple(tensor.shape)}, expected is {shape}")
        return tensor.to(device=self._device, dtype=self._dtype)

    def check_all_taken(self) -> None:
        """Refuse a checkpoint with missing or unexpected tensors.

        Raises:
            ConfigError: naming the first of them.
        """
        unexpected = sorted(set(self._owners) - self._taken)
        faults = [
            f"{len(names)} {kind}: {', '.join(names[:_NAMED])}{', …' if len(names) > _NAMED else ''}"
            for kind, names in (("missing", self._missing), ("unexpected", unexpected))
            if names
        ]
        if faults:
            raise ConfigError(f"{self._folder}: the tensors do not match the configuration; {'; '.join(faults)}")


@contextmanager
def open_weights(folder: Path, prefix: str, *, device: str, dtype: str) -> Iterator[Weights]:
    """The weights of a folder whose names begin with `prefix`.

    Args:
        dtype: a key of `DTYPES`; weights of another are converted.

    Raises:
        ConfigError: there are none, a file is damaged, the index names what is not there, or there is no such dtype.
    """
    element = DTYPES.get(dtype)
    if element is None:
        raise ConfigError(f"dtype {dtype!r} is none of: {', '.join(DTYPES)}")
    with ExitStack() as stack:
        owners: dict[str, Any] = {}
        for path, expected in _files(folder).items():
            try:
                file = stack.enter_context(safe_open(str(path), "pt"))
            except (OSError, SafetensorError) as error:
                raise ConfigError(f"{path} cannot be read: {error}") from error
            names = set(file.keys())
            if expected is not None and not expected <= names:
                raise ConfigError(f"{path}: the tensor {min(expected - names)} is missing, which the index puts there")
            owners |= {name: file for name in names if name.startswith(prefix)}
        yield Weights(folder, owners, device=device, dtype=element)


def _files(folder: Path) -> dict[Path, set[str] | None]:
    """Files with weights -> the names that the index says are in each, if there is an index."""
    if (folder / _SINGLE).exists():
        return {folder / _SINGLE: None}
    index = folder / _INDEX
    if not index.exists():
        raise ConfigError(f"{folder} has neither {_SINGLE} nor {_INDEX}")
    files: dict[Path, set[str] | None] = {}
    for name, file in (read_json(index).get("weight_map") or {}).items():
        path = folder / str(file)
        if path.parent != folder:
            raise ConfigError(f"{index}: {file} is not a file of this folder")
        names = files.setdefault(path, set())
        assert names is not None
        names.add(name)
    return files
