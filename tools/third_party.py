"""Print what our packages need from elsewhere, one requirement a line: the part of an image that seldom changes.

python tools/third_party.py shared services/codec
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

_OURS = re.compile(r"omnistage(?:-[a-z]+)?(?:\[(?P<extras>[a-z,]+)\])?[<>=!~ ]")


def _project(folder: Path) -> dict[str, Any]:
    with (folder / "pyproject.toml").open("rb") as file:
        project: dict[str, Any] = tomllib.load(file)["project"]
    return project


def third_party(folders: list[Path]) -> list[str]:
    """Requirements of the packages in these folders, without those on one another.

    An extra of a package of ours that another one asks for is resolved.
    """
    wanted: set[str] = set()
    extras: set[str] = set()
    projects = [_project(folder) for folder in folders]
    for requirement in (entry for project in projects for entry in project["dependencies"]):
        ours = _OURS.match(requirement)
        if ours is None:
            wanted.add(requirement)
        elif ours["extras"]:
            extras |= set(ours["extras"].split(","))
    for project in projects:
        optional = project.get("optional-dependencies", {})
        wanted |= {requirement for extra in extras for requirement in optional.get(extra, [])}
    return sorted(wanted)


if __name__ == "__main__":
    print("\n".join(third_party([Path(argument) for argument in sys.argv[1:]])))
