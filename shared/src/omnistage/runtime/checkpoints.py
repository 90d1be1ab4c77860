"""Checkpoints of a model hub, downloaded before an engine is built from them, while the process says how far it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from omnistage.config import Download, EngineSpec, NotDownloaded, is_hub_id, locate_checkpoint
from omnistage.observability import get_logger

_log = get_logger(__name__)

_LOG_EVERY_S = 10.0


async def fetched(key: str, spec: EngineSpec, say: Callable[[str], None]) -> EngineSpec:
    """An engine's entry with a checkpoint that lies on this machine; a cancelled download stops.

    Args:
        key: the engine's, for the log.
        say: told now and then, from other threads, what goes on.

    Raises:
        ConfigError: the checkpoint cannot be had.
    """
    name = spec.checkpoint
    if name is None or not is_hub_id(name):
        return spec
    try:
        folder = await asyncio.to_thread(locate_checkpoint, name, None)
    except NotDownloaded:
        download = Download(_teller(key, name, say))
        try:
            folder = await asyncio.to_thread(locate_checkpoint, name, download)
        except asyncio.CancelledError:
            download.stop()
            raise
        _log.info("checkpoint downloaded", engine=key, checkpoint=name)
    return spec.model_copy(update={"checkpoint": str(folder)})


def _teller(key: str, name: str, say: Callable[[str], None]) -> Callable[[int, int], None]:
    logged = time.monotonic() - _LOG_EVERY_S

    def tell(done: int, total: int) -> None:
        nonlocal logged
        say(f"downloading {name}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")
        if time.monotonic() - logged >= _LOG_EVERY_S:
            logged = time.monotonic()
            _log.info("downloading a checkpoint", engine=key, checkpoint=name, bytes=done, total_bytes=total)

    return tell
