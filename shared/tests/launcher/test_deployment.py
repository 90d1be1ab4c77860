"""What an instance is told: its share of the shared memory, unless the environment says another."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from omnistage.launcher.deployment import Deployment, arena_mb
from omnistage.launcher.folder import DataFolder

ROOT = Path(__file__).parents[3]

COUNTS = {"gateway": 1, "thinker": 1, "talker": 2, "codec": 1}
"""Together they want 16 + 16 + 2 * 192 + 64 = 480 MiB."""

Usage = namedtuple("Usage", ["free"])


@pytest.mark.parametrize(
    ("free_mb", "sizes"),
    [
        (4096, (16, 16, 192, 64)),
        (960, (16, 16, 192, 64)),
        (480, (8, 8, 96, 32)),
        (64, (0, 0, 12, 4)),
        (0, (0, 0, 0, 0)),
    ],
)
def test_shared_memory_goes_by_need_within_half_of_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mb: int, sizes: tuple[int, ...]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(free_mb << 20))
    assert tuple(arena_mb(DataFolder(tmp_path), COUNTS).values()) == sizes


def test_containers_and_docs_name_the_same_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(4096 << 20))
    sizes = arena_mb(DataFolder(tmp_path), COUNTS)
    compose = (ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8")
    for service, size in sizes.items():
        assert f"OMNISTAGE_ARENA_MB: ${{OMNISTAGE_{service.upper()}_ARENA_MB:-{size}}}" in compose
    told = "talker {talker} MiB, codec {codec} MiB, thinker and gateway {gateway} MiB each".format(**sizes)
    assert told in (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert sizes["gateway"] == sizes["thinker"]


@pytest.mark.parametrize(("said", "told"), [(None, "192"), ("7", "7")])
def test_the_environment_may_say_another_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None, told: str
) -> None:
    monkeypatch.delenv("OMNISTAGE_ARENA_MB", raising=False)
    if said is not None:
        monkeypatch.setenv("OMNISTAGE_ARENA_MB", said)
    deployment = Deployment(
        folder=DataFolder(tmp_path),
        models=(),
        namespace="n",
        host="h",
        port=1,
        listening_fd=0,
        bus_url="nats://x",
        bus_user="u",
        bus_password="p",
        redis_url="r",
        arena_mb={"talker": 192},
    )
    assert deployment.spec("talker", 1).environment["OMNISTAGE_ARENA_MB"] == told
