"""The project's sources, read once."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Source:
    """A Python file of the project.

    Attributes:
        path: relative to the project's folder.
        text: its content.
    """

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @property
    def where(self) -> str:
        """The path with forward slashes."""
        return self.path.as_posix()

    @property
    def is_test(self) -> bool:
        return "tests" in self.path.parts

    @property
    def is_product(self) -> bool:
        """Whether it is part of a distribution."""
        return "src" in self.path.parts and not self.is_test


def _read(root: Path, folders: list[str]) -> list[Source]:
    files = sorted(file for folder in folders for file in (root / folder).rglob("*.py"))
    return [Source(file.relative_to(root), file.read_text(encoding="utf-8")) for file in files]


@pytest.fixture(scope="session")
def packages(root: Path) -> list[str]:
    """The one list of packages."""
    with (root / "pyproject.toml").open("rb") as file:
        listed = tomllib.load(file)["tool"]["omnistage"]["packages"]
    assert listed
    return list(listed)


@pytest.fixture(scope="session")
def services(packages: list[str]) -> list[str]:
    """Names of the services, e.g. "codec"."""
    return [package.removeprefix("services/") for package in packages if package.startswith("services/")]


@pytest.fixture(scope="session")
def sources(root: Path, packages: list[str]) -> list[Source]:
    """Every Python file of the project."""
    found = _read(root, [*packages, "tests", "tools", "benchmarks"])
    assert len(found) > 50
    return found


@pytest.fixture(scope="session")
def product(sources: list[Source]) -> list[Source]:
    """The files that distributions are made of."""
    return [source for source in sources if source.is_product]
