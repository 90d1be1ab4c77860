"""From a checkpoint's name in the models file to the place where it lies."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from omnistage.config.hub import Download, hub_snapshot, is_hub_id
from omnistage.config.paths import inside
from omnistage.errors import ConfigError

PACKAGE_PREFIX = "package:"
_SHOWN = Download()


def locate_checkpoint(name: str, download: Download | None = _SHOWN) -> Path:
    """Where a checkpoint lies on this machine.

    Args:
        name: "package:NAME/FILE" for a file inside an installed package (which is found, not imported: a package may
            be here for its data alone), "hub:ORGANISATION/NAME@REVISION" for a model hub's, else the path of a file
            or folder.
        download: how to download a hub's checkpoint that is not here yet; None does not. Blocks until it is here.

    Raises:
        NotDownloaded: a hub's checkpoint is not here, and `download` is None.
        ConfigError: nothing is there.
    """
    if is_hub_id(name):
        return hub_snapshot(name, download)
    if not name.startswith(PACKAGE_PREFIX):
        path = Path(name).expanduser()
    else:
        package, _, file = name.removeprefix(PACKAGE_PREFIX).partition("/")
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError(f"checkpoint {name}: the package {package!r} is not installed")
        path = inside(Path(spec.submodule_search_locations[0]), file)
        if not path.exists():
            raise ConfigError(f"checkpoint {name}: the package {package!r} has no file {file!r}")
    if not path.exists():
        raise ConfigError(f"checkpoint {name}: {path} does not exist")
    if path.is_dir() and not any(path.iterdir()):
        raise ConfigError(f"checkpoint {name}: {path} is empty")
    return path
