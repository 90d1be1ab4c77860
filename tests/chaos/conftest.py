"""A system whose engines work at the pace of speech, so that work is in flight."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.system import System, running_system

PACED = """
version: 1
engines:
  smollm2: {slots: 12, settings: {pace: 6}}
  heart: {slots: 12, settings: {pace: 4}}
  heart-wave: {slots: 12, settings: {pace: 1.2}}
"""


@contextmanager
def paced_system(
    folder: Path,
    root: Path,
    environment: Mapping[str, str] | None = None,
    *,
    scale: str = "thinker=2,talker=2,codec=2",
    slots: int = 12,
    within: Sequence[str] = (),
) -> Iterator[System]:
    """Two instances of each stage, if not told otherwise: sound at 1.2 times its speed, 6 tokens per second.

    The talker is faster than the codec: what it writes again after its blocks were lost is paced again.
    """
    overlay = folder / "paced.yaml"
    overlay.write_text(PACED.replace("slots: 12", f"slots: {slots}"))
    models = f"{root / 'deploy' / 'models.yaml'},{overlay}"
    paths = [path for path in ((environment or {}).get("PYTHONPATH"), os.environ.get("PYTHONPATH")) if path]
    given = {**(environment or {}), **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}
    with running_system(folder, scale=scale, models=models, environment=given, within=within) as running:
        yield running


@pytest.fixture(scope="module")
def paced(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[System]:
    """One system for all tests of a module."""
    with paced_system(tmp_path_factory.mktemp("paced"), root) as running:
        yield running
