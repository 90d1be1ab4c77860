"""One instance of each stage: nobody can take over, so the one that died comes back and goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.chaos.conftest import paced_system
from tests.chaos.test_hang import ENGINES
from tests.support.listening import MIXED, all_ready, differences, heard_of, listen
from tests.support.system import System

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[System]:
    with paced_system(tmp_path_factory.mktemp("single"), root, scale="") as running:
        yield running


@pytest.mark.parametrize("stage", ENGINES)
async def test_the_only_instance_of_a_stage_dies(single: System, stage: str) -> None:
    asks = MIXED if stage == "thinker" else MIXED[1:]
    async with httpx.AsyncClient(base_url=single.url, timeout=180) as client:
        undisturbed = await listen(client, asks)
        (entry,) = single.processes(stage)
        began = 0.0

        async def disturb() -> None:
            nonlocal began
            began = time.monotonic()
            os.kill(entry["pid"], signal.SIGKILL)

        disturbed = await listen(client, asks, disturb)
        print(f"\nonly {stage}: {heard_of(disturbed, began)}")
        assert differences(disturbed, undisturbed) == []
    await all_ready(single)
    (again,) = single.processes(stage)
    assert again["pid"] != entry["pid"]
