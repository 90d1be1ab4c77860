"""File names that come from a file or a message, kept inside the folder that they belong to."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from omnistage.errors import ConfigError

_PART = re.compile(r"[A-Za-z0-9_+=@,()\[\] -][A-Za-z0-9._+=@,()\[\] -]{0,254}|\.[A-Za-z0-9_-][A-Za-z0-9._-]{0,253}")


def inside(folder: Path, name: str) -> Path:
    """The path of a file below a folder.

    The check is of the name alone: a link that the folder's owner has put there may lead anywhere, as those of model
    caches do.

    Args:
        name: relative, "/" between its parts, e.g. "assets/model.onnx".

    Raises:
        ConfigError: absolute, empty, leads out of the folder, or holds characters that file names of models do not.
    """
    parts = PurePosixPath(name).parts
    if not parts or "/".join(parts) != name or not all(_PART.fullmatch(part) for part in parts):
        raise ConfigError(f"{name[:200]!r} is no name of a file inside {folder.name!r}")
    return folder.joinpath(*parts)
