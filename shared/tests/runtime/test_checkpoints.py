"""Before an engine is built its checkpoint is here; while it comes, presence says how far it is."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from omnistage.config import Download, EngineSpec, NotDownloaded
from omnistage.errors import ConfigError
from omnistage.observability import Metrics
from omnistage.runtime import checkpoints
from omnistage.runtime.engines import HostedEngine, Loaded

HUB = "hub:maker/voice@v1"


class Shelf:
    """Stands in for the hub: downloads in steps that the test allows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.here = False
        self.downloads: list[Download] = []
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.over = threading.Event()

    def locate(self, name: str, download: Download | None) -> Path:
        assert name == HUB
        if self.here:
            return self.folder
        if download is None:
            raise NotDownloaded("not yet")
        assert download.tell is not None
        self.downloads.append(download)
        download.tell(3_000_000, 12_000_000)
        self.began.set()
        self.go_on.wait(10)
        self.over.set()
        if download.stopped:
            raise ConfigError("stopped")
        self.here = True
        return self.folder


class Engine:
    async def warm(self) -> None: ...

    async def close(self) -> None: ...


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    shelf = Shelf(tmp_path)
    monkeypatch.setattr(checkpoints, "locate_checkpoint", shelf.locate)
    return shelf


def hosted(checkpoint: str | None) -> HostedEngine:
    return HostedEngine("voice", EngineSpec(service="talker", engine="any", checkpoint=checkpoint))


async def test_the_engine_is_built_from_the_folder_and_says_meanwhile_how_far_it_is(shelf: Shelf) -> None:
    built: list[EngineSpec] = []

    async def load(_key: str, spec: EngineSpec, _metrics: Metrics) -> Loaded:
        built.append(spec)
        return Loaded(Engine())

    engine = hosted(HUB)
    loading = asyncio.ensure_future(engine.load(load, Metrics("talker", "one")))
    await asyncio.to_thread(shelf.began.wait, 10)
    assert engine.status().detail == "downloading hub:maker/voice@v1: 3 of 12 MB"
    assert built == []
    shelf.go_on.set()
    await loading
    assert [spec.checkpoint for spec in built] == [str(shelf.folder)]
    assert engine.ready
    assert engine.status().detail == ""
    again = hosted(HUB)
    await again.load(load, Metrics("talker", "one"))
    assert len(shelf.downloads) == 1


@pytest.mark.parametrize("checkpoint", [None, "package:hibari/x", "/models/voice"])
async def test_other_checkpoints_are_left_to_the_engine(shelf: Shelf, checkpoint: str | None) -> None:
    spec = hosted(checkpoint).spec
    assert await checkpoints.fetched("voice", spec, lambda _detail: None) is spec


async def test_a_cancelled_download_is_stopped(shelf: Shelf) -> None:
    task = asyncio.ensure_future(checkpoints.fetched("voice", hosted(HUB).spec, lambda _detail: None))
    await asyncio.to_thread(shelf.began.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert shelf.downloads[0].stopped
    shelf.go_on.set()
    assert await asyncio.to_thread(shelf.over.wait, 10)


async def test_what_cannot_be_had_is_the_engines_fault_to_tell(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_name: str, _download: Download | None) -> Path:
        raise ConfigError("checkpoint hub:maker/voice@v1: there is no such repository")

    monkeypatch.setattr(checkpoints, "locate_checkpoint", gone)

    async def load(_key: str, _spec: EngineSpec, _metrics: Metrics) -> Loaded:
        raise AssertionError("nothing to load")

    engine = hosted(HUB)
    with pytest.raises(ConfigError, match="no such repository"):
        await engine.load(load, Metrics("talker", "one"))
    assert engine.status().detail == "failed: checkpoint hub:maker/voice@v1: there is no such repository"
