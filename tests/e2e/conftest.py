"""One system for all tests of a module group: two instances of each stage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.system import System, running_system


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system with two instances of each stage."""
    with running_system(
        tmp_path_factory.mktemp("system"), scale="thinker=2,talker=2,codec=2", environment={}
    ) as running:
        yield running
