"""What all cross-package tests share."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes long runs only where it is asked for by name, whatever else `-m` selects."""
    for marker in ("chaos", "chaos_long", "load_long"):
        if marker not in config.option.markexpr:
            left_out = [item for item in items if item.get_closest_marker(marker)]
            items[:] = [item for item in items if item not in left_out]
            config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return Path(__file__).resolve().parents[1]
