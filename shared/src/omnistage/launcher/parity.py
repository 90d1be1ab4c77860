"""`omnistage parity`: every service's comparison with the reference implementations, joined."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from omnistage.launcher.faults import LauncherError
from omnistage.parity import Comparison

SERVICES = ("thinker", "talker", "codec")
"""Services that may have models to compare: those that are installed and have a module `parity`."""


def compare_with_reference(folder: Path) -> list[Comparison]:
    """Rows of all services, each of which runs in a process of its own.

    Raises:
        LauncherError: a service could not compare, or nobody found anything to compare.
    """
    if not folder.is_dir():
        raise LauncherError(f"{folder} is no folder")
    rows = [row for service in SERVICES if _compares(service) for row in _rows_of(service, folder)]
    if not rows:
        raise LauncherError(f"{folder} holds no fixtures of a known model family")
    return rows


def _compares(service: str) -> bool:
    package = importlib.util.find_spec(f"omnistage_{service}")
    places = (package.submodule_search_locations or ()) if package is not None else ()
    return any((Path(place) / "parity.py").exists() or (Path(place) / "parity").is_dir() for place in places)


def _rows_of(service: str, folder: Path) -> list[Comparison]:
    command = [sys.executable, "-m", f"omnistage_{service}", "parity", str(folder.resolve()), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [_row(service, line) for line in done.stdout.splitlines()]
    if done.returncode != 0 and all(row.passed for row in rows):
        raise LauncherError(f"{service}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return rows


def _row(service: str, line: str) -> Comparison:
    fields = json.loads(line)
    return Comparison(
        part=f"{service}: {fields['part']}",
        shape=tuple(fields["shape"]),
        error=fields["error"],
        allowed=fields["allowed"],
    )
