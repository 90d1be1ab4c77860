"""The control socket: answers, refusals, and askers that misbehave."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from omnistage.errors import ConfigError
from omnistage.launcher.control import ask_async, serve_control
from omnistage.launcher.faults import LauncherError, NotRunning


async def echo(request: dict[str, Any]) -> dict[str, Any]:
    return {"got": request}


async def refuse(_: dict[str, Any]) -> dict[str, Any]:
    raise ConfigError("not that")


async def test_requests_and_answers(tmp_path: Path) -> None:
    path = str(tmp_path / "control.sock")
    with pytest.raises(NotRunning, match="does not answer"):
        await ask_async(path, "echo")
    async with serve_control(path, {"echo": echo, "refuse": refuse}):
        assert await ask_async(path, "echo", count=2) == {"got": {"op": "echo", "count": 2}}
        with pytest.raises(LauncherError, match=r"^not that$"):
            await ask_async(path, "refuse")
        with pytest.raises(LauncherError, match="unknown request"):
            await ask_async(path, "other")


@pytest.mark.parametrize("line", [b"", b"\n", b"nonsense\n", b"[1]\n", b'{"op": []}\n', b"\xff\xfe\n"])
async def test_nonsense_does_not_end_the_service(tmp_path: Path, line: bytes) -> None:
    path = str(tmp_path / "control.sock")
    async with serve_control(path, {"echo": echo}):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(line)
        writer.write_eof()
        assert await reader.read() == b'{"error": "unknown request"}\n'
        writer.close()
        assert (await ask_async(path, "echo"))["got"]
